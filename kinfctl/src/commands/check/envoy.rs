//! Checks of a running Envoy, from its admin pages: is it set up as the filter needs it?

use serde_json::Value;

use super::finding::{Findings, counted};
use super::world::Envoy;

const ENVOY: &str = "envoy";

/// The header in which the filter names the worker.
const DESTINATION: &str = "x-gateway-destination-endpoint";
/// Envoy lets a filter hold back headers while the body comes from this version on.
const LEAST: (u32, u32) = (1, 35);
/// The control service is heard every second.
const OLD_MS: u64 = 5_000;
/// Envoy's default buffer is 1 MiB, and prompts are longer.
const LEAST_BUFFER: u64 = 2 << 20;
/// Envoy's own limits of 1024 are reached by streams that wait for their tokens.
const LEAST_REQUESTS: u64 = 4096;

pub(super) fn judge(envoy: &Envoy, findings: &mut Findings) {
    let info = match &envoy.server_info {
        Ok(info) => info,
        Err(reason) => {
            return findings.problem(
                ENVOY,
                format!("no answer from {}: {reason}", envoy.address),
                "start Envoy, or name its admin address with --envoy-admin",
            );
        }
    };
    findings.ok(ENVOY, format!("answers at {}", envoy.address));
    server(info, findings);
    match &envoy.config_dump {
        Ok(dump) => {
            filter(dump, findings);
            buffers(dump, findings);
            clusters(dump, findings);
        }
        Err(reason) => unread("/config_dump", reason, findings),
    }
    match &envoy.clusters {
        Ok(hosts) => endpoints(hosts, findings),
        Err(reason) => unread("/clusters", reason, findings),
    }
    match &envoy.stats {
        Ok(stats) => {
            let applied = stats.get("wasmcustom.kinference_filter_snapshots_applied").copied();
            match applied {
                Some(1..) => findings.ok(ENVOY, "the filter runs and has a snapshot"),
                Some(0) => findings.problem(
                    ENVOY,
                    "the filter runs, and has no snapshot yet",
                    "it must reach the control service by the cluster of its plugin configuration, and its GatewayBackend must exist",
                ),
                None => findings.problem(
                    ENVOY,
                    "the filter's metrics are not there: it does not run",
                    "Envoy's log says why the module could not be loaded",
                ),
            }
            let age_ms = stats.get("wasmcustom.kinference_filter_snapshot_age_ms").copied().unwrap_or_default();
            if applied.is_some_and(|count| count > 0) && age_ms > OLD_MS {
                findings.warning(
                    ENVOY,
                    format!("the filter has not heard of the control service for {} s", age_ms / 1000),
                    "past staleAfter it routes without caches, load and pools; see whether the service runs and can be reached",
                );
            }
            if stats.get("cluster.kinference_control.ssl.fail_verify_error").is_some_and(|count| *count > 0)
                || stats.get("cluster.kinference_control.ssl.fail_verify_san").is_some_and(|count| *count > 0)
            {
                findings.warning(
                    ENVOY,
                    "the control service's certificate was refused",
                    "--control-ca must be its authority, and --control-server-name a name in it",
                );
            }
        }
        Err(reason) => unread("/stats", reason, findings),
    }
}

fn unread(page: &str, reason: &str, findings: &mut Findings) {
    findings.problem(ENVOY, format!("{page} cannot be read: {reason}"), "the admin interface must serve it");
}

