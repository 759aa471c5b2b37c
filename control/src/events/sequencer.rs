//! Puts the frames of one publisher in order: a pure state machine, without sockets and without a clock.
//!
//! What it guarantees: between two [`Action::Reset`]s the applied frames are those of one engine process, each once, in
//! order, without a hole. Where it cannot tell, it resets, so that nothing is believed that may be gone.
//!
//! How it tells. Sequence numbers count from 0 in each engine process. A number beyond the next is a gap: the engine's
//! replay buffer is asked, from the last applied frame on, that one included: when the engine sends another frame under
//! that number, or does not know it, it is another process. The same question is asked after each reconnect, and now and
//! then on a quiet line. A number that is not newer is either a frame that came by replay too (it has the same content), or
//! the engine was restarted. Frames that arrive during a replay wait.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

use bytes::Bytes;
use dynamo_kv_router::recovery::{CursorObservation, CursorState};

/// Most frames, and most bytes, that wait for a replay. What does not fit is asked for again.
const MAX_WAITING_FRAMES: usize = 1 << 16;
const MAX_WAITING_BYTES: usize = 64 << 20;
/// Applied frames of which the content is remembered, to tell repetition from a restart.
const REMEMBERED: usize = 4096;
/// Replays that may fail one after another before the feed goes on without.
const MAX_FAILURES: u32 = 3;

/// A frame as it was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its number, from 0 in each engine process.
    pub sequence: u64,
    /// The batch of events.
    pub payload: Bytes,
}

/// Why nothing of what the worker held is believed any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResetReason {
    /// The engine process is another one.
    #[error("the engine was restarted")]
    Restarted,
    /// Frames are missing and cannot be had.
    #[error("frames {expected} to {got} were lost, and the engine could not replay them")]
    Gap {
        /// The frame that should have come.
        expected: u64,
        /// The frame that came.
        got: u64,
    },
    /// The engine's replay buffer starts after what was asked for.
    #[error("the engine's replay buffer starts at frame {got}, after frame {asked} that was asked for")]
    BufferTooShort {
        /// Asked for.
        asked: u64,
        /// Got first.
        got: u64,
    },
    /// The replay socket did not answer.
    #[error("the engine's replay socket did not answer")]
    ReplayFailed,
    /// The connection was lost, and without a replay socket nothing tells what was missed.
    #[error("the connection was lost, and there is no replay socket to ask what was missed")]
    Unverified,
    /// After replays failed, one succeeds: everything is read anew.
    #[error("the engine's replay socket answers again, everything is read anew")]
    Rebuild,
    /// A batch could not be decoded; it may have said that blocks are gone.
    #[error("{0}")]
    BadBatch(String),
}

/// What to do, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Take in the frame.
    Apply(Frame),
    /// Forget everything that was applied.
    Reset(ResetReason),
    /// Ask for a replay from this frame on; drop one that is under way. After failures, wait a little first.
    Replay {
        /// First frame to ask for.
        from: u64,
        /// Replays that failed just before.
        failures: u32,
    },
    /// All that the engine has told is applied.
    Current,
    /// Replays fail: only what comes from now on will be applied, until one succeeds.
    Incomplete,
    /// The line is quiet although the engine has published: connect again.
    Reconnect,
}

/// What a replay is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// Something may be missing.
    Doubt,
    /// The line is quiet; nothing is in doubt.
    Check,
    /// Earlier replays failed, and what came before them is not known.
    Rebuild,
}

#[derive(Debug)]
struct Replay {
    from: u64,
    /// The first frame must be the last applied one.
    verify: bool,
    /// Where the cursor stood when it was asked for.
    started: Option<u64>,
    /// The frame that showed a gap.
    gap: Option<u64>,
    why: Why,
    seen: bool,
    /// The replay itself has a hole (the engine's socket dropped frames); the rest is of no use.
    hole: bool,
}

/// The state machine.
#[derive(Debug)]
pub struct Sequencer {
    can_replay: bool,
    cursor: CursorState,
    /// Hashes of the last applied frames, up to the cursor.
    remembered: VecDeque<u64>,
    hasher: RandomState,
    /// Something was applied since the last reset.
    believed: bool,
    replay: Option<Replay>,
    waiting: VecDeque<Frame>,
    waiting_bytes: usize,
    failures: u32,
    /// Replays failed too often: go on without, and try now and then.
    incomplete: bool,
    /// Cursor and frame of a gap that a replay did not fill.
    unfilled: Option<(Option<u64>, u64)>,
}

