//! Token ids to bytes.

use thiserror::Error;

/// Highest token id; vocabularies have up to about 300,000 entries.
const MAX_ID: u32 = 1 << 22;
/// Marks an id without a token.
const ABSENT: u32 = u32::MAX;

/// A token id or the sum of all tokens' bytes is beyond any vocabulary.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("token id {id} is out of range, or the vocabulary is larger than 1 GiB")]
pub struct VocabularyTooLarge {
    /// The token at which the limit was passed.
    pub id: u32,
}

/// The bytes of every token of a vocabulary.
#[derive(Debug, Clone, Default)]
pub struct TokenBytes {
    /// Start and length within `blob`, by id.
    spans: Vec<(u32, u32)>,
    blob: Vec<u8>,
}

impl TokenBytes {
    /// Builds the map; a later entry for the same id replaces an earlier one.
    ///
    /// # Errors
    /// [`VocabularyTooLarge`] for an id above 2^22 or more than 1 GiB of bytes.
    pub fn new<B: AsRef<[u8]>>(tokens: impl IntoIterator<Item = (u32, B)>) -> Result<Self, VocabularyTooLarge> {
        let mut map = Self::default();
        for (id, bytes) in tokens {
            let bytes = bytes.as_ref();
            if id > MAX_ID || map.blob.len() + bytes.len() > 1 << 30 {
                return Err(VocabularyTooLarge { id });
            }
            let place = id as usize;
            if map.spans.len() <= place {
                map.spans.resize(place + 1, (0, ABSENT));
            }
            map.spans[place] = (map.blob.len() as u32, bytes.len() as u32);
            map.blob.extend_from_slice(bytes);
        }
        map.blob.shrink_to_fit();
        Ok(map)
    }

    /// The bytes of a token; `None` for an id that the vocabulary does not have.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&[u8]> {
        let &(start, length) = self.spans.get(id as usize)?;
        if length == ABSENT {
            return None;
        }
        self.blob.get(start as usize..(start + length) as usize)
    }

    /// Number of ids up to the highest one, including those without a token.
    #[must_use]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there is no token at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The text of these tokens put together; `None` when one is unknown.
    #[must_use]
    pub fn concatenate(&self, ids: &[u32]) -> Option<Vec<u8>> {
        let mut text = Vec::with_capacity(ids.len() * 4);
        for &id in ids {
            text.extend_from_slice(self.get(id)?);
        }
        Some(text)
    }
}

/// GPT-2's table from characters to bytes, the other way around than tokenizers use it: printable bytes stand for
/// themselves, the others for the characters from U+0100 on, in order.
#[derive(Debug)]
pub(super) struct ByteTable {
    /// By character; the table's highest is U+0143.
    bytes: [Option<u8>; 0x144],
}

impl ByteTable {
    pub(super) fn new() -> Self {
        let mut bytes = [None; 0x144];
        let mut next = 0x100;
        for byte in 0..=255u8 {
            if matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) {
                bytes[byte as usize] = Some(byte);
            } else {
                bytes[next] = Some(byte);
                next += 1;
            }
        }
        Self { bytes }
    }

    /// The bytes of a token as a vocabulary spells it; `None` when it has a character that is not in the table.
    pub(super) fn decode(&self, token: &str) -> Option<Vec<u8>> {
        token.chars().map(|c| self.bytes.get(c as usize).copied().flatten()).collect()
    }
}
