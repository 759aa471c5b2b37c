//! The stream to the control service: kept open, and followed message by message.
//!
//! Losing it costs no request (invariant S3): the snapshot stays, and the stream is opened again after a growing, jittered
//! pause.

mod backoff;

use kinference_protocol::v1::{self, filter_message::Message};
use kinference_routing::snapshot::Outcome;
use prost::Message as _;

use crate::gateway::Gateway;
use crate::gateway::metrics::Metric;
use crate::host::{Severity, Stream};
use backoff::Backoff;

/// Largest message that is read; the control service sends larger snapshots in parts.
pub const MAX_MESSAGE: usize = 16 << 20;
/// A stream that is silent for this long is dead: the control service sends something at least once a second.
const SILENCE_MS: u64 = 5_000;
/// Time between two log lines about a lost stream.
const LOG_MS: u64 = 60_000;
/// An attempt within this time needs ticks that come often.
const SOON_MS: u64 = 300;
/// Time between two messages that say what is held, and between two requests for a full snapshot.
const SAY_MS: u64 = 1_000;
/// The same after content that could not be applied, which would most likely fail again.
const REFUSED_MS: u64 = 10_000;

/// The stream's state.
#[derive(Debug, Default)]
pub struct Link {
    open: Option<Open>,
    retry_ms: u64,
    log_again_ms: u64,
    backoff: Backoff,
    vm: u64,
    proxy: String,
}

#[derive(Debug)]
struct Open {
    token: u32,
    heard_ms: u64,
    said_ms: u64,
    said: (u64, u64),
    ask_again_ms: u64,
}

impl Link {
    /// A stream that is not open yet, of VM `vm` in the proxy named `proxy`.
    #[must_use]
    pub fn new(vm: u64, proxy: String) -> Self {
        Self { vm, proxy, backoff: Backoff::new(vm), ..Self::default() }
    }

    /// On a tick: opens the stream when it is time, sends what waits, and gives up a dead one.
    pub fn tick(&mut self, stream: &dyn Stream, gateway: &mut Gateway) {
        let now = gateway.clock.last();
        match &self.open {
            None if now >= self.retry_ms => self.connect(stream, gateway, now),
            Some(open) if now.saturating_sub(open.heard_ms) > SILENCE_MS => {
                stream.cancel(open.token);
                self.lost(stream, now, "it was silent for too long");
            }
            _ => {}
        }
        self.say(stream, gateway, now, false);
        self.report(stream, gateway, now);
    }

    /// There is a stream.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// The next attempt to open it is near.
    #[must_use]
    pub fn is_due_soon(&self, now: u64) -> bool {
        self.open.is_none() && self.retry_ms.saturating_sub(now) < SOON_MS
    }

    fn connect(&mut self, stream: &dyn Stream, gateway: &mut Gateway, now: u64) {
        let Some(token) = stream.open(&gateway.plugin.control_cluster) else {
            self.lost(stream, now, "it could not be opened; is the cluster there?");
            return;
        };
        stream.count(Metric::StreamsOpened, 1);
        gateway.replica.reconnected();
        let (epoch, sequence) = gateway.replica.position();
        self.open = Some(Open { token, heard_ms: now, said_ms: now, said: (epoch, sequence), ask_again_ms: 0 });
        let hello = v1::Hello {
            gateway_backend: gateway.plugin.gateway_backend.clone(),
            filter_build: env!("CARGO_PKG_VERSION").to_owned(),
            proxy_id: self.proxy.clone(),
            vm_id: self.vm,
            epoch,
            sequence,
        };
        self.send(stream, Message::Hello(hello), now);
    }

    fn send(&mut self, stream: &dyn Stream, message: Message, now: u64) -> bool {
        let Some(open) = &self.open else { return false };
        let bytes = v1::FilterMessage { message: Some(message) }.encode_to_vec();
        let sent = stream.send(open.token, &bytes);
        if !sent {
            self.lost(stream, now, "a message could not be sent");
        }
        sent
    }

