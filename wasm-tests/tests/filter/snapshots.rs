//! Snapshots: whole or not at all, and what happens without a good one.

use kinference_protocol::v1::{self, filter_message::Message};
use kinference_wasm_tests::fleet::{Fleet, MODEL, part};
use kinference_wasm_tests::fuel::prose;
use kinference_wasm_tests::http::{Answer, Request};
use kinference_wasm_tests::{Control, Options, Proxy};

use crate::{connected, serving, serving_with};

fn rejections(said: &[Message]) -> Vec<v1::Rejected> {
    let rejected = said.iter().filter_map(|message| match message {
        Message::Rejected(rejected) => Some(rejected.clone()),
        _ => None,
    });
    rejected.collect()
}

fn applied(said: &[Message]) -> Vec<v1::Applied> {
    let applied = said.iter().filter_map(|message| match message {
        Message::Applied(applied) => Some(*applied),
        _ => None,
    });
    applied.collect()
}

/// The request is decided by the snapshot with this position.
fn holds(proxy: &mut Proxy, position: &str) -> bool {
    let exchange = proxy.send(0, &Request::chat(MODEL, "hi"));
    proxy.answer(exchange, &Answer::json(200, "{}"));
    proxy.received(exchange).headers.text("x-kinference-epoch").as_deref() == Some(position)
}

#[test]
fn without_a_snapshot_the_proxy_picks_or_the_filter_refuses() {
    let fleet = Fleet::new(2);
    let mut proxy = connected(&fleet, 1);
    let exchange = proxy.send(0, &Request::chat(MODEL, "hi"));
    let forwarded = proxy.forwarded(exchange).unwrap();
    assert!(forwarded.destinations().is_empty());
    proxy.answer(exchange, &Answer::json(200, "{}"));
    assert_eq!(proxy.received(exchange).headers.get("x-kinference-model"), None);
    let exchange = proxy.send(0, &Request::post("/v1/completions", "{"));
    assert_eq!(proxy.received(exchange).status, 400, "what is wrong is wrong without a snapshot too");
    let exchange = proxy.send(0, &Request::new("GET", "/v1/models"));
    assert!(proxy.forwarded(exchange).is_some());
    assert_eq!(proxy.value("kinference_filter_undecided"), 2);

    let configuration =
        r#"{"gatewayBackend":"main","controlCluster":"kinference_control","failureMode":"Closed"}"#.to_owned();
    let mut proxy =
        Proxy::start(Options { hosts: fleet.hosts(), configuration, ..Options::default() }).unwrap().unwrap();
    for request in [Request::chat(MODEL, "hi"), Request::new("GET", "/v1/models")] {
        let exchange = proxy.send(0, &request);
        let received = proxy.received(exchange);
        assert_eq!((received.status, received.headers.text("retry-after").as_deref()), (503, Some("1")));
        assert_eq!(received.json()["error"]["code"], "not_ready");
        assert!(proxy.forwarded(exchange).is_none());
    }
}

#[test]
fn a_snapshot_takes_force_with_its_last_part() {
    let mut fleet = Fleet::new(3);
    fleet.sequence = 40;
    fleet.cache(2, &Fleet::chat_text(&prose(4_000)));
    let mut proxy = connected(&fleet, 1);
    let parts = fleet.full_in_parts();
    for part in &parts[..2] {
        assert!(proxy.push(0, part));
        let exchange = proxy.send(0, &Request::chat(MODEL, "hi"));
        assert!(proxy.forwarded(exchange).unwrap().destinations().is_empty());
    }
    proxy.take_said(0);
    assert!(proxy.push(0, &parts[2]));
    assert!(holds(&mut proxy, "7:40"));
    let said = applied(&proxy.take_said(0));
    assert_eq!(said.len(), 1, "said at once");
    assert_eq!((said[0].epoch, said[0].sequence), (7, 40));
    assert!(said[0].index_chunks >= 15 && said[0].index_bytes > 0);
    assert_eq!(proxy.value("kinference_filter_snapshots_applied"), 1);
}

