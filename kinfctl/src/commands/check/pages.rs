//! Gathers what the control service and Envoy say on their admin ports.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::de::DeserializeOwned;

use super::world::{Asked, Envoy, Service};
use crate::http;

/// The counters that are looked at. Those that are still 0 are among them, so `usedonly` must not be.
const STATS: &str = "stats?filter=kinference_";

/// The innermost reason: the hints of findings say what to do.
fn asked<T>(result: Result<T>) -> Asked<T> {
    result.map_err(|error| error.root_cause().to_string())
}

fn json<T: DeserializeOwned>(address: &str, path: &str) -> Asked<T> {
    let body = asked(http::get(address, path))?;
    serde_json::from_slice(&body).map_err(|error| format!("/{path} is not what was expected there: {error}"))
}

/// Asks the control service.
pub(super) fn service(address: &str) -> Service {
    Service {
        address: address.to_owned(),
        status: json(address, "status"),
        ready: asked(http::get(address, "readyz")).map(|_| ()),
    }
}

/// Asks Envoy.
pub(super) fn envoy(address: &str) -> Envoy {
    let server_info = json(address, "server_info");
    // Each page of one that does not answer would take its time to fail.
    let page = |path: &str| match &server_info {
        Ok(_) => json(address, path),
        Err(reason) => Err(reason.clone()),
    };
    let stats = match &server_info {
        Ok(_) => asked(http::get(address, STATS)).map(|body| numbers(&String::from_utf8_lossy(&body))),
        Err(reason) => Err(reason.clone()),
    };
    Envoy {
        address: address.to_owned(),
        config_dump: page("config_dump"),
        clusters: page("clusters?format=json"),
        stats,
        server_info,
    }
}

/// Counters and gauges: `name: 3`.
fn numbers(text: &str) -> BTreeMap<String, u64> {
    let lines = text.lines().filter_map(|line| line.split_once(": "));
    lines.filter_map(|(name, value)| Some((name.to_owned(), value.trim().parse().ok()?))).collect()
}
