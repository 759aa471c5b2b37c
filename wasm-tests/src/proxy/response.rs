//! Answers on their way through the filter to the client.

use super::{Exchange, Proxy};
use crate::http::Headers;

impl Proxy {
    /// The worker's headers arrive.
    pub fn response_headers(&mut self, exchange: Exchange, headers: &Headers, end: bool) {
        let state = self.vms[exchange.vm].exchange(exchange.context);
        if !state.over {
            state.details = "via_upstream".to_owned();
            self.show_response(exchange, headers, end);
        }
    }

    /// A piece of the worker's body arrives.
    pub fn response_body(&mut self, exchange: Exchange, piece: &[u8], end: bool) {
        let vm = &mut self.vms[exchange.vm];
        let state = vm.exchange(exchange.context);
        if state.over {
            return;
        }
        state.piece = piece.to_vec();
        let length = u32::try_from(piece.len()).unwrap_or(u32::MAX);
        let _: Option<u32> =
            vm.callback(exchange.context, "proxy_on_response_body", (exchange.context, length, u32::from(end)));
        let state = vm.exchange(exchange.context);
        let piece = std::mem::take(&mut state.piece);
        state.received.body.extend_from_slice(&piece);
        if end {
            state.received.complete = true;
            self.finish(exchange);
        }
    }

    /// The worker's trailers arrive, which end its answer.
    pub fn response_trailers(&mut self, exchange: Exchange) {
        let vm = &mut self.vms[exchange.vm];
        if vm.exchange(exchange.context).over {
            return;
        }
        let _: Option<u32> = vm.callback(exchange.context, "proxy_on_response_trailers", (exchange.context, 1u32));
        vm.exchange(exchange.context).received.complete = true;
        self.finish(exchange);
    }

    /// The worker's connection breaks amid its answer.
    pub fn break_upstream(&mut self, exchange: Exchange) {
        let state = self.vms[exchange.vm].exchange(exchange.context);
        state.details = "upstream_reset_after_response_started{connection_termination}".to_owned();
        self.finish(exchange);
    }

    /// The proxy or the filter answers instead of a worker. Envoy shows the filter that answer too.
    pub(super) fn local_reply(&mut self, exchange: Exchange, status: u16, headers: &Headers, body: &[u8]) {
        let state = self.vms[exchange.vm].exchange(exchange.context);
        if state.over {
            return;
        }
        state.forwarded = None;
        let mut headers = headers.clone();
        headers.set(":status", status.to_string().as_bytes());
        headers.set("content-length", body.len().to_string().as_bytes());
        self.show_response(exchange, &headers, body.is_empty());
        if !body.is_empty() {
            self.response_body(exchange, body, true);
        }
    }

    fn show_response(&mut self, exchange: Exchange, headers: &Headers, end: bool) {
        let vm = &mut self.vms[exchange.vm];
        let state = vm.exchange(exchange.context);
        state.response = headers.clone();
        state.response_open = true;
        let count = u32::try_from(headers.len()).unwrap_or(u32::MAX);
        let _: Option<u32> =
            vm.callback(exchange.context, "proxy_on_response_headers", (exchange.context, count, u32::from(end)));
        let state = vm.exchange(exchange.context);
        state.response_open = false;
        state.received.headers = std::mem::take(&mut state.response);
        state.received.status =
            state.received.headers.text(":status").and_then(|status| status.parse().ok()).unwrap_or_default();
        if end {
            state.received.complete = true;
            self.finish(exchange);
        }
    }

    /// The request is over: its context is told, and deleted.
    pub(super) fn finish(&mut self, exchange: Exchange) {
        let vm = &mut self.vms[exchange.vm];
        let state = vm.exchange(exchange.context);
        if std::mem::replace(&mut state.over, true) {
            return;
        }
        let context = exchange.context;
        vm.callback::<_, ()>(context, "proxy_on_log", context);
        let _: Option<u32> = vm.callback(context, "proxy_on_done", context);
        vm.callback::<_, ()>(context, "proxy_on_delete", context);
    }
}
