use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn section(page: u32, entries: &[(u64, u64, u32)]) -> v1::Prefix {
    v1::Prefix {
        clears: Vec::new(),
        pages: vec![v1::PrefixPage {
            page,
            hashes: entries.iter().map(|e| e.0).collect(),
            workers: entries.iter().map(|e| e.1).collect(),
            tokens: entries.iter().map(|e| e.2).collect(),
        }],
    }
}

proptest! {
    /// Whatever is set, forgotten and cleared, the table says what a plain map says.
    #[test]
    fn the_index_is_a_map(ops in prop::collection::vec((0u8..20, 1u64..200, any::<u64>(), any::<u16>()), 1..600)) {
        let mut index = PrefixIndex::default();
        let mut model: HashMap<u64, Entry> = HashMap::new();
        for (kind, key, workers, tokens) in ops {
            // Spread over the whole range and clustered at both ends, so that runs wrap around the table's end.
            let hash = match key % 3 { 0 => key, 1 => u64::MAX - key, _ => key.wrapping_mul(0x9E37_79B9_7F4A_7C15) }.max(1);
            match kind {
                0 => {
                    index.clear(3, workers);
                    for entry in model.values_mut() { entry.workers &= !workers; }
                    model.retain(|_, entry| entry.workers != 0);
                }
                1..=6 => {
                    index.apply(&section(3, &[(hash, 0, 0)]));
                    model.remove(&hash);
                }
                _ => {
                    index.apply(&section(3, &[(hash, workers, u32::from(tokens))]));
                    if workers == 0 { model.remove(&hash); } else { model.insert(hash, Entry { workers, tokens }); }
                }
            }
            prop_assert_eq!(index.chunks(), model.len());
        }
        for (hash, entry) in &model {
            prop_assert_eq!(index.get(3, *hash), Some(*entry));
        }
        prop_assert_eq!(index.bytes() <= PrefixIndex::bytes_for(model.len().max(600)), true);
    }
}

#[test]
fn the_budget_holds_before_anything_is_applied() {
    let index = PrefixIndex::default();
    let many: Vec<_> = (1..=1000u64).map(|i| (i, 1, 1)).collect();
    let needed = PrefixIndex::bytes_for(1000);
    assert_eq!(index.check(&section(0, &many), needed), Ok(()));
    assert_eq!(
        index.check(&section(0, &many), needed - 1),
        Err(IndexError::Budget { bytes: needed, budget: needed - 1 })
    );
}

#[test]
fn a_damaged_section_is_refused() {
    let index = PrefixIndex::default();
    let mut damaged = section(5, &[(1, 1, 1), (2, 1, 1)]);
    damaged.pages[0].tokens.pop();
    assert_eq!(index.check(&damaged, 1 << 20), Err(IndexError::Lengths { page: 5, hashes: 2, workers: 2, tokens: 1 }));
    assert_eq!(index.check(&section(5, &[(0, 1, 1)]), 1 << 20), Err(IndexError::ZeroHash { page: 5 }));
}

#[test]
fn an_entry_costs_about_twenty_bytes() {
    let per_chunk = PrefixIndex::bytes_for(1_000_000) as f64 / 1e6;
    assert!((18.0..32.0).contains(&per_chunk), "{per_chunk}");
}
