//! Checks of `InferenceWorkerSet`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::Reporter;
use crate::kinds::{InferenceWorkerSetSpec, Port, Role, StaticWorker, WorkerSource};
use crate::{FieldPath, Resource, limits};

pub(super) fn check(set: &Resource<InferenceWorkerSetSpec>, to: &mut Reporter<'_>) {
    let spec = &set.spec;
    model(spec, to);
    let workers = FieldPath::spec("workers");
    to.exactly_one(
        &workers,
        &[("selector", spec.workers.selector.is_some()), ("static", spec.workers.static_workers.is_some())],
    );
    port(&spec.workers, &workers.key("port"), to);
    to.within(&workers.key("dataParallelSize"), spec.workers.data_parallel_size, 1, limits::RANKS);
    if let Some(selector) = &spec.workers.selector {
        if selector.is_empty() {
            let message = "selects every Pod of the namespace";
            to.report(&workers.key("selector"), message, "state matchLabels or matchExpressions");
        }
        to.selector(&workers.key("selector"), selector);
    }
    if let Some(events) = &spec.kv_events {
        let place = FieldPath::spec("kvEvents");
        to.port(&place.key("port"), events.port);
        if let Some(port) = events.replay_port {
            to.port(&place.key("replayPort"), port);
        }
    }
    if spec.workers.static_workers.is_none() {
        ports_of_pods(spec, to);
    }
    static_workers(spec, to);
    if spec.role != Role::Both {
        let effect = "the worker set gets whole requests, prefill and decode";
        to.not_in_force(&FieldPath::spec("role"), "a worker set's role is", effect);
    }
    let metrics = FieldPath::spec("metrics");
    if !spec.metrics.path.starts_with('/') || !spec.metrics.path.bytes().all(|b| b.is_ascii_graphic()) {
        let message = format!("`{}` is not a path", spec.metrics.path);
        to.report(&metrics.key("path"), message, "start with `/`");
    }
    let (least, most) = limits::METRICS_INTERVAL;
    to.period_within(&metrics.key("interval"), spec.metrics.interval, least, most);
}

fn port(workers: &WorkerSource, path: &FieldPath, to: &mut Reporter<'_>) {
    match &workers.port {
        Port::Number(number) => to.port(path, *number),
        Port::Name(name) if workers.static_workers.is_some() => {
            let message = format!("`{name}` is the name of a port, which only Pods have");
            to.report(path, message, "static workers need a number");
        }
        Port::Name(name) if !Port::is_name(name) => {
            let message = format!("`{name}` is not a port's name");
            to.report(path, message, "at most 15 lower-case letters, digits and `-`, with a letter; or write a number");
        }
        Port::Name(_) => {}
    }
}

fn model(spec: &InferenceWorkerSetSpec, to: &mut Reporter<'_>) {
    let place = FieldPath::spec("model");
    to.not_empty(&place.key("name"), &spec.model.name);
    if spec.model.name.len() > 256 || spec.model.name.chars().any(char::is_control) {
        to.report(&place.key("name"), "not a model's name", "at most 256 bytes, without control characters");
    }
    let tokenizer = &spec.model.tokenizer;
    let place = place.key("tokenizer");
    to.exactly_one(
        &place,
        &[
            ("path", tokenizer.path.is_some()),
            ("configMap", tokenizer.config_map.is_some()),
            ("huggingFace", tokenizer.hugging_face.is_some()),
        ],
    );
    if let Some(path) = &tokenizer.path {
        to.not_empty(&place.key("path"), path);
    }
    if let Some(map) = &tokenizer.config_map {
        to.resource_name(&place.key("configMap").key("name"), &map.name);
    }
    if let Some(hub) = &tokenizer.hugging_face {
        let effect = "download the files and use `path` or `configMap`; until then there is no tokenizer, and prefixes are \
                      learned from where requests were sent";
        to.not_in_force(&place.key("huggingFace"), "fetching from the Hugging Face hub is", effect);
        to.not_empty(&place.key("huggingFace").key("repository"), &hub.repository);
        to.not_empty(&place.key("huggingFace").key("revision"), &hub.revision);
        if let Some(secret) = &hub.token_secret_ref {
            let place = place.key("huggingFace").key("tokenSecretRef");
            to.resource_name(&place.key("name"), &secret.name);
            to.not_empty(&place.key("key"), &secret.key);
        }
    }
}

