//! The five kinds, one file each, and the small types that they share.

mod backend;
mod policy;
mod pool;
mod provider;
mod shared;
mod tenancy;
mod worker_set;

pub use backend::*;
pub use policy::*;
pub use pool::*;
pub use provider::*;
pub use shared::*;
pub use tenancy::*;
pub use worker_set::*;
