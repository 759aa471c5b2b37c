//! What all streams of one gateway backend read: the latest full snapshot and the deltas since, each encoded once.
//!
//! Streams have no queues of their own. Each has a cursor into the shared log of deltas; one that falls behind the
//! log's tail gets a full snapshot instead (S4). So memory is bounded by the log and two full snapshots, whatever the
//! number of streams and however slow they are.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::watch;

use crate::state::Full;

/// Bounds of the shared log of deltas.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Deltas kept.
    pub deltas: usize,
    /// Bytes of deltas kept.
    pub bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        // At a delta every 20 ms, about ten seconds.
        Self { deltas: 512, bytes: 16 << 20 }
    }
}

/// Where one stream is.
#[derive(Debug, Clone, Default)]
pub struct Cursor {
    /// The epoch that the filter holds when everything sent has arrived; 0 for nothing.
    pub epoch: u64,
    /// The sequence that the filter holds when everything sent has arrived.
    pub sequence: u64,
    /// Sequence of the full snapshot that is being sent, and its next part.
    sending: Option<(u64, usize)>,
}

impl Cursor {
    /// The cursor of a filter that says it holds this.
    pub fn at(epoch: u64, sequence: u64) -> Self {
        Self { epoch, sequence, sending: None }
    }

    /// Forgets what the filter holds: the next message is the first part of a full snapshot.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

/// Full snapshots kept: the newest, and the one before it for streams in the middle of it.
const FULLS: usize = 2;

/// What a stream does next.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Send this part of a full snapshot; true for the first.
    Part(Bytes, bool),
    /// Send this delta.
    Delta(Bytes),
    /// Everything is sent: wait for a change.
    Idle,
    /// A full snapshot must be built first; it was asked for. Wait for a change.
    Building,
    /// The backend is gone.
    Closed,
}

#[derive(Debug, Default)]
struct State {
    epoch: u64,
    sequence: u64,
    /// Oldest first.
    fulls: VecDeque<Full>,
    full_wanted: bool,
    /// The deltas to sequences `sequence - len + 1` to `sequence`.
    deltas: VecDeque<Bytes>,
    delta_bytes: usize,
    config_version: u64,
    closed: bool,
}

/// The shared end that streams read and the core writes.
#[derive(Debug)]
pub struct Channel {
    state: Mutex<State>,
    changed: watch::Sender<()>,
    limits: Limits,
}