/// What uses a port, for messages: the worker's place in the list and the field.
type Use = (usize, &'static str);

fn static_workers(spec: &InferenceWorkerSetSpec, to: &mut Reporter<'_>) {
    let list = spec.workers.static_workers.as_deref().unwrap_or_default();
    let place = FieldPath::spec("workers").key("static");
    if list.len() > limits::STATIC_WORKERS {
        let message = format!("{} workers, where {} are the most", list.len(), limits::STATIC_WORKERS);
        return to.report(&place, message, "make several worker sets of them");
    }
    to.names(&place, Some("name"), list.iter().map(|worker| worker.name.as_str()));
    let mut uses: BTreeMap<(IpAddr, u16), Use> = BTreeMap::new();
    for (index, worker) in list.iter().enumerate() {
        let place = place.index(index);
        if !is_worker_name(&worker.name) && !worker.name.is_empty() {
            let message = format!("`{}` is not a worker's name", worker.name);
            to.report(&place.key("name"), message, "at most 63 letters, digits, `-`, `_` and `.`");
        }
        own_ports(spec, worker, &place, to);
        match ip(&worker.address) {
            Ok(ip) => {
                for (port, field) in used_ports(spec, worker) {
                    let Some((other, other_field)) = uses.insert((ip, port), (index, field)) else {
                        continue;
                    };
                    let other = list.get(other).map_or("", |worker| worker.name.as_str());
                    let message = format!("port {port} of {ip} is also the {other_field} of worker `{other}`");
                    let path = if place_has(worker, field) { place.key(field) } else { place.clone() };
                    to.report(&path, message, "every worker needs an address or ports of its own");
                    break;
                }
            }
            Err(remedy) => {
                let message = format!("`{}` is not the IP address of a worker", worker.address);
                to.report(&place.key("address"), message, remedy);
            }
        }
    }
}

/// True when the worker states the port itself.
fn place_has(worker: &StaticWorker, field: &str) -> bool {
    match field {
        "port" => worker.port.is_some(),
        "kvEventsPort" => worker.kv_events_port.is_some(),
        _ => worker.kv_replay_port.is_some(),
    }
}

/// Ports of the set that every selected Pod uses: each rank needs its own.
fn ports_of_pods(spec: &InferenceWorkerSetSpec, to: &mut Reporter<'_>) {
    let Some(events) = &spec.kv_events else { return };
    let ranks = spec.workers.data_parallel_size.clamp(1, limits::RANKS);
    let place = FieldPath::spec("kvEvents");
    let mut used: Vec<(&str, std::ops::Range<u32>)> = Vec::new();
    if let Some(port) = spec.workers.port.number() {
        used.push(("spec.workers.port", u32::from(port)..u32::from(port) + 1));
    }
    for (field, name, port) in [
        ("port", "spec.kvEvents.port", Some(events.port)),
        ("replayPort", "spec.kvEvents.replayPort", events.replay_port),
    ] {
        let Some(first) = port.map(u32::from) else { continue };
        let ports = first..first + ranks;
        if ports.end > 65_536 {
            let message = format!("rank {} would use port {}", ranks - 1, ports.end - 1);
            to.report(&place.key(field), message, "leave room for dataParallelSize ports");
        }
        let other = used.iter().find(|(_, other)| other.start < ports.end && ports.start < other.end);
        if let Some((other, _)) = other {
            let message = format!("overlaps {other}");
            to.report(&place.key(field), message, "each needs ports of its own, KV events dataParallelSize of them");
        }
        used.push((name, ports));
    }
}

fn own_ports(spec: &InferenceWorkerSetSpec, worker: &StaticWorker, place: &FieldPath, to: &mut Reporter<'_>) {
    let own = [("port", worker.port), ("kvEventsPort", worker.kv_events_port), ("kvReplayPort", worker.kv_replay_port)];
    for (field, port) in own {
        let Some(port) = port else { continue };
        to.port(&place.key(field), port);
        if field != "port" && spec.kv_events.is_none() {
            let remedy = "add spec.kvEvents, or remove the port";
            to.report(&place.key(field), "the worker set has no KV events", remedy);
        }
    }
    let last_rank = spec.workers.data_parallel_size.clamp(1, limits::RANKS) - 1;
    for (field, first) in event_ports(spec, worker) {
        let last = u32::from(first) + last_rank;
        if last > u32::from(u16::MAX) {
            let message = format!("rank {last_rank} would use port {last}");
            to.report(&place.key(field), message, "leave room for dataParallelSize ports");
        }
    }
}

/// The first KV-event ports of a worker, by field.
fn event_ports(spec: &InferenceWorkerSetSpec, worker: &StaticWorker) -> Vec<(&'static str, u16)> {
    let Some(events) = &spec.kv_events else {
        return Vec::new();
    };
    let replay = worker.kv_replay_port.or(events.replay_port);
    let mut ports = vec![("kvEventsPort", worker.kv_events_port.unwrap_or(events.port))];
    ports.extend(replay.map(|port| ("kvReplayPort", port)));
    ports
}

/// Every port that a worker uses, with those of all ranks. Ports 0 and names were reported already.
fn used_ports(spec: &InferenceWorkerSetSpec, worker: &StaticWorker) -> Vec<(u16, &'static str)> {
    let ranks = spec.workers.data_parallel_size.clamp(1, limits::RANKS) as u16;
    let port = worker.port.or(spec.workers.port.number());
    let mut used: Vec<(u16, &'static str)> = port.map(|port| (port, "port")).into_iter().collect();
    for (field, first) in event_ports(spec, worker) {
        used.extend((0..ranks).filter_map(|rank| Some((first.checked_add(rank)?, field))));
    }
    used.retain(|(port, _)| *port != 0);
    used
}

fn is_worker_name(name: &str) -> bool {
    let is_part = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    name.len() <= 63 && name.bytes().all(is_part)
}

/// The address, or the remedy when it is none.
fn ip(address: &str) -> Result<IpAddr, &'static str> {
    if let Ok(ip) = address.parse::<IpAddr>() {
        if ip.is_unspecified() || ip.is_multicast() {
            return Err("write the address that the worker is reached at");
        }
        if matches!(ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some()) {
            return Err("write it as IPv4");
        }
        return Ok(ip);
    }
    if address.starts_with('[') {
        return Err("write IPv6 without brackets and without port");
    }
    let host_and_port = address.rsplit_once(':');
    if host_and_port.is_some_and(|(host, port)| host.parse::<IpAddr>().is_ok() && port.parse::<u16>().is_ok()) {
        return Err("the port belongs into `port`");
    }
    Err("write an IP address such as 10.0.0.7 or fd00::8; names of hosts are not looked up")
}
