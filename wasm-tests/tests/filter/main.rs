//! The real filter module in the fake Envoy: what reaches workers, clients and the control service.

mod answers;
mod bodies;
mod cost;
mod decisions;
mod peers;
mod plugin;
mod policies;
mod providers;
mod requests;
mod snapshots;
mod streams;

use kinference_protocol::v1::{self, report::Event};
use kinference_wasm_tests::fleet::Fleet;
use kinference_wasm_tests::{Options, Proxy};

/// Long enough for the first tick of every VM, which opens its stream.
const SETTLE_MS: u64 = 100;

/// A proxy whose VMs are connected to the control service and hold nothing yet.
fn connected(fleet: &Fleet, vms: usize) -> Proxy {
    connected_as(Options { vms, hosts: fleet.hosts(), ..Options::default() })
}

fn connected_as(options: Options) -> Proxy {
    let mut proxy = Proxy::start(options).unwrap().unwrap();
    proxy.advance(SETTLE_MS);
    proxy
}

/// A proxy of one VM that holds the fleet's snapshot.
fn serving(fleet: &Fleet) -> Proxy {
    serving_with(fleet, 1)
}

/// The same with several VMs.
fn serving_with(fleet: &Fleet, vms: usize) -> Proxy {
    serving_as(fleet, Options { vms, hosts: fleet.hosts(), ..Options::default() })
}

/// The same, configured otherwise.
fn serving_as(fleet: &Fleet, options: Options) -> Proxy {
    let vms = options.vms;
    let mut proxy = connected_as(options);
    assert!(proxy.push_all(&[fleet.full()]), "a VM has no stream");
    for vm in 0..vms {
        proxy.take_said(vm);
    }
    proxy
}

/// Waits until every VM has a stream again, which takes at most the longest pause between two attempts.
fn reconnected(proxy: &mut Proxy) {
    for _ in 0..55 {
        if proxy.all_connected() {
            return;
        }
        proxy.advance(100);
    }
    panic!("a VM opens no stream");
}

fn started(reports: &[v1::Report]) -> Vec<(Option<u32>, v1::Started)> {
    let events = reports.iter().filter_map(|report| match &report.event {
        Some(Event::Started(started)) => Some((report.worker, started.clone())),
        _ => None,
    });
    events.collect()
}

fn finished(reports: &[v1::Report]) -> Vec<(Option<u32>, v1::Finished)> {
    let events = reports.iter().filter_map(|report| match report.event {
        Some(Event::Finished(finished)) => Some((report.worker, finished)),
        _ => None,
    });
    events.collect()
}

fn first_tokens(reports: &[v1::Report]) -> Vec<(Option<u32>, v1::FirstToken)> {
    let events = reports.iter().filter_map(|report| match report.event {
        Some(Event::FirstToken(first)) => Some((report.worker, first)),
        _ => None,
    });
    events.collect()
}
