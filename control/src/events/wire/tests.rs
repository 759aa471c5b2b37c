use rmpv::Value;

use super::*;
use crate::events::testing::{batch, bytes_of, captured, map, parts};

fn strings(items: &[&str]) -> Value {
    Value::Array(items.iter().map(|item| Value::from(*item)).collect())
}

fn list(items: impl IntoIterator<Item = Value>) -> Value {
    Value::Array(items.into_iter().collect())
}

fn ints(items: &[u64]) -> Value {
    list(items.iter().map(|item| Value::from(*item)))
}

/// A stored block of two tokens with fields added or replaced.
fn stored(changes: &[(&str, Value)]) -> Value {
    let mut fields = vec![
        ("type", Value::from("BlockStored")),
        ("block_hashes", ints(&[7])),
        ("parent_block_hash", Value::Nil),
        ("token_ids", ints(&[1, 2])),
        ("block_size", Value::from(2)),
        ("medium", Value::from("GPU")),
    ];
    for (key, value) in changes {
        fields.retain(|(known, _)| known != key);
        fields.push((key, value.clone()));
    }
    map(&fields)
}

fn removed(changes: &[(&str, Value)]) -> Value {
    let mut fields = vec![("type", Value::from("BlockRemoved")), ("block_hashes", ints(&[7]))];
    fields.extend(changes.iter().cloned());
    map(&fields)
}

fn decode(events: Vec<Value>) -> Batch {
    Decoder::new(0, None).decode(&batch(1.5, events, 0)).unwrap()
}

/// The only event of a batch of one.
fn only_stored(event: Value) -> (Stored, Skipped) {
    let batch = decode(vec![event]);
    match batch.events.as_slice() {
        [KvEvent::Stored(stored)] => (stored.clone(), batch.skipped),
        other => panic!("not one stored event: {other:?}, {:?}", batch.skipped),
    }
}

#[test]
fn captured_frames_decode_whole() {
    let mut decoder = Decoder::new(0, Some(32));
    for line in captured("kv_frames.jsonl") {
        let batch = decoder.decode(&parts(&line)[2]).unwrap();
        assert_eq!(batch.skipped, Skipped::default());
        assert!((batch.engine_time - line["decoded"][0].as_f64().unwrap()).abs() < 1e-3);
        let mut stored = batch.events.iter().filter_map(|event| match event {
            KvEvent::Stored(stored) => Some(stored),
            _ => None,
        });
        let removed: usize = batch
            .events
            .iter()
            .map(|event| match event {
                KvEvent::Removed { hashes } => hashes.len(),
                _ => 0,
            })
            .sum();
        let mut told_removed = 0;
        for event in line["decoded"][1].as_array().unwrap() {
            match event["type"].as_str().unwrap() {
                "BlockStored" => {
                    let ours = stored.next().unwrap();
                    let hashes: Vec<u64> =
                        event["block_hashes"].as_array().unwrap().iter().map(|hash| hash.as_u64().unwrap()).collect();
                    assert_eq!(ours.hashes, hashes);
                    assert_eq!(ours.parent, event["parent_block_hash"].as_u64());
                    assert_eq!(ours.token_ids.len(), event["token_ids"].as_array().unwrap().len());
                    assert_eq!((ours.mappable, ours.block_size), (hashes.len(), 32));
                    let salt = event["extra_keys"][0][0].as_str().unwrap_or("");
                    assert_eq!(ours.salt, salt);
                }
                "BlockRemoved" => told_removed += event["block_hashes"].as_array().unwrap().len(),
                _ => assert!(batch.events.contains(&KvEvent::Cleared)),
            }
        }
        assert_eq!(removed, told_removed);
        assert!(stored.next().is_none());
    }
}

#[test]
fn captured_byte_hashes_and_ranks_decode() {
    let lines = captured("kv_frames_dp2_bytes.jsonl");
    assert_eq!(lines.len(), 2);
    for (rank, line) in lines.iter().enumerate() {
        let payload = &parts(line)[2];
        let batch = Decoder::new(rank as u32, None).decode(payload).unwrap();
        assert_eq!(batch.skipped, Skipped::default());
        let [KvEvent::Stored(stored)] = batch.events.as_slice() else { panic!("one stored event") };
        assert_eq!(stored.hashes, [0x8e79_f437_9cf8_ca91_d800_u128 as u64]);
        let other = Decoder::new(1 - rank as u32, None).decode(payload).unwrap_err();
        assert_eq!(other, BatchError::WrongRank { got: rank as i64, expected: 1 - rank as u32 });
    }
}

