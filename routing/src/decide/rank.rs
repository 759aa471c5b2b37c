//! Order among candidates.

use super::{ALTERNATIVES, Candidate};
use crate::prefix::hash_chunk;
use crate::trace::CandidateStanding;

/// Predictions closer than this part, or this many milliseconds, are equal: the model is not better than that.
const TIE_PART: f32 = 0.05;
const TIE_MS: f32 = 1.0;

/// Fastest first, among those of the best standing; ties by the hash of the prompt's beginning, so that many proxies agree
/// on the worker of a new prefix and different prefixes spread.
pub(super) fn by_ttft<'c, 's>(candidates: &'c [Candidate<'s>], affinity: u64) -> Vec<&'c Candidate<'s>> {
    let best_standing = candidates.iter().map(|candidate| candidate.standing).min();
    let fastest = candidates
        .iter()
        .filter(|candidate| Some(candidate.standing) == best_standing)
        .map(|candidate| candidate.score_ms)
        .fold(f32::INFINITY, f32::min);
    let tie = (fastest * (1.0 + TIE_PART)).max(fastest + TIE_MS);
    ranked(candidates, |candidate| {
        let tied = candidate.score_ms <= tie;
        (if tied { fastest } else { candidate.score_ms }, weight(candidate, affinity))
    })
}

/// By the hash of the prompt's beginning alone (rendezvous hashing): the same prefix meets the same worker, whoever asks,
/// and one worker less moves only its own prefixes.
pub(super) fn by_hash<'c, 's>(candidates: &'c [Candidate<'s>], affinity: u64) -> Vec<&'c Candidate<'s>> {
    ranked(candidates, |candidate| (0.0, weight(candidate, affinity)))
}

fn weight(candidate: &Candidate<'_>, affinity: u64) -> u64 {
    hash_chunk(candidate.worker.address.as_bytes(), affinity ^ u64::from(candidate.worker.rank.unwrap_or(0)))
}

fn ranked<'c, 's>(
    candidates: &'c [Candidate<'s>],
    key: impl Fn(&Candidate<'s>) -> (f32, u64),
) -> Vec<&'c Candidate<'s>> {
    let mut keyed: Vec<_> = candidates
        .iter()
        .filter(|candidate| candidate.standing != CandidateStanding::Unready)
        .map(|candidate| (candidate.standing, key(candidate), candidate))
        .collect();
    keyed.sort_by(|(standing_a, (ttft_a, hash_a), _), (standing_b, (ttft_b, hash_b), _)| {
        standing_a.cmp(standing_b).then(ttft_a.total_cmp(ttft_b)).then(hash_b.cmp(hash_a))
    });
    let mut chosen: Vec<&Candidate<'_>> = Vec::with_capacity(ALTERNATIVES);
    for (_, _, candidate) in keyed {
        // The header of the rank goes along with a retry, so an alternative must be at another address with the same rank.
        let fits = chosen.first().is_none_or(|best| {
            best.worker.set == candidate.worker.set
                && best.worker.rank == candidate.worker.rank
                && chosen.iter().all(|other| other.worker.address != candidate.worker.address)
        });
        if fits {
            chosen.push(candidate);
        }
        if chosen.len() == ALTERNATIVES {
            break;
        }
    }
    chosen
}
