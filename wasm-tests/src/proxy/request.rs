//! Requests on their way through the filter to a host.

use super::{Exchange, Proxy};
use crate::http::{Forwarded, Headers};

/// What the filter wants of the proxy.
const CONTINUE: u32 = 0;
/// Retries of a request, as the route's policy allows when no header says otherwise.
const RETRIES: usize = 3;

impl Proxy {
    /// The client's headers arrive; `end` when there is no body.
    pub fn request_headers(&mut self, exchange: Exchange, headers: &Headers, end: bool) {
        let vm = &mut self.vms[exchange.vm];
        let state = vm.exchange(exchange.context);
        state.request = headers.clone();
        let count = u32::try_from(headers.len()).unwrap_or(u32::MAX);
        let action: Option<u32> =
            vm.callback(exchange.context, "proxy_on_request_headers", (exchange.context, count, u32::from(end)));
        self.settle(exchange, action, end);
    }

    /// A piece of the client's body arrives.
    pub fn request_body(&mut self, exchange: Exchange, piece: &[u8], end: bool) {
        let stop_iteration = self.options.stop_iteration;
        let vm = &mut self.vms[exchange.vm];
        let state = vm.exchange(exchange.context);
        if state.over {
            return;
        }
        state.body.extend_from_slice(piece);
        if state.holding && !stop_iteration && !state.headers_sent {
            // Envoy stops all iteration: the filter never sees the body.
            return;
        }
        let length = u32::try_from(state.body.len()).unwrap_or(u32::MAX);
        let action: Option<u32> =
            vm.callback(exchange.context, "proxy_on_request_body", (exchange.context, length, u32::from(end)));
        self.settle(exchange, action, end);
        let limit = self.options.buffer_limit;
        let state = self.vms[exchange.vm].exchange(exchange.context);
        if state.holding && !state.over && state.body.len() > limit {
            state.details = "request_payload_too_large".to_owned();
            self.local_reply(exchange, 413, &Headers::default(), b"Payload Too Large");
        }
    }

    /// The client's trailers arrive, which end its request.
    pub fn request_trailers(&mut self, exchange: Exchange) {
        let vm = &mut self.vms[exchange.vm];
        if vm.exchange(exchange.context).over {
            return;
        }
        let action: Option<u32> = vm.callback(exchange.context, "proxy_on_request_trailers", (exchange.context, 1u32));
        self.settle(exchange, action, true);
    }

    /// The client goes away.
    pub fn disconnect(&mut self, exchange: Exchange) {
        let state = self.vms[exchange.vm].exchange(exchange.context);
        if !state.over {
            state.details = "downstream_remote_disconnect".to_owned();
            self.finish(exchange);
        }
    }

    /// After a callback: sends on what the filter lets pass, or its answer to the client.
    fn settle(&mut self, exchange: Exchange, action: Option<u32>, end: bool) {
        let Some(action) = action else {
            // The VM trapped, now or before: Envoy answers 503.
            self.local_reply(exchange, 503, &Headers::default(), b"");
            return;
        };
        let state = self.vms[exchange.vm].exchange(exchange.context);
        if let Some((status, headers, body)) = state.reply.take() {
            state.details = "wasm_local_response".to_owned();
            self.local_reply(exchange, status, &headers, &body);
            return;
        }
        if action != CONTINUE {
            state.holding = true;
            return;
        }
        state.holding = false;
        if !state.headers_sent {
            state.headers_sent = true;
            self.connect(exchange);
        }
        let state = self.vms[exchange.vm].exchange(exchange.context);
        let body = std::mem::take(&mut state.body);
        if let Some(forwarded) = &mut state.forwarded {
            forwarded.body.extend_from_slice(&body);
            forwarded.complete |= end;
        }
    }

    /// Picks a host as the override_host policy does: the header's hosts in their order, unknown ones skipped; only what
    /// is marked as undecided, on a route chosen for it, goes to any worker. One that refuses connections costs an attempt.
    fn connect(&mut self, exchange: Exchange) {
        let hosts = self.process.borrow().hosts.clone();
        let state = self.vms[exchange.vm].exchange(exchange.context);
        if let Some(listener) = &state.listener {
            // It leads to one cluster of the same name.
            let forwarded =
                Forwarded { address: listener.clone(), headers: state.request.clone(), ..Forwarded::default() };
            state.forwarded = Some(forwarded);
            return;
        }
        let wanted = state.request.text("x-gateway-destination-endpoint").unwrap_or_default();
        let wanted = wanted.split(',').map(str::to_owned).filter(|host| hosts.contains_key(host));
        let mut order: Vec<String> = wanted.collect();
        if state.route_fresh && state.request.get("x-kinference-undecided").is_some() {
            order.extend(hosts.keys().filter(|host| !host.starts_with("envoy://")).cloned());
        }
        let retries = state.request.text("x-envoy-max-retries").and_then(|retries| retries.parse().ok());
        for name in ["x-envoy-max-retries", "x-envoy-retry-on", "x-envoy-retriable-status-codes"] {
            state.request.remove(name);
        }
        for host in order.into_iter().take(retries.unwrap_or(RETRIES) + 1) {
            state.attempts += 1;
            state.address.clone_from(&host);
            if hosts.get(&host) == Some(&true) {
                let headers = state.request.clone();
                state.forwarded = Some(Forwarded { address: host, headers, ..Forwarded::default() });
                return;
            }
        }
        state.details = if state.attempts == 0 {
            "no_healthy_upstream".to_owned()
        } else {
            "upstream_reset_before_response_started{remote_connection_failure|delayed_connect_error:_111}".to_owned()
        };
        self.local_reply(exchange, 503, &Headers::default(), b"upstream connect error");
    }
}
