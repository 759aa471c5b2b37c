//! A fake Envoy on wasmtime that runs the real filter module.
//!
//! It has state as Envoy has: buffers that fill while a filter holds them, header maps that can be written only until they
//! were sent on, hosts that refuse connections, streams that close, data that VMs share, and a clock that only a test
//! moves. So a test says what comes from the client, the workers and the control service, and asserts what they get;
//! which host calls the filter makes for it, and in what order, is the filter's own affair.
//!
//! - [`Proxy`] is one Envoy process with several VMs,
//! - [`http`] is what passes: requests, answers and their headers,
//! - [`fleet`] makes the control service's messages,
//! - [`artifact`] finds or builds the module,
//! - [`fuel`] measures decisions.

mod abi;
pub mod artifact;
pub mod fleet;
pub mod fuel;
pub mod http;
mod memory;
mod process;
pub mod proxy;
mod vm;

pub use process::{Control, Metric};
pub use proxy::{Exchange, Options, Proxy};
