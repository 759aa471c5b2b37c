//! The second half of a request's life: who answers it, when, and with what figures.

use std::cell::RefCell;

use kinference_protocol::v1::report::Event;
use kinference_protocol::v1::{Finished, FirstToken, Started};
use kinference_routing::Choice;
use kinference_routing::decide::{Destination, Expectation, Stop};
use kinference_routing::ledger::Ticket;
use kinference_routing::openai::{Request, UsageScanner};

use super::address;
use super::reply::{RULE, visible};
use crate::gateway::Gateway;
use crate::gateway::attempts::Allowed;
use crate::gateway::metrics::Metric;
use crate::host::{Exchange, Host};

/// Bytes at the end of a piece of a stream in which usage figures are looked for.
const USAGE_BYTES: usize = 4096;
/// The same of a whole answer, where the prompt's tokens may follow the figures.
const WHOLE_USAGE_BYTES: usize = 64 << 10;

/// Chunk hashes of the prompt that are kept until it is answered, for the case that another worker does.
const KEPT_CHUNKS: usize = 512;

/// A request that was sent on.
#[derive(Debug)]
pub(super) struct Answer {
    request: u64,
    sent_ms: u64,
    tenant: String,
    choice: Choice,
    /// Who is believed to be at it; `None` for somebody whom this proxy does not know.
    at: Option<Destination>,
    /// The model that answers.
    model: String,
    /// What is expected of whoever is at it.
    expected: Expectation,
    /// Its permit to go to providers, for as long as it lasts.
    _allowed: Option<Allowed>,
    ticket: Option<Ticket>,
    /// Epoch and sequence that the decision was made by.
    position: (u64, u64),
    status: u16,
    /// The answer comes piece by piece, so that its first token can be seen.
    streamed: bool,
    include_usage: bool,
    /// Another place than the first answers.
    moved: bool,
    first_byte: bool,
    /// When a whole answer began: its first byte, which is the first token only where there is no second.
    began_after_ms: Option<u32>,
    scanner: Option<UsageScanner>,
}

impl Answer {
    /// Notes a request that is being sent to the first place of a choice.
    pub(super) fn sent(
        host: &dyn Host,
        gateway: &mut Gateway,
        request: &Request<'_>,
        tenant: &str,
        mut choice: Choice,
        allowed: Option<Allowed>,
    ) -> Self {
        let Stop { destination, model, expected } = choice.first.clone();
        let sent_ms = gateway.clock.last();
        if let Destination::Worker(worker) = destination {
            gateway.ledger.prefix_sent(worker, &choice.chunks, sent_ms.saturating_add(choice.believe_ms));
        }
        choice.chunks.truncate(KEPT_CHUNKS);
        choice.chunks.shrink_to_fit();
        let mut answer = Self {
            request: gateway.next_request(),
            sent_ms,
            tenant: tenant.to_owned(),
            choice,
            at: Some(destination),
            model,
            expected,
            _allowed: allowed,
            ticket: None,
            position: gateway.replica.position(),
            status: 0,
            streamed: request.stream,
            include_usage: request.include_usage,
            moved: false,
            first_byte: false,
            began_after_ms: None,
            scanner: None,
        };
        answer.start(host, gateway);
        answer
    }

    fn worker(&self) -> Option<u32> {
        match self.at {
            Some(Destination::Worker(worker)) => Some(worker),
            Some(Destination::Provider(_)) | None => None,
        }
    }

    /// Counts the request as being in flight where it is.
    fn start(&mut self, host: &dyn Host, gateway: &mut Gateway) {
        if let Some(worker) = self.worker() {
            let mut ticket = gateway.ledger.sent(worker, self.expected.uncached_tokens);
            if !self.streamed {
                let due_ms = gateway.clock.last().saturating_add(self.expected.predicted_ttft_ms as u64);
                gateway.ledger.expect_unseen(&mut ticket, due_ms, self.request);
            }
            self.ticket = Some(ticket);
            self.shared_figures_changed(host, gateway);
        }
        let started = Started {
            tenant: self.tenant.clone(),
            model: self.model.clone(),
            prompt_tokens: self.choice.prompt_tokens,
            cached_tokens: self.expected.cached_tokens,
            queued_tokens: self.expected.queued_tokens,
            running: self.expected.running,
            predicted_ttft_ms: self.expected.predicted_ttft_ms,
            chunks: if self.choice.routed { self.choice.chunks.clone() } else { Vec::new() },
        };
        gateway.report(host, self.request, self.at.as_ref(), Event::Started(started));
    }

