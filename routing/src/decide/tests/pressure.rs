//! What this filter did since the snapshot, as the objectives see it.

use std::collections::BTreeMap;

use super::policies::{Fleet, on, providers, rule};
use super::*;

#[test]
fn a_burst_between_two_scrapes_spreads_over_short_queues() {
    let world = World::new(&[(1, "m")], &[(0, 1), (1, 1), (2, 1)])
        .change(1, |worker| worker.load.as_mut().unwrap().queued_requests = 1.0)
        .change(2, |worker| worker.load.as_mut().unwrap().queued_requests = 1.0);
    let mut ledger = Ledger::default();
    let mut sent: BTreeMap<u32, u32> = BTreeMap::new();
    for number in 0..30 {
        let request = prompt(&format!("p{number}"), 4000);
        let decision = world.ask_rules(&ledger, &request, |config| {
            let minimize = Some(v1::Objective::MinimizeQueue.into());
            config.rules = vec![v1::Rule { minimize, ..rule("queue") }];
        });
        let choice = decision.result.unwrap();
        let worker = choice.first.worker().unwrap();
        assert!(number > 0 || worker == 0, "the one without a queue comes first");
        *sent.entry(worker).or_default() += 1;
        // In flight until the end of the test.
        let _ = ledger.sent(worker, choice.first.expected.uncached_tokens);
    }
    assert!(sent.len() == 3 && sent.values().all(|count| (8..=12).contains(count)), "{sent:?}");
}

#[test]
fn a_provider_that_keeps_failing_is_passed_over_for_a_while() {
    let fleet = Fleet {
        unready: vec![0, 1],
        ..Fleet::with(vec![v1::Rule { fallback: [providers(&["one"]), providers(&["two"])].concat(), ..rule("out") }])
    };
    let mut ledger = Ledger::default();
    let first = |ledger: &Ledger, now_ms| on(&fleet.decide_after(ledger, now_ms, "big").result.unwrap().first);
    assert_eq!(first(&ledger, 0), "one-big on one");
    for _ in 0..2 {
        ledger.provider_failed("provider_one", None, 100);
        assert_eq!(first(&ledger, 100), "one-big on one", "it may be the request's own fault");
    }
    ledger.provider_failed("provider_one", None, 200);
    assert_eq!(first(&ledger, 5_199), "two-big on two");
    assert_eq!(first(&ledger, 5_200), "one-big on one");
    ledger.provider_failed("provider_one", Some(20_000), 5_200);
    assert_eq!(first(&ledger, 25_199), "two-big on two");
    (0..3).for_each(|_| ledger.provider_failed("provider_two", Some(u64::MAX), 10_000));
    assert_eq!(first(&ledger, 25_000), "one-big on one", "where all failed, the order is that of the tiers");
    ledger.provider_answered("provider_two");
    assert_eq!(first(&ledger, 25_000), "two-big on two");
    ledger.tidy(|_| true, 70_000);
    ledger.provider_failed("provider_one", None, 70_000);
    assert_eq!(first(&ledger, 70_000), "one-big on one", "what is long past is forgotten");
}
