//! Decisions as they show outside: prefixes, loads, the filter's own corrections between snapshots.

use std::collections::BTreeMap;

use kinference_protocol::v1;
use kinference_wasm_tests::fleet::{Fleet, MODEL};
use kinference_wasm_tests::fuel::prose;
use kinference_wasm_tests::http::{Answer, Request};
use kinference_wasm_tests::{Exchange, Proxy};

use crate::{connected, serving, started};

fn destination(proxy: &Proxy, exchange: Exchange) -> String {
    proxy.forwarded(exchange).unwrap().destinations()[0].clone()
}

#[test]
fn a_cached_prefix_attracts_its_requests() {
    let mut fleet = Fleet::new(8);
    let prompts: Vec<String> = (0..8).map(|i| format!("conversation {i}: {}", prose(8_000))).collect();
    for (worker, prompt) in (0..).zip(&prompts) {
        fleet.cache(worker, &Fleet::chat_text(prompt)[..7_000]);
    }
    let mut proxy = serving(&fleet);
    for (worker, prompt) in prompts.iter().enumerate() {
        let exchange = proxy.send(0, &Request::chat(MODEL, &format!("{prompt} and more")));
        assert_eq!(destination(&proxy, exchange), fleet.workers[worker].address);
        proxy.answer(exchange, &Answer::json(200, "{}"));
    }
}

#[test]
fn prefixes_that_arrive_later_count_and_removed_ones_do_not() {
    let mut fleet = Fleet::new(4);
    let prompt = prose(8_000);
    let mut proxy = serving(&fleet);
    fleet.cache(2, &Fleet::chat_text(&prompt));
    let delta = fleet.prefix_delta();
    assert!(proxy.push(0, &delta));
    let exchange = proxy.send(0, &Request::chat(MODEL, &prompt));
    assert_eq!(destination(&proxy, exchange), fleet.workers[2].address);
    proxy.answer(exchange, &Answer::json(200, "{}"));
    assert_eq!(proxy.received(exchange).headers.text("x-kinference-predicted-cached-tokens").as_deref(), Some("1984"));

    // Its engine lost everything: what was just sent there is not believed either.
    let clears = vec![v1::PrefixClear { page: 0, workers: 1 << 2 }];
    let prefix = v1::Prefix { clears, pages: Vec::new() };
    let delta = fleet.delta(v1::Sections { prefix: Some(prefix), ..v1::Sections::default() });
    assert!(proxy.push(0, &delta));
    let exchange = proxy.send(0, &Request::chat(MODEL, &prompt));
    proxy.answer(exchange, &Answer::json(200, "{}"));
    assert_eq!(proxy.received(exchange).headers.text("x-kinference-predicted-cached-tokens").as_deref(), Some("0"));
}

#[test]
fn a_prefix_just_sent_attracts_the_next_request_before_any_event() {
    let fleet = Fleet::new(8);
    let mut proxy = serving(&fleet);
    let shared = prose(20_000);
    let first = proxy.send(0, &Request::chat(MODEL, &format!("{shared} first")));
    let home = destination(&proxy, first);
    proxy.answer(first, &Answer::json(200, "{}"));
    for i in 0..5 {
        let exchange = proxy.send(0, &Request::chat(MODEL, &format!("{shared} question {i}")));
        assert_eq!(destination(&proxy, exchange), home);
        proxy.answer(exchange, &Answer::json(200, "{}"));
    }
}

#[test]
fn a_burst_of_one_prefix_does_not_pile_up_on_its_worker() {
    let mut fleet = Fleet::new(4);
    let shared = prose(4_000);
    fleet.cache(1, &Fleet::chat_text(&shared));
    let mut proxy = serving(&fleet);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for i in 0..60 {
        let exchange = proxy.send(0, &Request::chat(MODEL, &format!("{shared} {i} {}", prose(8_000))));
        *counts.entry(destination(&proxy, exchange)).or_default() += 1;
    }
    assert_eq!(counts.len(), 4, "{counts:?}");
    assert!(counts.values().all(|count| *count >= 5), "{counts:?}");
}

#[test]
fn a_burst_of_different_prompts_spreads_evenly() {
    let fleet = Fleet::new(4);
    let mut proxy = serving(&fleet);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for i in 0..80 {
        let exchange = proxy.send(0, &Request::chat(MODEL, &format!("{i} {}", prose(4_000))));
        *counts.entry(destination(&proxy, exchange)).or_default() += 1;
    }
    assert!(counts.values().all(|count| (15..=25).contains(count)), "{counts:?}");
}

#[test]
fn a_loaded_worker_is_avoided_and_an_unknown_load_is_the_worst() {
    let mut fleet = Fleet::new(3);
    fleet.workers[0].load =
        Some(v1::Load { known: true, pending_prefill_tokens: 50_000, proxies: 2, ..v1::Load::default() });
    fleet.workers[1].load = None;
    let mut proxy = serving(&fleet);
    for i in 0..10 {
        let exchange = proxy.send(0, &Request::chat(MODEL, &format!("{i}")));
        let destinations = proxy.forwarded(exchange).unwrap().destinations();
        assert_eq!(destinations, [2, 0, 1].map(|worker| fleet.workers[worker].address.clone()));
        proxy.answer(exchange, &Answer::json(200, "{}"));
    }
    // The load moves.
    fleet.workers[0].load = Some(v1::Load { known: true, ..v1::Load::default() });
    fleet.workers[2].load =
        Some(v1::Load { known: true, queued_requests: 100.0, strangers: 100.0, ..v1::Load::default() });
    let delta = fleet.workers_delta(&[0, 2]);
    assert!(proxy.push(0, &delta));
    let exchange = proxy.send(0, &Request::chat(MODEL, "hi"));
    assert_eq!(destination(&proxy, exchange), fleet.workers[0].address);
}

