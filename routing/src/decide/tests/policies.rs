//! The six points of "how matching rules combine", and that safety never depends on order.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::policy::Removal;

/// Two local models with two workers each, two providers that offer "big", one pool for each model.
pub(super) struct Fleet {
    pub(super) rules: Vec<v1::Rule>,
    pub(super) tenancy: v1::Tenancy,
    pub(super) signals: Vec<(u32, f32)>,
    pub(super) pool_usage: f32,
    pub(super) unready: Vec<u32>,
    /// What providers offer beside the big model.
    pub(super) offers: Vec<String>,
}

const WORKERS: [(u32, u32); 4] = [(0, 1), (1, 1), (64, 2), (65, 2)];

impl Fleet {
    pub(super) fn with(rules: Vec<v1::Rule>) -> Self {
        Self {
            rules,
            tenancy: v1::Tenancy::default(),
            signals: Vec::new(),
            pool_usage: 0.1,
            unready: Vec::new(),
            offers: Vec::new(),
        }
    }

    pub(super) fn replica(&self) -> Replica {
        let world = World::new(&[(1, "big"), (2, "small")], &WORKERS);
        let offer = |name: &str, model: &str| v1::ProviderModel {
            name: model.into(),
            upstream_name: format!("{name}-{model}"),
            input_price: Some(1.0),
            output_price: Some(2.0),
            expected_ttft_ms: 900,
        };
        let provider = |name: &str, ready| v1::Provider {
            name: name.into(),
            cluster: format!("provider_{name}"),
            authority: format!("{name}.example"),
            base_path: "/v1".into(),
            ready,
            models: std::iter::once("big")
                .chain(self.offers.iter().map(String::as_str))
                .map(|model| offer(name, model))
                .collect(),
            ..v1::Provider::default()
        };
        let config = v1::Config {
            backend: Some(v1::Backend { chunk_bytes: 64, index_max_bytes: 1 << 20, ..v1::Backend::default() }),
            worker_sets: world.sets.clone(),
            rules: self.rules.clone(),
            providers: vec![provider("one", true), provider("two", true), provider("down", false)],
            pools: vec![
                v1::Pool { id: 0, name: "bigs".into(), worker_sets: vec![1] },
                v1::Pool { id: 1, name: "smalls".into(), worker_sets: vec![2] },
            ],
            signals: vec![
                v1::WindowedSignal {
                    signal: v1::Signal::QueuedRequests.into(),
                    over_ms: 30_000,
                    aggregate: v1::Aggregate::Max.into(),
                },
                v1::WindowedSignal { signal: v1::Signal::KvCacheUsage.into(), ..v1::WindowedSignal::default() },
                v1::WindowedSignal { signal: v1::Signal::PredictedTtft.into(), ..v1::WindowedSignal::default() },
            ],
            tenancy: Some(self.tenancy.clone()),
            ..v1::Config::default()
        };
        let mut workers = world.workers.clone();
        for worker in &mut workers {
            let queued = self.signals.iter().find(|(id, _)| *id == worker.id).map_or(0.0, |(_, value)| *value);
            worker.signals = vec![queued, 0.2];
            if self.unready.contains(&worker.id) {
                worker.state = v1::WorkerState::Unready.into();
            }
        }
        let pools = vec![v1::PoolState { id: 0, signals: vec![0.0, self.pool_usage] }];
        let sections = v1::Sections {
            config: Some(config),
            workers: Some(v1::Workers { upsert: workers, removed: vec![], pools }),
            prefix: None,
        };
        let part = v1::SnapshotPart { epoch: 1, sequence: 1, part: 0, last: true, sections: Some(sections) };
        let mut replica = Replica::default();
        replica.apply(v1::ControlMessage { message: Some(v1::control_message::Message::Snapshot(part)) }).unwrap();
        replica
    }

    pub(super) fn decide(&self, tenant: &str, model: &str, tags: &[&str]) -> Decision {
        self.decide_when(false, tenant, model, tags)
    }

