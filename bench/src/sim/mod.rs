//! A simulator of vLLM workers: real HTTP, real tokens, real KV cache events, and a scheduler and paged cache that behave
//! like the engine's; only the model is missing. Step times are computed, answers are words drawn by the prompt's hash.
//!
//! - [`Fleet`] starts workers, each on a thread of its own, and makes them misbehave ([`Fault`]).
//! - `engine` and `cache` are the scheduler and the cache, pure state machines.
//! - `run` steps an engine in time; `publisher` sends its events; `http` is the OpenAI interface.
//!
//! Where vLLM's behaviour was seen (captures in `testdata/`), tests hold the simulator against it.

mod cache;
mod config;
mod control;
mod engine;
mod error;
mod events;
mod fault;
mod fleet;
mod http;
mod metrics;
mod msgpack;
mod progress;
mod publisher;
mod run;
mod sockets;
#[cfg(test)]
mod testing;
mod text;
mod worker;

pub use config::Config;
pub use error::SimError;
pub use fault::Fault;
pub use fleet::{Fleet, WorkerStatus};
pub use sockets::Addresses;
pub use worker::Stats;
