use std::collections::BTreeMap;

use super::*;
use crate::prefix::place;

fn config() -> v1::Config {
    v1::Config {
        backend: Some(v1::Backend { chunk_bytes: 256, index_max_bytes: 1 << 20, ..v1::Backend::default() }),
        worker_sets: vec![v1::WorkerSet {
            id: 1,
            model: "m".into(),
            prefix_domain: "d".into(),
            template: Some(0),
            ..v1::WorkerSet::default()
        }],
        templates: vec![v1::Template { source: "x".into(), special_tokens: BTreeMap::new() }],
        ..v1::Config::default()
    }
}

fn worker(id: u32, set: u32) -> v1::Worker {
    v1::Worker { id, worker_set: set, address: format!("10.0.0.{id}:8000"), ..v1::Worker::default() }
}

fn workers(ids: &[u32]) -> Option<v1::Workers> {
    Some(v1::Workers { upsert: ids.iter().map(|id| worker(*id, 1)).collect(), ..v1::Workers::default() })
}

fn prefix(entries: &[(u64, u64)]) -> Option<v1::Prefix> {
    let page = v1::PrefixPage {
        page: 0,
        hashes: entries.iter().map(|entry| entry.0).collect(),
        workers: entries.iter().map(|entry| entry.1).collect(),
        tokens: entries.iter().map(|_| 60).collect(),
    };
    Some(v1::Prefix { clears: Vec::new(), pages: vec![page] })
}

fn part(sequence: u64, part: u32, last: bool, sections: v1::Sections) -> v1::ControlMessage {
    let part = v1::SnapshotPart { epoch: 9, sequence, part, last, sections: Some(sections) };
    v1::ControlMessage { message: Some(Message::Snapshot(part)) }
}

fn delta(epoch: u64, sequence: u64, sections: v1::Sections) -> v1::ControlMessage {
    v1::ControlMessage { message: Some(Message::Delta(v1::Delta { epoch, sequence, sections: Some(sections) })) }
}

fn full() -> v1::Sections {
    v1::Sections { config: Some(config()), workers: workers(&[0, 1]), prefix: prefix(&[(5, 0b11)]) }
}

fn ready() -> Replica {
    let mut replica = Replica::default();
    assert_eq!(replica.apply(part(7, 0, true, full())), Ok(Outcome::Full));
    replica
}

#[test]
fn a_snapshot_in_parts_takes_force_with_the_last() {
    let mut replica = Replica::default();
    assert_eq!(replica.apply(part(7, 0, false, full())), Ok(Outcome::Part));
    assert!(replica.current().is_none());
    let rest = v1::Sections { prefix: prefix(&[(6, 1)]), ..v1::Sections::default() };
    assert_eq!(replica.apply(part(7, 1, true, rest)), Ok(Outcome::Full));
    assert_eq!(replica.position(), (9, 7));
    assert_eq!(replica.current().unwrap().index.chunks(), 2);
}

#[test]
fn parts_out_of_order_or_left_behind_by_a_closed_stream_change_nothing() {
    let mut replica = ready();
    assert!(replica.apply(part(8, 1, true, full())).unwrap_err().wants_resync());
    replica.apply(part(8, 0, false, full())).unwrap();
    assert!(replica.apply(part(8, 2, true, v1::Sections::default())).is_err());
    replica.apply(part(8, 0, false, full())).unwrap();
    replica.reconnected();
    assert!(replica.apply(part(8, 1, true, v1::Sections::default())).is_err());
    assert_eq!(replica.position(), (9, 7));
}

