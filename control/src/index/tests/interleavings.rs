//! Any interleaving of events of several workers leaves the filter's index equal to what the engines hold.

use proptest::prelude::*;

use super::*;

/// Workers 0 and 1 share a set and a page; 70 is of another set.
const WORKERS: [(u32, u32, &str); 3] = [(0, 1, "a"), (1, 1, "a"), (70, 2, "b")];

#[derive(Debug, Clone)]
enum Op {
    /// The blocks of a path from one of them on, whatever is held before.
    Store {
        worker: usize,
        path: Path,
        from: usize,
    },
    /// A prefix that is held, told once more from the root.
    Report {
        worker: usize,
        pick: usize,
        says_so: bool,
    },
    Remove {
        worker: usize,
        pick: usize,
    },
    RemoveUnknown {
        worker: usize,
    },
    Clear {
        worker: usize,
    },
    Gone {
        worker: usize,
    },
    Take,
    Full,
}

fn path() -> impl Strategy<Value = Path> {
    (0..2u8, proptest::collection::vec(0..KINDS, 1..7)).prop_map(|(salt, kinds)| Path { salt, kinds })
}

fn op() -> impl Strategy<Value = Op> {
    let worker = 0..WORKERS.len();
    prop_oneof![
        8 => (worker.clone(), path(), 0..7usize).prop_map(|(worker, path, from)| {
            let from = from % path.kinds.len();
            Op::Store { worker, path, from }
        }),
        2 => (worker.clone(), any::<usize>(), any::<bool>())
            .prop_map(|(worker, pick, says_so)| Op::Report { worker, pick, says_so }),
        8 => (worker.clone(), any::<usize>()).prop_map(|(worker, pick)| Op::Remove { worker, pick }),
        1 => worker.clone().prop_map(|worker| Op::RemoveUnknown { worker }),
        1 => worker.clone().prop_map(|worker| Op::Clear { worker }),
        1 => worker.prop_map(|worker| Op::Gone { worker }),
        4 => Just(Op::Take),
        1 => Just(Op::Full),
    ]
}

fn run(ops: &[Op], grid: u32, budget: u64) {
    let vocabulary = vocabulary();
    let mut store = PrefixStore::new(grid, budget);
    for (worker, set, domain) in WORKERS {
        store.add_domain(set, domain, Some(vocabulary.clone()), 1000);
        store.add_worker(worker, set).unwrap();
    }
    let mut engines: [Engine; 3] = Default::default();
    let mut filter = Filter::default();
    for op in ops {
        match op {
            Op::Store { worker, path, from } => {
                let engine = &mut engines[*worker];
                // Several copies from the root on are taken for a report; engines hardly ever make them.
                let from = if *from == 0 && path.kinds.len() > 1 && engine.holds(path, 0) {
                    (1..path.kinds.len()).find(|depth| !engine.holds(path, *depth)).unwrap_or(path.kinds.len() - 1)
                } else {
                    *from
                };
                // A block further down may be held while the first is not: then it is a report of that one.
                if from == 0 && path.kinds.len() > 1 && (0..path.kinds.len()).any(|depth| engine.holds(path, depth)) {
                    continue;
                }
                engine.store(path, from);
                store.apply(WORKERS[*worker].0, &KvEvent::Stored(path.stored(from))).unwrap();
            }
            Op::Report { worker, pick, says_so } => {
                let engine = &engines[*worker];
                let whole = engine.copies.keys().filter(|path| (0..path.kinds.len()).all(|d| engine.holds(path, d)));
                let whole: Vec<&Path> = whole.filter(|path| *says_so || path.kinds.len() > 1).collect();
                if !whole.is_empty() {
                    let mut event = whole[pick % whole.len()].stored(0);
                    event.reused = says_so.then_some(true);
                    store.apply(WORKERS[*worker].0, &KvEvent::Stored(event)).unwrap();
                }
            }
            Op::Remove { worker, pick } => {
                let engine = &mut engines[*worker];
                let held: Vec<Path> = engine.copies.keys().cloned().collect();
                if !held.is_empty() {
                    let block = &held[pick % held.len()];
                    engine.remove(block);
                    let hash = block.hash(block.kinds.len() - 1);
                    store.apply(WORKERS[*worker].0, &removed(&[hash])).unwrap();
                }
            }
            Op::RemoveUnknown { worker } => {
                let applied = store.apply(WORKERS[*worker].0, &removed(&[12345])).unwrap();
                assert_eq!(applied.unknown, 1);
            }
            Op::Clear { worker } => {
                engines[*worker] = Engine::default();
                store.apply(WORKERS[*worker].0, &KvEvent::Cleared).unwrap();
            }
            Op::Gone { worker } => {
                let (id, set, _) = WORKERS[*worker];
                engines[*worker] = Engine::default();
                store.remove_worker(id);
                assert!(store.apply(id, &KvEvent::Cleared).is_err());
                store.add_worker(id, set).unwrap();
            }
            Op::Take => filter.take_from(&mut store),
            Op::Full => filter.replace(&store),
        }
    }
    filter.take_from(&mut store);
    let mut chunks = BTreeSet::new();
    for (engine, (worker, _, domain)) in engines.iter().zip(WORKERS) {
        let truth = engine.truth(domain, store.chunk_bytes(), &vocabulary);
        assert_eq!(filter.claims(worker), truth, "worker {worker}");
        chunks.extend(truth.into_iter().map(|hash| (place(worker).0, hash)));
    }
    assert_eq!(filter.index.chunks(), chunks.len());
    let stats = store.stats();
    assert_eq!(stats.chunks, chunks.len() as u64);
    let mut fresh = Filter::default();
    fresh.replace(&store);
    assert_eq!(fresh.index.chunks(), chunks.len());
    for (worker, ..) in WORKERS {
        assert_eq!(fresh.claims(worker), filter.claims(worker));
    }
    // Nothing stays behind once all workers are gone.
    for (worker, ..) in WORKERS {
        store.remove_worker(worker);
    }
    filter.take_from(&mut store);
    assert_eq!((filter.index.chunks(), store.tree_nodes(1), store.tree_nodes(2)), (0, 0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_index_is_the_truth(ops in proptest::collection::vec(op(), 1..120), grid in 0..7u32) {
        run(&ops, 1 << grid, u64::MAX);
    }

    #[test]
    fn it_stays_so_when_the_grid_is_coarsened(ops in proptest::collection::vec(op(), 1..120)) {
        run(&ops, 4, 700);
    }
}