#[test]
fn captured_replays_decode() {
    let mut decoder = Decoder::new(0, None);
    for line in captured("replay.jsonl") {
        let parts = parts(&line);
        let payload = parts.last().unwrap();
        if !payload.is_empty() {
            let batch = decoder.decode(payload).unwrap();
            assert!(!batch.events.is_empty() && batch.skipped == Skipped::default());
        }
    }
}

#[test]
fn arrays_of_old_engines_decode() {
    let event = list([
        Value::from("BlockStored"),
        ints(&[7, 8]),
        Value::from(6),
        ints(&[1, 2, 3, 4]),
        Value::from(2),
        Value::Nil,
        Value::from("GPU"),
    ]);
    let (short, _) = only_stored(event.clone());
    assert_eq!((short.parent, short.hashes, short.mappable), (Some(6), vec![7, 8], 2));
    let mut longer = event.as_array().unwrap().clone();
    longer[2] = Value::Nil;
    longer.extend([
        Value::from("adapter"),
        list([strings(&["adapter", "salt"]), strings(&["adapter"])]),
        Value::from(0),
        Value::from("full_attention"),
        Value::Nil,
        Value::from("LOCAL"),
        Value::Nil,
        Value::from("a field of the future"),
    ]);
    let (long, skipped) = only_stored(Value::Array(longer));
    assert_eq!((long.lora.as_str(), long.salt.as_str(), long.mappable), ("adapter", "salt", 2));
    assert_eq!(skipped, Skipped::default());
    let removed = list([Value::from("BlockRemoved"), ints(&[7]), Value::from("GPU")]);
    let cleared = list([Value::from("AllBlocksCleared")]);
    assert_eq!(decode(vec![removed, cleared]).events, [KvEvent::Removed { hashes: vec![7] }, KvEvent::Cleared]);
}

#[test]
fn one_bad_event_costs_only_itself() {
    let batch = decode(vec![
        stored(&[]),
        map(&[("type", Value::from("BlockPromoted")), ("block_hashes", ints(&[1]))]),
        list([Value::from("SomethingNew"), Value::from(3)]),
        stored(&[("token_ids", Value::from("none"))]),
        stored(&[("block_hashes", ints(&[9])), ("lookahead_token_ids", ints(&[1])), ("new_key", Value::from(true))]),
    ]);
    assert_eq!(batch.skipped.get(Skip::UnknownKind), 2);
    assert_eq!(batch.skipped.get(Skip::Malformed), 1);
    assert_eq!(batch.events.len(), 2);
    let labels: Vec<_> = batch.skipped.iter().map(|(reason, count)| (reason.label(), count)).collect();
    assert_eq!(labels, [("unknown_kind", 2), ("malformed", 1)]);
}

#[test]
fn a_removal_that_cannot_be_read_leaves_no_claim() {
    for event in
        [map(&[("type", Value::from("BlockRemoved"))]), removed(&[("block_hashes", Value::from("x"))]), Value::from(17)]
    {
        let batch = decode(vec![event]);
        assert_eq!(batch.events, [KvEvent::Cleared]);
        assert_eq!(batch.skipped.get(Skip::Malformed), 1);
    }
}

#[test]
fn hashes_come_as_numbers_and_as_bytes() {
    let bytes = |byte: u8, length: usize| Value::Binary((0..length).map(|i| byte + i as u8).collect());
    let event = stored(&[
        ("block_hashes", list([Value::from(-1), bytes(0, 32), bytes(1, 16), Value::from(u64::MAX), bytes(9, 4)])),
        ("parent_block_hash", bytes(24, 8)),
        ("token_ids", ints(&[0; 10])),
    ]);
    let (stored, _) = only_stored(event);
    let expected = [u64::MAX, 0x1819_1A1B_1C1D_1E1F, 0x090A_0B0C_0D0E_0F10, u64::MAX, 0x090A_0B0C];
    assert_eq!(stored.hashes, expected);
    assert_eq!(stored.parent, Some(0x1819_1A1B_1C1D_1E1F));
}

#[test]
fn ranks_are_checked() {
    let mut decoder = Decoder::new(1, None);
    assert!(decoder.decode(&batch(0.0, vec![], 1)).is_ok());
    for rank in [-1, 0, 2, i64::MAX] {
        let error = decoder.decode(&batch(0.0, vec![], rank)).unwrap_err();
        assert_eq!(error, BatchError::WrongRank { got: rank, expected: 1 });
        assert!(error.to_string().contains("dataParallelSize"));
    }
    let absent = bytes_of(&list([Value::from(0.0), list([])]));
    assert_eq!(decoder.decode(&absent), Err(BatchError::NoRank));
    let null = bytes_of(&list([Value::from(0.0), list([]), Value::Nil]));
    assert_eq!(decoder.decode(&null), Err(BatchError::NoRank));
    let huge = bytes_of(&list([Value::from(0.0), list([]), Value::from(u64::MAX)]));
    assert!(matches!(decoder.decode(&huge), Err(BatchError::WrongRank { .. })));
}

