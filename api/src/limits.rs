//! Bounds of fields, said once: the schema that an API server checks has them, and so have the checks of files.
//!
//! Lists and texts are bounded because an API server only takes rules over what it knows to be small.

use crate::units::{Period, Size};

/// How often engine metrics are read.
pub(crate) const METRICS_INTERVAL: (Period, Period) = (Period::from_millis(10), Period::from_secs(60));
/// The largest request body.
pub(crate) const REQUEST_BODY: (Size, Size) = (Size::from_bytes(1 << 10), Size::from_mebibytes(128));
/// Memory of the prefix index in a filter.
pub(crate) const INDEX_BYTES: (Size, Size) = (Size::from_bytes(64 << 10), Size::from_mebibytes(512));
/// The grid on which prompts are cut: a power of two.
pub(crate) const CHUNK_BYTES: (u32, u32) = (16, 65_536);
/// How long filters trust what they know.
pub(crate) const STALE_AFTER: (Period, Period) = (Period::from_secs(1), Period::from_secs(3600));
/// The window of a signal.
pub(crate) const WINDOW: (Period, Period) = (Period::from_millis(100), Period::from_secs(15 * 60));
/// Data-parallel ranks of a worker.
pub(crate) const RANKS: u32 = 256;
/// The status of a rejection.
pub(crate) const REJECTION_STATUS: (u16, u16) = (400, 599);
/// Priorities of policies and tenants, either way from 0.
pub(crate) const PRIORITY: i32 = 1_000_000;

/// Workers that one set lists.
pub(crate) const STATIC_WORKERS: usize = 1024;
/// Rules of a policy.
pub(crate) const RULES: usize = 64;
/// Fallback tiers of a rule.
pub(crate) const TIERS: usize = 8;
/// Conditions of a rule on pools, and its requirements on workers.
pub(crate) const BOUNDS: usize = 8;
/// Names or patterns in a list of a rule.
pub(crate) const NAMES: usize = 64;
/// Tags in a list of a rule.
pub(crate) const TAGS: usize = 32;
/// References to resources of a kind.
pub(crate) const REFERENCES: usize = 64;
/// Models that a provider offers.
pub(crate) const PROVIDER_MODELS: usize = 256;
/// Tenants of a gateway backend.
pub(crate) const TENANTS: usize = 1024;
/// Ways to find out a tenant.
pub(crate) const IDENTITIES: usize = 16;
/// Classifiers of a gateway backend.
pub(crate) const CLASSIFIERS: usize = 32;
/// Kinds of personal data, with room for more of them.
pub(crate) const PII_KINDS: usize = 32;
/// Expressions of a label selector, values of one, and its labels.
pub(crate) const SELECTOR_TERMS: usize = 32;

/// Characters of a resource's name.
pub(crate) const RESOURCE_NAME: usize = 253;
/// Characters of names of models and tenants, and of patterns for them.
pub(crate) const NAME: usize = 256;
/// Characters of names of rules, workers and tags.
pub(crate) const SHORT_NAME: usize = 63;
/// Characters of a URL or a path.
pub(crate) const URL: usize = 1024;
/// Characters of a header's name.
pub(crate) const HEADER: usize = 128;
/// Characters of a message to clients.
pub(crate) const MESSAGE: usize = 1024;
/// Characters of a chat template.
pub(crate) const TEMPLATE: usize = 2 << 20;
/// Characters of a label's key: a DNS name, a slash and a name.
pub(crate) const LABEL_KEY: usize = 317;
