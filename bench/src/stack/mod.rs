//! A local stack of real processes: Envoy with the filter, the control service, and simulated workers.
//!
//! Every process has a log file of its own; the end of it is part of the error when something does not start. All
//! processes end with the stack, and when this process ends in any way.

mod control;
mod envoy;
mod error;
mod files;
mod local;
mod poll;
mod process;
mod programs;
mod source;
mod tls;

pub use control::ControlService;
pub use envoy::Envoy;
pub use error::StackError;
pub use files::TOKENIZER;
pub use local::{Balancing, Cpu, Memory, Stack, StackOptions};
pub use poll::until;
pub use process::{Process, RunFolder, free_port, own_cpu_seconds};
pub use programs::{filter_module, kinfctl_program};
pub use source::{GivenSource, KubernetesSource, Source};
pub use tls::ControlTls;
