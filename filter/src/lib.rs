//! The filter: a proxy-wasm module that picks the worker of each OpenAI-style request inside the proxy.
//!
//! What happens is kept apart from who makes it happen:
//!
//! - [`flow`] is the life of one request, a state machine that sees its proxy only through [`host::Exchange`];
//! - [`gateway`] is what the requests of one VM share: the snapshot, what is in flight, reports to send;
//! - [`provider`] is the life of a request on its way out to a provider, in a listener of its own;
//! - [`link`] is the stream to the control service, as a state machine over [`host::Stream`];
//! - `envoy`, `root` and `http` tie them to proxy-wasm: callbacks in, host calls out, and nothing else.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

pub mod config;
mod envoy;
#[cfg(test)]
mod fake;
pub mod flow;
pub mod gateway;
pub mod host;
mod http;
pub mod link;
pub mod provider;
mod root;
