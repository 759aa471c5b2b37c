//! Requests that leave the cluster: what the gateway sends to a provider's listener, and what comes out of that.

use kinference_protocol::v1;
use kinference_wasm_tests::fleet::{Fleet, MODEL};
use kinference_wasm_tests::http::{Answer, Request};
use kinference_wasm_tests::{Exchange, Options, Proxy};

use crate::{serving, serving_as};

const CLOUD: &str = "kinference_provider_default_cloud";
const BACKUP: &str = "kinference_provider_default_backup";

fn provider(name: &str) -> v1::Provider {
    v1::Provider {
        name: name.into(),
        cluster: format!("kinference_provider_default_{name}"),
        authority: format!("{name}.example"),
        base_path: "/v1".into(),
        authorization: format!("Bearer key-of-{name}"),
        models: vec![v1::ProviderModel {
            name: MODEL.into(),
            upstream_name: format!("{name}/tiny"),
            ..v1::ProviderModel::default()
        }],
        request_timeout_ms: 30_000,
        ready: true,
    }
}

/// Requests with the tag `out` go to `cloud`, then `backup`; none of the workers will do.
fn fleet() -> Fleet {
    let mut fleet = Fleet::new(1);
    fleet.config.providers = vec![provider("cloud"), provider("backup")];
    fleet.config.tenancy = Some(v1::Tenancy { tags_header: "x-labels".into(), ..v1::Tenancy::default() });
    let tier = |name: &str| v1::Tier { providers: vec![name.into()], models: Vec::new() };
    let external = v1::Requirements { locality: Some(v1::Locality::External.into()), ..v1::Requirements::default() };
    fleet.config.rules = vec![v1::Rule {
        name: "house/out".into(),
        when: Some(v1::When { tags_any: vec!["out".into()], ..v1::When::default() }),
        require: Some(external),
        fallback: vec![tier("cloud"), tier("backup")],
        ..v1::Rule::default()
    }];
    fleet
}

fn proxy(fleet: &Fleet, listeners: &[&str]) -> Proxy {
    let listeners: Vec<String> = listeners.iter().map(|name| (*name).to_owned()).collect();
    let configuration = serde_json::json!({
        "gatewayBackend": "default/main", "controlCluster": "kinference_control", "providers": listeners,
    });
    let configuration = configuration.to_string();
    serving_as(fleet, Options { configuration, listeners, hosts: fleet.hosts(), ..Options::default() })
}

fn outbound() -> Request {
    Request::completion(MODEL, "hi").with("x-labels", "out").with("authorization", "Bearer the client's")
}

/// What the gateway sent on enters the provider's listener.
fn enter(proxy: &mut Proxy, exchange: Exchange, listener: &str) -> Exchange {
    let forwarded = proxy.forwarded(exchange).unwrap();
    let request = Request { headers: forwarded.headers, pieces: vec![forwarded.body], trailers: false };
    proxy.enter(0, listener, &request)
}

#[test]
fn the_gateway_names_the_providers_in_order_and_only_they_add_their_keys() {
    let mut proxy = proxy(&fleet(), &[CLOUD, BACKUP]);
    let exchange = proxy.send(0, &outbound().with("x-kinference-attempt", "1"));
    let sent = proxy.forwarded(exchange).unwrap();
    assert_eq!(sent.address, format!("envoy://{CLOUD}/"));
    let list = format!("envoy://{CLOUD}/,envoy://{BACKUP}/");
    assert_eq!(sent.headers.text("x-gateway-destination-endpoint"), Some(list));
    assert!(!format!("{:?}", sent.headers).contains("key-of"), "{:?}", sent.headers);
    for (listener, name) in [(CLOUD, "cloud"), (BACKUP, "backup")] {
        let inner = enter(&mut proxy, exchange, listener);
        let out = proxy.forwarded(inner).unwrap();
        assert_eq!(out.address, listener);
        let headers = out.headers;
        assert_eq!(headers.text("authorization"), Some(format!("Bearer key-of-{name}")));
        assert_eq!(headers.text(":authority"), Some(format!("{name}.example")));
        assert_eq!(headers.text(":path").as_deref(), Some("/v1/completions"));
        assert_eq!(headers.get("x-kinference-attempt"), None);
        let body: serde_json::Value = serde_json::from_slice(&out.body).unwrap();
        assert_eq!(body, serde_json::json!({"model": format!("{name}/tiny"), "prompt": "hi"}));
    }
    // The request is over: its permit is too.
    proxy.answer(exchange, &Answer::json(200, "{}"));
    let late = enter(&mut proxy, exchange, CLOUD);
    assert_eq!(proxy.received(late).json()["error"]["code"], "provider_not_chosen");
}

