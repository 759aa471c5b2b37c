//! Checks of a running control service, from what it says of itself.

use k8s_openapi::jiff::Timestamp;

use super::finding::{Findings, counted};
use super::world::Service;
use crate::status::{Backend, Config, Link, Source, Status, Worker, WorkerSet};

const SERVICE: &str = "control service";
const CONFIGURATION: &str = "configuration";
const WORKERS: &str = "workers";
const PREFIXES: &str = "prefixes";
const FILTERS: &str = "filters";

/// Deltas that the control service keeps for a filter; one that is further behind needs everything anew.
const LOG: u64 = 512;
/// A certificate that expires sooner should have been renewed.
pub(super) const SOON_DAYS: i64 = 14;

/// Looks at the service at a time in seconds since 1970.
pub(super) fn judge(service: &Service, now: i64, findings: &mut Findings) {
    let status = match &service.status {
        Ok(status) => status,
        Err(reason) => {
            return findings.problem(
                SERVICE,
                format!("no answer from {}: {reason}", service.address),
                "start kinference-control, or name its --admin address with --control",
            );
        }
    };
    findings.ok(SERVICE, format!("answers at {}", service.address));
    let own = env!("CARGO_PKG_VERSION");
    if status.version == own {
        findings.ok(SERVICE, format!("version {own}, as this kinfctl"));
    } else {
        let message = format!("version {}, and this kinfctl is {own}", status.version);
        findings.warning(SERVICE, message, "use the same version of both");
    }
    match &service.ready {
        Ok(()) => findings.ok(SERVICE, "ready"),
        Err(reason) => findings.problem(SERVICE, reason.clone(), "mend the configuration: filters get nothing before"),
    }
    if let Some(link) = &status.link {
        link_of(link, now, findings);
    }
    if let Some(source) = &status.source {
        source_of(source, findings);
    }
    configuration(&status.config, findings);
    policies(status, findings);
    for (name, set) in &status.worker_sets {
        worker_set(name, set, findings);
    }
    for (name, backend) in &status.backends {
        index(name, backend, findings);
        filters(name, backend, status, findings);
    }
    envoys(status, findings);
}

fn link_of(link: &Link, now: i64, findings: &mut Findings) {
    if let Some(reason) = &link.credentials_withheld {
        findings.warning(
            SERVICE,
            "filters are not told credentials, so requests cannot leave for providers that need one",
            reason.clone(),
        );
    }
    let Some(tls) = &link.tls else { return };
    match &tls.problem {
        None => findings.ok(SERVICE, "the files of TLS are in force"),
        Some(problem) => {
            findings.problem(SERVICE, "changed files of TLS cannot be used; the last good ones serve", problem.clone());
        }
    }
    let expiries =
        [("the certificate", Some(&tls.certificate_expires)), ("--tls-client-ca", tls.client_ca_expires.as_ref())];
    for (what, expires) in expiries {
        if let Some(time) = expires.and_then(|text| text.parse::<Timestamp>().ok()) {
            expiry(SERVICE, what, time.as_second(), now, findings);
        }
    }
    if let Some(refused) = &tls.last_refused {
        let message = format!("the last one that was refused on the gRPC port: {refused}");
        findings.warning(SERVICE, message, "if it is one of your proxies, look at its certificate and its authority");
    }
}

fn source_of(source: &Source, findings: &mut Findings) {
    if source.connected {
        findings.ok(CONFIGURATION, format!("follows the cluster at {}", source.kubernetes));
    } else {
        findings.warning(
            CONFIGURATION,
            format!("the cluster at {} does not answer; what was read stays in force", source.kubernetes),
            "see the way to its API server, and the control service's log",
        );
    }
    for problem in &source.problems {
        findings.problem(CONFIGURATION, problem.clone(), "the rights that it needs are in the chart's RBAC");
    }
}

