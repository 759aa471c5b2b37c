use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;
use serde_json::json;

use super::super::Truth;
use super::super::reasons::{self, types};
use super::*;

fn at(seconds: i64) -> Time {
    Time(Timestamp::from_second(seconds).unwrap())
}

fn truth() -> impl Strategy<Value = Truth> {
    prop_oneof![Just(Truth::True), Just(Truth::False), Just(Truth::Unknown)]
}

prop_compose! {
    fn finding(kind: &'static str)(
        status in truth(),
        reason in prop_oneof![Just(reasons::CURRENT), Just(reasons::INVALID)],
        message in "[a-c]{0,2}",
    ) -> Finding {
        Finding { kind, status, reason, message }
    }
}

prop_compose! {
    fn assessed()(
        observed_generation in prop::option::of(1..3i64),
        ready in finding(types::READY),
        rest in prop::option::of(finding(types::EVENTS_HEALTHY)),
        tokens in prop::option::of(0..3u64),
        spec in prop::option::of(prop::collection::btree_map("[ab]", nested(), 0..3)),
    ) -> Assessed {
        let tokens = tokens.map(|tokens| ("cachedTokens".to_owned(), json!(tokens)));
        let spec = spec.map(|spec| ("lastGood".to_owned(), json!(spec)));
        let figures = tokens.into_iter().chain(spec).collect();
        let conditions = std::iter::once(ready).chain(rest).collect();
        Assessed { observed_generation, conditions, figures }
    }
}

/// An object in an object, a list or a number.
fn nested() -> impl Strategy<Value = Value> {
    prop_oneof![
        (0..3u64).prop_map(|number| json!(number)),
        prop::collection::vec(0..3u64, 0..2).prop_map(|list| json!(list)),
        prop::collection::btree_map("[ab]", 0..3u64, 0..3).prop_map(|object| json!(object)),
    ]
}

/// The function of RFC 7396.
fn apply(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let Value::Object(target) = target else { panic!("it was made one") };
    for (name, value) in patch {
        match value {
            Value::Null => drop(target.remove(name)),
            value => apply(target.entry(name.clone()).or_insert(Value::Null), value),
        }
    }
}

fn time_of(status: &ResourceStatus, kind: &str) -> Option<Time> {
    status.conditions.iter().find(|c| c.type_ == kind).map(|c| c.last_transition_time.clone())
}

proptest! {
    #[test]
    fn the_time_of_a_condition_changes_exactly_with_its_status(course in prop::collection::vec(assessed(), 1..12)) {
        let mut status = ResourceStatus::default();
        for (second, assessed) in (1..).zip(&course) {
            let next = merge(&status, assessed, &at(second));
            for condition in &next.conditions {
                let before = status.conditions.iter().find(|before| before.type_ == condition.type_);
                match before.filter(|before| before.status == condition.status) {
                    Some(before) => prop_assert_eq!(&condition.last_transition_time, &before.last_transition_time),
                    None => prop_assert_eq!(&condition.last_transition_time, &at(second)),
                }
                prop_assert_eq!(condition.observed_generation, assessed.observed_generation);
            }
            prop_assert_eq!(next.conditions.len(), assessed.conditions.len());
            status = next;
        }
    }

    #[test]
    fn saying_the_same_again_changes_nothing(before in assessed(), assessed in assessed()) {
        let before = merge(&ResourceStatus::default(), &before, &at(1));
        let once = merge(&before, &assessed, &at(2));
        let twice = merge(&once, &assessed, &at(3));
        prop_assert_eq!(difference(&once, &twice), Difference::Nothing);
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn the_patch_makes_one_status_of_the_other(before in assessed(), after in assessed()) {
        let before = merge(&ResourceStatus::default(), &before, &at(1));
        let after = merge(&before, &after, &at(2));
        let mut value = serde_json::to_value(&before).unwrap();
        let mut patched = patch(&before, &after);
        if after.observed_generation.is_none() {
            // The API server gives every resource a generation.
            patched["observedGeneration"] = Value::Null;
        }
        apply(&mut value, &patched);
        let read: ResourceStatus = serde_json::from_value(value).unwrap();
        prop_assert_eq!(read, after);
    }
}

#[test]
fn words_and_figures_weigh_less_than_what_is_so() {
    let say = |status, reason, message: &str, tokens: u64| Assessed {
        observed_generation: Some(1),
        conditions: vec![Finding { kind: types::READY, status, reason, message: message.into() }],
        figures: Map::from_iter([("cachedTokens".to_owned(), json!(tokens))]),
    };
    let first = merge(&ResourceStatus::default(), &say(Truth::True, reasons::CURRENT, "a", 1), &at(1));
    let differs = |assessed: &Assessed| difference(&first, &merge(&first, assessed, &at(9)));
    assert_eq!(differs(&say(Truth::True, reasons::CURRENT, "a", 1)), Difference::Nothing);
    assert_eq!(differs(&say(Truth::True, reasons::CURRENT, "a", 2)), Difference::Figures);
    assert_eq!(differs(&say(Truth::True, reasons::CURRENT, "b", 1)), Difference::Figures);
    assert_eq!(differs(&say(Truth::True, reasons::INVALID, "a", 1)), Difference::Conditions);
    assert_eq!(differs(&say(Truth::False, reasons::CURRENT, "a", 1)), Difference::Conditions);
    let newer = Assessed { observed_generation: Some(2), ..say(Truth::True, reasons::CURRENT, "a", 1) };
    assert_eq!(differs(&newer), Difference::Conditions);
    assert_eq!(time_of(&merge(&first, &newer, &at(9)), types::READY), Some(at(1)));
}