impl Channel {
    /// An empty channel.
    pub fn new(limits: Limits) -> Self {
        Self { state: Mutex::default(), changed: watch::Sender::new(()), limits }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes whenever there may be a next step.
    pub fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// A new epoch begins: nothing of the old one is sent any more.
    pub fn start_epoch(&self, epoch: u64, sequence: u64) {
        let mut state = self.lock();
        *state = State { epoch, sequence, config_version: state.config_version + 1, ..State::default() };
        drop(state);
        self.changed.send_replace(());
    }

    /// Adds the delta that leads to the next sequence. `config` says that it carries a configuration.
    pub fn publish(&self, delta: Bytes, config: bool) {
        let mut state = self.lock();
        state.sequence += 1;
        state.config_version += u64::from(config);
        state.delta_bytes += delta.len();
        state.deltas.push_back(delta);
        while state.deltas.len() > self.limits.deltas || state.delta_bytes > self.limits.bytes {
            let Some(oldest) = state.deltas.pop_front() else { break };
            state.delta_bytes -= oldest.len();
        }
        drop(state);
        self.changed.send_replace(());
    }

    /// True when a stream waits for a full snapshot.
    pub fn full_wanted(&self) -> bool {
        self.lock().full_wanted
    }

    /// Gives the streams that wait a full snapshot. Ignored when it is not of the current epoch and sequence.
    pub fn put_full(&self, full: Full) {
        let mut state = self.lock();
        if (full.epoch, full.sequence) != (state.epoch, state.sequence) {
            return;
        }
        state.fulls.retain(|known| known.sequence != full.sequence);
        state.fulls.push_back(full);
        if state.fulls.len() > FULLS {
            state.fulls.pop_front();
        }
        state.full_wanted = false;
        drop(state);
        self.changed.send_replace(());
    }

    /// The backend is gone: streams end.
    pub fn close(&self) {
        *self.lock() = State { closed: true, ..State::default() };
        self.changed.send_replace(());
    }

    /// Changes with every epoch and configuration: what was refused for its content may be sent again.
    pub fn config_version(&self) -> u64 {
        self.lock().config_version
    }

    /// Moves the cursor on and says what to send.
    pub fn next(&self, cursor: &mut Cursor) -> Step {
        let mut state = self.lock();
        if state.closed {
            return Step::Closed;
        }
        if let Some((sequence, part)) = cursor.sending
            && let Some(full) = state.fulls.iter().find(|full| full.sequence == sequence && full.epoch == state.epoch)
        {
            return send_part(cursor, full, part);
        }
        // A stream that is too slow for the snapshot it began starts over with a newer one.
        cursor.sending = None;
        let tail = state.sequence - state.deltas.len() as u64;
        if state.epoch != 0 && cursor.epoch == state.epoch && (tail..=state.sequence).contains(&cursor.sequence) {
            return match state.deltas.get((cursor.sequence - tail) as usize) {
                None => Step::Idle,
                Some(delta) => {
                    cursor.sequence += 1;
                    Step::Delta(delta.clone())
                }
            };
        }
        if let Some(full) = state.fulls.back().filter(|full| full.sequence >= tail) {
            return send_part(cursor, full, 0);
        }
        state.full_wanted = state.epoch != 0;
        Step::Building
    }
}

fn send_part(cursor: &mut Cursor, full: &Full, at: usize) -> Step {
    let part = full.parts.get(at).cloned().unwrap_or_default();
    if at + 1 < full.parts.len() {
        *cursor = Cursor { sending: Some((full.sequence, at + 1)), ..Cursor::default() };
    } else {
        *cursor = Cursor::at(full.epoch, full.sequence);
    }
    Step::Part(part, at == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(epoch: u64, sequence: u64, parts: usize) -> Full {
        Full { epoch, sequence, parts: (0..parts).map(|part| Bytes::from(format!("full {sequence} {part}"))).collect() }
    }

    fn delta(sequence: u64) -> Bytes {
        Bytes::from(format!("delta {sequence}"))
    }

    #[test]
    fn a_new_stream_gets_the_full_snapshot_and_the_deltas_after_it() {
        let channel = Channel::new(Limits::default());
        let mut cursor = Cursor::default();
        assert_eq!(channel.next(&mut cursor), Step::Building);
        assert!(!channel.full_wanted(), "nothing to build before the first epoch");
        channel.start_epoch(7, 1);
        channel.put_full(full(7, 1, 2));
        channel.publish(delta(2), false);
        assert_eq!(channel.next(&mut cursor), Step::Part("full 1 0".into(), true));
        assert_eq!(channel.next(&mut cursor), Step::Part("full 1 1".into(), false));
        assert_eq!(channel.next(&mut cursor), Step::Delta(delta(2)));
        assert_eq!(channel.next(&mut cursor), Step::Idle);
        assert_eq!((cursor.epoch, cursor.sequence), (7, 2));
    }

    #[test]
    fn a_stream_that_comes_back_continues_where_it_was() {
        let channel = Channel::new(Limits::default());
        channel.start_epoch(7, 1);
        for sequence in 2..=5 {
            channel.publish(delta(sequence), false);
        }
        let mut cursor = Cursor::at(7, 3);
        assert_eq!(channel.next(&mut cursor), Step::Delta(delta(4)));
        let mut ahead = Cursor::at(7, 6);
        assert_eq!(channel.next(&mut ahead), Step::Building, "a sequence that never was gets a full snapshot");
        let mut other = Cursor::at(8, 3);
        assert_eq!(channel.next(&mut other), Step::Building);
    }

    #[test]
    fn a_slow_stream_gets_a_full_snapshot_instead_of_what_it_missed() {
        let channel = Channel::new(Limits { deltas: 4, bytes: 1 << 20 });
        channel.start_epoch(7, 1);
        channel.put_full(full(7, 1, 1));
        let mut slow = Cursor::default();
        assert!(matches!(channel.next(&mut slow), Step::Part(..)));
        for sequence in 2..=20 {
            channel.publish(delta(sequence), false);
        }
        assert_eq!(channel.next(&mut slow), Step::Building);
        assert!(channel.full_wanted());
        channel.put_full(full(7, 20, 1));
        assert_eq!(channel.next(&mut slow), Step::Part("full 20 0".into(), true));
        assert_eq!(channel.next(&mut slow), Step::Idle);
    }

    #[test]
    fn bytes_bound_the_log_too() {
        let channel = Channel::new(Limits { deltas: 100, bytes: 10 });
        channel.start_epoch(7, 1);
        channel.publish(Bytes::from_static(&[0; 8]), false);
        channel.publish(Bytes::from_static(&[0; 8]), false);
        assert_eq!(channel.next(&mut Cursor::at(7, 1)), Step::Building);
        assert!(matches!(channel.next(&mut Cursor::at(7, 2)), Step::Delta(_)));
    }

    #[test]
    fn a_new_epoch_ends_a_snapshot_that_is_being_sent() {
        let channel = Channel::new(Limits::default());
        channel.start_epoch(7, 1);
        channel.put_full(full(7, 1, 3));
        let mut cursor = Cursor::default();
        channel.next(&mut cursor);
        channel.start_epoch(8, 1);
        assert_eq!(channel.next(&mut cursor), Step::Building);
        channel.put_full(full(7, 1, 3));
        assert_eq!(channel.next(&mut cursor), Step::Building, "a full snapshot of the old epoch is of no use");
        channel.put_full(full(8, 1, 1));
        assert_eq!(channel.next(&mut cursor), Step::Part("full 1 0".into(), true));
    }

    #[test]
    fn a_stream_too_slow_for_its_snapshot_starts_over_with_a_newer_one() {
        let channel = Channel::new(Limits { deltas: 1, bytes: 1 << 20 });
        channel.start_epoch(7, 1);
        channel.put_full(full(7, 1, 3));
        let (mut slow, mut slower) = (Cursor::default(), Cursor::default());
        assert_eq!(channel.next(&mut slow), Step::Part("full 1 0".into(), true));
        assert_eq!(channel.next(&mut slower), Step::Part("full 1 0".into(), true));
        for sequence in [3, 5] {
            channel.publish(delta(sequence - 1), false);
            channel.publish(delta(sequence), false);
            if sequence == 5 {
                assert_eq!(
                    channel.next(&mut slow),
                    Step::Part("full 1 1".into(), false),
                    "kept while there is one newer"
                );
            }
            channel.put_full(full(7, sequence, 2));
        }
        assert_eq!(channel.next(&mut slower), Step::Part("full 5 0".into(), true));
        assert_eq!(channel.next(&mut slower), Step::Part("full 5 1".into(), false));
        assert_eq!(channel.next(&mut slower), Step::Idle);
    }

    #[test]
    fn a_closed_channel_ends_its_streams() {
        let channel = Channel::new(Limits::default());
        channel.start_epoch(7, 1);
        channel.close();
        assert_eq!(channel.next(&mut Cursor::at(7, 1)), Step::Closed);
    }
}