/// Whether a certificate is over, or soon will be.
pub(super) fn expiry(category: &'static str, what: &str, expires: i64, now: i64, findings: &mut Findings) {
    let at = Timestamp::from_second(expires).map_or_else(|_| expires.to_string(), |time| time.to_string());
    let days = (expires - now).div_euclid(86_400);
    if expires <= now {
        findings.problem(category, format!("{what} expired at {at}"), "renew it");
    } else if days < SOON_DAYS {
        let message = format!("{what} expires in {} (at {at})", counted(days.unsigned_abs() as usize, "day"));
        findings.warning(category, message, "renew it");
    } else {
        findings.ok(category, format!("{what} is valid until {at}"));
    }
}

fn configuration(config: &Config, findings: &mut Findings) {
    match (config.valid, config.in_force) {
        (true, _) => findings.ok(CONFIGURATION, "what was read last is in force"),
        (false, true) => findings.problem(
            CONFIGURATION,
            "what was read last cannot be used; the last good one stays in force",
            "mend what is listed here; `kinfctl validate` checks it beforehand",
        ),
        (false, false) => {
            findings.problem(CONFIGURATION, "none is in force", "mend what is listed here");
        }
    }
    for problem in &config.problems {
        findings.problem(CONFIGURATION, problem.clone(), "`kinfctl validate` says the same before it is applied");
    }
    for warning in &config.warnings {
        findings.warning(CONFIGURATION, warning.clone(), "most likely this is not what is meant");
    }
}

fn policies(status: &Status, findings: &mut Findings) {
    let rules: usize = status.backends.values().map(|backend| backend.rules.len()).sum();
    for (name, policy) in &status.policies {
        let state = if policy.in_force { "its last good version stays in force" } else { "it is not in force" };
        for problem in &policy.problems {
            let message = format!("InferencePolicy {name}: {problem}");
            findings.problem(CONFIGURATION, message, format!("mend it: {state}"));
        }
    }
    if status.policies.values().all(|policy| policy.in_force && policy.problems.is_empty()) && rules > 0 {
        let message = format!("{} of {} in force", counted(rules, "rule"), policies_counted(status.policies.len()));
        findings.ok(CONFIGURATION, message);
    }
}

fn policies_counted(count: usize) -> String {
    if count == 1 { "1 policy".into() } else { format!("{count} policies") }
}

fn worker_set(name: &str, set: &WorkerSet, findings: &mut Findings) {
    let total = set.workers.len();
    let ready = set.workers.values().filter(|worker| worker.state == "ready").count();
    let message = format!("{name}: {ready} of {} ready", counted(total, "worker"));
    match (ready, total) {
        (_, 0) => findings.problem(WORKERS, format!("{name}: no workers"), "check its selector or its list of workers"),
        (0, _) => findings.problem(WORKERS, message, "no request for its model can be answered; see its workers here"),
        (ready, total) if ready == total => findings.ok(WORKERS, message),
        _ => findings.warning(WORKERS, message, "the others get no requests; see why here"),
    }
    for (worker_name, worker) in set.workers.iter().filter(|(_, worker)| worker.state != "ready") {
        let why = worker.metrics_problem.as_deref().unwrap_or("the engine is not serving");
        let message = format!("{name}/{worker_name} at {} is {}: {why}", worker.address, worker.state);
        findings.warning(
            WORKERS,
            message,
            "the control service must reach its HTTP port, and its metrics page must be the engine's",
        );
    }
    prefixes(name, set, findings);
}

