//! The life of one request, as a state machine: headers, body, decision, answer, end. It sees the proxy only through
//! [`Exchange`].

mod answer;
mod caller;
pub(crate) mod reply;

use std::borrow::Cow;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use kinference_routing::decide::{Ask, Destination, Prompted, Stop, decide};
use kinference_routing::openai::{self, Endpoint, Request};
use kinference_routing::snapshot::Snapshot;

use crate::config::FailureMode;
use crate::gateway::Gateway;
use crate::gateway::attempts::Attempts;
use crate::gateway::metrics::Metric;
use crate::host::{Exchange, Severity};
use crate::provider::ATTEMPT;
use answer::Answer;
use caller::Identity;
use reply::Reply;

/// The header that names the worker, and the next best ones, to the proxy's load balancer.
pub const DESTINATION: &str = "x-gateway-destination-endpoint";
/// The header by which a request that could not be decided may go to any worker.
const UNDECIDED: &str = "x-kinference-undecided";
/// Headers by which the proxy's router is told how to go on when a place fails. It takes them off.
const MAX_RETRIES: &str = "x-envoy-max-retries";
const RETRY_ON: &str = "x-envoy-retry-on";
const RETRIABLE_CODES: &str = "x-envoy-retriable-status-codes";
/// Answers of a provider after which the next place is tried, beside every 5xx: it is overloaded. What speaks against the
/// gateway itself, the provider's side of the filter turns into 502.
const PROVIDER_FAILURES: &str = "408,429";
/// The header that names the rank within a worker to the engine.
const RANK: &str = "x-data-parallel-rank";
/// The path that lists the models.
const MODELS: &str = "/v1/models";

/// What the proxy is to do with what it just showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Send it on.
    Continue,
    /// Hold it, and show what comes next.
    Pause,
}

/// One request and its answer.
#[derive(Debug)]
pub struct RequestFlow {
    gateway: Rc<RefCell<Gateway>>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Nothing was seen yet, or nothing is left to do.
    Idle,
    /// The body is being collected by the proxy.
    Collecting { endpoint: Endpoint, bytes: usize },
    /// It was sent to a worker.
    Sent(Box<Answer>),
}

impl RequestFlow {
    /// A request that is about to arrive.
    #[must_use]
    pub fn new(gateway: Rc<RefCell<Gateway>>) -> Self {
        Self { gateway, stage: Stage::Idle }
    }

    /// The request's headers; `end` when there is no body.
    pub fn request_headers(&mut self, host: &dyn Exchange, end: bool) -> Verdict {
        // Whatever becomes of the request: a client never chooses the worker.
        for name in [DESTINATION, UNDECIDED, ATTEMPT] {
            host.remove_request_header(name);
        }
        let path = host.request_header(":path").unwrap_or_default();
        let path = String::from_utf8_lossy(&path);
        let method = host.request_header(":method").unwrap_or_default();
        let Some(endpoint) = Endpoint::of_path(&path) else {
            return self.other_path(host, &path, &method);
        };
        if method != b"POST" {
            return self.refuse(host, &Reply::wrong_method("POST"));
        }
        host.remove_request_header(RANK);
        if openai::without_query(&path).ends_with('/') {
            // Engines know the path without the slash only.
            host.set_request_header(":path", &format!("/v1{}", endpoint.suffix()));
        }
        let limit = self.gateway.borrow().body_limit();
        let announced = host.request_header("content-length").and_then(|value| number(&value));
        if announced.is_some_and(|length| length > limit as u64) {
            return self.refuse(host, &Reply::too_large(limit));
        }
        self.stage = Stage::Collecting { endpoint, bytes: 0 };
        if end { self.request_complete(host) } else { Verdict::Pause }
    }

    fn other_path(&mut self, host: &dyn Exchange, path: &str, method: &[u8]) -> Verdict {
        let path = openai::without_query(path);
        if path.strip_suffix('/').unwrap_or(path) != MODELS {
            return self.refuse(host, &Reply::unknown_path());
        }
        if method != b"GET" {
            return self.refuse(host, &Reply::wrong_method("GET"));
        }
        let identity = Identity::of(host, self.gateway.borrow().replica.current());
        let identity = match identity {
            Ok(identity) => identity,
            Err(unknown) => return self.refuse(host, &Reply::unknown(unknown)),
        };
        let reply = {
            let gateway = self.gateway.borrow();
            gateway.replica.current().map(|snapshot| Reply::models(snapshot.models_of(identity.tenant()).iter()))
        };
        match reply {
            Some(reply) => self.refuse(host, &reply),
            None => self.undecided(host),
        }
    }

