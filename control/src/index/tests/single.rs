//! One behaviour each.

use super::*;

fn store_with(workers: &[u32], grid: u32) -> PrefixStore {
    let mut store = PrefixStore::new(grid, u64::MAX);
    store.add_domain(1, "domain", Some(vocabulary()), 1000);
    for worker in workers {
        store.add_worker(*worker, 1).unwrap();
    }
    store
}

fn claims(store: &mut PrefixStore, worker: u32) -> BTreeSet<u64> {
    let mut filter = Filter::default();
    filter.replace(store);
    filter.claims(worker)
}

/// Chunks of a path's text, first to last.
fn chunks(path: &Path, grid: u32) -> Vec<u64> {
    path.chunks(path.kinds.len() - 1, "domain", grid, &vocabulary()).unwrap()
}

#[test]
fn three_stored_and_two_removed_is_still_held() {
    let mut store = store_with(&[3], 8);
    let path = Path::new(0, &[0, 1]);
    store.apply(3, &KvEvent::Stored(path.stored(0))).unwrap();
    for _ in 0..2 {
        let applied = store.apply(3, &KvEvent::Stored(path.stored(1))).unwrap();
        assert_eq!(applied.copies, 1);
    }
    store.apply(3, &removed(&[path.hash(1), path.hash(1)])).unwrap();
    assert_eq!(claims(&mut store, 3).len(), chunks(&path, 8).len());
    store.apply(3, &removed(&[path.hash(1)])).unwrap();
    assert_eq!(claims(&mut store, 3).len(), chunks(&Path::new(0, &[0]), 8).len());
}

#[test]
fn copies_of_a_prompt_of_one_block_are_counted_too() {
    let mut store = store_with(&[3], 8);
    let path = Path::new(0, &[0]);
    for _ in 0..3 {
        store.apply(3, &KvEvent::Stored(path.stored(0))).unwrap();
    }
    store.apply(3, &removed(&[path.hash(0), path.hash(0)])).unwrap();
    assert!(!claims(&mut store, 3).is_empty());
    store.apply(3, &removed(&[path.hash(0)])).unwrap();
    assert!(claims(&mut store, 3).is_empty());
}

#[test]
fn a_full_report_heals_and_makes_no_copy() {
    let mut store = store_with(&[0], 8);
    let path = Path::new(0, &[0, 1, 2]);
    store.apply(0, &KvEvent::Stored(path.stored(1))).unwrap();
    assert!(claims(&mut store, 0).is_empty());
    let applied = store.apply(0, &KvEvent::Stored(path.stored(0))).unwrap();
    assert_eq!((applied.stored, applied.reported, applied.copies), (1, 2, 0));
    assert_eq!(claims(&mut store, 0).len(), chunks(&path, 8).len());
    store.apply(0, &removed(&[path.hash(2), path.hash(1), path.hash(0)])).unwrap();
    assert!(claims(&mut store, 0).is_empty());
    assert_eq!(store.stats().workers[&0], WorkerStats::default());
}

#[test]
fn an_engine_that_says_new_makes_a_copy_from_the_root_too() {
    let mut store = store_with(&[0], 8);
    let path = Path::new(0, &[0, 1]);
    let event = KvEvent::Stored(Stored { reused: Some(false), ..path.stored(0) });
    for _ in 0..2 {
        store.apply(0, &event).unwrap();
    }
    store.apply(0, &removed(&[path.hash(0), path.hash(1)])).unwrap();
    assert_eq!(claims(&mut store, 0).len(), chunks(&path, 8).len());
}

#[test]
fn a_hole_in_the_middle_ends_the_claim_until_it_is_filled() {
    let mut store = store_with(&[0], 8);
    let path = Path::new(0, &[0, 1, 2, 3]);
    store.apply(0, &KvEvent::Stored(path.stored(0))).unwrap();
    let whole = claims(&mut store, 0);
    store.apply(0, &removed(&[path.hash(1)])).unwrap();
    assert_eq!(claims(&mut store, 0).len(), chunks(&Path::new(0, &[0]), 8).len());
    let again = Path::new(0, &[0, 1]);
    store.apply(0, &KvEvent::Stored(again.stored(1))).unwrap();
    assert_eq!(claims(&mut store, 0), whole);
}

