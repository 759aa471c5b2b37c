//! The provider's side of the filter: what becomes of a request on its way out, and of the answer on its way in.
//!
//! It sits in an internal listener of the proxy that only leads to one provider. Nothing passes that the other side did
//! not decide, and of what the client sent only the body and a few headers leave the house.

use std::cell::RefCell;
use std::rc::Rc;

use kinference_routing::openai::{self, Endpoint};

use crate::flow::reply::Reply;
use crate::flow::{Verdict, replace_model};
use crate::gateway::attempts::{Attempts, Call, CallOutcome};
use crate::host::Exchange;

/// The header by which a decided request is known.
pub const ATTEMPT: &str = "x-kinference-attempt";
/// The header that limits how long the proxy waits for an answer.
const TIMEOUT: &str = "x-envoy-upstream-rq-timeout-ms";
/// What a provider gets of the client's headers. No identity, no cookie, no address; and answers come as they are, so
/// that their figures can be read.
const SENT: [&str; 4] = ["content-type", "content-length", "accept", "transfer-encoding"];
/// What the proxy needs to find the route, which takes it off.
const ROUTING: &str = "x-forwarded-proto";
/// What the client gets of the provider's.
const RECEIVED: [&str; 6] =
    ["content-type", "content-length", "content-encoding", "transfer-encoding", "retry-after", "cache-control"];

/// One request to a provider and its answer.
#[derive(Debug)]
pub struct ProviderFlow {
    cluster: Rc<str>,
    attempts: Rc<RefCell<Attempts>>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Nothing was seen yet, or nothing is left to do.
    Idle,
    /// The body is being collected by the proxy.
    Collecting { call: Call, endpoint: Endpoint, bytes: usize },
    /// It was sent to the provider.
    Sent,
}

impl ProviderFlow {
    /// A request that is about to arrive for the provider behind `cluster`.
    #[must_use]
    pub fn new(cluster: Rc<str>, attempts: Rc<RefCell<Attempts>>) -> Self {
        Self { cluster, attempts, stage: Stage::Idle }
    }

    /// The request's headers; `end` when there is no body.
    pub fn request_headers(&mut self, host: &dyn Exchange, end: bool) -> Verdict {
        let token = host.request_header(ATTEMPT).and_then(|token| std::str::from_utf8(&token).ok()?.parse().ok());
        let call = token.and_then(|token: u64| self.attempts.borrow().call(token, &self.cluster).cloned());
        let path = host.request_header(":path").unwrap_or_default();
        let endpoint = Endpoint::of_path(&String::from_utf8_lossy(&path));
        let (Some(call), Some(endpoint)) = (call, endpoint) else {
            return refuse(host, &Reply::provider_not_chosen());
        };
        for name in host.request_headers() {
            if !name.starts_with(':') && name != ROUTING && !SENT.contains(&name.as_str()) {
                host.remove_request_header(&name);
            }
        }
        host.set_request_header(":path", &format!("{}{}", call.base_path, endpoint.suffix()));
        host.set_request_header(":authority", &call.authority);
        if !call.authorization.is_empty() {
            host.set_request_header("authorization", &call.authorization);
        }
        if call.timeout_ms > 0 {
            host.set_request_header(TIMEOUT, &call.timeout_ms.to_string());
        }
        self.stage = Stage::Collecting { call, endpoint, bytes: 0 };
        if end { self.request_complete(host) } else { Verdict::Pause }
    }

    /// More of the body: `bytes` in all so far, of which nothing was sent on.
    pub fn request_body(&mut self, host: &dyn Exchange, bytes: usize, end: bool) -> Verdict {
        let Stage::Collecting { bytes: collected, .. } = &mut self.stage else { return Verdict::Continue };
        *collected = bytes;
        if end { self.request_complete(host) } else { Verdict::Pause }
    }

    /// The request's trailers, which end a body too.
    pub fn request_trailers(&mut self, host: &dyn Exchange) -> Verdict {
        self.request_complete(host)
    }

    fn request_complete(&mut self, host: &dyn Exchange) -> Verdict {
        let stage = std::mem::replace(&mut self.stage, Stage::Sent);
        let Stage::Collecting { call, endpoint, bytes } = stage else {
            self.stage = stage;
            return Verdict::Continue;
        };
        let body = if bytes == 0 { Some(Vec::new()) } else { host.request_body(bytes) };
        let renamed = body.is_some_and(|body| match openai::parse(endpoint, &body) {
            Ok(request) => {
                // Whichever of several values its parser takes: it is one that was allowed.
                if request.model.name != call.model || request.model.spans.len() > 1 {
                    replace_model(host, &body, &request.model.spans, &call.model);
                }
                true
            }
            Err(_) => false,
        });
        // The other side read it already, so this takes a proxy that lost it.
        if renamed { Verdict::Continue } else { refuse(host, &Reply::provider_failed("its request was lost")) }
    }

    /// The answer's headers.
    pub fn response_headers(&mut self, host: &dyn Exchange) -> Verdict {
        if !matches!(self.stage, Stage::Sent) {
            return Verdict::Continue;
        }
        self.stage = Stage::Idle;
        let status = host.response_header(":status").unwrap_or_default();
        let outcome = outcome(&status, host.response_header("retry-after"));
        self.attempts.borrow_mut().came_of(&self.cluster, outcome);
        if let Some(reason) = not_for_clients(&status) {
            return refuse(host, &Reply::provider_failed(reason));
        }
        for name in host.response_headers() {
            if !name.starts_with(':') && !RECEIVED.contains(&name.as_str()) {
                host.remove_response_header(&name);
            }
        }
        Verdict::Continue
    }
}

/// What an answer says of the provider, rather than of the request. An internal error may be the request's own fault, and a
/// model that is not known says nothing of others.
fn outcome(status: &[u8], retry_after: Option<Vec<u8>>) -> CallOutcome {
    match status {
        b"401" | b"402" | b"403" | b"407" | b"429" | b"502" | b"503" | b"504" | b"529" => {
            let seconds = retry_after.and_then(|value| std::str::from_utf8(&value).ok()?.trim().parse::<u64>().ok());
            CallOutcome::Failed { patience_ms: seconds.map(|seconds| seconds.saturating_mul(1000)) }
        }
        _ => CallOutcome::Answered,
    }
}

/// Answers about the gateway's own affairs with the provider, which would lead a client astray.
fn not_for_clients(status: &[u8]) -> Option<&'static str> {
    match status {
        b"401" | b"403" => Some("it refuses the gateway's credentials"),
        b"402" => Some("it asks the gateway to pay"),
        b"404" | b"405" | b"410" => Some("it does not know the model or the path that the gateway is configured with"),
        b"407" => Some("a proxy before it asks for credentials"),
        [b'1', ..] => Some("it wants to go on in another protocol"),
        [b'3', ..] => Some("it answers from another address"),
        _ => None,
    }
}

fn refuse(host: &dyn Exchange, reply: &Reply) -> Verdict {
    reply.send(host);
    Verdict::Pause
}

#[cfg(test)]
mod tests;
