use proptest::prelude::*;

use super::*;

fn window(samples: &[(u64, f64)]) -> Window {
    let mut window = Window::default();
    samples.iter().for_each(|(at, value)| window.record(*at, *value, 60_000));
    window
}

fn signal(signal: Signal, over_ms: u64, aggregate: Aggregate) -> v1::WindowedSignal {
    v1::WindowedSignal { signal: signal.into(), over_ms, aggregate: aggregate.into() }
}

#[test]
fn windows_count_what_is_in_them() {
    let window = window(&[(1_000, 9.0), (11_000, 1.0), (21_000, 2.0), (31_000, 6.0)]);
    for (aggregate, over, expected) in [
        (Aggregate::Last, 20_000, Some(6.0)),
        (Aggregate::Max, 20_000, Some(6.0)),
        (Aggregate::Min, 20_000, Some(1.0)),
        (Aggregate::Average, 20_000, Some(3.0)),
        (Aggregate::Max, 30_000, Some(9.0)),
        (Aggregate::Min, 9_999, Some(6.0)),
        (Aggregate::Max, 0, Some(6.0)),
    ] {
        assert_eq!(window.value(aggregate, over, 31_000), expected, "{aggregate:?} {over}");
    }
    assert_eq!(window.value(Aggregate::Max, 10_000, 42_000), None);
    assert_eq!(window.value(Aggregate::Last, 0, 42_000), Some(6.0));
    assert_eq!(Window::default().value(Aggregate::Last, 0, 0), None);
}

#[test]
fn what_is_no_number_or_too_late_is_ignored_and_the_newest_stays() {
    let mut window = window(&[(5_000, 3.0), (4_000, 8.0), (5_000, f64::NAN)]);
    assert_eq!(window.value(Aggregate::Max, 10_000, 5_000), Some(3.0));
    window.record(500_000, 1.0, 0);
    assert_eq!(window, self::window(&[(500_000, 1.0)]));
}

#[test]
fn a_history_answers_in_the_order_of_the_signals() {
    let signals = [
        signal(Signal::KvCacheUsage, 0, Aggregate::Last),
        signal(Signal::PredictedTtft, 0, Aggregate::Last),
        signal(Signal::QueuedRequests, 30_000, Aggregate::Max),
        signal(Signal::RunningRequests, 0, Aggregate::Last),
    ];
    assert_eq!(longest(&signals), 30_000);
    let mut history = History::default();
    let queued = |queued| Sample { queued_requests: Some(queued), kv_cache_usage: Some(0.5), running_requests: None };
    history.record(1_000, &queued(5.0), 30_000);
    history.record(9_000, &queued(1.0), 30_000);
    let [usage, ttft, queue, running] = history.values(&signals, 10_000)[..] else { panic!() };
    assert_eq!((usage, queue), (0.5, 5.0));
    assert!(ttft.is_nan() && running.is_nan());
}

#[test]
fn a_pool_is_the_mean_of_what_is_known() {
    let workers = [vec![1.0, f32::NAN, f32::NAN], vec![3.0, 0.5, f32::NAN], vec![]];
    let values = of_pool(workers.iter().map(Vec::as_slice), 3);
    assert_eq!(values[..2], [2.0, 0.5]);
    assert!(values[2].is_nan());
}

proptest! {
    /// Whatever is recorded, and however much of it is forgotten on the way: a window answers as all samples together
    /// would, and stays within its bounds.
    #[test]
    fn forgetting_changes_no_answer(
        steps in prop::collection::vec((0u64..5_000, prop_oneof![9 => -10.0..10.0f64, 1 => Just(f64::NAN)]), 1..80),
        over in prop_oneof![Just(0u64), 1u64..60_000],
        slack in 0u64..10_000,
        later in 0u64..20_000,
    ) {
        let mut window = Window::default();
        let mut all = Vec::new();
        let mut now = 100_000;
        for (step, value) in steps {
            now += step;
            window.record(now, value, over + slack);
            if !value.is_nan() {
                all.push((now, value));
            }
        }
        now += later;
        let newest = all.last().copied();
        let inside: Vec<f64> = all.iter().filter(|(at, _)| *at + over >= now).map(|(_, value)| *value).collect();
        for aggregate in [Aggregate::Last, Aggregate::Average, Aggregate::Max, Aggregate::Min] {
            let value = window.value(aggregate, over, now);
            if over == 0 {
                prop_assert_eq!(value, newest.map(|(_, value)| value));
                continue;
            }
            let expected = match aggregate {
                Aggregate::Last => inside.last().copied(),
                Aggregate::Max => inside.iter().copied().reduce(f64::max),
                Aggregate::Min => inside.iter().copied().reduce(f64::min),
                Aggregate::Average => (!inside.is_empty()).then(|| inside.iter().sum::<f64>() / inside.len() as f64),
            };
            match (value, expected) {
                (Some(value), Some(expected)) => prop_assert!((value - expected).abs() < 1e-9),
                (value, expected) => prop_assert_eq!(value, expected),
            }
        }
        let least = |value: Option<f64>, other: Option<f64>| value.zip(other).is_none_or(|(a, b)| a <= b + 1e-9);
        let get = |aggregate| window.value(aggregate, over, now);
        prop_assert!(least(get(Aggregate::Min), get(Aggregate::Average)));
        prop_assert!(least(get(Aggregate::Average), get(Aggregate::Max)));
    }
}
