//! The stream to the control service: opened, lost, opened again.

use kinference_protocol::v1::{self, filter_message::Message};
use kinference_wasm_tests::fleet::{Fleet, MODEL};
use kinference_wasm_tests::http::{Answer, Request};
use kinference_wasm_tests::{Control, Options, Proxy};

use crate::{connected, finished, serving};

fn hello(said: Vec<Message>) -> v1::Hello {
    match said.into_iter().next() {
        Some(Message::Hello(hello)) => hello,
        other => panic!("the first message of a stream is Hello, not {other:?}"),
    }
}

#[test]
fn each_vm_opens_a_stream_and_says_who_it_is() {
    let mut proxy = connected(&Fleet::new(1), 3);
    let (mut ids, mut proxies) = (Vec::new(), Vec::new());
    for vm in 0..3 {
        assert_eq!(proxy.streams(vm), ["kinference_control kinference.snapshot.v1.SnapshotService/Stream"]);
        let hello = hello(proxy.take_said(vm));
        assert_eq!(hello.gateway_backend, "default/main");
        assert!(hello.proxy_id.starts_with("proxy-1/"), "{}", hello.proxy_id);
        proxies.push(hello.proxy_id);
        assert_eq!((hello.epoch, hello.sequence), (0, 0));
        assert!(!hello.filter_build.is_empty());
        ids.push(hello.vm_id);
    }
    ids.sort_unstable();
    ids.dedup();
    proxies.dedup();
    assert_eq!((ids.len(), proxies.len()), (3, 1));
}

#[test]
fn a_lost_stream_costs_no_request_and_comes_back() {
    let mut fleet = Fleet::new(3);
    fleet.sequence = 5;
    let mut proxy = serving(&fleet);
    proxy.close(0, 14);
    assert!(!proxy.is_connected(0));
    let exchange = proxy.send(0, &Request::chat(MODEL, "hi"));
    assert_eq!(proxy.forwarded(exchange).unwrap().destinations().len(), 3);
    proxy.answer(exchange, &Answer::json(200, "{}"));

    proxy.advance(400);
    assert!(proxy.is_connected(0));
    let said = proxy.take_said(0);
    assert_eq!((hello(said.clone()).epoch, hello(said.clone()).sequence), (7, 5), "it says what it holds");
    let reports = said.iter().filter_map(|message| match message {
        Message::Reports(batch) => Some(batch.reports.clone()),
        _ => None,
    });
    assert_eq!(finished(&reports.flatten().collect::<Vec<_>>()).len(), 1, "what happened meanwhile is reported");
    let delta = fleet.workers_delta(&[0]);
    assert!(proxy.push(0, &delta));
    assert!(!proxy.take_said(0).iter().any(|message| matches!(message, Message::Rejected(_))));
}

#[test]
fn attempts_grow_rare_while_the_service_is_down() {
    let fleet = Fleet::new(1);
    let mut proxy = serving(&fleet);
    proxy.set_control(Control::Down);
    proxy.close(0, 14);
    let attempts = |proxy: &Proxy| proxy.streams(0).len() - 1;
    proxy.advance(2_000);
    let early = attempts(&proxy);
    assert!((3..=8).contains(&early), "{early}");
    proxy.advance(60_000);
    let later = attempts(&proxy) - early;
    assert!((10..=30).contains(&later), "{later}");
    let exchange = proxy.send(0, &Request::chat(MODEL, "hi"));
    assert!(!proxy.forwarded(exchange).unwrap().destinations().is_empty());

    proxy.set_control(Control::Up);
    crate::reconnected(&mut proxy);
    // It answers: the next loss starts from short pauses again.
    assert!(proxy.push(0, &fleet.heartbeat()));
    proxy.close(0, 14);
    proxy.advance(400);
    assert!(proxy.is_connected(0));
}

