//! When a status is worth a write: what is so at once, figures now and then, and never the same twice.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kinference_api::{Kind, ObjectKey};

use super::Assessments;
use super::merge::{Difference, ResourceStatus, difference, merge};

/// Figures of a resource are written at most this often, in milliseconds.
pub const FIGURES_MS: u64 = 10_000;
/// A write that the watch has not shown after this long is taken to be lost, in milliseconds.
const SHOWN_MS: u64 = 5_000;
/// After a write that failed the next one waits this long at first, and twice as long each time up to [`RETRY_MOST_MS`].
const RETRY_MS: u64 = 1_000;
const RETRY_MOST_MS: u64 = 30_000;

/// A resource as the watch shows it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Current {
    /// Its version; a write that was made for another one is refused.
    pub resource_version: String,
    /// Its `metadata.generation`.
    pub generation: Option<i64>,
    /// Its status; the default for none.
    pub status: ResourceStatus,
}

/// By kind and name.
pub type Currents = BTreeMap<(Kind, ObjectKey), Current>;

/// A status to write.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// The resource.
    pub resource: (Kind, ObjectKey),
    /// What the watch shows of it.
    pub before: Current,
    /// What its status is to be.
    pub after: ResourceStatus,
}

/// What was written when.
#[derive(Debug, Default)]
pub struct Pace {
    resources: BTreeMap<(Kind, ObjectKey), Pacing>,
}

#[derive(Debug, Default)]
struct Pacing {
    /// When its figures were written last.
    figures_at: Option<u64>,
    /// The version that was written for, and until when the watch may still show it.
    written: Option<(String, u64)>,
    failures: u32,
    /// Nothing is tried before.
    not_before: u64,
}

impl Pace {
    /// What is to be written at `now` milliseconds, which is `time` on the calendar.
    pub fn due(&self, assessments: &Assessments, currents: &Currents, now: u64, time: &Time) -> Vec<Write> {
        let write = |(resource, assessed): (&(Kind, ObjectKey), _)| {
            let before = currents.get(resource)?;
            let after = merge(&before.status, assessed, time);
            // Said of an older version than the watch shows: the newer one will be assessed in a moment.
            if after.observed_generation < before.generation || !self.is_due(resource, before, &after, now) {
                return None;
            }
            Some(Write { resource: resource.clone(), before: before.clone(), after })
        };
        assessments.iter().filter_map(write).collect()
    }

    fn is_due(&self, resource: &(Kind, ObjectKey), before: &Current, after: &ResourceStatus, now: u64) -> bool {
        let difference = difference(&before.status, after);
        let Some(pacing) = self.resources.get(resource) else { return difference > Difference::Nothing };
        let unseen = |(version, until): &(String, u64)| *version == before.resource_version && now < *until;
        if now < pacing.not_before || pacing.written.as_ref().is_some_and(unseen) {
            return false;
        }
        match difference {
            Difference::Nothing => false,
            Difference::Figures => pacing.figures_at.is_none_or(|at| now >= at + FIGURES_MS),
            Difference::Conditions => true,
        }
    }

    /// A write was taken.
    pub fn written(&mut self, write: &Write, now: u64) {
        let pacing = self.resources.entry(write.resource.clone()).or_default();
        let written = Some((write.before.resource_version.clone(), now + SHOWN_MS));
        *pacing = Pacing { figures_at: Some(now), written, ..Pacing::default() };
    }

    /// A write was refused because the resource is another by now, or gone: the watch will show it.
    pub fn overtaken(&mut self, write: &Write, now: u64) {
        let pacing = self.resources.entry(write.resource.clone()).or_default();
        pacing.written = Some((write.before.resource_version.clone(), now + SHOWN_MS));
    }

    /// A write failed. Returns how long the next one waits, in milliseconds.
    pub fn failed(&mut self, write: &Write, now: u64) -> u64 {
        let pacing = self.resources.entry(write.resource.clone()).or_default();
        let wait = (RETRY_MS << pacing.failures.min(8)).min(RETRY_MOST_MS);
        pacing.failures += 1;
        pacing.not_before = now + wait;
        wait
    }

