//! Policies: which places may take a request, by the rules that match it.
//!
//! Rules match on the request as it came. *Requirements* of every matching rule hold together, on the candidates and on
//! every fallback tier, so that what one rule forbids no other rule brings back and safety never depends on order.
//! *Choices* come from the first matching rule that states them.

pub mod glob;
mod requirements;
mod rules;
mod verdict;

pub use requirements::Removal;
pub(crate) use requirements::forbidden;
pub use rules::Rules;
pub use verdict::Verdict;