#[test]
fn a_parent_that_comes_later_roots_what_waited_for_it() {
    let mut store = store_with(&[0], 8);
    let path = Path::new(0, &[0, 1, 2]);
    store.apply(0, &KvEvent::Stored(path.stored(2))).unwrap();
    store.apply(0, &KvEvent::Stored(Path::new(0, &[0, 1]).stored(1))).unwrap();
    assert!(claims(&mut store, 0).is_empty());
    store.apply(0, &KvEvent::Stored(Path::new(0, &[0]).stored(0))).unwrap();
    assert_eq!(claims(&mut store, 0).len(), chunks(&path, 8).len());
}

#[test]
fn what_cannot_be_mapped_ends_the_chain() {
    let mut store = store_with(&[0], 8);
    let path = Path::new(0, &[0, 1, 2]);
    let event = Stored { mappable: 1, token_ids: tokens_of(0).to_vec(), ..path.stored(0) };
    store.apply(0, &KvEvent::Stored(event)).unwrap();
    assert_eq!(claims(&mut store, 0).len(), chunks(&Path::new(0, &[0]), 8).len());
    // A block below an opaque one, and one with a token that nobody knows.
    store.apply(0, &KvEvent::Stored(Path::new(0, &[0, 1, 2, 3]).stored(3))).unwrap();
    let unknown = Path::new(0, &[0, 4, 0]);
    store.apply(0, &KvEvent::Stored(unknown.stored(1))).unwrap();
    assert_eq!(claims(&mut store, 0).len(), chunks(&Path::new(0, &[0]), 8).len());
    assert_eq!(store.stats().workers[&0].blocks, 6);
}

#[test]
fn namespaces_are_apart() {
    let mut store = store_with(&[0], 8);
    let (plain, salted) = (Path::new(0, &[0, 1]), Path::new(1, &[0, 1]));
    store.apply(0, &KvEvent::Stored(salted.stored(0))).unwrap();
    let claimed = claims(&mut store, 0);
    assert!(chunks(&salted, 8).iter().all(|chunk| claimed.contains(chunk)));
    assert!(chunks(&plain, 8).iter().all(|chunk| !claimed.contains(chunk)));
    let lora = KvEvent::Stored(Stored { lora: "tenant-1".into(), hashes: vec![77, 78], ..plain.stored(0) });
    store.apply(0, &lora).unwrap();
    assert_eq!(claims(&mut store, 0).len(), 2 * claimed.len());
}

#[test]
fn a_damaged_event_is_harmless() {
    let mut store = store_with(&[0], 8);
    let path = Path::new(0, &[0, 1]);
    let hash = path.hash(0);
    for parent in [None, Some(hash)] {
        let event =
            Stored { parent, hashes: vec![hash, hash, hash], token_ids: vec![0; 12], mappable: 3, ..path.stored(0) };
        store.apply(0, &KvEvent::Stored(event.clone())).unwrap();
        let event = Stored { token_ids: (0..12).map(|id| id % 7).collect(), ..event };
        store.apply(0, &KvEvent::Stored(event)).unwrap();
    }
    store
        .apply(0, &KvEvent::Stored(Stored { hashes: vec![5], mappable: 9, block_size: 0, ..Stored::default() }))
        .unwrap();
    store.apply(0, &KvEvent::Stored(Stored::default())).unwrap();
    store.apply(0, &KvEvent::Cleared).unwrap();
    assert!(claims(&mut store, 0).is_empty());
    assert_eq!(store.tree_nodes(1), 0);
}

#[test]
fn tokens_are_counted_in_the_chunk_of_their_last_byte() {
    let mut store = store_with(&[0], 16);
    // 3 + 1 + 7 bytes, then 40 that end at byte 51: chunk 0 has three tokens, chunk 1 and 2 none, and the fourth ends
    // in chunk 3 with the next block's 5 + 0 and 16.
    let path = Path::new(0, &[0, 2]);
    store.apply(0, &KvEvent::Stored(path.stored(0))).unwrap();
    let mut filter = Filter::default();
    filter.take_from(&mut store);
    let counts: Vec<u16> = chunks(&path, 16).iter().map(|chunk| filter.index.get(0, *chunk).unwrap().tokens).collect();
    assert_eq!(counts, [3, 0, 0, 3, 1]);
}