    fn decide_when(&self, stale: bool, tenant: &str, model: &str, tags: &[&str]) -> Decision {
        let cached = BTreeMap::new();
        let ask = Ask {
            prompted: Prompted::Figures { model, prompt_tokens: 900, cached: &cached },
            caller: Caller { tenant, tags },
            now_ms: 0,
            unix_s: 0,
            stale,
            explain: true,
        };
        decide(self.replica().current().unwrap(), &Ledger::default(), &ask)
    }

    /// With what this filter did since the snapshot.
    pub(super) fn decide_after(&self, ledger: &Ledger, now_ms: u64, model: &str) -> Decision {
        let cached = BTreeMap::new();
        let prompted = Prompted::Figures { model, prompt_tokens: 900, cached: &cached };
        let ask = Ask {
            prompted,
            caller: Caller { tenant: "t", tags: &[] },
            now_ms,
            unix_s: 0,
            stale: false,
            explain: false,
        };
        decide(self.replica().current().unwrap(), ledger, &ask)
    }

    pub(super) fn place(&self, model: &str, tags: &[&str]) -> String {
        match self.decide("t", model, tags).result {
            Ok(choice) => on(&choice.first),
            Err(rejection) => rejection.status().to_string(),
        }
    }
}

pub(super) fn on(stop: &Stop) -> String {
    match &stop.destination {
        Destination::Worker(worker) => format!("{} on {}", stop.model, if *worker < 64 { "big" } else { "small" }),
        Destination::Provider(route) => format!("{} on {}", route.upstream_model, route.name),
    }
}

pub(super) fn rule(name: &str) -> v1::Rule {
    v1::Rule { name: format!("p/{name}"), ..v1::Rule::default() }
}

pub(super) fn models(globs: &[&str]) -> Option<v1::When> {
    Some(v1::When { models: globs.iter().map(|glob| (*glob).to_owned()).collect(), ..v1::When::default() })
}

pub(super) fn tagged(tag: &str) -> Option<v1::When> {
    Some(v1::When { tags_any: vec![tag.into()], ..v1::When::default() })
}

pub(super) fn queue_at_most(limit: f64) -> Option<v1::Requirements> {
    let bound = v1::Bound { signal: 0, bound: Some(v1::bound::Bound::Max(limit)) };
    Some(v1::Requirements { workers: vec![bound], ..v1::Requirements::default() })
}

fn local() -> Option<v1::Requirements> {
    Some(v1::Requirements { locality: Some(v1::Locality::Local.into()), ..v1::Requirements::default() })
}

pub(super) fn providers(names: &[&str]) -> Vec<v1::Tier> {
    names.iter().map(|name| v1::Tier { providers: vec![(*name).into()], models: vec![] }).collect()
}

fn burst() -> v1::Rule {
    v1::Rule {
        when: models(&["big"]),
        require: queue_at_most(2.0),
        fallback: providers(&["one", "two"]),
        ..rule("burst")
    }
}

fn pii() -> v1::Rule {
    v1::Rule {
        when: tagged("pii"),
        require: local(),
        on_empty: Some(v1::OnEmpty {
            action: v1::OnEmptyAction::Reject.into(),
            answer: Some(v1::Answer { status: 503, retry_after_s: 0, message: "No local worker.".into() }),
        }),
        ..rule("pii")
    }
}

/// The pool of the big model is in use.
fn busy() -> v1::Rule {
    let bound = v1::Bound { signal: 1, bound: Some(v1::bound::Bound::AtLeast(0.9)) };
    v1::Rule {
        when: Some(v1::When {
            tenants: vec!["batch-*".into()],
            pools: vec![v1::PoolBound { pool: 0, bound: Some(bound) }],
            ..v1::When::default()
        }),
        reject: Some(v1::Answer { status: 429, retry_after_s: 60, message: "The pool is busy.".into() }),
        ..rule("busy")
    }
}

#[test]
fn bursts_go_to_the_first_provider_that_is_ready() {
    let mut fleet = Fleet::with(vec![burst()]);
    assert_eq!(fleet.place("big", &[]), "big on big");
    fleet.signals = vec![(0, 9.0)];
    assert_eq!(fleet.place("big", &[]), "big on big");
    fleet.signals = vec![(0, 9.0), (1, 3.0)];
    assert_eq!(fleet.place("big", &[]), "one-big on one");
    assert_eq!(fleet.decide("t", "big", &[]).result.unwrap().rule.as_deref(), Some("p/burst"));
    fleet.rules[0].fallback = providers(&["down", "two"]);
    assert_eq!(fleet.place("big", &[]), "two-big on two");
}

