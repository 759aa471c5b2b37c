//! Which workers may take a request. Rules plug in here: they see the request and the snapshot, and give the candidates
//! from which [`decide`](crate::decide()) picks.

use crate::decide::{Ask, Rejection};
use crate::snapshot::{Snapshot, Target};

/// What the rules leave for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidates<'s> {
    /// Worker sets whose workers may take it.
    pub targets: &'s [Target],
    /// The name of the rule that chose them; absent when none did.
    pub rule: Option<&'s str>,
}

/// The workers that serve the requested model.
///
/// # Errors
/// When nobody serves it: never a random worker.
pub fn candidates<'s>(snapshot: &'s Snapshot, ask: &Ask<'_>) -> Result<Candidates<'s>, Rejection> {
    let model = &*ask.request.model.name;
    let targets = snapshot.config.models.get(model).ok_or_else(|| Rejection::UnknownModel(model.to_owned()))?;
    Ok(Candidates { targets, rule: None })
}