fn server(info: &Value, findings: &mut Findings) {
    let text = info["version"].as_str().unwrap_or_default();
    // "hash/1.40.0/Clean/RELEASE/BoringSSL"
    let version = text.split('/').nth(1).unwrap_or(text);
    let mut numbers = version.split('.').map_while(|part| part.parse::<u32>().ok());
    match numbers.next().zip(numbers.next()) {
        Some(found) if found < LEAST => findings.problem(
            ENVOY,
            format!("version {version} cannot hold back a request's headers for the filter"),
            format!("use {}.{} or later", LEAST.0, LEAST.1),
        ),
        Some(_) => findings.ok(ENVOY, format!("version {version}")),
        None => findings.warning(ENVOY, format!("version {text:?} is not known"), "use a release of Envoy"),
    }
    let state = info["state"].as_str().unwrap_or("unknown");
    if state != "LIVE" {
        findings.problem(ENVOY, format!("it is {state}, not LIVE"), "it waits for clusters or secrets: see its log");
    }
}

/// Every object of a type, wherever it is.
fn of_type<'a>(value: &'a Value, ends_with: &str, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(fields) => {
            if fields.get("@type").and_then(Value::as_str).is_some_and(|name| name.ends_with(ends_with)) {
                found.push(value);
            }
            fields.values().for_each(|field| of_type(field, ends_with, found));
        }
        Value::Array(items) => items.iter().for_each(|item| of_type(item, ends_with, found)),
        _ => {}
    }
}

/// What Envoy runs; the bootstrap repeats a part of it.
fn running(dump: &Value) -> impl Iterator<Item = &Value> {
    let is_bootstrap =
        |part: &&Value| part["@type"].as_str().is_some_and(|name| name.ends_with(".BootstrapConfigDump"));
    dump["configs"].as_array().into_iter().flatten().filter(move |part| !is_bootstrap(part))
}

fn all_of_type<'a>(dump: &'a Value, ends_with: &str) -> Vec<&'a Value> {
    let mut found = Vec::new();
    running(dump).for_each(|part| of_type(part, ends_with, &mut found));
    found
}

/// The plugin configurations that name a gateway backend: ours.
fn filter(dump: &Value, findings: &mut Findings) {
    let wasm = all_of_type(dump, ".filters.http.wasm.v3.Wasm");
    let ours: Vec<&Value> = wasm.into_iter().map(|filter| &filter["config"]).filter(|plugin| is_ours(plugin)).collect();
    if ours.is_empty() {
        return findings.problem(
            ENVOY,
            "no HTTP filter of its listeners is Kinference's",
            "add it: `kinfctl envoy-config` writes a whole configuration",
        );
    }
    findings.ok(ENVOY, format!("{} in its configuration", counted(ours.len(), "filter")));
    if ours.iter().all(|plugin| plugin["allow_on_headers_stop_iteration"] == true) {
        findings.ok(ENVOY, "the filter may hold back headers");
    } else {
        findings.problem(
            ENVOY,
            "the filter may not hold back headers, so every request hangs",
            "set allow_on_headers_stop_iteration: true in its plugin configuration (an Istio WasmPlugin cannot; use an EnvoyFilter)",
        );
    }
    if ours.iter().any(|plugin| plugin["failure_policy"] != "FAIL_RELOAD") {
        findings.warning(
            ENVOY,
            "a filter that stops is not started anew",
            "set failure_policy: FAIL_RELOAD in its plugin configuration",
        );
    }
}

fn is_ours(plugin: &Value) -> bool {
    let configuration = plugin["configuration"]["value"].as_str().unwrap_or_default();
    configuration.contains("gatewayBackend") || plugin["root_id"] == "kinference"
}

fn buffers(dump: &Value, findings: &mut Findings) {
    let listeners = all_of_type(dump, ".listener.v3.Listener");
    let ours = listeners.into_iter().filter(|listener| {
        let mut wasm = Vec::new();
        of_type(listener, ".filters.http.wasm.v3.Wasm", &mut wasm);
        wasm.iter().any(|filter| is_ours(&filter["config"]))
    });
    for listener in ours {
        let name = listener["name"].as_str().unwrap_or("without name");
        let own = listener["per_connection_buffer_limit_bytes"].as_u64().unwrap_or(1 << 20);
        let mut of_routes = Vec::new();
        field_values(listener, "request_body_buffer_limit", &mut of_routes);
        let limit = of_routes.into_iter().max().unwrap_or(0).max(own);
        if limit < LEAST_BUFFER {
            findings.warning(
                ENVOY,
                format!("listener {name} buffers {limit} bytes: a longer request gets 413"),
                "set per_connection_buffer_limit_bytes above the GatewayBackend's requestBodyLimit (8Mi)",
            );
        } else {
            findings.ok(ENVOY, format!("listener {name} buffers {limit} bytes"));
        }
    }
}