#[test]
fn without_the_control_service_only_hard_requirements_are_left() {
    let full =
        Fleet { pool_usage: 0.95, signals: vec![(0, 9.0), (1, 9.0)], ..Fleet::with(vec![busy(), burst(), pii()]) };
    assert_eq!(full.decide("batch-team", "big", &[]).result.unwrap_err().status(), 429);
    let stale = full.decide_when(true, "batch-team", "big", &[]);
    assert!(stale.trace.unwrap().rules[0].mismatch.as_ref().unwrap().contains("missing"));
    assert_eq!(on(&stale.result.unwrap().first), "big on big", "its last load and pools say nothing any more");
    let full = Fleet { unready: vec![0, 1], ..full };
    assert_eq!(full.decide_when(true, "t", "big", &["pii"]).result.unwrap_err().status(), 503);
}

#[test]
fn a_failed_provider_is_followed_by_the_tiers_after_it_and_a_failed_worker_by_none() {
    let mut home = providers(&["down", "one", "two"]);
    home.push(v1::Tier { providers: vec![], models: vec!["small".into()] });
    let fleet = Fleet {
        signals: vec![(0, 9.0), (1, 9.0)],
        ..Fleet::with(vec![v1::Rule { require: queue_at_most(2.0), fallback: home, ..rule("out") }])
    };
    let decision = fleet.decide("t", "big", &[]);
    let choice = decision.result.unwrap();
    let stops: Vec<String> = choice.stops().map(on).collect();
    assert_eq!(stops, ["one-big on one", "two-big on two", "small on small"]);
    assert_eq!(choice.served_model(), Some("small"), "the body is made for the worker among them");
    assert_eq!(decision.trace.unwrap().then.len(), 2);
    let idle = Fleet { signals: Vec::new(), ..fleet }.decide("t", "big", &[]).result.unwrap();
    assert!(idle.stops().all(|stop| on(stop) == "big on big"), "nothing leaves because a worker breaks down");
}

#[test]
fn dead_workers_are_a_reason_to_fall_back_too() {
    let mut fleet = Fleet::with(vec![v1::Rule { fallback: providers(&["one"]), ..rule("any") }]);
    fleet.unready = vec![0, 1];
    assert_eq!(fleet.place("big", &[]), "one-big on one");
    assert_eq!(fleet.place("small", &[]), "small on small");
}

#[test]
fn personal_data_stays_local_in_every_order_of_the_rules() {
    let tempting = v1::Rule { fallback: providers(&["two"]), ..rule("tempting") };
    let external = v1::Rule { when: tagged("never"), candidates: vec!["big".into()], ..rule("unrelated") };
    let rules = [burst(), pii(), tempting, external];
    for order in permutations(rules.len()) {
        let mut fleet = Fleet::with(order.iter().map(|at| rules[*at].clone()).collect());
        assert_eq!(fleet.place("big", &["pii"]), "big on big");
        // Only a load requirement is in the way: the rule for personal data says what happens then.
        fleet.signals = vec![(0, 9.0), (1, 9.0)];
        assert_eq!(fleet.place("big", &["pii"]), "503");
        assert!(fleet.place("big", &[]).contains("-big on "), "{order:?}");
        fleet.unready = vec![0, 1];
        assert_eq!(fleet.place("big", &["pii"]), "503");
    }
}

fn permutations(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![vec![]];
    }
    let shorter = permutations(n - 1);
    shorter
        .iter()
        .flat_map(|rest| {
            (0..n).map(move |at| {
                let mut all = rest.clone();
                all.insert(at, n - 1);
                all
            })
        })
        .collect()
}

