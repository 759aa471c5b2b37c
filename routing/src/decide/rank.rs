//! Order among candidates.

use kinference_protocol::v1::Objective;

use super::candidates::{Candidate, Gathered, Place};
use super::choice::PLACES;
use crate::policy::Verdict;
use crate::prefix::hash_chunk;
use crate::trace::CandidateStanding;

/// Predictions closer than this part, or this many milliseconds, are equal: the model is not better than that.
const TIE_PART: f32 = 0.05;
const TIE_MS: f32 = 1.0;

/// Appends to the places so far the best of the candidates that `keep` keeps, and where to go when that fails.
///
/// Those of the best standing come first, among them the ones that the objective prefers; ties are broken by the hash of
/// the prompt's beginning (rendezvous hashing), so that many proxies agree on the worker of a new prefix and different
/// prefixes spread. A stale snapshot leaves the hash alone.
pub(super) fn append<'c, 's>(
    places: &mut Vec<&'c Candidate<'s>>,
    gathered: &'c Gathered<'s>,
    verdict: &Verdict<'_>,
    stale: bool,
    keep: &dyn Fn(&Candidate<'s>) -> bool,
) {
    let kept: Vec<&Candidate<'s>> = gathered
        .candidates
        .iter()
        .filter(|candidate| candidate.standing != CandidateStanding::Unready && keep(candidate))
        .collect();
    let Some(standing) = kept.iter().map(|candidate| candidate.standing).min() else { return };
    let affinity = gathered.prompts.first().map_or(0, |prompt| prompt.affinity);
    let fastest = kept
        .iter()
        .filter(|candidate| candidate.standing == standing)
        .map(|candidate| candidate.score_ms)
        .fold(f32::INFINITY, f32::min);
    let ttft = |candidate: &Candidate<'_>| {
        let tied = candidate.score_ms <= (fastest * (1.0 + TIE_PART)).max(fastest + TIE_MS);
        f64::from(if tied { fastest } else { candidate.score_ms })
    };
    let preference = |candidate: &Candidate<'_>| -> (f64, f64) {
        match verdict.minimize {
            _ if stale => (0.0, 0.0),
            Objective::MinimizeTtft => (0.0, ttft(candidate)),
            Objective::MinimizeQueue => (f64::from(candidate.waiting), ttft(candidate)),
            // The cheapest within the budget; when none is within it, the fastest.
            Objective::MinimizeCost if candidate.predicted_ttft_ms <= verdict.ttft_budget_ms => {
                (candidate.cost(), ttft(candidate))
            }
            Objective::MinimizeCost => (f64::INFINITY, ttft(candidate)),
        }
    };
    let mut keyed: Vec<_> = kept
        .into_iter()
        .map(|candidate| (candidate.standing, preference(candidate), weight(candidate, affinity), candidate))
        .collect();
    keyed.sort_by(|(standing_a, a, hash_a, _), (standing_b, b, hash_b, _)| {
        let preference = a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1));
        standing_a.cmp(standing_b).then(preference).then(hash_b.cmp(hash_a))
    });
    for (.., candidate) in keyed {
        if places.len() == PLACES {
            return;
        }
        if fits(places, candidate) {
            places.push(candidate);
        }
    }
}

fn weight(candidate: &Candidate<'_>, affinity: u64) -> u64 {
    match candidate.place {
        Place::Worker(worker) => hash_chunk(worker.address.as_bytes(), affinity ^ u64::from(worker.rank.unwrap_or(0))),
        Place::Provider { provider, .. } => hash_chunk(provider.name.as_bytes(), affinity),
    }
}

/// A retry of a request that went to these places can go to the candidate.
fn fits(places: &[&Candidate<'_>], candidate: &Candidate<'_>) -> bool {
    match candidate.place {
        // What a provider gets is made for it on the way out. But a request leaves the cluster only by choice, never
        // because a worker broke down.
        Place::Provider { provider, .. } => {
            let other = |place: &&Candidate<'_>| match place.place {
                Place::Provider { provider: other, .. } => other.name != provider.name,
                Place::Worker(_) => true,
            };
            places.first().is_none_or(|first| matches!(first.place, Place::Provider { .. })) && places.iter().all(other)
        }
        // The headers and the body go along, so it must be at another address with the same rank and model.
        Place::Worker(worker) => places.iter().all(|place| match place.place {
            Place::Worker(other) => {
                other.set == worker.set
                    && other.rank == worker.rank
                    && place.model == candidate.model
                    && other.address != worker.address
            }
            Place::Provider { .. } => true,
        }),
    }
}
