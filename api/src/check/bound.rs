//! Checks of bounds on signals.

use super::Reporter;
use crate::kinds::{Aggregate, PoolCondition, Signal, WorkerRequirement};
use crate::units::{Decimal, Period};
use crate::{FieldPath, limits};

/// A predicted time to first token below this was most likely meant in seconds.
const LEAST_TTFT_MS: f64 = 10.0;

/// What a bound is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    Pool,
    Worker,
}

/// A bound on a signal, of a pool or of a worker.
pub(super) struct Bounded {
    pub(super) signal: Signal,
    pub(super) max: Option<Decimal>,
    pub(super) below: Option<Decimal>,
    pub(super) at_least: Option<Decimal>,
    pub(super) over: Option<Period>,
    pub(super) aggregate: Aggregate,
}

impl From<&PoolCondition> for Bounded {
    fn from(of: &PoolCondition) -> Bounded {
        let PoolCondition { signal, max, below, at_least, over, aggregate, .. } = *of;
        Bounded { signal, max, below, at_least, over, aggregate }
    }
}

impl From<&WorkerRequirement> for Bounded {
    fn from(of: &WorkerRequirement) -> Bounded {
        let WorkerRequirement { signal, max, below, at_least, over, aggregate } = *of;
        Bounded { signal, max, below, at_least, over, aggregate }
    }
}

pub(super) fn check(place: &FieldPath, bound: &Bounded, of: Of, to: &mut Reporter<'_>) {
    let given = [("max", bound.max), ("below", bound.below), ("atLeast", bound.at_least)];
    to.exactly_one(place, &given.map(|(field, limit)| (field, limit.is_some())));
    for (field, limit) in given {
        if let Some(limit) = limit {
            check_limit(&place.key(field), field, bound.signal, limit.get(), to);
        }
    }
    if bound.signal == Signal::PredictedTtft {
        if of == Of::Pool {
            let remedy = "write QueuedRequests, RunningRequests or KvCacheUsage";
            to.report(&place.key("signal"), "PredictedTTFT is of a request on a worker, no pool has one", remedy);
        }
        let windowed = [("over", bound.over.is_some()), ("aggregate", bound.aggregate != Aggregate::Last)];
        for (field, _) in windowed.into_iter().filter(|(_, given)| *given) {
            let remedy = format!("it is of the request at hand; remove `{field}`");
            to.report(&place.key(field), "PredictedTTFT has no window", remedy);
        }
        return;
    }
    match bound.over {
        Some(over) => to.period_within(&place.key("over"), over, limits::WINDOW.0, limits::WINDOW.1),
        None if bound.aggregate != Aggregate::Last => {
            let message = format!("{:?} needs a window", bound.aggregate);
            to.report(&place.key("aggregate"), message, "add one, such as over: 30s");
        }
        None => {}
    }
}

fn check_limit(path: &FieldPath, field: &str, signal: Signal, limit: f64, to: &mut Reporter<'_>) {
    let is_usage = signal == Signal::KvCacheUsage;
    if is_usage && limit > 1.0 {
        to.report(path, "KvCacheUsage is never above 1", "write a share such as \"0.9\"");
    } else if field == "below" && limit == 0.0 {
        to.report(path, "nothing is below 0", "write max: \"0\"");
    } else if (field == "atLeast" && limit == 0.0) || (is_usage && field == "max" && limit == 1.0) {
        to.warn(path, "holds whenever the signal is known", "");
    } else if signal == Signal::PredictedTtft && limit < LEAST_TTFT_MS {
        to.warn(path, format!("{limit} ms is less than any worker takes"), "PredictedTTFT is in milliseconds");
    }
}