#[test]
fn load_requirements_yield_only_when_they_may() {
    let wait = |action: Option<v1::OnEmptyAction>| v1::Rule {
        require: queue_at_most(2.0),
        on_empty: action.map(|action| v1::OnEmpty {
            action: action.into(),
            answer: Some(v1::Answer { status: 429, retry_after_s: 30, message: String::new() }),
        }),
        ..rule("load")
    };
    let busy = |rule| Fleet { signals: vec![(0, 9.0), (1, 9.0)], ..Fleet::with(vec![rule]) };
    assert_eq!(busy(wait(None)).place("big", &[]), "big on big");
    assert_eq!(busy(wait(Some(v1::OnEmptyAction::Continue))).place("big", &[]), "big on big");
    let rejection = busy(wait(Some(v1::OnEmptyAction::Reject))).decide("t", "big", &[]).result.unwrap_err();
    assert_eq!(
        (rejection.status(), rejection.retry_after_s(), rejection.code()),
        (429, Some(30), "rate_limit_exceeded")
    );
}

#[test]
fn a_missing_signal_fails_its_requirement_and_shows_in_the_trace() {
    let fleet = Fleet { signals: vec![(0, f32::NAN), (1, 0.0)], ..Fleet::with(vec![burst()]) };
    let decision = fleet.decide("t", "big", &[]);
    assert_eq!(decision.result.unwrap().workers(), [1]);
    let trace = decision.trace.unwrap();
    let removal = trace.candidates[0].removal.clone().unwrap();
    assert_eq!(
        removal,
        Removal {
            rule: "p/burst".into(),
            reason: "QueuedRequests (Max over 30000 ms) is missing, and must be at most 2".into(),
            load: true
        }
    );
    assert!(trace.to_string().contains("removed by p/burst: QueuedRequests"), "{trace}");
}

#[test]
fn pool_state_rejects_and_tells_when_to_come_back() {
    let mut fleet = Fleet::with(vec![busy()]);
    assert!(fleet.decide("batch-team", "big", &[]).result.is_ok());
    fleet.pool_usage = 0.9;
    assert!(fleet.decide("batch-team", "big", &[]).result.is_err());
    fleet.pool_usage = 0.95;
    let rejection = fleet.decide("batch-team", "big", &[]).result.unwrap_err();
    assert_eq!((rejection.status(), rejection.to_string().as_str()), (429, "The pool is busy."));
    assert!(fleet.decide("research", "big", &[]).result.is_ok());
    fleet.pool_usage = f32::NAN;
    assert!(fleet.decide("batch-team", "big", &[]).result.is_ok());
}

#[test]
fn cost_prefers_own_workers_within_the_budget_and_the_fastest_beyond() {
    let cheap = v1::Rule {
        minimize: Some(v1::Objective::MinimizeCost.into()),
        ttft_budget_ms: 50,
        fallback: providers(&["one"]),
        ..rule("cheap")
    };
    assert_eq!(Fleet::with(vec![cheap.clone()]).place("big", &[]), "big on big");
}

#[test]
fn references_that_lead_nowhere_are_refused_with_the_snapshot() {
    let mut config = v1::Config {
        backend: Some(v1::Backend { chunk_bytes: 64, ..v1::Backend::default() }),
        rules: vec![v1::Rule { require: queue_at_most(1.0), ..rule("r") }],
        ..v1::Config::default()
    };
    assert!(crate::snapshot::Config::compile(&config).is_err());
    config.rules = vec![v1::Rule { fallback: providers(&["nobody"]), ..rule("r") }];
    assert!(crate::snapshot::Config::compile(&config).is_err());
    config.rules = vec![v1::Rule { reject: Some(v1::Answer { status: 200, ..v1::Answer::default() }), ..rule("r") }];
    assert!(crate::snapshot::Config::compile(&config).is_err());
}