#[test]
fn workers_come_and_go() {
    let mut fleet = Fleet::new(2);
    fleet.workers[1].set_state(v1::WorkerState::Unready);
    let mut proxy = serving(&fleet);
    let exchange = proxy.send(0, &Request::chat(MODEL, "hi"));
    assert_eq!(proxy.forwarded(exchange).unwrap().destinations(), [fleet.workers[0].address.clone()]);
    fleet.workers[1].set_state(v1::WorkerState::Ready);
    let workers = v1::Workers { upsert: vec![fleet.workers[1].clone()], removed: vec![0], ..v1::Workers::default() };
    let delta = fleet.delta(v1::Sections { workers: Some(workers), ..v1::Sections::default() });
    assert!(proxy.push(0, &delta));
    // The first request is still being answered by the worker that is gone.
    proxy.answer(exchange, &Answer::json(200, "{}"));
    let exchange = proxy.send(0, &Request::chat(MODEL, "hi"));
    assert_eq!(proxy.forwarded(exchange).unwrap().destinations(), [fleet.workers[1].address.clone()]);
}

#[test]
fn after_a_restart_of_the_control_service_an_id_may_be_another_worker() {
    let fleet = Fleet::new(2);
    let prompt = prose(40_000);
    let mut proxy = serving(&fleet);
    let request = Request::completion(MODEL, &prompt);
    let first = proxy.send(0, &request);
    let home = destination(&proxy, first);

    // The two change their ids: what is in flight, and what was just sent, is with neither id.
    let mut restarted = Fleet { epoch: 8, ..fleet.clone() };
    restarted.workers[0].address.clone_from(&fleet.workers[1].address);
    restarted.workers[1].address.clone_from(&fleet.workers[0].address);
    assert!(proxy.push(0, &restarted.full()));
    let next = proxy.send(0, &request);
    proxy.answer(next, &Answer::json(200, "{}"));
    let received = proxy.received(next).headers;
    assert_eq!(received.text("x-kinference-predicted-cached-tokens").as_deref(), Some("0"));

    // The answer to the first still tells who gave it, and nobody is taken for unreachable.
    proxy.answer(first, &Answer::json(200, "{}"));
    let name = restarted.workers.iter().find(|worker| worker.address == home).unwrap().name.clone();
    let received = proxy.received(first).headers;
    assert_eq!(received.text("x-kinference-destination"), Some(format!("default/tiny/{name}")));
    assert_eq!(proxy.value("kinference_filter_connect_failures"), 0);

    // With the same workers as before, what was just sent is still believed.
    assert!(proxy.push(0, &Fleet { epoch: 9, ..restarted.clone() }.full()));
    let again = proxy.send(0, &request);
    proxy.answer(again, &Answer::json(200, "{}"));
    assert_ne!(proxy.received(again).headers.text("x-kinference-predicted-cached-tokens").as_deref(), Some("0"));
}

#[test]
fn sets_without_events_learn_from_where_requests_were_sent() {
    let mut fleet = Fleet::new(6);
    fleet.set().set_prefix_mode(v1::PrefixMode::Routed);
    let mut proxy = serving(&fleet);
    let shared = prose(200_000);
    let first = proxy.send(0, &Request::chat(MODEL, &format!("{shared} 1")));
    let home = destination(&proxy, first);
    proxy.answer(first, &Answer::json(200, "{}"));
    proxy.advance(300);
    let reports = proxy.take_reports(0);
    assert_eq!(started(&reports)[0].1.chunks.len(), 512, "the first chunks, so that other filters learn too");

    // Believed for as long as the set says, and no longer.
    for (wait, expected) in [(30_000, true), (61_000, false)] {
        for _ in 0..wait / 1000 {
            proxy.advance(1000);
            assert!(proxy.push(0, &fleet.heartbeat()));
        }
        let exchange = proxy.send(0, &Request::chat(MODEL, &format!("{shared} again")));
        proxy.answer(exchange, &Answer::json(200, "{}"));
        let cached = proxy.received(exchange).headers.text("x-kinference-predicted-cached-tokens").unwrap();
        assert_eq!(cached != "0", expected, "{cached}");
        if expected {
            assert_eq!(destination(&proxy, exchange), home);
        }
    }
}

#[test]
fn two_proxies_agree_on_the_home_of_a_new_prefix() {
    let fleet = Fleet::new(16);
    let (mut a, mut b) = (serving(&fleet), serving(&fleet));
    for i in 0..10 {
        let request = Request::chat(MODEL, &format!("{i} {}", prose(3_000)));
        let (x, y) = (a.send(0, &request), b.send(0, &request));
        assert_eq!(destination(&a, x), destination(&b, y));
        a.answer(x, &Answer::json(200, "{}"));
        b.answer(y, &Answer::json(200, "{}"));
    }
    drop(connected(&fleet, 1));
}
