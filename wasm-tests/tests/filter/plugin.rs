//! The plugin itself: its configuration, metrics, ticks, and log.

use kinference_wasm_tests::fleet::{Fleet, MODEL};
use kinference_wasm_tests::http::{Answer, Request};
use kinference_wasm_tests::{Metric, Options, Proxy};

use crate::{connected, serving};

#[test]
fn bad_configurations_are_refused_with_a_reason() {
    let cases = [
        ("", "is empty"),
        ("{", "not valid"),
        ("[]", "not valid"),
        (r#"{"gatewayBackend":"main"}"#, "controlCluster"),
        (r#"{"controlCluster":"kinference_control"}"#, "gatewayBackend"),
        (r#"{"gatewayBackend":"main","controlCluster":"kinference_control","x":1}"#, "unknown field `x`"),
        (r#"{"gatewayBackend":"main","controlCluster":"kinference_control","failureMode":"Maybe"}"#, "Maybe"),
        (r#"{"gatewayBackend":"","controlCluster":"kinference_control"}"#, "gatewayBackend is empty"),
        (r#"{"gatewayBackend":"main","controlCluster":"inference"}"#, "GrpcService"),
    ];
    for (configuration, reason) in cases {
        let log = Proxy::refusal(configuration).unwrap().unwrap_or_else(|| panic!("accepted: {configuration}"));
        assert!(log.contains(reason), "{configuration}: {log}");
    }
    let good = r#"{"gatewayBackend":"main","controlCluster":"kinference_control","failureMode":"Closed"}"#;
    assert_eq!(Proxy::refusal(good).unwrap(), None);
}

#[test]
fn a_configuration_that_is_only_checked_leaves_no_trace() {
    // Envoy checks a configuration in a VM that never ticks.
    let fleet = Fleet::new(1);
    let proxy = Proxy::start(Options { hosts: fleet.hosts(), ..Options::default() }).unwrap().unwrap();
    assert!(proxy.streams(0).is_empty());
}

#[test]
fn metrics_tell_what_happened() {
    let mut fleet = Fleet::new(2);
    fleet.cache(0, &"x".repeat(10_000));
    fleet.sequence = 12;
    let mut proxy = serving(&fleet);
    for request in [Request::chat(MODEL, "a"), Request::chat(MODEL, "b"), Request::chat("none", "c")] {
        let exchange = proxy.send(0, &request);
        proxy.answer(exchange, &Answer::json(200, "{}"));
    }
    proxy.advance(1_500);
    let value = |name: &str| proxy.value(&format!("kinference_filter_{name}"));
    assert_eq!((value("decisions"), value("rejected_model"), value("undecided")), (2, 1, 0));
    assert_eq!((value("snapshots_applied"), value("streams_opened"), value("snapshot_sequence")), (1, 1, 12));
    assert_eq!(value("index_chunks"), 39);
    assert!(value("index_bytes") >= 39 * 18);
    assert!((1_000..=1_500).contains(&value("snapshot_age_ms")), "{}", value("snapshot_age_ms"));
    assert!(
        matches!(proxy.metric("kinference_filter_decision_us"), Some(Metric::Histogram(times)) if times.len() == 3)
    );
}

#[test]
fn an_idle_filter_ticks_seldom() {
    let fleet = Fleet::new(2);
    let mut proxy = serving(&fleet);
    proxy.advance(1_000);
    assert_eq!(proxy.tick_period_ms(0), 250);
    let exchange = proxy.send(0, &Request::chat(MODEL, "hi"));
    assert_eq!(proxy.tick_period_ms(0), 20);
    proxy.advance(1_000);
    assert_eq!(proxy.tick_period_ms(0), 250);
    proxy.answer(exchange, &Answer::json(200, "{}"));
    assert_eq!(proxy.tick_period_ms(0), 20);
}

#[test]
fn no_prompt_is_ever_logged() {
    let fleet = Fleet::new(2);
    let mut proxy = connected(&fleet, 1);
    let secret = "correct-horse-battery-staple";
    let bodies = [
        format!(r#"{{"model":"tiny","prompt":"{secret}"}}"#),
        format!(r#"{{"model":"tiny","prompt":"{secret}"#),
        format!(r#"{{"model":7,"prompt":"{secret}"}}"#),
        secret.to_owned(),
        format!(r#"{{"model":"tiny","messages":[{{"role":"{secret}","content":"{secret}"}}]}}"#),
    ];
    for _ in 0..2 {
        for body in &bodies {
            for path in ["/v1/completions", "/v1/chat/completions"] {
                let exchange = proxy.send(0, &Request::post(path, body.as_bytes()));
                if proxy.forwarded(exchange).is_some() {
                    proxy.answer(exchange, &Answer::json(200, &format!("{{\"text\":\"{secret}\"}}")));
                }
            }
        }
        proxy.advance(1_000);
        assert!(proxy.push(0, &fleet.full()));
    }
    assert!(proxy.logs().iter().all(|line| !line.contains(secret)), "{:?}", proxy.logs());
}
