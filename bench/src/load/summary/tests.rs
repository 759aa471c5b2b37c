use std::time::Duration;

use super::*;
use crate::load::{Failure, Usage};

fn record(first_ms: u64, cached: u64, predicted: Option<u64>) -> Record {
    let details = serde_json::json!({"prompt_tokens": 100, "completion_tokens": 11, "prompt_tokens_details": {"cached_tokens": cached}});
    let first = Duration::from_millis(first_ms);
    Record {
        session: 0,
        turn: 0,
        sent: Duration::from_secs(1),
        due: Duration::from_secs(1),
        first: Some(first),
        last: Some(first + Duration::from_millis(100)),
        end: first + Duration::from_millis(110),
        chunks: 11,
        usage: Some(serde_json::from_value::<Usage>(details).unwrap()),
        predicted_cached: predicted,
        destination: predicted.map(|_| "tiny/a".to_owned()),
        failure: None,
    }
}

#[test]
fn figures_add_up() {
    let mut failed = record(5, 0, None);
    failed.failure = Some(Failure::Status(503));
    let records = vec![record(10, 48, Some(48)), record(30, 0, Some(32)), record(200, 96, Some(80)), failed];
    let run = Run { records, elapsed: Duration::from_secs(6) };
    let summary = Summary::of(&run, Duration::from_millis(50));
    assert_eq!((summary.requests, summary.errors), (4, 1));
    assert_eq!(summary.errors_by_kind, BTreeMap::from([("HTTP 503".to_owned(), 1)]));
    assert_eq!(summary.ttft_ms, Percentiles { p50: 30.0, p95: 200.0, p99: 200.0 });
    assert_eq!(summary.itl_ms.p50, 10.0);
    // Two of the three answers were in time, within 6 s.
    assert_eq!(summary.goodput_per_min, 20.0);
    assert_eq!(summary.answer_tokens_per_s, 5.5);
    assert_eq!(summary.cached_ratio, Some(144.0 / 300.0));
    assert_eq!(summary.destinations, BTreeMap::from([("tiny/a".to_owned(), 3)]));
    let prediction = summary.prediction.unwrap();
    assert_eq!((prediction.requests, prediction.exact), (3, 1));
    assert_eq!((prediction.worst_above_tokens, prediction.worst_below_tokens), (32, 16));
    assert_eq!(prediction.mean_error_tokens, 16.0);
    let table = summary.table("test");
    assert!(table.contains("HTTP 503") && table.contains("48.0 %"), "{table}");
}

#[test]
fn nothing_measured_is_no_figure() {
    let run = Run { records: Vec::new(), elapsed: Duration::ZERO };
    let summary = Summary::of(&run, Duration::from_millis(50));
    assert_eq!((summary.cached_ratio, summary.prediction, summary.goodput_per_min), (None, None, 0.0));
}