/// Every number under a name; JSON of protobuf writes 64-bit ones as strings.
fn field_values(value: &Value, name: &str, found: &mut Vec<u64>) {
    match value {
        Value::Object(fields) => {
            for (key, field) in fields {
                let number = field.as_u64().or_else(|| field.as_str()?.parse().ok());
                match number {
                    Some(number) if key == name => found.push(number),
                    _ => field_values(field, name, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| field_values(item, name, found)),
        _ => {}
    }
}

fn clusters(dump: &Value, findings: &mut Findings) {
    let clusters = all_of_type(dump, ".cluster.v3.Cluster");
    let mut following = 0;
    for cluster in clusters {
        let name = cluster["name"].as_str().unwrap_or("without name");
        let mut policies = Vec::new();
        of_type(&cluster["load_balancing_policy"], ".override_host.v3.OverrideHost", &mut policies);
        let follows = |policy: &&Value| {
            let sources = policy["override_host_sources"].as_array();
            sources.into_iter().flatten().any(|source| source["header"] == DESTINATION)
        };
        if !policies.iter().any(follows) {
            continue;
        }
        following += 1;
        findings.ok(ENVOY, format!("cluster {name} goes where the filter says"));
        let limit = |field: &str| {
            let thresholds = cluster["circuit_breakers"]["thresholds"].as_array();
            let stated = thresholds.into_iter().flatten().filter_map(|threshold| threshold[field].as_u64());
            stated.min().unwrap_or(1024)
        };
        let fields = ["max_connections", "max_pending_requests", "max_requests"];
        let low: Vec<String> = fields
            .into_iter()
            .filter(|field| limit(field) < LEAST_REQUESTS)
            .map(|field| format!("{field} is {}", limit(field)))
            .collect();
        if low.is_empty() {
            findings.ok(ENVOY, format!("cluster {name} has room for many requests"));
        } else {
            findings.warning(
                ENVOY,
                format!("cluster {name}: {}: more requests at once get 503", low.join(", ")),
                "raise circuit_breakers.thresholds: requests to engines are long",
            );
        }
    }
    if following == 0 {
        findings.problem(
            ENVOY,
            "no cluster goes where the filter says",
            format!("the workers' cluster needs the load balancing policy override_host with header {DESTINATION}"),
        );
    }
}

/// Hosts of the clusters that the control service fills.
fn endpoints(clusters: &Value, findings: &mut Findings) {
    let named = |prefix: &str| {
        let all = clusters["cluster_statuses"].as_array().into_iter().flatten();
        let ours = all.filter(|cluster| cluster["name"].as_str().is_some_and(|name| name.starts_with(prefix)));
        ours.map(|cluster| cluster["host_statuses"].as_array().map_or(0, Vec::len)).collect::<Vec<_>>()
    };
    let workers = named("kinference_workers");
    if !workers.is_empty() && workers.iter().sum::<usize>() == 0 {
        findings.problem(
            ENVOY,
            "the workers' cluster has no endpoints",
            "they come from the control service; is it reachable, and has its configuration workers?",
        );
    } else if !workers.is_empty() {
        findings.ok(ENVOY, format!("{} of workers", counted(workers.iter().sum(), "endpoint")));
    }
    if named("kinference_control").is_empty() {
        findings.warning(
            ENVOY,
            "there is no cluster kinference_control",
            "the filter's plugin configuration must name the cluster that leads to the control service",
        );
    }
}
