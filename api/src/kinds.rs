//! The five kinds, one file each, and the small types that they share.

#![expect(unreachable_pub, reason = "`KubeSchema` copies each type, `pub` as it is, into a function")]
#![expect(clippy::duplicated_attributes, reason = "columns of one type are no duplicates")]

mod backend;
mod policy;
mod pool;
mod port;
mod provider;
mod rules;
mod shared;
mod tenancy;
mod worker_set;

pub use backend::*;
pub use policy::*;
pub use pool::*;
pub use port::*;
pub use provider::*;
pub use shared::*;
pub use tenancy::*;
pub use worker_set::*;
