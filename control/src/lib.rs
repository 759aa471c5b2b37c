//! The control service: it reads the configuration, follows the workers' KV-cache events and metrics, builds routing
//! snapshots from them, and pushes these to the filters.
//!
//! [`state`] is the core, which is pure; everything else is an edge around it, and [`app`] puts them together.

pub mod admin;
pub mod app;
pub mod cli;
pub mod clock;
pub mod conditions;
pub mod core;
pub mod credential;
pub mod eds;
pub mod events;
pub mod fidelity;
pub mod index;
pub mod metrics;
pub mod push;
pub mod scrape;
pub mod source;
pub mod state;
pub mod statuses;
#[cfg(test)]
mod testing;
pub mod tls;
pub mod tokenizer;
pub mod truth;