#[test]
fn a_bad_snapshot_changes_nothing_and_is_reported() {
    type Spoil = fn(&mut Fleet);
    let cases: [(&str, bool, Spoil); 8] = [
        ("chunk_bytes", false, |fleet| fleet.backend().chunk_bytes = 100),
        ("config.backend is missing", false, |fleet| fleet.config.backend = None),
        ("template does not compile", false, |fleet| fleet.config.templates[0].source = "{% for %}".into()),
        ("config.worker_sets.template", false, |fleet| fleet.set().template = Some(9)),
        ("config.worker_sets.id", false, |fleet| {
            let set = fleet.set().clone();
            fleet.config.worker_sets.push(set);
        }),
        ("worker.worker_set", false, |fleet| fleet.workers[0].worker_set = 99),
        ("its budget is", false, |fleet| {
            fleet.backend().index_max_bytes = 100;
            fleet.cache(0, &prose(10_000));
        }),
        ("a chunk hash is 0", true, |fleet| {
            fleet.chunks.insert((0, 0), (1, 64));
        }),
    ];
    for (reason, resync, spoil) in cases {
        let fleet = Fleet::new(2);
        let mut proxy = serving(&fleet);
        let mut bad = Fleet { epoch: 8, ..fleet.clone() };
        spoil(&mut bad);
        assert!(proxy.push(0, &bad.full()));
        let said = rejections(&proxy.take_said(0));
        assert_eq!(said.len(), 1, "{reason}");
        assert!(said[0].reason.contains(reason), "{:?}", said[0].reason);
        assert_eq!((said[0].epoch, said[0].sequence, said[0].resync), (7, 0, resync), "{reason}");
        assert!(holds(&mut proxy, "7:0"), "{reason}");
        // A good one heals it.
        assert!(proxy.push(0, &Fleet { epoch: 9, ..fleet.clone() }.full()));
        assert!(holds(&mut proxy, "9:0"), "{reason}");
        assert!(proxy.value("kinference_filter_messages_rejected") == 1);
    }
}

#[test]
fn damaged_messages_change_nothing() {
    let mut fleet = Fleet::new(2);
    let lists = v1::PrefixPage { page: 0, hashes: vec![1, 2], workers: vec![1], tokens: vec![64, 64] };
    let uneven =
        v1::Sections { prefix: Some(v1::Prefix { clears: Vec::new(), pages: vec![lists] }), ..v1::Sections::default() };
    let uneven = Fleet::new(2).delta(uneven);
    let parts = Fleet { epoch: 8, ..fleet.clone() }.full_in_parts();
    let first = Fleet { epoch: 8, ..fleet.clone() }.full_in_parts().remove(0);
    let other_epoch = part(9, 0, 1, true, v1::Sections::default());
    let cases: Vec<(&str, Vec<v1::ControlMessage>)> = vec![
        ("2 hashes, 1 worker sets", vec![uneven]),
        ("part 1 of epoch 8 came out of order", vec![parts[1].clone()]),
        ("part 2 of epoch 8 came out of order", vec![parts[0].clone(), parts[2].clone()]),
        ("part 1 of epoch 9 came out of order", vec![first, other_epoch]),
        (
            "received epoch 7 sequence 2",
            vec![{
                let mut ahead = Fleet { sequence: 1, ..fleet.clone() };
                ahead.workers_delta(&[0])
            }],
        ),
        ("received epoch 6 sequence 0", vec![Fleet { epoch: 6, ..fleet.clone() }.heartbeat()]),
        ("the message is empty", vec![v1::ControlMessage { message: None }]),
    ];
    for (reason, messages) in cases {
        let mut proxy = serving(&fleet);
        messages.iter().for_each(|message| assert!(proxy.push(0, message)));
        let said = rejections(&proxy.take_said(0));
        assert!(said.len() == 1 && said[0].reason.contains(reason), "{reason}: {said:?}");
        assert!(said[0].resync, "{reason}");
        assert!(holds(&mut proxy, "7:0"), "{reason}");
    }
    let mut proxy = serving(&fleet);
    assert!(proxy.push_bytes(0, vec![0xff; 100]));
    let said = rejections(&proxy.take_said(0));
    assert!(said[0].resync && said[0].reason.contains("cannot be decoded"), "{said:?}");
    assert!(holds(&mut proxy, "7:0"));
    let next = fleet.workers_delta(&[1]);
    assert!(proxy.push(0, &next));
    assert!(holds(&mut proxy, "7:1"), "and deltas go on from there");
}

#[test]
fn a_message_that_is_too_large_is_not_even_read() {
    let mut proxy = serving(&Fleet::new(2));
    let before = proxy.memory_bytes(0);
    assert!(proxy.push_bytes(0, vec![0; 100 << 20]));
    let said = rejections(&proxy.take_said(0));
    assert!(!said[0].resync && said[0].reason.contains("larger than"), "{said:?}");
    assert_eq!(proxy.memory_bytes(0), before);
    assert!(holds(&mut proxy, "7:0"));
}

#[test]
fn a_gap_is_told_once_and_a_snapshot_heals_it() {
    let mut fleet = Fleet::new(2);
    let mut proxy = serving(&fleet);
    fleet.workers_delta(&[0]);
    for _ in 0..20 {
        let delta = fleet.workers_delta(&[0]);
        assert!(proxy.push(0, &delta));
    }
    assert_eq!(rejections(&proxy.take_said(0)).len(), 1);
    assert!(holds(&mut proxy, "7:0"));
    // No answer: it asks again.
    proxy.advance(1_100);
    assert!(proxy.push(0, &fleet.heartbeat()));
    assert_eq!(rejections(&proxy.take_said(0)).len(), 1);
    assert!(proxy.push(0, &fleet.full()));
    assert!(holds(&mut proxy, "7:21"));
    let delta = fleet.workers_delta(&[0]);
    assert!(proxy.push(0, &delta));
    assert!(holds(&mut proxy, "7:22"));
}

