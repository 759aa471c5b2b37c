//! The snapshot protocol between the control service and the filters: `proto/snapshot.proto` and its Rust types.
//!
//! The types are plain data. The gRPC client and server stand behind the feature `grpc`; the filter, whose host speaks
//! gRPC for it, uses the messages alone.

mod credentials;
pub mod dump;

/// Version 1 of the protocol, generated from `proto/snapshot.proto` by `cargo xtask generate`.
#[allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub)]
#[rustfmt::skip]
pub mod v1 {
    include!("generated/kinference.snapshot.v1.rs");
}

mod debug;

/// Full gRPC name of the service, as a filter's host wants it.
pub const SERVICE: &str = "kinference.snapshot.v1.SnapshotService";
/// Name of the service's only method.
pub const METHOD: &str = "Stream";
