//! The decision core of Kinference: which worker answers an OpenAI-style request first.
//!
//! Everything here is pure: no I/O, no clock (time is an argument in milliseconds), no host calls. The proxy filter,
//! the control service, the command line and the simulator all call the same functions, so they cannot disagree:
//!
//! - [`openai`] reads requests and the usage figures of answers,
//! - [`template`] renders chat templates to the engine's own prompt text,
//! - [`prefix`] cuts that text into hashed chunks and knows which worker holds which,
//! - [`snapshot`] holds what the control service said, and applies its messages,
//! - [`ledger`] holds what this filter did itself since then,
//! - [`policy`] says which places rules leave for a request,
//! - [`signals`] says what a worker's figures were lately,
//! - [`ttft`] predicts times to first token and learns from observed ones,
//! - [`decide()`] picks the worker, and explains itself on demand.

// Nothing here may trap in a filter's VM; tests may.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)
)]

pub mod decide;
pub mod ledger;
pub mod openai;
pub mod policy;
pub mod prefix;
pub mod prompt;
pub mod signals;
pub mod snapshot;
pub mod template;
pub mod trace;
pub mod ttft;

pub use decide::{Choice, Decision, Destination, Expectation, Rejection, decide};