    /// The stream ended. `token` tells it from an earlier one.
    pub fn closed(&mut self, stream: &dyn Stream, token: u32, status: u32, now: u64) {
        // Envoy keeps what belongs to a stream until this side ends it too, and later touches what is gone by then.
        stream.cancel(token);
        if self.open.as_ref().is_some_and(|open| open.token == token) {
            self.lost(stream, now, &format!("it was closed with gRPC status {status}"));
        }
    }

    fn lost(&mut self, stream: &dyn Stream, now: u64, why: &str) {
        self.open = None;
        let pause = self.backoff.next();
        self.retry_ms = now.saturating_add(pause);
        stream.count(Metric::StreamsLost, 1);
        if now >= self.log_again_ms {
            self.log_again_ms = now.saturating_add(LOG_MS);
            let message = format!(
                "the stream to the control service is lost: {why}; requests are served by what is known, and it is opened again"
            );
            stream.log(Severity::Warning, &message);
        }
    }

    /// A message came, `length` bytes long; `read` gives it.
    pub fn received(
        &mut self,
        stream: &dyn Stream,
        gateway: &mut Gateway,
        token: u32,
        length: usize,
        read: impl FnOnce(usize) -> Option<Vec<u8>>,
    ) {
        let now = gateway.clock.last();
        let Some(open) = self.open.as_mut().filter(|open| open.token == token) else { return };
        open.heard_ms = now;
        self.backoff.reset();
        self.log_again_ms = 0;
        if length > MAX_MESSAGE {
            let reason = format!("a message of {length} bytes is larger than {MAX_MESSAGE}");
            self.refuse(stream, gateway, now, reason, false);
            return;
        }
        let message = match v1::ControlMessage::decode(read(length).unwrap_or_default().as_slice()) {
            Ok(message) => message,
            Err(error) => {
                self.refuse(stream, gateway, now, format!("a message cannot be decoded: {error}"), true);
                return;
            }
        };
        match gateway.apply(stream, message) {
            Ok(outcome) => {
                let full = outcome == Outcome::Full;
                if full && let Some(open) = &mut self.open {
                    open.ask_again_ms = 0;
                }
                self.say(stream, gateway, now, full);
            }
            Err(error) => self.refuse(stream, gateway, now, error.to_string(), error.wants_resync()),
        }
    }

    /// Says why a message was not applied. What builds on it will not apply either: that needs saying once only.
    fn refuse(&mut self, stream: &dyn Stream, gateway: &Gateway, now: u64, reason: String, resync: bool) {
        stream.count(Metric::MessagesRejected, 1);
        let Some(open) = &mut self.open else { return };
        if resync && now < open.ask_again_ms {
            return;
        }
        open.ask_again_ms = now.saturating_add(if resync { SAY_MS } else { REFUSED_MS });
        let severity = if resync { Severity::Info } else { Severity::Error };
        stream.log(severity, &format!("a message of the control service was not applied: {reason}"));
        let (epoch, sequence) = gateway.replica.position();
        self.send(stream, Message::Rejected(v1::Rejected { epoch, sequence, reason, resync }), now);
    }

    /// Says what is held, when that is news and due.
    fn say(&mut self, stream: &dyn Stream, gateway: &Gateway, now: u64, at_once: bool) {
        let (Some(open), Some(snapshot)) = (&mut self.open, gateway.replica.current()) else { return };
        let held = (snapshot.epoch, snapshot.sequence);
        if !at_once && (open.said == held || now.saturating_sub(open.said_ms) < SAY_MS) {
            return;
        }
        open.said = held;
        open.said_ms = now;
        let applied = v1::Applied {
            epoch: held.0,
            sequence: held.1,
            index_chunks: snapshot.index.chunks() as u64,
            index_bytes: snapshot.index.bytes() as u64,
        };
        self.send(stream, Message::Applied(applied), now);
    }

    fn report(&mut self, stream: &dyn Stream, gateway: &mut Gateway, now: u64) {
        if self.open.is_none() || gateway.reports.is_empty() {
            return;
        }
        let batch = gateway.reports.take();
        let (reports, dropped) = (batch.reports.len() as u64, batch.dropped);
        if !self.send(stream, Message::Reports(batch), now) {
            gateway.reports.lost(reports + dropped);
        }
    }
}
