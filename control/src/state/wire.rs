//! Sections to encoded messages.

use bytes::Bytes;
use kinference_protocol::v1::{self, control_message::Message};
use prost::Message as _;

/// Parts of full snapshots are no larger than this, save for a configuration that is larger by itself.
pub(super) const PART_BYTES: usize = 1 << 20;
/// Bytes of a part that are left for what is around its entries.
const MARGIN: usize = 4 << 10;
/// Upper bound of one entry of a prefix page on the wire.
const ENTRY_BYTES: usize = 8 + 8 + 5;

/// A full snapshot, encoded.
#[derive(Debug, Clone, PartialEq)]
pub struct Full {
    /// Its epoch.
    pub epoch: u64,
    /// The sequence that it stands for.
    pub sequence: u64,
    /// Encoded `ControlMessage`s, in order.
    pub parts: Vec<Bytes>,
}

fn encode(message: Message) -> Bytes {
    Bytes::from(v1::ControlMessage { message: Some(message) }.encode_to_vec())
}

/// Encodes a full snapshot in parts.
pub(super) fn full(epoch: u64, sequence: u64, sections: Vec<v1::Sections>) -> Full {
    let last = sections.len().saturating_sub(1);
    let parts = sections.into_iter().enumerate().map(|(part, sections)| {
        encode(Message::Snapshot(v1::SnapshotPart {
            epoch,
            sequence,
            part: part as u32,
            last: part == last,
            sections: Some(sections),
        }))
    });
    Full { epoch, sequence, parts: parts.collect() }
}

/// Encodes the delta that leads to `sequence`.
pub(super) fn delta(epoch: u64, sequence: u64, sections: v1::Sections) -> Bytes {
    encode(Message::Delta(v1::Delta { epoch, sequence, sections: Some(sections) }))
}

/// Configuration, workers and prefixes to sections of limited size, the configuration first.
pub(super) fn split(
    config: Option<v1::Config>,
    workers: Option<v1::Workers>,
    prefix: impl IntoIterator<Item = v1::Prefix>,
) -> Vec<v1::Sections> {
    let mut sections = Vec::new();
    let mut current = v1::Sections { config, ..Default::default() };
    let mut left = (PART_BYTES - MARGIN).saturating_sub(current.encoded_len());
    if let Some(mut part) = workers {
        for worker in std::mem::take(&mut part.upsert) {
            let bytes = worker.encoded_len() + 8;
            if bytes > left {
                current.workers = Some(std::mem::take(&mut part));
                sections.push(std::mem::take(&mut current));
                left = PART_BYTES - MARGIN;
            }
            left = left.saturating_sub(bytes);
            part.upsert.push(worker);
        }
        current.workers = Some(part);
    }
    for prefix in prefix {
        for prefix in cut(prefix) {
            if prefix.encoded_len() > left && current != v1::Sections::default() {
                sections.push(std::mem::take(&mut current));
            }
            left = 0;
            current.prefix = Some(prefix);
        }
    }
    if current != v1::Sections::default() || sections.is_empty() {
        sections.push(current);
    }
    sections
}

/// Pieces of at most a part each. Clears come with the first, before all entries.
fn cut(prefix: v1::Prefix) -> Vec<v1::Prefix> {
    let most = (PART_BYTES - MARGIN) / ENTRY_BYTES;
    if prefix.pages.iter().map(|page| page.hashes.len()).sum::<usize>() <= most {
        return vec![prefix];
    }
    let mut pieces = vec![v1::Prefix { clears: prefix.clears, pages: Vec::new() }];
    let mut room = most;
    for mut page in prefix.pages {
        while !page.hashes.is_empty() {
            if room == 0 {
                pieces.push(v1::Prefix::default());
                room = most;
            }
            let rest = page.hashes.len().min(room);
            let tail = v1::PrefixPage {
                page: page.page,
                hashes: page.hashes.split_off(rest),
                workers: page.workers.split_off(rest),
                tokens: page.tokens.split_off(rest),
            };
            room -= rest;
            if let Some(piece) = pieces.last_mut() {
                piece.pages.push(page);
            }
            page = tail;
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(page: u32, chunks: usize) -> v1::PrefixPage {
        v1::PrefixPage {
            page,
            hashes: (1..=chunks as u64).collect(),
            workers: vec![u64::MAX; chunks],
            tokens: vec![u32::MAX; chunks],
        }
    }

    #[test]
    fn parts_are_limited_and_nothing_is_lost() {
        let prefix = v1::Prefix {
            clears: vec![v1::PrefixClear { page: 9, workers: 1 }],
            pages: vec![page(0, 30_000), page(1, 100_000), page(2, 5)],
        };
        let workers = (0..9000).map(|id| v1::Worker { id, name: "x".repeat(200), ..Default::default() }).collect();
        let config = v1::Config { backend: Some(v1::Backend::default()), ..Default::default() };
        let workers = v1::Workers { upsert: workers, removed: vec![7], ..Default::default() };
        let sections = split(Some(config.clone()), Some(workers.clone()), [prefix.clone()]);
        assert!(sections.len() > 3);
        assert_eq!(sections[0].config, Some(config));
        assert_eq!(sections[0].workers.as_ref().unwrap().removed, [7]);
        let seen: Vec<u32> =
            sections.iter().filter_map(|s| s.workers.as_ref()).flat_map(|w| &w.upsert).map(|w| w.id).collect();
        assert_eq!(seen, (0..9000).collect::<Vec<_>>());
        for (page, chunks) in [(0, 30_000), (1, 100_000), (2, 5)] {
            let pages = sections.iter().filter_map(|s| s.prefix.as_ref()).flat_map(|p| &p.pages);
            let hashes: Vec<u64> = pages.filter(|p| p.page == page).flat_map(|p| p.hashes.clone()).collect();
            assert_eq!(hashes, (1..=chunks as u64).collect::<Vec<_>>());
        }
        let first = sections.iter().position(|s| s.prefix.is_some()).unwrap();
        assert_eq!(sections[first].prefix.as_ref().unwrap().clears.len(), 1);

        let full = full(3, 4, sections);
        assert!(
            full.parts.iter().all(|part| part.len() <= PART_BYTES),
            "{:?}",
            full.parts.iter().map(Bytes::len).max()
        );
        let decoded: Vec<_> = full.parts.iter().map(|part| v1::ControlMessage::decode(part.clone()).unwrap()).collect();
        for (at, message) in decoded.iter().enumerate() {
            let Some(Message::Snapshot(part)) = &message.message else { panic!("not a part") };
            assert_eq!((part.part as usize, part.last), (at, at + 1 == decoded.len()));
        }
    }

    #[test]
    fn nothing_is_one_empty_section() {
        assert_eq!(split(None, None, []), [v1::Sections::default()]);
    }
}