impl Sequencer {
    /// A sequencer that has seen nothing; `can_replay` says whether there is a replay socket.
    #[must_use]
    pub fn new(can_replay: bool) -> Self {
        Self {
            can_replay,
            cursor: CursorState::default(),
            remembered: VecDeque::new(),
            hasher: RandomState::new(),
            believed: false,
            replay: None,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            failures: 0,
            incomplete: false,
            unfilled: None,
        }
    }

    /// The last applied frame.
    #[must_use]
    pub fn last(&self) -> Option<u64> {
        self.cursor.last_applied_id()
    }

    /// Whether a replay is under way.
    #[must_use]
    pub fn is_replaying(&self) -> bool {
        self.replay.is_some()
    }

    /// The subscription is there (again): frames from now on arrive.
    pub fn connected(&mut self, actions: &mut Vec<Action>) {
        self.failures = 0;
        self.clear_waiting();
        if self.can_replay {
            if std::mem::take(&mut self.incomplete) {
                self.reset(ResetReason::Rebuild, actions);
            }
            self.ask(None, Why::Doubt, actions);
        } else {
            self.replay = None;
            self.reset(ResetReason::Unverified, actions);
            actions.push(Action::Current);
        }
    }

    /// Some time has passed, on a quiet line or while this is [incomplete](Self::is_incomplete): is nothing missing?
    pub fn check(&mut self, actions: &mut Vec<Action>) {
        if self.can_replay && self.replay.is_none() {
            self.ask(None, if self.incomplete { Why::Rebuild } else { Why::Check }, actions);
        }
    }

