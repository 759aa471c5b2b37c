//! The life of one request, as a state machine: headers, body, decision, answer, end. It sees the proxy only through
//! [`Exchange`].

mod answer;
mod caller;
mod reply;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use kinference_routing::decide::{Ask, Destination, Prompted, Rejection, decide};
use kinference_routing::openai::{self, Endpoint, Request};

use crate::config::FailureMode;
use crate::gateway::Gateway;
use crate::gateway::metrics::Metric;
use crate::host::{Exchange, Severity};
use answer::Answer;
use caller::Identity;
use reply::Reply;

/// The header that names the worker, and the next best ones, to the proxy's load balancer.
pub const DESTINATION: &str = "x-gateway-destination-endpoint";
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
    Collecting { endpoint: Endpoint, bytes: usize, identity: Identity },
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
        host.remove_request_header(DESTINATION);
        let identity = Identity::of(host, self.gateway.borrow().replica.current());
        let path = host.request_header(":path").unwrap_or_default();
        let path = String::from_utf8_lossy(&path);
        let method = host.request_header(":method").unwrap_or_default();
        let Some(endpoint) = Endpoint::of_path(&path) else {
            return self.other_path(host, &path, &method, identity);
        };
        if method != b"POST" {
            return self.refuse(host, &Reply::wrong_method("POST"));
        }
        host.remove_request_header(RANK);
        let Some(identity) = identity else { return self.refuse(host, &Reply::unidentified()) };
        let limit = self.gateway.borrow().body_limit();
        let announced = host.request_header("content-length").and_then(|value| number(&value));
        if announced.is_some_and(|length| length > limit) {
            return self.refuse(host, &Reply::too_large(limit));
        }
        self.stage = Stage::Collecting { endpoint, bytes: 0, identity };
        if end { self.request_complete(host) } else { Verdict::Pause }
    }

    fn other_path(&mut self, host: &dyn Exchange, path: &str, method: &[u8], identity: Option<Identity>) -> Verdict {
        let path = path.split(['?', '#']).next().unwrap_or_default();
        if path.strip_suffix('/').unwrap_or(path) != MODELS {
            return self.refuse(host, &Reply::unknown_path());
        }
        if method != b"GET" {
            return self.refuse(host, &Reply::wrong_method("GET"));
        }
        let Some(identity) = identity else { return self.refuse(host, &Reply::unidentified()) };
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
        let Stage::Collecting { endpoint, bytes, identity } = stage else {
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
        let verdict = self.route(host, &request, &body, &identity, started);
        let taken = host.now().saturating_sub(started);
        host.record(Metric::DecisionTime, u64::try_from(taken.as_micros()).unwrap_or(u64::MAX));
        verdict
    }

    fn route(
        &mut self,
        host: &dyn Exchange,
        request: &Request<'_>,
        body: &[u8],
        identity: &Identity,
        now: Duration,
    ) -> Verdict {
        let shared = Rc::clone(&self.gateway);
        let mut gateway = shared.borrow_mut();
        let gateway = &mut *gateway;
        let now_ms = gateway.clock.at(now);
        gateway.take_prefilled(host);
        gateway.peers.read(host, &mut gateway.ledger);
        let Some(snapshot) = gateway.replica.current() else { return self.undecided_by(host, gateway.failure_mode()) };
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
            Err(rejection) => return self.refuse(host, &Reply::rejected(&rejection)),
        };
        if let Destination::Provider(_) = choice.destination {
            // The proxy has no way to a provider yet; a worker that was not chosen must not get the request instead.
            return self.refuse(host, &Reply::rejected(&Rejection::NoWorkers(request.model.name.to_string())));
        }
        let addresses: Vec<&str> = choice
            .workers()
            .iter()
            .filter_map(|id| snapshot.workers.get(id).map(|worker| worker.address.as_str()))
            .collect();
        host.set_request_header(DESTINATION, &addresses.join(","));
        let rank = choice.workers().first().and_then(|id| snapshot.workers.get(id)).and_then(|worker| worker.rank);
        if let Some(rank) = rank {
            host.set_request_header(RANK, &rank.to_string());
        }
        forward_as(host, request, body, &choice.model);
        host.count(Metric::Decisions, 1);
        if stale {
            host.count(Metric::StaleDecisions, 1);
        }
        self.stage = Stage::Sent(Box::new(Answer::sent(host, gateway, request, identity.tenant(), choice)));
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
                Verdict::Continue
            }
            FailureMode::Closed => self.refuse(host, &Reply::undecided()),
        }
    }

    fn refuse(&mut self, host: &dyn Exchange, reply: &Reply) -> Verdict {
        self.stage = Stage::Idle;
        if let Some(metric) = reply.metric {
            host.count(metric, 1);
        }
        let headers: Vec<(&str, &str)> = reply.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        host.respond(reply.status, &headers, &reply.body);
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

/// Sends the client's own bytes on. Only when the worker knows the model by another name, that one value is replaced.
fn forward_as(host: &dyn Exchange, request: &Request<'_>, body: &[u8], model: &str) {
    if request.model.name == model {
        return;
    }
    let spliced = openai::splice_model(body, &request.model.span, model);
    host.replace_request_body(body.len(), &spliced);
    host.set_request_header("content-length", &spliced.len().to_string());
}

fn number(value: &[u8]) -> Option<usize> {
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests;