    fn shared_figures_changed(&self, host: &dyn Host, gateway: &mut Gateway) {
        gateway.peers.touch();
        gateway.peers.publish(host, &gateway.ledger);
    }

    /// The answer's headers.
    pub(super) fn headers(&mut self, host: &dyn Exchange, gateway: &mut Gateway) {
        gateway.clock.at(host.now());
        let status = host.response_header(":status").unwrap_or_default();
        self.status = std::str::from_utf8(&status).ok().and_then(|status| status.parse().ok()).unwrap_or(0);
        let origin = host.origin();
        if origin.answered {
            self.answered_by(host, gateway, origin.address.as_deref(), origin.attempts);
        } else if origin.unreachable {
            let tried = origin.attempts.map_or(usize::MAX, |attempts| attempts as usize);
            self.suspect(host, gateway, tried);
        }
        let succeeded = origin.answered && (200..300).contains(&self.status);
        self.first_byte = !succeeded;
        if succeeded && host.response_header("content-encoding").is_none() {
            let kind = host.response_header("content-type").unwrap_or_default();
            // A stream of events carries usage only on demand; its pieces are not looked at otherwise.
            let is_stream = kind.starts_with(b"text/event-stream");
            self.scanner = (!is_stream || self.include_usage).then(UsageScanner::default);
        }
        if origin.answered {
            self.explain(host, gateway);
        }
    }

    fn answered_by(
        &mut self,
        host: &dyn Exchange,
        gateway: &mut Gateway,
        answering: Option<&str>,
        attempts: Option<u32>,
    ) {
        let (Some(answering), Some(snapshot)) = (answering, gateway.replica.current()) else { return };
        let is_at = |destination: &Destination| address(snapshot, destination).is_some_and(|at| at == answering);
        let place = self.choice.stops().position(|stop| is_at(&stop.destination));
        if place == Some(0) {
            if let Some(worker) = self.worker() {
                gateway.ledger.cleared(worker);
            }
            return;
        }
        // The proxy skips places that it does not know; only those that it tried failed.
        let failed = attempts.map_or(place, |attempts| Some(attempts.saturating_sub(1) as usize));
        let before = place.unwrap_or(self.choice.stops().count());
        let (at, model, expected) = match place.and_then(|place| self.choice.stops().nth(place)) {
            Some(stop) => (Some(stop.destination.clone()), stop.model.clone(), stop.expected),
            None => {
                let worker = snapshot.workers.values().find(|worker| worker.address == answering);
                let expected = Expectation { uncached_tokens: self.choice.prompt_tokens, ..Expectation::default() };
                (worker.map(|worker| Destination::Worker(worker.id)), self.model.clone(), expected)
            }
        };
        if let Some(ticket) = self.ticket.take() {
            gateway.ledger.finished(ticket);
        }
        self.suspect(host, gateway, failed.unwrap_or(before).min(before));
        (self.at, self.model, self.expected) = (at, model, expected);
        self.moved = true;
        if let Some(worker) = self.worker() {
            let until = gateway.clock.last().saturating_add(self.choice.believe_ms);
            gateway.ledger.prefix_sent(worker, &self.choice.chunks, until);
        }
        self.start(host, gateway);
    }

    /// The first `count` places could not be reached or failed.
    fn suspect(&mut self, host: &dyn Exchange, gateway: &mut Gateway, count: usize) {
        let now = gateway.clock.last();
        for stop in self.choice.stops().take(count) {
            host.count(Metric::ConnectFailures, 1);
            if let Destination::Worker(worker) = stop.destination {
                gateway.ledger.suspect(worker, now);
            }
            let finished = Finished {
                after_ms: elapsed(self.sent_ms, now),
                connect_failure: true,
                aborted: true,
                ..Finished::default()
            };
            gateway.report(host, self.request, Some(&stop.destination), Event::Finished(finished));
        }
    }