#[test]
fn a_missing_cluster_is_survived() {
    let fleet = Fleet::new(1);
    let mut proxy = Proxy::start(Options { hosts: fleet.hosts(), ..Options::default() }).unwrap().unwrap();
    proxy.set_control(Control::NoCluster);
    proxy.advance(10_000);
    assert!(!proxy.is_connected(0));
    assert!(proxy.value("kinference_filter_streams_lost") > 2);
    assert!(proxy.logs().iter().any(|line| line.contains("is the cluster there?")));
    let exchange = proxy.send(0, &Request::chat(MODEL, "hi"));
    assert!(proxy.forwarded(exchange).is_some());
    proxy.set_control(Control::Up);
    crate::reconnected(&mut proxy);
}

#[test]
fn a_silent_stream_is_given_up() {
    let fleet = Fleet::new(1);
    let mut proxy = serving(&fleet);
    for _ in 0..10 {
        proxy.advance(1_000);
        assert!(proxy.push(0, &fleet.heartbeat()));
    }
    assert_eq!(proxy.streams(0).len(), 1);
    proxy.advance(6_000);
    assert_eq!(proxy.streams(0).len(), 2);
    assert!(proxy.is_connected(0));
}

#[test]
fn half_a_snapshot_of_a_lost_stream_is_dropped() {
    let fleet = Fleet::new(2);
    let mut proxy = connected(&fleet, 1);
    let parts = fleet.full_in_parts();
    assert!(proxy.push(0, &parts[0]));
    proxy.close(0, 14);
    proxy.advance(500);
    proxy.take_said(0);
    assert!(proxy.push(0, &parts[1]));
    let said = proxy.take_said(0);
    assert!(matches!(&said[..], [Message::Rejected(rejected)] if rejected.resync), "{said:?}");
    assert!(parts.iter().all(|part| proxy.push(0, part)));
    let exchange = proxy.send(0, &Request::chat(MODEL, "hi"));
    assert_eq!(proxy.forwarded(exchange).unwrap().destinations().len(), 2);
}

#[test]
fn reports_are_bounded_while_nobody_takes_them() {
    let fleet = Fleet::new(2);
    let mut proxy = serving(&fleet);
    proxy.set_control(Control::Down);
    proxy.close(0, 14);
    for _ in 0..3_000 {
        let exchange = proxy.send(0, &Request::chat(MODEL, "hi"));
        proxy.answer(exchange, &Answer::json(200, "{}"));
        proxy.forget(exchange);
    }
    let dropped = proxy.value("kinference_filter_reports_dropped");
    assert!(dropped > 1_000, "{dropped}");
    proxy.set_control(Control::Up);
    crate::reconnected(&mut proxy);
    let batch = proxy.take_said(0).into_iter().find_map(|message| match message {
        Message::Reports(batch) => Some(batch),
        _ => None,
    });
    let batch = batch.unwrap();
    assert_eq!(batch.reports.len() as u64 + batch.dropped, 9_000);
    assert_eq!(batch.dropped, dropped);
}

#[test]
fn reports_go_out_in_batches() {
    let fleet = Fleet::new(2);
    let mut proxy = serving(&fleet);
    for _ in 0..50 {
        let exchange = proxy.send(0, &Request::chat(MODEL, "hi"));
        proxy.answer(exchange, &Answer::json(200, "{}"));
    }
    proxy.advance(20);
    let said = proxy.take_said(0);
    assert!(matches!(&said[..], [Message::Reports(batch)] if batch.reports.len() == 150), "{}", said.len());
}

#[test]
fn a_clock_that_is_set_back_stops_nothing() {
    let fleet = Fleet::new(2);
    let mut proxy = serving(&fleet);
    proxy.set_clock_back(3_600_000);
    proxy.close(0, 14);
    proxy.advance(500);
    assert!(proxy.is_connected(0));
    assert!(proxy.push(0, &fleet.full()));
    let exchange = proxy.send(0, &Request::chat(MODEL, "hi"));
    proxy.advance(70);
    proxy.answer(exchange, &Answer::json(200, "{}"));
    proxy.advance(300);
    assert_eq!(finished(&proxy.take_reports(0))[0].1.after_ms, 70);
}