    /// More of the body: `bytes` in all so far, of which nothing was sent on.
    pub fn request_body(&mut self, host: &dyn Exchange, bytes: usize, end: bool) -> Verdict {
        let Stage::Collecting { bytes: collected, .. } = &mut self.stage else { return Verdict::Continue };
        *collected = bytes;
        let limit = self.gateway.borrow().body_limit();
        if bytes > limit {
            return self.refuse(host, &Reply::too_large(limit));
        }
        if end { self.request_complete(host) } else { Verdict::Pause }
    }

    /// The request's trailers, which end a body too.
    pub fn request_trailers(&mut self, host: &dyn Exchange) -> Verdict {
        self.request_complete(host)
    }

    fn request_complete(&mut self, host: &dyn Exchange) -> Verdict {
        let stage = std::mem::replace(&mut self.stage, Stage::Idle);
        let Stage::Collecting { endpoint, bytes } = stage else {
            self.stage = stage;
            return Verdict::Continue;
        };
        let started = host.now();
        let body = if bytes == 0 { Some(Vec::new()) } else { host.request_body(bytes) };
        let Some(body) = body else {
            host.log(Severity::Error, "the proxy did not give the request's body");
            return self.undecided(host);
        };
        let request = match openai::parse(endpoint, &body) {
            Ok(request) => request,
            Err(problem) => return self.refuse(host, &Reply::invalid(&problem)),
        };
        let verdict = self.route(host, &request, &body, started);
        let taken = host.now().saturating_sub(started);
        host.record(Metric::DecisionTime, u64::try_from(taken.as_micros()).unwrap_or(u64::MAX));
        verdict
    }

    fn route(&mut self, host: &dyn Exchange, request: &Request<'_>, body: &[u8], now: Duration) -> Verdict {
        let shared = Rc::clone(&self.gateway);
        let mut gateway = shared.borrow_mut();
        let gateway = &mut *gateway;
        let now_ms = gateway.clock.at(now);
        gateway.take_prefilled(host);
        gateway.take_outcomes();
        gateway.peers.read(host, &mut gateway.ledger);
        let Some(snapshot) = gateway.replica.current() else { return self.undecided_by(host, gateway.failure_mode()) };
        let identity = match Identity::of(host, Some(snapshot)) {
            Ok(identity) => identity,
            Err(unknown) => return self.refuse(host, &Reply::unknown(unknown)),
        };
        let stale = gateway.is_stale(snapshot);
        let tags = identity.tags();
        let ask = Ask {
            prompted: Prompted::Request { request, body },
            caller: identity.caller(&tags),
            now_ms,
            unix_s: now.as_secs(),
            stale,
            explain: false,
        };
        let choice = match decide(snapshot, &gateway.ledger, &ask).result {
            Ok(choice) => choice,
            Err(rejection) => {
                let mut reply = Reply::rejected(&rejection);
                if snapshot.config.backend.debug_headers {
                    reply.name_rule(&rejection);
                }
                return self.refuse(host, &reply);
            }
        };
        let addresses: Vec<Cow<'_, str>> =
            choice.stops().filter_map(|stop| address(snapshot, &stop.destination)).collect();
        host.set_request_header(DESTINATION, &addresses.join(","));
        // Past the end of the list the proxy would choose by itself.
        host.set_request_header(MAX_RETRIES, &addresses.len().saturating_sub(1).to_string());
        let first_worker = choice.stops().find_map(Stop::worker).and_then(|id| snapshot.workers.get(&id));
        if let Some(rank) = first_worker.and_then(|worker| worker.rank) {
            host.set_request_header(RANK, &rank.to_string());
        }
        if let Some(model) = choice.served_model() {
            forward_as(host, request, body, model);
        }
        let allowed = Attempts::allow(&gateway.attempts, snapshot, &choice);
        if let Some(allowed) = &allowed {
            host.set_request_header(ATTEMPT, &allowed.token().to_string());
            host.set_request_header(RETRY_ON, "connect-failure,reset,5xx,retriable-status-codes");
            host.set_request_header(RETRIABLE_CODES, PROVIDER_FAILURES);
        }
        host.count(Metric::Decisions, 1);
        if choice.first.provider().is_some() {
            host.count(Metric::ProviderDecisions, 1);
        }
        if stale {
            host.count(Metric::StaleDecisions, 1);
        }
        self.stage = Stage::Sent(Box::new(Answer::sent(host, gateway, request, identity.tenant(), choice, allowed)));
        Verdict::Continue
    }