    /// Forgets resources that are gone.
    pub fn keep(&mut self, currents: &Currents) {
        self.resources.retain(|resource, _| currents.contains_key(resource));
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::super::reasons::{self, types};
    use super::super::{Assessed, Finding, Truth};
    use super::*;

    fn resource() -> (Kind, ObjectKey) {
        (Kind::InferencePool, ObjectKey::new("default", "gpu"))
    }

    fn say(generation: i64, status: Truth, usage: &str) -> Assessments {
        let conditions = vec![Finding { kind: types::READY, status, reason: reasons::CURRENT, message: "said".into() }];
        let figures = [("kvCacheUsage".to_owned(), json!(usage))].into_iter().collect();
        Assessments::from([(resource(), Assessed { observed_generation: Some(generation), conditions, figures })])
    }

    /// A resource in an API server, and the watch of it.
    struct World {
        pace: Pace,
        stored: Currents,
        shown: Currents,
        version: u64,
    }

    impl World {
        fn new() -> Self {
            let current = Current { resource_version: "1".into(), generation: Some(1), ..Current::default() };
            let stored = Currents::from([(resource(), current)]);
            Self { pace: Pace::default(), shown: stored.clone(), stored, version: 1 }
        }

        /// Writes what is due; true when something was.
        fn step(&mut self, assessments: &Assessments, now: u64) -> bool {
            let time = Time(Timestamp::from_millisecond(now as i64).unwrap());
            let due = self.pace.due(assessments, &self.shown, now, &time);
            for write in &due {
                let stored = self.stored.get_mut(&write.resource).unwrap();
                if write.before.resource_version != stored.resource_version {
                    self.pace.overtaken(write, now);
                    continue;
                }
                self.version += 1;
                stored.resource_version = self.version.to_string();
                stored.status = write.after.clone();
                self.pace.written(write, now);
            }
            !due.is_empty()
        }

        fn show(&mut self) {
            self.shown = self.stored.clone();
        }
    }

    #[test]
    fn an_idle_fleet_writes_once() {
        let mut world = World::new();
        let assessments = say(1, Truth::True, "0.61");
        let mut writes = 0;
        for second in 0..120 {
            writes += u32::from(world.step(&assessments, second * 1000));
            world.show();
        }
        assert_eq!(writes, 1);
    }

    #[test]
    fn figures_wait_and_what_is_so_does_not() {
        let mut world = World::new();
        assert!(world.step(&say(1, Truth::True, "0.61"), 0));
        world.show();
        assert!(!world.step(&say(1, Truth::True, "0.62"), 1_000));
        assert!(world.step(&say(1, Truth::False, "0.62"), 2_000));
        world.show();
        assert!(!world.step(&say(1, Truth::False, "0.63"), 11_999));
        assert!(world.step(&say(1, Truth::False, "0.63"), 12_000));
        world.show();
        assert!(world.step(&say(2, Truth::False, "0.63"), 12_001), "a new generation is acknowledged at once");
    }

    #[test]
    fn a_write_that_the_watch_does_not_show_yet_is_not_made_again() {
        let mut world = World::new();
        assert!(world.step(&say(1, Truth::True, "0.61"), 0));
        assert!(!world.step(&say(1, Truth::False, "0.61"), 100), "for a version that is known to be old");
        world.show();
        assert!(world.step(&say(1, Truth::False, "0.61"), 200));
        assert!(!world.step(&say(1, Truth::False, "0.61"), 199 + SHOWN_MS));
        assert!(world.step(&say(1, Truth::False, "0.61"), 200 + SHOWN_MS), "the watch may be broken");
    }

    #[test]
    fn another_writer_is_noticed_and_overruled() {
        let mut world = World::new();
        let assessments = say(1, Truth::True, "0.61");
        world.step(&assessments, 0);
        let stored = world.stored.get_mut(&resource()).unwrap();
        stored.status = ResourceStatus::default();
        stored.resource_version = "other".into();
        assert!(!world.step(&assessments, 100), "not shown yet");
        world.show();
        assert!(world.step(&assessments, 200));
        assert_eq!(world.stored[&resource()].status.conditions.len(), 1);
    }

    #[test]
    fn failures_wait_longer_each_time_and_a_success_starts_over() {
        let mut world = World::new();
        let assessments = say(1, Truth::True, "0.61");
        let time = Time(Timestamp::from_second(1).unwrap());
        let mut now = 0;
        let mut waits = Vec::new();
        for _ in 0..7 {
            let due = world.pace.due(&assessments, &world.shown, now, &time);
            let wait = world.pace.failed(&due[0], now);
            assert!(world.pace.due(&assessments, &world.shown, now + wait - 1, &time).is_empty());
            waits.push(wait);
            now += wait;
        }
        assert_eq!(waits, [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
        assert!(world.step(&assessments, now));
        world.show();
        assert!(world.step(&say(1, Truth::False, "0.61"), now + 1));
    }

    #[test]
    fn nothing_is_said_of_a_newer_version_or_of_what_is_gone() {
        let mut world = World::new();
        world.shown.get_mut(&resource()).unwrap().generation = Some(2);
        assert!(!world.step(&say(1, Truth::True, "0.61"), 0));
        assert!(world.step(&say(2, Truth::True, "0.61"), 1));
        world.shown.clear();
        assert!(!world.step(&say(3, Truth::False, "0.61"), 2));
        world.pace.keep(&world.shown);
        assert!(world.pace.resources.is_empty());
    }
}