#[test]
fn whoever_answers_is_named_and_reported() {
    let mut proxy = proxy(&fleet(), &[CLOUD, BACKUP]);
    proxy.set_host(&format!("envoy://{CLOUD}/"), false);
    let exchange = proxy.send(0, &outbound());
    assert_eq!(proxy.forwarded(exchange).unwrap().address, format!("envoy://{BACKUP}/"));
    proxy.answer(exchange, &Answer::json(200, r#"{"usage":{"prompt_tokens":9,"completion_tokens":2}}"#));
    let received = proxy.received(exchange);
    assert_eq!(received.headers.text("x-kinference-destination").as_deref(), Some("backup"));
    assert_eq!(received.headers.text("x-kinference-model").as_deref(), Some(MODEL));
    assert_eq!(received.headers.text("x-kinference-rule").as_deref(), Some("house/out"));
    proxy.advance(300);
    let reports = proxy.take_reports(0);
    let ends: Vec<(String, bool, Option<u32>)> = reports
        .iter()
        .filter_map(|report| match &report.event {
            Some(v1::report::Event::Finished(end)) => {
                Some((report.provider.clone(), end.connect_failure, end.prompt_tokens))
            }
            _ => None,
        })
        .collect();
    assert_eq!(ends, [("cloud".to_owned(), true, None), ("backup".to_owned(), false, Some(9))]);
    assert!(reports.iter().all(|report| report.worker.is_none()));
}

#[test]
fn a_provider_that_the_proxy_has_no_listener_for_is_passed_over() {
    let mut proxy = proxy(&fleet(), &[BACKUP]);
    let exchange = proxy.send(0, &outbound());
    assert_eq!(proxy.forwarded(exchange).unwrap().address, format!("envoy://{BACKUP}/"));
    assert!(proxy.logs().iter().any(|line| line.contains("no listener leads to the providers cloud,")));
    let mut bare = serving(&fleet());
    let exchange = bare.send(0, &outbound());
    assert_eq!(bare.received(exchange).status, 503);
    assert!(bare.forwarded(exchange).is_none());
}

#[test]
fn past_the_end_of_its_list_a_request_goes_nowhere() {
    let mut proxy = proxy(&fleet(), &[CLOUD, BACKUP]);
    for listener in [CLOUD, BACKUP] {
        proxy.set_host(&format!("envoy://{listener}/"), false);
    }
    let exchange = proxy.send(0, &outbound());
    assert_eq!(proxy.received(exchange).status, 503);
    assert!(proxy.forwarded(exchange).is_none(), "the only worker was not among the places allowed");
}

#[test]
fn whichever_model_a_providers_parser_takes_it_is_the_one_that_was_chosen() {
    let mut proxy = proxy(&fleet(), &[CLOUD, BACKUP]);
    let body = format!(r#"{{"model":"dear","Model":"dearer","prompt":"hi","model":"{MODEL}"}}"#);
    let exchange = proxy.send(0, &Request::post("/v1/completions", body).with("x-labels", "out"));
    let inner = enter(&mut proxy, exchange, CLOUD);
    let sent = proxy.forwarded(inner).unwrap();
    let expected = r#"{"model":"cloud/tiny","Model":"cloud/tiny","prompt":"hi","model":"cloud/tiny"}"#;
    assert_eq!(String::from_utf8(sent.body).unwrap(), expected);
    assert_eq!(sent.headers.text("content-length"), Some(expected.len().to_string()));
}

#[test]
fn a_provider_that_keeps_failing_is_left_alone_and_tried_again() {
    let mut proxy = proxy(&fleet(), &[CLOUD, BACKUP]);
    let first = |proxy: &mut Proxy, answer: Option<Answer>| {
        let exchange = proxy.send(0, &outbound());
        let sent = proxy.forwarded(exchange).unwrap().address;
        let listener = if sent.contains(CLOUD) { CLOUD } else { BACKUP };
        let inner = enter(proxy, exchange, listener);
        proxy.answer(inner, &answer.unwrap_or_else(|| Answer::json(200, "{}")));
        proxy.answer(exchange, &Answer::json(200, "{}"));
        listener
    };
    let busy = || {
        let mut answer = Answer::json(429, "{}");
        answer.headers.set("retry-after", b"20");
        Some(answer)
    };
    for _ in 0..3 {
        assert_eq!(first(&mut proxy, busy()), CLOUD);
        assert_eq!(first(&mut proxy, busy()), CLOUD);
        assert_eq!(first(&mut proxy, None), CLOUD, "it answers in between");
    }
    for _ in 0..3 {
        assert_eq!(first(&mut proxy, busy()), CLOUD);
    }
    assert_eq!(first(&mut proxy, None), BACKUP);
    let wait = |proxy: &mut Proxy, seconds: u64| {
        for _ in 0..seconds {
            proxy.advance(1_000);
            assert!(proxy.push(0, &fleet().heartbeat()));
        }
    };
    wait(&mut proxy, 19);
    assert_eq!(first(&mut proxy, None), BACKUP, "it asked for 20 seconds");
    wait(&mut proxy, 2);
    assert_eq!(first(&mut proxy, None), CLOUD);
    assert_eq!(first(&mut proxy, None), CLOUD);
}