#[test]
fn what_is_held_is_said_at_most_once_a_second() {
    let mut fleet = Fleet::new(2);
    let mut proxy = serving(&fleet);
    for _ in 0..60 {
        proxy.advance(50);
        let delta = fleet.workers_delta(&[0]);
        assert!(proxy.push(0, &delta));
    }
    proxy.advance(1_500);
    let said = applied(&proxy.take_said(0));
    assert!((3..=4).contains(&said.len()), "{said:?}");
    assert_eq!(said.last().unwrap().sequence, 60, "the last one is said too");
    proxy.advance(3_000);
    assert!(applied(&proxy.take_said(0)).is_empty(), "nothing new");
}

#[test]
fn past_its_time_a_snapshot_is_trusted_for_its_workers_only() {
    let mut fleet = Fleet::new(8);
    fleet.backend().stale_after_ms = 10_000;
    let prompt = prose(8_000);
    fleet.cache(5, &Fleet::chat_text(&prompt));
    fleet.workers[3].set_state(v1::WorkerState::Unready);
    let mut proxy = serving_with(&fleet, 2);
    let ask = |proxy: &mut Proxy, vm: usize, text: &str| {
        let exchange = proxy.send(vm, &Request::chat(MODEL, text));
        let forwarded = proxy.forwarded(exchange).unwrap();
        proxy.answer(exchange, &Answer::json(200, "{}"));
        (forwarded.address, proxy.received(exchange).headers.text("x-kinference-predicted-cached-tokens").unwrap())
    };
    assert_eq!(ask(&mut proxy, 0, &prompt).0, fleet.workers[5].address);
    // Heartbeats keep it good.
    for _ in 0..15 {
        proxy.advance(1_000);
        assert!(proxy.push_all(&[fleet.heartbeat()]));
    }
    assert_ne!(ask(&mut proxy, 0, &prompt).1, "0");

    proxy.set_control(Control::Down);
    proxy.close(0, 14);
    proxy.close(1, 14);
    proxy.advance(9_000);
    assert_ne!(ask(&mut proxy, 0, &prompt).1, "0");
    proxy.advance(2_000);
    let mut homes = std::collections::BTreeSet::new();
    for i in 0..40 {
        let text = format!("{i} {prompt}");
        let (home, cached) = ask(&mut proxy, 0, &text);
        assert_eq!(cached, "0");
        assert_ne!(home, fleet.workers[3].address);
        assert_eq!(ask(&mut proxy, 1, &format!("{text}, and more")).0, home, "all VMs hash alike");
        homes.insert(home);
    }
    assert!(homes.len() >= 6, "{homes:?}");
    assert_eq!(proxy.value("kinference_filter_stale_decisions"), 80);

    proxy.set_control(Control::Up);
    crate::reconnected(&mut proxy);
    assert!(proxy.push_all(&[fleet.full()]));
    assert_eq!(ask(&mut proxy, 0, &prompt).0, fleet.workers[5].address);
}

#[test]
fn heartbeats_of_another_state_do_not_keep_a_snapshot_good() {
    let fleet = Fleet::new(2);
    let mut proxy = serving(&fleet);
    let ahead = Fleet { sequence: 5, ..fleet.clone() };
    for _ in 0..12 {
        proxy.advance(1_000);
        assert!(proxy.push(0, &ahead.heartbeat()));
    }
    proxy.send(0, &Request::chat(MODEL, "hi"));
    assert_eq!(proxy.value("kinference_filter_stale_decisions"), 1);
}

#[test]
fn a_new_epoch_with_another_grid_replaces_everything() {
    let mut fleet = Fleet::new(4);
    let prompt = prose(8_000);
    fleet.cache(1, &Fleet::chat_text(&prompt));
    let mut proxy = serving(&fleet);
    let mut next = Fleet::new(4);
    next.epoch = 99;
    next.backend().chunk_bytes = 512;
    assert!(proxy.push(0, &next.full()));
    let exchange = proxy.send(0, &Request::chat(MODEL, &prompt));
    proxy.answer(exchange, &Answer::json(200, "{}"));
    let headers = proxy.received(exchange).headers;
    assert_eq!(headers.text("x-kinference-epoch").as_deref(), Some("99:0"));
    assert_eq!(headers.text("x-kinference-predicted-cached-tokens").as_deref(), Some("0"));
}