#[test]
fn deltas_apply_only_to_the_exact_state_before_them() {
    let mut replica = ready();
    let change = || v1::Sections { prefix: prefix(&[(5, 0), (6, 0b10)]), ..v1::Sections::default() };
    assert_eq!(
        replica.apply(delta(9, 9, change())),
        Err(ApplyError::Gap { epoch: 9, sequence: 7, got_epoch: 9, got_sequence: 9 })
    );
    assert!(replica.apply(delta(8, 8, change())).is_err());
    assert_eq!(replica.apply(delta(9, 8, change())), Ok(Outcome::Delta(Changes::default())));
    let index = &replica.current().unwrap().index;
    assert_eq!((index.get(0, 5), index.get(0, 6).map(|entry| entry.workers)), (None, Some(0b10)));
    let beat =
        |sequence| v1::ControlMessage { message: Some(Message::Heartbeat(v1::Heartbeat { epoch: 9, sequence })) };
    assert_eq!(replica.apply(beat(8)), Ok(Outcome::Current));
    assert!(replica.apply(beat(9)).unwrap_err().wants_resync());
}

#[test]
fn removed_workers_take_their_prefixes_along() {
    let mut replica = ready();
    let removal = v1::Workers { upsert: vec![worker(0, 1)], removed: vec![1], ..v1::Workers::default() };
    let sections = v1::Sections { workers: Some(removal), ..v1::Sections::default() };
    let outcome = replica.apply(delta(9, 8, sections)).unwrap();
    assert_eq!(outcome, Outcome::Delta(Changes { emptied: vec![1] }));
    let snapshot = replica.current().unwrap();
    assert_eq!(snapshot.index.get(0, 5).unwrap().workers, place(0).1);
    assert!(!snapshot.workers.contains_key(&1));
}

#[test]
fn a_bad_message_is_refused_whole_and_the_state_stays() {
    let mut bad_template = config();
    bad_template.templates[0].source = "{% if %}".into();
    let mut no_template = config();
    no_template.worker_sets[0].template = Some(3);
    let mut grid = config();
    grid.backend.as_mut().unwrap().chunk_bytes = 100;
    let mut other_grid = config();
    other_grid.backend.as_mut().unwrap().chunk_bytes = 512;
    let mut other_domain = config();
    other_domain.worker_sets[0].prefix_domain = "e".into();
    let mut without_set = config();
    without_set.worker_sets.clear();
    let many: Vec<(u64, u64)> = (1..100_000).map(|hash| (hash, 1)).collect();
    let mut ragged = prefix(&[(1, 1), (2, 1)]);
    ragged.as_mut().unwrap().pages[0].workers.pop();
    let with_config = |config| v1::Sections { config: Some(config), workers: workers(&[2]), ..v1::Sections::default() };
    let bad = [
        (with_config(bad_template), false),
        (with_config(no_template), false),
        (with_config(grid), false),
        (with_config(other_grid), true),
        (with_config(other_domain), true),
        (with_config(without_set), true),
        (
            v1::Sections {
                workers: Some(v1::Workers { upsert: vec![worker(2, 77)], ..v1::Workers::default() }),
                ..Default::default()
            },
            false,
        ),
        (v1::Sections { workers: workers(&[2]), prefix: prefix(&many), ..Default::default() }, false),
        (v1::Sections { workers: workers(&[2]), prefix: ragged, ..Default::default() }, true),
        (v1::Sections { workers: workers(&[2]), prefix: prefix(&[(0, 1)]), ..Default::default() }, true),
    ];
    let mut replica = ready();
    for (number, (sections, resync)) in bad.into_iter().enumerate() {
        let error = replica.apply(delta(9, 8, sections)).unwrap_err();
        assert_eq!(error.wants_resync(), resync, "case {number}: {error}");
        assert!(!error.to_string().is_empty());
        let snapshot = replica.current().unwrap();
        assert_eq!((snapshot.sequence, snapshot.workers.len(), snapshot.index.chunks()), (7, 2, 1), "case {number}");
    }
    assert!(replica.apply(v1::ControlMessage::default()).is_err());
    assert!(replica.apply(part(9, 0, true, v1::Sections::default())).is_err());
    assert_eq!(replica.position(), (9, 7));
}