    fn undecided(&mut self, host: &dyn Exchange) -> Verdict {
        let mode = self.gateway.borrow().failure_mode();
        self.undecided_by(host, mode)
    }

    fn undecided_by(&mut self, host: &dyn Exchange, mode: FailureMode) -> Verdict {
        match mode {
            FailureMode::Open => {
                self.stage = Stage::Idle;
                host.count(Metric::Undecided, 1);
                caller::strip(host);
                host.set_request_header(UNDECIDED, "1");
                host.choose_route_anew();
                Verdict::Continue
            }
            FailureMode::Closed => self.refuse(host, &Reply::undecided()),
        }
    }

    fn refuse(&mut self, host: &dyn Exchange, reply: &Reply) -> Verdict {
        self.stage = Stage::Idle;
        reply.send(host);
        Verdict::Pause
    }

    /// The answer's headers; `end` when there is no body.
    pub fn response_headers(&mut self, host: &dyn Exchange, end: bool) {
        match &mut self.stage {
            Stage::Sent(answer) => answer.headers(host, &mut self.gateway.borrow_mut()),
            // The proxy answers before the request was complete, for example to a slow client.
            Stage::Collecting { .. } | Stage::Idle => self.stage = Stage::Idle,
        }
        if end {
            self.end(host, true);
        }
    }

    /// A piece of the answer's body.
    pub fn response_body(&mut self, host: &dyn Exchange, bytes: usize, end: bool) {
        if let Stage::Sent(answer) = &mut self.stage {
            if bytes > 0 && answer.wants_body() {
                answer.body(host, &self.gateway, bytes);
            }
            if end {
                self.end(host, true);
            }
        }
    }

    /// The answer's trailers.
    pub fn response_trailers(&mut self, host: &dyn Exchange) {
        self.end(host, true);
    }

    /// The request is over, however it ended.
    pub fn over(&mut self, host: &dyn Exchange) {
        self.end(host, false);
    }

    fn end(&mut self, host: &dyn Exchange, complete: bool) {
        if let Stage::Sent(answer) = std::mem::replace(&mut self.stage, Stage::Idle) {
            answer.end(host, &mut self.gateway.borrow_mut(), complete);
        }
    }
}

/// The place as the proxy's load balancer knows it; `None` for a worker that is gone.
fn address<'s>(snapshot: &'s Snapshot, destination: &Destination) -> Option<Cow<'s, str>> {
    match destination {
        Destination::Worker(id) => Some(Cow::Borrowed(&snapshot.workers.get(id)?.address)),
        // An internal listener of the proxy, by its name.
        Destination::Provider(route) => Some(Cow::Owned(format!("envoy://{}/", route.cluster))),
    }
}

/// Sends the client's own bytes on. Only when the workers know the model by another name, that one value is replaced.
fn forward_as(host: &dyn Exchange, request: &Request<'_>, body: &[u8], model: &str) {
    if request.model.name != model {
        replace_model(host, body, std::slice::from_ref(&request.model.span), model);
    }
}

/// Sends the client's own bytes on, with these values replaced by the model's name.
pub(crate) fn replace_model(host: &dyn Exchange, body: &[u8], spans: &[Range<usize>], model: &str) {
    let spliced = openai::splice_model(body, spans, model);
    host.replace_request_body(body.len(), &spliced);
    host.set_request_header("content-length", &spliced.len().to_string());
}

fn number(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests;
