//! Several VMs of one proxy: what one has in flight, the others see at once.

use std::collections::BTreeMap;

use kinference_wasm_tests::fleet::{Fleet, MODEL};
use kinference_wasm_tests::fuel::prose;
use kinference_wasm_tests::http::{Answer, Request};
use kinference_wasm_tests::{Exchange, Proxy};

use crate::serving_with;

fn destination(proxy: &Proxy, exchange: Exchange) -> String {
    proxy.forwarded(exchange).unwrap().destinations()[0].clone()
}

/// A proxy of `vms` VMs that know each other.
fn together(fleet: &Fleet, vms: usize) -> Proxy {
    let mut proxy = serving_with(fleet, vms);
    proxy.advance(1_500);
    assert!(proxy.push_all(&[fleet.heartbeat()]));
    proxy
}

#[test]
fn a_burst_over_all_vms_spreads_over_all_workers() {
    let fleet = Fleet::new(4);
    for vms in [1, 2, 4] {
        let mut proxy = together(&fleet, vms);
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        // The same prompt: every VM alone would prefer the same worker.
        let request = Request::completion(MODEL, &prose(200));
        for i in 0..40 {
            let exchange = proxy.send(i % vms, &request);
            *counts.entry(destination(&proxy, exchange)).or_default() += 1;
            proxy.advance(2);
        }
        assert_eq!(counts.len(), 4, "{vms} VMs: {counts:?}");
        assert!(counts.values().all(|count| (6..=14).contains(count)), "{vms} VMs: {counts:?}");
    }
}

#[test]
fn a_busy_worker_of_one_vm_is_avoided_by_the_other() {
    let fleet = Fleet::new(2);
    let mut proxy = together(&fleet, 2);
    let first = proxy.send(0, &Request::completion(MODEL, &prose(40_000)));
    proxy.advance(2);
    for i in 0..5 {
        let other = proxy.send(1, &Request::completion(MODEL, &format!("{i} {}", prose(4_000))));
        assert_ne!(destination(&proxy, other), destination(&proxy, first));
        proxy.answer(other, &Answer::json(200, "{}"));
    }
    // Once it is answered, both are equal again.
    proxy.answer(first, &Answer::json(200, "{}"));
    proxy.advance(300);
    let mut homes: Vec<String> = Vec::new();
    for i in 0..20 {
        let exchange = proxy.send(1, &Request::completion(MODEL, &format!("{i} {}", prose(4_000))));
        homes.push(destination(&proxy, exchange));
        proxy.answer(exchange, &Answer::json(200, "{}"));
        proxy.advance(5_000);
        assert!(proxy.push_all(&[fleet.heartbeat()]));
    }
    assert!(homes.contains(&destination(&proxy, first)));
}

#[test]
fn a_vm_that_hangs_is_forgotten() {
    let fleet = Fleet::new(2);
    let mut proxy = together(&fleet, 2);
    let request = Request::completion(MODEL, &prose(40_000));
    let lost = proxy.send(0, &request);
    proxy.provoke_trap(0);
    assert!(proxy.trap(0).unwrap().contains("proxy_on_tick"));
    let refused = proxy.send(0, &request);
    assert_eq!(proxy.received(refused).status, 503, "a VM that trapped serves nothing");
    proxy.advance(2_000);
    assert!(proxy.push(1, &fleet.heartbeat()));
    let avoiding = proxy.send(1, &request);
    assert_ne!(destination(&proxy, avoiding), destination(&proxy, lost));
    proxy.answer(avoiding, &Answer::json(200, "{}"));
    for _ in 0..5 {
        proxy.advance(1_000);
        assert!(proxy.push(1, &fleet.heartbeat()));
    }
    let again = proxy.send(1, &request);
    assert_eq!(destination(&proxy, again), destination(&proxy, lost));
}

#[test]
fn a_vm_that_comes_later_joins() {
    let fleet = Fleet::new(2);
    let mut proxy = together(&fleet, 1);
    assert!(proxy.add_vm().unwrap());
    proxy.advance(1_500);
    assert!(proxy.push_all(&[fleet.full()]));
    let first = proxy.send(0, &Request::completion(MODEL, &prose(40_000)));
    proxy.advance(2);
    let other = proxy.send(1, &Request::completion(MODEL, &prose(40_000)));
    assert_ne!(destination(&proxy, other), destination(&proxy, first));
}

#[test]
fn all_vms_agree_on_the_snapshot() {
    let mut fleet = Fleet::new(3);
    let mut proxy = serving_with(&fleet, 4);
    for _ in 0..10 {
        let delta = fleet.workers_delta(&[0, 1, 2]);
        assert!(proxy.push_all(&[delta]));
    }
    for vm in 0..4 {
        let exchange = proxy.send(vm, &Request::chat(MODEL, "hi"));
        proxy.answer(exchange, &Answer::json(200, "{}"));
        assert_eq!(proxy.received(exchange).headers.text("x-kinference-epoch").as_deref(), Some("7:10"));
    }
}