    /// Tells the client which model answered, and on demand who and why.
    fn explain(&self, host: &dyn Exchange, gateway: &Gateway) {
        host.set_response_header("x-kinference-model", &visible(&self.model));
        let Some(snapshot) = gateway.replica.current().filter(|snapshot| snapshot.config.backend.debug_headers) else {
            return;
        };
        let name = match &self.at {
            Some(Destination::Worker(id)) => snapshot.workers.get(id).map(|worker| snapshot.worker_name(worker)),
            Some(Destination::Provider(route)) => Some(route.name.clone()),
            None => None,
        };
        if let Some(name) = name {
            host.set_response_header("x-kinference-destination", &visible(&name));
        }
        if let Some(rule) = &self.choice.rule {
            host.set_response_header(RULE, &visible(rule));
        }
        host.set_response_header("x-kinference-predicted-cached-tokens", &self.expected.cached_tokens.to_string());
        let ttft = format!("{:.1}", self.expected.predicted_ttft_ms);
        host.set_response_header("x-kinference-predicted-ttft-ms", &ttft);
        host.set_response_header("x-kinference-epoch", &format!("{}:{}", self.position.0, self.position.1));
    }

    /// The answer's pieces still matter.
    pub(super) fn wants_body(&self) -> bool {
        !self.first_byte || self.scanner.is_some()
    }

    /// A piece of the answer's body, `bytes` long.
    pub(super) fn body(&mut self, host: &dyn Exchange, gateway: &RefCell<Gateway>, bytes: usize) {
        if !self.first_byte {
            self.first_byte = true;
            self.first_token(host, &mut gateway.borrow_mut());
        }
        if let Some(scanner) = &mut self.scanner {
            let start = bytes.saturating_sub(if self.streamed { USAGE_BYTES } else { WHOLE_USAGE_BYTES });
            if start > 0 {
                scanner.skip();
            }
            if let Some(piece) = host.response_body(start, bytes - start) {
                scanner.push(&piece);
            }
        }
    }

    fn first_token(&mut self, host: &dyn Exchange, gateway: &mut Gateway) {
        let now = gateway.clock.at(host.now());
        if let Some(ticket) = &mut self.ticket {
            gateway.ledger.first_token(ticket);
            gateway.peers.touch();
        }
        // After a failed attempt, the time says nothing about the worker that answers.
        if !self.moved {
            let after_ms = elapsed(self.sent_ms, now);
            self.began_after_ms = (!self.streamed).then_some(after_ms);
            self.report_first_token(host, gateway, after_ms, !self.streamed);
        }
    }

    fn report_first_token(&self, host: &dyn Exchange, gateway: &mut Gateway, after_ms: u32, estimated: bool) {
        let first = FirstToken { after_ms, estimated };
        gateway.report(host, self.request, self.at.as_ref(), Event::FirstToken(first));
    }

    /// The request is over; `complete` when its answer came whole.
    pub(super) fn end(mut self, host: &dyn Exchange, gateway: &mut Gateway, complete: bool) {
        let now = gateway.clock.at(host.now());
        if let Some(ticket) = self.ticket.take() {
            gateway.ledger.finished(ticket);
            gateway.peers.touch();
        }
        if !complete
            && host.upstream_broke()
            && let Some(worker) = self.worker()
        {
            gateway.ledger.suspect(worker, now);
        }
        let usage = self.scanner.as_ref().and_then(UsageScanner::found);
        if let Some(after_ms) = self.began_after_ms
            && usage.is_some_and(|usage| usage.completion_tokens <= 1)
        {
            self.report_first_token(host, gateway, after_ms, false);
        }
        let finished = Finished {
            status: u32::from(self.status),
            after_ms: elapsed(self.sent_ms, now),
            prompt_tokens: usage.map(|usage| usage.prompt_tokens),
            cached_tokens: usage.and_then(|usage| usage.cached_tokens),
            completion_tokens: usage.map(|usage| usage.completion_tokens),
            aborted: !complete,
            connect_failure: false,
        };
        gateway.report(host, self.request, self.at.as_ref(), Event::Finished(finished));
    }
}

fn elapsed(from_ms: u64, to_ms: u64) -> u32 {
    u32::try_from(to_ms.saturating_sub(from_ms)).unwrap_or(u32::MAX)
}
