//! The five kinds that users write (group `kinference.dev`, version `v1alpha1`), their validation, and their
//! compilation to what the control service and the filters run.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`kinds`] | the five kinds as Rust types; their doc comments become the documentation of the CRDs |
//! | [`units`] | durations (`250ms`), sizes (`64Mi`) and decimals (`"0.7"`) as users write them |
//! | [`source`] | files and folders to [`Resources`], with every problem at once, each with file, line and field path |
//! | [`check`] | what the types alone cannot say: references, ranges, exactly-one-of, duplicates |
//! | [`crds`] | the kinds as custom resource definitions, with what an API server can check by itself |
//! | [`policy_test`] | the tests that people keep beside their policies |
//! | [`compile`] | one gateway backend to its fleet ([`compile::FleetSpec`]) and its snapshot configuration |

pub mod certificate;
pub mod check;
pub mod compile;
pub mod crds;
pub mod kinds;
mod limits;
pub mod path;
mod plain;
pub mod policy_test;
pub mod problem;
pub mod resources;
pub mod source;
pub mod units;

pub use path::FieldPath;
pub use plain::plain;
pub use problem::{Problem, Problems, Severity};
pub use resources::{Kind, ObjectKey, Origin, Resource, Resources};

/// The API group of the five kinds.
pub const GROUP: &str = "kinference.dev";
/// The version of the five kinds.
pub const VERSION: &str = "v1alpha1";
/// What the kinds say in `apiVersion`.
pub const API_VERSION: &str = "kinference.dev/v1alpha1";
/// The namespace of a resource whose file names none.
pub const DEFAULT_NAMESPACE: &str = "default";
