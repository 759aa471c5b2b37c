//! Pushing snapshots to filters: encode once, send to all, and never wait for the slowest.

pub mod channel;
pub mod codec;
mod confidentiality;
mod outbound;
pub mod service;

pub use channel::{Channel, Limits};
pub use confidentiality::{Confidentiality, Guard};
pub use outbound::Command;
pub use service::{Directory, SnapshotServer, Timing};

#[cfg(test)]
mod tests;