#[test]
fn a_cleared_worker_costs_one_mark_and_leaves_others_alone() {
    let mut store = store_with(&[0, 1], 8);
    let path = Path::new(0, &[0, 1, 2]);
    for worker in [0, 1] {
        store.apply(worker, &KvEvent::Stored(path.stored(0))).unwrap();
    }
    let mut filter = Filter::default();
    filter.take_from(&mut store);
    store.clear(0).unwrap();
    let Change::Delta(delta) = store.take_delta() else { panic!("a clear is a change") };
    assert_eq!(delta.clears, [v1::PrefixClear { page: 0, workers: 1 }]);
    assert!(delta.pages.is_empty());
    filter.apply(&delta);
    assert!(filter.claims(0).is_empty());
    assert_eq!(filter.claims(1).len(), chunks(&path, 8).len());
    assert_eq!(store.take_delta(), Change::Nothing);
}

#[test]
fn the_budget_coarsens_the_grid() {
    let mut store = PrefixStore::new(4, 4000);
    store.add_domain(1, "domain", Some(vocabulary()), 1000);
    store.add_worker(0, 1).unwrap();
    let mut filter = Filter::default();
    let mut grids = vec![store.chunk_bytes()];
    for a in 0..4u8 {
        for b in 0..4u8 {
            for c in 0..4u8 {
                let path = Path::new(0, &[a, b, c, a, b, c]);
                store.apply(0, &KvEvent::Stored(Stored { reused: Some(true), ..path.stored(0) })).unwrap();
                filter.take_from(&mut store);
                assert!(filter.index.bytes() <= 4000, "{}", filter.index.bytes());
                assert!(store.stats().filter_bytes <= 4000);
                if grids.last() != Some(&store.chunk_bytes()) {
                    grids.push(store.chunk_bytes());
                }
            }
        }
    }
    assert!(grids.len() > 2 && grids.windows(2).all(|pair| pair[1] == 2 * pair[0]), "{grids:?}");
    let path = Path::new(0, &[0, 1, 2, 0, 1, 2]);
    let claimed = filter.claims(0);
    assert!(chunks(&path, store.chunk_bytes()).iter().all(|chunk| claimed.contains(chunk)));
}

#[test]
fn routed_prefixes_are_believed_for_their_time() {
    let mut store = store_with(&[0, 1], 8);
    let mut filter = Filter::default();
    store.learn(0, &[10, 11], 0).unwrap();
    store.learn(1, &[10], 500).unwrap();
    filter.take_from(&mut store);
    assert_eq!(filter.claims(0), [10, 11].into());
    store.learn(0, &[10], 600).unwrap();
    store.expire(1000);
    filter.take_from(&mut store);
    assert_eq!((filter.claims(0), filter.claims(1)), ([10].into(), [10].into()));
    store.clear(0).unwrap();
    filter.take_from(&mut store);
    assert_eq!((filter.claims(0).len(), filter.claims(1).len()), (0, 1));
    store.expire(1500);
    filter.take_from(&mut store);
    assert_eq!(filter.index.chunks(), 0);
    assert_eq!(store.learn(9, &[1], 0), Err(StoreError::UnknownWorker(9)));
}

#[test]
fn another_tokenizer_or_domain_forgets_what_was_held() {
    let mut store = store_with(&[0], 8);
    let path = Path::new(0, &[0, 1]);
    store.apply(0, &KvEvent::Stored(path.stored(0))).unwrap();
    store.add_domain(1, "domain", Some(vocabulary()), 1000);
    assert!(claims(&mut store, 0).is_empty());
    store.apply(0, &KvEvent::Stored(path.stored(0))).unwrap();
    assert!(!claims(&mut store, 0).is_empty());
    store.add_domain(1, "domain", None, 1000);
    store.apply(0, &KvEvent::Stored(path.stored(0))).unwrap();
    assert!(claims(&mut store, 0).is_empty());
    store.remove_domain(1);
    assert_eq!(store.clear(0), Err(StoreError::UnknownWorker(0)));
}

#[test]
fn entries_do_not_outlive_a_worker_and_ids_may_be_used_again() {
    let mut store = store_with(&[0], 8);
    assert_eq!(store.add_worker(0, 1), Err(StoreError::WorkerExists { worker: 0, set: 1 }));
    assert_eq!(store.add_worker(5, 9), Err(StoreError::UnknownSet(9)));
    let path = Path::new(0, &[0, 1]);
    store.apply(0, &KvEvent::Stored(path.stored(0))).unwrap();
    let mut filter = Filter::default();
    filter.take_from(&mut store);
    store.remove_worker(0);
    store.add_worker(0, 1).unwrap();
    filter.take_from(&mut store);
    assert_eq!((filter.index.chunks(), store.stats().chunks), (0, 0));
}