    /// Whether what came before is missing, because replays failed.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        self.incomplete
    }

    /// A frame arrived from the publisher.
    pub fn live(&mut self, frame: Frame, actions: &mut Vec<Action>) {
        if self.replay.is_none() {
            self.observe(frame, actions);
            return;
        }
        match self.waiting.back() {
            Some(newest) if *newest == frame => {}
            Some(newest) if frame.sequence <= newest.sequence => self.restarted(actions),
            Some(_) | None => self.wait(frame),
        }
    }

    /// A frame of the replay arrived.
    pub fn replayed(&mut self, frame: Frame, actions: &mut Vec<Action>) {
        let Some(replay) = &mut self.replay else { return };
        if replay.hole {
            return;
        }
        let first = !std::mem::replace(&mut replay.seen, true);
        let (asked, rebuild) = (replay.from, replay.why == Why::Rebuild);
        let late = first && frame.sequence > asked;
        if first && rebuild {
            self.incomplete = false;
            self.reset(ResetReason::Rebuild, actions);
        }
        match self.cursor.observe(frame.sequence) {
            CursorObservation::Initial { .. } => self.apply(frame, actions),
            CursorObservation::Stale { .. } if self.is_repetition(&frame) => {}
            CursorObservation::Stale { .. } => self.restarted(actions),
            CursorObservation::Contiguous { got } | CursorObservation::Gap { got, .. } if late => {
                self.reset(ResetReason::BufferTooShort { asked, got }, actions);
                self.apply(frame, actions);
            }
            CursorObservation::Contiguous { .. } => self.apply(frame, actions),
            // The rest is of no use; what is missing will be asked for again.
            CursorObservation::Gap { .. } => {
                if let Some(replay) = &mut self.replay {
                    replay.hole = true;
                }
            }
        }
    }

    /// The engine said that the replay is complete.
    pub fn replay_ended(&mut self, actions: &mut Vec<Action>) {
        let Some(replay) = self.replay.take() else { return };
        if replay.verify && !replay.seen {
            self.restarted(actions);
            return;
        }
        let progress = self.last() != replay.started;
        if replay.hole {
            if progress {
                self.ask(replay.gap, Why::Doubt, actions);
            } else {
                self.failed(&replay, actions);
            }
            return;
        }
        self.failures = 0;
        self.incomplete = false;
        if !progress && let Some(gap) = replay.gap {
            self.unfilled = Some((self.last(), gap));
        }
        self.drain(actions);
        if self.replay.is_none() {
            actions.push(Action::Current);
            if replay.why == Why::Check && progress {
                actions.push(Action::Reconnect);
            }
        }
    }

    /// The replay broke off, or there was no answer.
    pub fn replay_failed(&mut self, actions: &mut Vec<Action>) {
        if let Some(replay) = self.replay.take() {
            self.failed(&replay, actions);
        }
    }

    fn failed(&mut self, replay: &Replay, actions: &mut Vec<Action>) {
        let untouched = match replay.why {
            Why::Doubt => false,
            Why::Check => true,
            Why::Rebuild => !replay.seen,
        };
        if untouched {
            // Nothing was in doubt; what arrived meanwhile shows by itself whether something is missing.
            self.drain(actions);
            return;
        }
        self.reset(ResetReason::ReplayFailed, actions);
        self.failures += 1;
        if self.failures < MAX_FAILURES {
            self.ask(replay.gap, Why::Doubt, actions);
            return;
        }
        self.incomplete = true;
        actions.push(Action::Incomplete);
        self.drain(actions);
    }

    /// Asks for a replay from the last applied frame on, which must come again; from the start when there is none, or to
    /// read everything anew.
    fn ask(&mut self, gap: Option<u64>, why: Why, actions: &mut Vec<Action>) {
        let started = self.last();
        let from = started.filter(|_| why != Why::Rebuild).unwrap_or(0);
        self.replay = Some(Replay { from, verify: started.is_some(), started, gap, why, seen: false, hole: false });
        actions.push(Action::Replay { from, failures: self.failures });
    }

    /// The engine is another process. Frames that wait may be the old one's; those of the new one will be replayed.
    fn restarted(&mut self, actions: &mut Vec<Action>) {
        self.clear_waiting();
        self.reset(ResetReason::Restarted, actions);
        self.ask(None, Why::Doubt, actions);
    }

    fn reset(&mut self, reason: ResetReason, actions: &mut Vec<Action>) {
        self.cursor = CursorState::Initial;
        self.remembered.clear();
        self.unfilled = None;
        if std::mem::take(&mut self.believed) {
            actions.push(Action::Reset(reason));
        }
    }

    fn apply(&mut self, frame: Frame, actions: &mut Vec<Action>) {
        if self.remembered.len() == REMEMBERED {
            self.remembered.pop_front();
        }
        self.remembered.push_back(self.hasher.hash_one(&frame.payload));
        self.cursor = self.cursor.advance_to(frame.sequence);
        self.unfilled = None;
        self.believed = true;
        actions.push(Action::Apply(frame));
    }

    /// Whether this very frame was applied already.
    fn is_repetition(&self, frame: &Frame) -> bool {
        let back = self.last().and_then(|last| last.checked_sub(frame.sequence));
        let place = back.and_then(|back| self.remembered.len().checked_sub(1 + usize::try_from(back).ok()?));
        place.and_then(|place| self.remembered.get(place)) == Some(&self.hasher.hash_one(&frame.payload))
    }

    /// Takes in a live frame while no replay is under way.
    fn observe(&mut self, frame: Frame, actions: &mut Vec<Action>) {
        let with_replay = self.can_replay && !self.incomplete;
        match self.cursor.observe(frame.sequence) {
            CursorObservation::Contiguous { .. } => self.apply(frame, actions),
            CursorObservation::Initial { got } => {
                if got == 0 || !with_replay || self.unfilled == Some((None, got)) {
                    self.apply(frame, actions);
                } else {
                    self.wait_first(frame);
                    self.ask(Some(got), Why::Doubt, actions);
                }
            }
            CursorObservation::Gap { expected, got } => {
                if with_replay && self.unfilled != Some((self.last(), got)) {
                    self.wait_first(frame);
                    self.ask(Some(got), Why::Doubt, actions);
                } else {
                    self.reset(ResetReason::Gap { expected, got }, actions);
                    self.apply(frame, actions);
                }
            }
            CursorObservation::Stale { got, .. } => {
                if self.is_repetition(&frame) {
                    return;
                }
                if got == 0 || !with_replay {
                    self.reset(ResetReason::Restarted, actions);
                    self.apply(frame, actions);
                } else {
                    self.restarted(actions);
                }
            }
        }
    }

    fn drain(&mut self, actions: &mut Vec<Action>) {
        while self.replay.is_none()
            && let Some(frame) = self.waiting.pop_front()
        {
            self.waiting_bytes -= frame.payload.len();
            self.observe(frame, actions);
        }
    }

    fn wait(&mut self, frame: Frame) {
        if self.waiting.len() < MAX_WAITING_FRAMES && self.waiting_bytes + frame.payload.len() <= MAX_WAITING_BYTES {
            self.waiting_bytes += frame.payload.len();
            self.waiting.push_back(frame);
        }
    }

    fn wait_first(&mut self, frame: Frame) {
        self.waiting_bytes += frame.payload.len();
        self.waiting.push_front(frame);
    }

    fn clear_waiting(&mut self) {
        self.waiting.clear();
        self.waiting_bytes = 0;
    }
}

#[cfg(test)]
mod tests;