fn prefixes(name: &str, set: &WorkerSet, findings: &mut Findings) {
    if let Some(problem) = &set.tokenizer_problem {
        let message = format!("{name}: the tokenizer cannot be used: {problem}");
        findings.warning(PREFIXES, message, "put the model's own tokenizer files where spec.model.tokenizer says");
    }
    match set.prompt_fidelity {
        Some(true) => findings.ok(PREFIXES, format!("{name}: the filter's prompt text equals the engine's")),
        Some(false) => findings.warning(
            PREFIXES,
            format!("{name}: the filter's prompt text differs from the engine's, so its events are not used"),
            "give the engine and the worker set the same tokenizer and chat template",
        ),
        None => {}
    }
    if let (Some(why), None | Some(true)) = (&set.routed_because, set.prompt_fidelity)
        && set.tokenizer_problem.is_none()
    {
        let message = format!("{name}: prefixes are learned from where requests were sent: {why}");
        findings.warning(PREFIXES, message, "with the engine's KV-cache events the router knows what is cached");
    }
    let followed = |worker: &&Worker| worker.state == "ready" && worker.events.is_some();
    let followed: Vec<&Worker> = set.workers.values().filter(followed).collect();
    let current = |worker: &&&Worker| worker.events.as_ref().is_some_and(|events| events.connected && events.current);
    let healthy = followed.iter().filter(current).count();
    if !followed.is_empty() && healthy == followed.len() {
        findings.ok(PREFIXES, format!("{name}: the events of {} are current", counted(healthy, "worker")));
    }
    for (worker_name, worker) in set.workers.iter().filter(|(_, worker)| worker.state == "ready") {
        let Some(events) = &worker.events else { continue };
        if events.connected && events.current {
            continue;
        }
        let state = if events.connected { "are not taken in yet" } else { "are not received" };
        let why = events.last_problem.as_ref().map(|problem| format!(": {problem}")).unwrap_or_default();
        findings.warning(
            PREFIXES,
            format!("{name}/{worker_name}: its events {state}{why}"),
            "start vLLM with --kv-events-config, and let the control service reach both of its event ports",
        );
    }
}

fn index(name: &str, backend: &Backend, findings: &mut Findings) {
    let index = &backend.prefix_index;
    if index.chunk_bytes > index.wanted_chunk_bytes {
        let message = format!(
            "{name}: the prefix index is coarser than asked for ({} bytes a chunk instead of {}), to stay within {} bytes",
            index.chunk_bytes, index.wanted_chunk_bytes, index.max_bytes
        );
        findings.warning(PREFIXES, message, "raise spec.prefixIndex.maxBytes of the GatewayBackend");
    } else {
        let message = format!("{name}: the prefix index takes {} of {} bytes", index.bytes, index.max_bytes);
        findings.ok(PREFIXES, message);
    }
}

fn filters(name: &str, backend: &Backend, status: &Status, findings: &mut Findings) {
    let (connected, current) = (backend.filters_connected, backend.filters_current);
    if connected == 0 {
        return findings.problem(
            FILTERS,
            format!("{name}: no filter is connected"),
            "start Envoy with the filter (`kinfctl envoy-config`); its plugin configuration must name this GatewayBackend, and it must reach the gRPC port",
        );
    }
    let message = format!("{name}: {current} of {} current", counted(connected as usize, "filter"));
    if current < connected {
        findings.warning(FILTERS, message, "one that stays so refuses its snapshot or does not read: see its log");
    } else {
        findings.ok(FILTERS, message);
    }
    for filter in status.filters.iter().filter(|filter| filter.backend == name) {
        let who = format!("{} ({})", filter.proxy, filter.vm);
        if let Some(reason) = &filter.last_rejection {
            let message = format!("{who} refused what it was told: {reason}");
            findings.warning(FILTERS, message, "use the same version of filter and control service");
        }
        let behind = backend.sequence.saturating_sub(filter.sequence);
        if filter.epoch == backend.epoch && behind > LOG {
            let message = format!("{who} is {behind} changes behind");
            findings.warning(FILTERS, message, "its proxy is short of processor time, or the way to it is slow");
        }
        if !filter.build.is_empty() && filter.build != status.version {
            let message = format!("{who} runs filter {}, the control service is {}", filter.build, status.version);
            findings.warning(FILTERS, message, "roll out the same version of both");
        }
    }
}

fn envoys(status: &Status, findings: &mut Findings) {
    for envoy in &status.envoys {
        match &envoy.refused {
            Some(reason) => findings.problem(
                FILTERS,
                format!("Envoy {} refused its endpoints: {reason}", envoy.node),
                "an address of a worker most likely is none that Envoy takes",
            ),
            None => findings.ok(FILTERS, format!("Envoy {} takes its endpoints from here", envoy.node)),
        }
    }
}