#[test]
fn batches_may_grow_and_may_be_maps() {
    let longer = list([Value::from(2), list([stored(&[])]), Value::from(0), Value::from("new")]);
    assert_eq!(Decoder::new(0, None).decode(&bytes_of(&longer)).unwrap().events.len(), 1);
    let named =
        map(&[("ts", Value::from(2.5)), ("events", list([stored(&[])])), ("data_parallel_rank", Value::from(0))]);
    let batch = Decoder::new(0, None).decode(&bytes_of(&named)).unwrap();
    assert_eq!((batch.events.len(), batch.engine_time), (1, 2.5));
    for strange in [Value::from("hello"), list([]), list([Value::from(1), Value::from(2), Value::from(0)])] {
        assert_eq!(Decoder::new(0, None).decode(&bytes_of(&strange)), Err(BatchError::Shape));
    }
    let whole = bytes_of(&longer);
    let error = Decoder::new(0, None).decode(&whole[..whole.len() - 3]).unwrap_err();
    assert!(matches!(error, BatchError::Unreadable { .. }));
    // An array that claims four thousand million elements.
    assert!(Decoder::new(0, None).decode(&[0xdd, 0xff, 0xff, 0xff, 0xff]).is_err());
}

#[test]
fn only_gpu_memory_counts() {
    let on = |medium: &str| ("medium", Value::from(medium));
    let batch = decode(vec![
        stored(&[on("CPU")]),
        removed(&[on("STORAGE")]),
        removed(&[on("CPU_PINNED")]),
        stored(&[("locality", Value::from("REMOTE"))]),
        stored(&[("ownership", Value::from("kvcr"))]),
    ]);
    assert!(batch.events.is_empty());
    assert_eq!((batch.skipped.get(Skip::OtherMedium), batch.skipped.get(Skip::NotLocal)), (3, 2));
    let local = ("locality", Value::from("LOCAL"));
    let counted = vec![stored(&[on("gpu")]), stored(&[("medium", Value::Nil)]), stored(&[local])];
    assert_eq!(decode(counted).events.len(), 3);
}

#[test]
fn only_full_attention_groups_count() {
    let of = |group: u64, kind: &str| [("group_idx", Value::from(group)), ("kv_cache_spec_kind", Value::from(kind))];
    for kind in ["full_attention", "mla_attention", "sink_full_attention"] {
        assert_eq!(decode(vec![stored(&of(0, kind))]).events.len(), 1, "{kind}");
    }
    for kind in ["sliding_window", "mamba", "chunked_local_attention", "something_new"] {
        let batch = decode(vec![stored(&of(0, kind))]);
        assert_eq!((batch.events.len(), batch.skipped.get(Skip::OtherGroup)), (0, 1), "{kind}");
    }
    // Removals name the group only; a sliding window drops blocks that full attention keeps.
    let mut decoder = Decoder::new(0, None);
    let events = vec![
        stored(&of(1, "full_attention")),
        stored(&of(0, "sliding_window")),
        removed(&[("group_idx", Value::from(0))]),
        removed(&[("group_idx", Value::from(5))]),
    ];
    let first = decoder.decode(&batch(0.0, events, 0)).unwrap();
    assert_eq!((first.events.len(), first.skipped.get(Skip::OtherGroup)), (1, 3));
    let events = vec![removed(&[("group_idx", Value::from(1))])];
    assert_eq!(decoder.decode(&batch(0.0, events, 0)).unwrap().events.len(), 1);
    assert_eq!(decode(vec![removed(&[])]).events.len(), 1);
}

#[test]
fn several_full_attention_groups_are_counted_once() {
    let of = |group: u64| [("group_idx", Value::from(group)), ("kv_cache_spec_kind", Value::from("full_attention"))];
    let batch = decode(vec![stored(&of(0)), stored(&of(2)), removed(&of(2))]);
    assert_eq!(batch.events.len(), 2);
    assert!(matches!(batch.events[1], KvEvent::Removed { .. }));
}

