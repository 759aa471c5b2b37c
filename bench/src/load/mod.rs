//! The load generator: seeded workloads against any OpenAI endpoint, and what a client sees of it.
//!
//! Three workloads, in the shapes that GuideLLM gives them: prompts that share nothing, prompts that share a long system
//! prompt within their group, and conversations whose every turn carries all turns before it.

mod client;
mod error;
mod pace;
mod percentiles;
mod progress;
mod record;
mod run;
mod sse;
mod summary;
mod table;
mod text;
mod workload;

pub use client::{Answer, Client, Endpoint};
pub use error::LoadError;
pub use hyper::Method;
pub use pace::{Arrival, Pace};
pub use percentiles::Percentiles;
pub use progress::Progress;
pub use record::{Failure, Record, Usage};
pub use run::{Options, Run, first_model, run};
pub(crate) use summary::figure;
pub use summary::{Prediction, Summary};
pub use table::{Table, rows};
pub use text::{Random, words};
pub use workload::{Session, Shape, Workload};
