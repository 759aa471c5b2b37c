//! From an engine that restarts, over a line that loses frames, with a replay buffer that forgets, to the filter: what is
//! claimed is what the engine held at the last applied frame, or less; and all of it once the line is good again.

use std::collections::VecDeque;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::events::Decoder;
use crate::events::sequencer::{Action, Frame, Sequencer};
use crate::events::testing::{batch, encode};

const WORKER: u32 = 7;
const GRID: u32 = 8;

#[derive(Debug, Clone)]
enum Op {
    /// The engine computes a prompt: hits what it holds, and stores the rest.
    Prompt {
        path: Path,
        lost: bool,
    },
    /// The same, and reports the hit.
    Report {
        path: Path,
        lost: bool,
    },
    /// The last block of a held chain is computed once more.
    Copy {
        pick: usize,
        lost: bool,
    },
    Evict {
        pick: usize,
        lost: bool,
    },
    Reset {
        lost: bool,
    },
    Restart {
        noticed: bool,
    },
    Reconnect,
    Quiet,
    /// Parts of a replay arrive.
    Replay {
        parts: usize,
    },
    ReplayFails,
}

fn op() -> impl Strategy<Value = Op> {
    let path = || (0..2u8, proptest::collection::vec(0..KINDS, 1..6)).prop_map(|(salt, kinds)| Path { salt, kinds });
    let lost = || prop::bool::weighted(0.15);
    prop_oneof![
        8 => (path(), lost()).prop_map(|(path, lost)| Op::Prompt { path, lost }),
        1 => (path(), lost()).prop_map(|(path, lost)| Op::Report { path, lost }),
        3 => (any::<usize>(), lost()).prop_map(|(pick, lost)| Op::Copy { pick, lost }),
        8 => (any::<usize>(), lost()).prop_map(|(pick, lost)| Op::Evict { pick, lost }),
        1 => lost().prop_map(|lost| Op::Reset { lost }),
        1 => any::<bool>().prop_map(|noticed| Op::Restart { noticed }),
        1 => Just(Op::Reconnect),
        1 => Just(Op::Quiet),
        10 => (0..6usize).prop_map(|parts| Op::Replay { parts }),
        1 => Just(Op::ReplayFails),
    ]
}

/// The engine and its line.
struct World {
    engine: Engine,
    next: u64,
    process: u32,
    buffer: VecDeque<Frame>,
    buffer_length: usize,
    /// What the engine held after each frame.
    history: BTreeMap<Bytes, Engine>,
    sequencer: Sequencer,
    /// Frames that the replay under way will bring.
    replay: VecDeque<Frame>,
    decoder: Decoder,
    store: PrefixStore,
    filter: Filter,
    vocabulary: Arc<TokenBytes>,
    /// What the engine held at the last applied frame.
    applied: Engine,
}

impl World {
    fn new(buffer_length: usize, can_replay: bool) -> Self {
        let vocabulary = vocabulary();
        let mut store = PrefixStore::new(GRID, u64::MAX);
        store.add_domain(1, "domain", Some(vocabulary.clone()), 0);
        store.add_worker(WORKER, 1).unwrap();
        let mut world = Self {
            engine: Engine::default(),
            next: 0,
            process: 0,
            buffer: VecDeque::new(),
            buffer_length,
            history: BTreeMap::new(),
            sequencer: Sequencer::new(can_replay),
            replay: VecDeque::new(),
            decoder: Decoder::new(0, Some(BLOCK as u32)),
            store,
            filter: Filter::default(),
            vocabulary,
            applied: Engine::default(),
        };
        world.step(Sequencer::connected);
        world
    }

    fn publish(&mut self, events: &[KvEvent], lost: bool) {
        let time = f64::from(self.process) * 1e6 + self.next as f64;
        let payload = Bytes::from(batch(time, events.iter().map(encode).collect(), 0));
        let frame = Frame { sequence: self.next, payload: payload.clone() };
        self.history.insert(payload, self.engine.clone());
        self.next += 1;
        self.buffer.push_back(frame.clone());
        if self.buffer.len() > self.buffer_length {
            self.buffer.pop_front();
        }
        if !lost {
            self.step(|sequencer, actions| sequencer.live(frame, actions));
        }
    }

    fn step(&mut self, step: impl FnOnce(&mut Sequencer, &mut Vec<Action>)) {
        let mut actions = Vec::new();
        step(&mut self.sequencer, &mut actions);
        for action in actions {
            match action {
                Action::Apply(frame) => {
                    let batch = self.decoder.decode(&frame.payload).unwrap();
                    for event in &batch.events {
                        self.store.apply(WORKER, event).unwrap();
                    }
                    self.applied = self.history[&frame.payload].clone();
                }
                Action::Reset(_) => {
                    self.decoder.reset();
                    self.store.clear(WORKER).unwrap();
                }
                Action::Replay { from, .. } => {
                    self.replay = self.buffer.iter().filter(|frame| frame.sequence >= from).cloned().collect();
                }
                Action::Current | Action::Incomplete | Action::Reconnect => {}
            }
            self.check(false);
        }
    }