#[test]
fn salts_and_adapters_are_told_apart() {
    let keys = |keys: &[&str]| ("extra_keys", list([strings(keys)]));
    let lora = |name: &str| ("lora_name", Value::from(name));
    let (event, _) = only_stored(stored(&[keys(&["tenant"])]));
    assert_eq!((event.lora.as_str(), event.salt.as_str(), event.mappable), ("", "tenant", 1));
    let (event, _) = only_stored(stored(&[keys(&["same", "same"]), lora("same")]));
    assert_eq!((event.lora.as_str(), event.salt.as_str(), event.mappable), ("same", "same", 1));
    let (event, _) = only_stored(stored(&[keys(&["adapter"]), lora("adapter")]));
    assert_eq!((event.lora.as_str(), event.salt.as_str()), ("adapter", ""));
    let (event, _) = only_stored(stored(&[("cache_salt", Value::from("sglang"))]));
    assert_eq!(event.salt, "sglang");
    // Further down a prompt a lone string is an image of an old engine, never a salt.
    let (event, skipped) = only_stored(stored(&[keys(&["tenant"]), ("parent_block_hash", Value::from(3))]));
    assert_eq!((event.mappable, skipped.get(Skip::Opaque)), (0, 1));
    // Two strings that are not the adapter, or an adapter without a name.
    assert_eq!(only_stored(stored(&[keys(&["a", "b"])])).0.mappable, 0);
    assert_eq!(only_stored(stored(&[("lora_id", Value::from(3))])).0.mappable, 0);
}

#[test]
fn images_and_embeddings_end_the_chain() {
    let image = list([Value::from("image-hash"), Value::from(-3)]);
    let four = |keys: Value| {
        let changes = [("block_hashes", ints(&[1, 2, 3, 4])), ("token_ids", ints(&[5; 8])), ("extra_keys", keys)];
        only_stored(stored(&changes)).0
    };
    let (nil, salt) = (Value::Nil, strings(&["tenant"]));
    let event = four(list([salt.clone(), nil.clone(), list([image.clone()]), nil.clone()]));
    assert_eq!((event.mappable, event.salt.as_str(), event.token_ids.len()), (2, "tenant", 4));
    assert_eq!(event.hashes.len(), 4);
    let event = four(list([list([image.clone(), Value::from("tenant")]), nil.clone(), nil.clone(), nil.clone()]));
    assert_eq!(event.mappable, 0);
    let event = four(list([nil.clone(), list([Value::Binary(vec![1, 2])]), nil.clone(), nil.clone()]));
    assert_eq!(event.mappable, 1);
    // Shapes that nobody has seen yet.
    assert_eq!(four(Value::from(3)).mappable, 0);
    assert_eq!(four(list([salt])).mappable, 0);
    assert_eq!(four(list([map(&[]), nil.clone(), nil.clone(), nil])).mappable, 0);
    let objects = list([map(&[("mm_objects", list([]))])]);
    assert_eq!(only_stored(stored(&[("block_mm_infos", objects)])).0.mappable, 0);
}

#[test]
fn tokens_that_are_no_numbers_become_unknown_ones() {
    let event = stored(&[("token_ids", list([Value::from(1), Value::from("image")]))]);
    assert_eq!(only_stored(event).0.token_ids, [1, u32::MAX]);
}

#[test]
fn pairs_of_tokens_are_flattened() {
    let pair = |a: u64, b: u64| ints(&[a, b]);
    let event = stored(&[("token_ids", list([pair(1, 2), pair(2, 3)]))]);
    let (event, _) = only_stored(event);
    assert_eq!((event.token_ids.as_slice(), event.mappable), (&[1, 2][..], 1));
}

#[test]
fn masked_and_empty_blocks_are_held_but_not_mapped() {
    for changes in [
        vec![("token_ids", ints(&[1, 2, 3, 4]))],
        vec![("token_ids", list([]))],
        vec![("token_ids", list([])), ("block_size", Value::from(0))],
        vec![("block_size", Value::from(0))],
        vec![("block_hashes", ints(&[7, 8]))],
    ] {
        let (event, skipped) = only_stored(stored(&changes));
        assert_eq!((event.mappable, event.token_ids.len()), (0, 0), "{changes:?}");
        assert!(!event.hashes.is_empty());
        assert_eq!(skipped.get(Skip::Masked), 1);
    }
}

#[test]
fn another_block_size_is_refused() {
    let mut decoder = Decoder::new(0, Some(16));
    let result = decoder.decode(&batch(0.0, vec![stored(&[])], 0)).unwrap();
    assert_eq!((result.events.len(), result.skipped.get(Skip::BlockSize)), (0, 1));
}

#[test]
fn engines_may_say_what_is_only_reported() {
    for (origin, reused) in [("REUSED", Some(true)), ("NEW", Some(false))] {
        assert_eq!(only_stored(stored(&[("origin", Value::from(origin))])).0.reused, reused);
    }
    assert_eq!(only_stored(stored(&[])).0.reused, None);
}
