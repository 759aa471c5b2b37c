//! End-to-end tests: a real Envoy with the real filter, the real control service, and simulated workers.
//!
//! The tests are in `tests/gateway` and `tests/kubernetes`. They need the programs and the filter to be built, which
//! `cargo xtask test` does first, and those on Kubernetes more, which `cargo xtask test --kubernetes` sees to.

pub mod kubernetes;
mod provider;
mod requests;
mod run;

pub use provider::{Provider, Seen};
pub use requests::{BLOCK, CHUNK, Reply, chat, prompt, send};
pub use run::alone;