    fn check(&mut self, complete: bool) {
        self.filter.take_from(&mut self.store);
        let claims = self.filter.claims(WORKER);
        let truth = self.applied.truth("domain", GRID, &self.vocabulary);
        if complete {
            assert!(claims == truth, "{} chunks claimed, {} held", claims.len(), truth.len());
        } else {
            assert!(claims.is_subset(&truth), "{} chunks too many", claims.difference(&truth).count());
        }
    }

    fn replay_parts(&mut self, parts: usize) {
        for _ in 0..parts {
            if !self.sequencer.is_replaying() {
                return;
            }
            match self.replay.pop_front() {
                Some(frame) => self.step(|sequencer, actions| sequencer.replayed(frame, actions)),
                None => self.step(Sequencer::replay_ended),
            }
        }
    }

    fn run(&mut self, op: &Op) {
        match op {
            Op::Prompt { path, lost } | Op::Report { path, lost } => {
                let hit = (0..path.kinds.len()).take_while(|depth| self.engine.holds(path, *depth)).count();
                let mut events = Vec::new();
                if matches!(op, Op::Report { .. }) && hit > 1 {
                    events.push(KvEvent::Stored(Path::new(path.salt, &path.kinds[..hit]).stored(0)));
                }
                if hit < path.kinds.len() {
                    // What is held beyond the first hole is computed once more; from the root on that looks like a report.
                    let beyond = (hit..path.kinds.len()).any(|depth| self.engine.holds(path, depth));
                    if hit == 0 && beyond {
                        return;
                    }
                    self.engine.store(path, hit);
                    events.push(KvEvent::Stored(path.stored(hit)));
                }
                self.publish(&events, *lost);
            }
            Op::Copy { pick, lost } => {
                let whole = |path: &&Path| (0..path.kinds.len()).all(|depth| self.engine.holds(path, depth));
                let chains: Vec<Path> = self.engine.copies.keys().filter(whole).cloned().collect();
                if !chains.is_empty() {
                    let path = &chains[pick % chains.len()];
                    let last = path.kinds.len() - 1;
                    self.engine.store(path, last);
                    self.publish(&[KvEvent::Stored(path.stored(last))], *lost);
                }
            }
            Op::Evict { pick, lost } => {
                let held: Vec<Path> = self.engine.copies.keys().cloned().collect();
                if !held.is_empty() {
                    let block = &held[pick % held.len()];
                    self.engine.remove(block);
                    self.publish(&[removed(&[block.hash(block.kinds.len() - 1)])], *lost);
                }
            }
            Op::Reset { lost } => {
                self.engine = Engine::default();
                self.publish(&[KvEvent::Cleared], *lost);
            }
            Op::Restart { noticed } => {
                self.engine = Engine::default();
                self.buffer.clear();
                self.next = 0;
                self.process += 1;
                self.replay.clear();
                // A process that ends closes its connections; a replay under way breaks off.
                if self.sequencer.is_replaying() {
                    self.step(Sequencer::replay_failed);
                }
                if *noticed {
                    self.step(Sequencer::connected);
                } else {
                    self.publish(&[], false);
                }
            }
            Op::Reconnect => self.step(Sequencer::connected),
            Op::Quiet => self.step(Sequencer::check),
            Op::Replay { parts } => self.replay_parts(*parts),
            Op::ReplayFails => {
                if self.sequencer.is_replaying() {
                    self.replay.clear();
                    self.step(Sequencer::replay_failed);
                }
            }
        }
    }

    /// The line is good again: reconnect, and let all replays finish.
    fn settle(&mut self) {
        self.step(Sequencer::connected);
        for _ in 0..1000 {
            if !self.sequencer.is_replaying() {
                break;
            }
            self.replay_parts(100);
        }
        assert!(!self.sequencer.is_replaying());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn what_is_claimed_is_held(
        ops in proptest::collection::vec(op(), 1..100),
        buffer in 1..60usize,
        can_replay in prop::bool::weighted(0.8),
    ) {
        let mut world = World::new(buffer, can_replay);
        for op in &ops {
            world.run(op);
        }
        world.settle();
        world.check(false);
    }

    #[test]
    fn with_a_long_replay_buffer_nothing_is_missing_in_the_end(ops in proptest::collection::vec(op(), 1..100)) {
        let mut world = World::new(usize::MAX, true);
        for op in &ops {
            world.run(op);
        }
        world.settle();
        world.applied = world.engine.clone();
        world.check(true);
    }
}