fn any_rule() -> impl Strategy<Value = v1::Rule> {
    let when = prop_oneof![
        Just(None),
        prop::sample::select(vec!["big", "small", "*", "standard"]).prop_map(|glob| models(&[glob])),
        prop::sample::select(vec!["pii", "batch"]).prop_map(tagged),
    ];
    let require = prop_oneof![
        3 => Just(None),
        1 => Just(local()),
        1 => Just(Some(v1::Requirements { locality: Some(v1::Locality::External.into()), ..v1::Requirements::default() })),
        2 => (0.0..5.0f64).prop_map(queue_at_most),
        1 => Just(Some(v1::Requirements { providers: Some(v1::NameList { names: vec!["two".into()] }), ..v1::Requirements::default() })),
        1 => Just(Some(v1::Requirements { pools: Some(v1::IdList { ids: vec![1] }), ..v1::Requirements::default() })),
    ];
    let candidates = prop::sample::subsequence(vec!["big".to_owned(), "small".to_owned()], 0..=2);
    let fallback = prop::sample::subsequence(vec!["one", "two", "down"], 0..=3).prop_map(|names| providers(&names));
    let on_empty = prop_oneof![
        Just(None),
        prop::sample::select(vec![v1::OnEmptyAction::Continue, v1::OnEmptyAction::Reject])
            .prop_map(|action| Some(v1::OnEmpty { action: action.into(), answer: None })),
    ];
    let minimize = prop::option::of(0..3i32);
    let reject = prop_oneof![9 => Just(None), 1 => Just(Some(v1::Answer { status: 429, ..v1::Answer::default() }))];
    (when, require, candidates, fallback, on_empty, minimize, reject).prop_map(
        |(when, require, candidates, fallback, on_empty, minimize, reject)| v1::Rule {
            when,
            require,
            candidates,
            fallback,
            on_empty,
            minimize,
            reject,
            ..rule("r")
        },
    )
}

proptest! {
    /// Whatever the rules and the state, and however the rules are ordered: there is an answer, no hard requirement of a
    /// matching rule is broken, and whether a request is rejected by a rule does not depend on the order.
    #[test]
    fn safety_never_depends_on_order(
        rules in prop::collection::vec(any_rule(), 0..6),
        shuffle in any::<prop::sample::Index>(),
        queued in prop::collection::vec(prop_oneof![0.0f32..8.0, Just(f32::NAN)], 4),
        unready in prop::sample::subsequence(vec![0u32, 1, 64, 65], 0..=4),
        model in prop::sample::select(vec!["big", "small", "standard", "nothing"]),
        tags in prop::sample::subsequence(vec!["pii", "batch"], 0..=2),
    ) {
        let signals: Vec<(u32, f32)> = WORKERS.iter().map(|(id, _)| *id).zip(queued).collect();
        let mut rotated = rules.clone();
        if !rotated.is_empty() {
            let by = shuffle.index(rotated.len());
            rotated.rotate_left(by);
        }
        let reversed: Vec<v1::Rule> = rules.iter().rev().cloned().collect();
        for order in [rules.clone(), rotated, reversed] {
            let fleet = Fleet { signals: signals.clone(), unready: unready.clone(), ..Fleet::with(order) };
            let decision = fleet.decide("t", model, &tags);
            let matching: Vec<&v1::Rule> = rules.iter().filter(|rule| rule.when.as_ref().is_none_or(|when| {
                let by_model = when.models.is_empty() || when.models.iter().any(|glob| glob == "*" || glob == model);
                by_model && (when.tags_any.is_empty() || when.tags_any.iter().any(|tag| tags.contains(&tag.as_str())))
            })).collect();
            if matching.iter().any(|rule| rule.reject.is_some()) {
                prop_assert_eq!(decision.result.as_ref().unwrap_err().status(), 429);
            }
            let Ok(choice) = &decision.result else { continue };
            for require in matching.iter().filter_map(|rule| rule.require.as_ref()) {
                for stop in choice.stops() {
                    match &stop.destination {
                        Destination::Provider(route) => {
                            let allowed = require.providers.as_ref();
                            prop_assert!(require.locality != Some(v1::Locality::Local.into()));
                            prop_assert!(allowed.is_none_or(|allowed| allowed.names.contains(&route.name)));
                            prop_assert!(route.name != "down");
                        }
                        Destination::Worker(worker) => {
                            prop_assert!(require.locality != Some(v1::Locality::External.into()));
                            prop_assert!(!unready.contains(worker));
                            prop_assert!(require.pools.is_none() || *worker >= 64);
                        }
                    }
                }
            }
        }
    }
}
