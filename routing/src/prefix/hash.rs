//! Chunk hashes. This is the only implementation: the control service and the filter both call it (invariant P2).

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

/// The seed of a chain of chunk hashes: prompts of different prefix domains, LoRA adapters or cache salts share nothing.
///
/// Every part is preceded by its length, so that no two combinations give the same bytes.
#[must_use]
pub fn namespace_seed(domain: &str, lora: &str, salt: &str) -> u64 {
    let mut state = Xxh3::new();
    state.update(b"kinference.chunks.v1");
    for part in [domain, lora, salt] {
        state.update(&(part.len() as u64).to_le_bytes());
        state.update(part.as_bytes());
    }
    state.digest()
}

/// The hash of one chunk, given the hash of the chunk before it or the namespace's seed: `xxh3_64(bytes, seed = parent)`.
/// Never 0, which stands for an empty place in the index.
#[must_use]
pub fn hash_chunk(bytes: &[u8], parent: u64) -> u64 {
    xxh3_64_with_seed(bytes, parent).max(1)
}

/// The whole chunks of a text, hashed one by one as they are asked for.
#[derive(Debug)]
pub struct Chunks<'a> {
    text: &'a [u8],
    chunk_bytes: usize,
    seed: u64,
    hashes: Vec<u64>,
}

impl<'a> Chunks<'a> {
    /// Cuts `text` every `chunk_bytes` bytes (at least 1); what remains at the end is not a chunk.
    #[must_use]
    pub fn new(text: &'a [u8], chunk_bytes: u32, seed: u64) -> Self {
        Self { text, chunk_bytes: chunk_bytes.max(1) as usize, seed, hashes: Vec::new() }
    }

    /// Number of whole chunks.
    #[must_use]
    pub fn count(&self) -> usize {
        self.text.len() / self.chunk_bytes
    }

    /// Length of a chunk in bytes.
    #[must_use]
    pub fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// Length of the text in bytes.
    #[must_use]
    pub fn text_bytes(&self) -> usize {
        self.text.len()
    }

    /// The hash of chunk `index`, or `None` past the last whole chunk.
    pub fn get(&mut self, index: usize) -> Option<u64> {
        while self.hashes.len() <= index {
            let start = self.hashes.len() * self.chunk_bytes;
            let bytes = self.text.get(start..start + self.chunk_bytes)?;
            let parent = self.hashes.last().copied().unwrap_or(self.seed);
            self.hashes.push(hash_chunk(bytes, parent));
        }
        self.hashes.get(index).copied()
    }

    /// The hashes of all whole chunks.
    pub fn all(&mut self) -> &[u64] {
        if let Some(last) = self.count().checked_sub(1) {
            self.get(last);
        }
        &self.hashes
    }

    /// A key that requests with the same beginning share: the hash of the first chunks (at most four), or of the whole
    /// text when it is shorter than a chunk.
    pub fn affinity_key(&mut self) -> u64 {
        match self.count().min(4).checked_sub(1) {
            Some(last) => self.get(last).unwrap_or(self.seed),
            None => hash_chunk(self.text, self.seed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The figures are those of the reference implementation (xxhash in C).
    #[test]
    fn hashes_are_the_same_on_every_platform() {
        let seed = namespace_seed("default/tiny", "", "");
        assert_eq!(seed, 8_549_163_845_555_242_275);
        assert_eq!(hash_chunk(b"hello", seed), 1_593_950_024_786_338_906);
    }

    #[test]
    fn namespaces_are_apart_even_when_their_parts_concatenate_alike() {
        let seeds = [namespace_seed("ab", "c", ""), namespace_seed("a", "bc", ""), namespace_seed("ab", "", "c")];
        assert_ne!(seeds[0], seeds[1]);
        assert_ne!(seeds[0], seeds[2]);
        assert_ne!(seeds[1], seeds[2]);
    }

    #[test]
    fn lazy_hashes_are_the_chain() {
        let text: Vec<u8> = (0..1000u32).map(|i| (i % 251) as u8).collect();
        let mut chunks = Chunks::new(&text, 256, 7);
        let first = hash_chunk(&text[..256], 7);
        let second = hash_chunk(&text[256..512], first);
        assert_eq!(chunks.get(1), Some(second));
        assert_eq!(chunks.get(0), Some(first));
        assert_eq!(chunks.count(), 3);
        assert_eq!(chunks.get(3), None);
        assert_eq!(chunks.all().len(), 3);
    }

    #[test]
    fn the_affinity_key_depends_on_the_beginning_only() {
        let long = vec![b'x'; 5000];
        let mut longer = long.clone();
        longer.extend_from_slice(b"another end");
        assert_eq!(Chunks::new(&long, 256, 1).affinity_key(), Chunks::new(&longer, 256, 1).affinity_key());
        assert_ne!(Chunks::new(b"a", 256, 1).affinity_key(), Chunks::new(b"b", 256, 1).affinity_key());
    }
}
