//! Tenants, tags and rules, as they show outside.

use kinference_protocol::v1;
use kinference_wasm_tests::fleet::{Fleet, MODEL, worker};
use kinference_wasm_tests::http::{Answer, Request};

use crate::{serving, started};

/// Two models, and tenancy by headers of a trusted front.
fn fleet() -> Fleet {
    let mut fleet = Fleet::new(2);
    let large = v1::WorkerSet { id: 2, name: "default/large".into(), model: "large".into(), ..fleet.set().clone() };
    fleet.config.worker_sets.push(v1::WorkerSet { adapters: Vec::new(), ..large });
    fleet.workers.push(worker(2, 2));
    let tenant = v1::Tenant { name: "research".into(), models: vec!["tiny*".into()] };
    fleet.config.tenancy = Some(v1::Tenancy {
        tenant_header: "x-team".into(),
        tags_header: "x-labels".into(),
        deny_unidentified: true,
        tenants: vec![tenant],
    });
    fleet
}

fn from(team: &str, model: &str) -> Request {
    Request::completion(model, "hi").with("x-team", team)
}

#[test]
fn headers_that_say_who_asks_go_no_further() {
    let mut proxy = serving(&fleet());
    let request = from("research", MODEL)
        .with("x-labels", "batch")
        .with("x-kinference-tenant", "root")
        .with("x-kinference-tags", "trusted");
    let exchange = proxy.send(0, &request);
    let headers = proxy.forwarded(exchange).unwrap().headers;
    for name in ["x-team", "x-labels", "x-kinference-tenant", "x-kinference-tags"] {
        assert_eq!(headers.get(name), None, "{name}");
    }
    proxy.advance(300);
    assert_eq!(started(&proxy.take_reports(0))[0].1.tenant, "research");
}

#[test]
fn a_tenant_uses_its_models_only() {
    let mut proxy = serving(&fleet());
    let status = |proxy: &mut kinference_wasm_tests::Proxy, request: &Request| {
        let exchange = proxy.send(0, request);
        (proxy.received(exchange).status, proxy.received(exchange).json()["error"]["code"].clone())
    };
    assert_eq!(status(&mut proxy, &from("research", "large")), (403, "model_not_allowed".into()));
    assert_eq!(status(&mut proxy, &from("research", "none")), (404, "model_not_found".into()));
    assert_eq!(status(&mut proxy, &Request::completion(MODEL, "hi")), (401, "unidentified".into()));
    let nameless = Request::completion(MODEL, "hi").with("x-team", [0xff, 0xfe]);
    assert_eq!(status(&mut proxy, &nameless), (400, "unreadable_identity".into()), "it is not taken for nobody");
    for (team, expected) in [("research", vec!["tiny", "tiny-sql"]), ("another", vec!["large", "tiny", "tiny-sql"])] {
        let exchange = proxy.send(0, &Request::new("GET", "/v1/models").with("x-team", team));
        let list = proxy.received(exchange).json();
        let ids: Vec<&str> =
            list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
        assert_eq!(ids, expected, "{team}");
    }
}

#[test]
fn every_line_of_a_header_counts_and_what_cannot_be_read_is_no_way_around_a_rule() {
    let mut fleet = fleet();
    let when = v1::When { tags_any: vec!["batch".into()], ..v1::When::default() };
    let answer = v1::Answer { status: 429, ..v1::Answer::default() };
    let rule = v1::Rule { name: "house/wait".into(), when: Some(when), reject: Some(answer), ..v1::Rule::default() };
    fleet.config.rules = vec![rule];
    let mut proxy = serving(&fleet);
    let mut status = |request: Request| {
        let exchange = proxy.send(0, &request);
        if proxy.forwarded(exchange).is_some() { 200 } else { proxy.received(exchange).status }
    };
    let asked = || from("research", MODEL);
    assert_eq!(status(asked()), 200);
    for lines in [&["a", "batch"][..], &["", "batch"], &["batch", "a"], &["a,batch , b"]] {
        let tagged = lines.iter().fold(asked(), |request, line| request.with("x-labels", line));
        assert_eq!(status(tagged), 429, "{lines:?}");
    }
    let long = format!("batch,{}", "a".repeat(5000));
    assert_eq!(status(asked().with("x-labels", long)), 400);
    assert_eq!(status(asked().with("x-labels", b"batch,\xff")), 400);
    assert_eq!(status(asked().with("x-team", "another")), 400, "who asks is not known");
    assert_eq!(status(asked().with("x-team", "research")), 200);
    assert_eq!(status(asked().with("x-team", "")), 200);
}

#[test]
fn rules_and_the_identity_they_are_for_are_of_one_configuration() {
    // The tags header is only named while the body is on its way.
    let mut before = fleet();
    before.config.tenancy = None;
    let mut proxy = serving(&before);
    let request = from("research", MODEL).with("x-labels", "batch");
    let exchange = proxy.open(0);
    proxy.request_headers(exchange, &request.headers, false);
    let mut after = fleet();
    after.config.rules = vec![v1::Rule {
        name: "house/wait".into(),
        when: Some(v1::When { tags_any: vec!["batch".into()], ..v1::When::default() }),
        reject: Some(v1::Answer { status: 429, ..v1::Answer::default() }),
        ..v1::Rule::default()
    }];
    after.epoch += 1;
    assert!(proxy.push(0, &after.full()));
    proxy.request_body(exchange, &request.pieces[0], true);
    assert_eq!(proxy.received(exchange).status, 429);
}

#[test]
fn a_rule_rejects_with_its_own_words() {
    let mut fleet = fleet();
    let answer = v1::Answer { status: 429, retry_after_s: 30, message: "Batch work waits.".into() };
    let when = v1::When { tags_any: vec!["batch".into()], ..v1::When::default() };
    let rule = v1::Rule { name: "house/wait".into(), when: Some(when), reject: Some(answer), ..v1::Rule::default() };
    fleet.config.rules = vec![rule];
    let mut proxy = serving(&fleet);
    let exchange = proxy.send(0, &from("research", MODEL).with("x-labels", "a, batch"));
    let received = proxy.received(exchange);
    assert_eq!((received.status, received.headers.text("retry-after").as_deref()), (429, Some("30")));
    assert_eq!(received.json()["error"]["message"], "Batch work waits.");
    assert_eq!(received.headers.text("x-kinference-rule").as_deref(), Some("house/wait"));
    assert!(proxy.forwarded(exchange).is_none());
    let exchange = proxy.send(0, &from("research", MODEL));
    assert!(proxy.forwarded(exchange).is_some());
}

#[test]
fn an_alias_changes_the_models_name_and_no_other_byte() {
    let mut fleet = fleet();
    let when = v1::When { models: vec!["standard".into()], ..v1::When::default() };
    let candidates = vec!["large".to_owned()];
    fleet.config.rules =
        vec![v1::Rule { name: "house/alias".into(), when: Some(when), candidates, ..v1::Rule::default() }];
    let mut proxy = serving(&fleet);
    let body = r#"{"seed":9007199254740993, "x":"<>&", "model" : "standard" ,"prompt":"standard","top_p":1.0}"#;
    for cut in [1, 9, body.len()] {
        let request = Request::post("/v1/completions", body).with("x-team", "another").cut(cut);
        let exchange = proxy.send(0, &request);
        let forwarded = proxy.forwarded(exchange).unwrap();
        let expected = body.replace(r#""model" : "standard""#, r#""model" : "large""#);
        assert_eq!(String::from_utf8_lossy(&forwarded.body), expected);
        assert_eq!(forwarded.headers.text("content-length"), Some(expected.len().to_string()));
        assert_eq!(forwarded.address, fleet.workers[2].address);
        proxy.answer(exchange, &Answer::json(200, "{}"));
        let received = proxy.received(exchange).headers;
        assert_eq!(received.text("x-kinference-model").as_deref(), Some("large"));
        assert_eq!(received.text("x-kinference-rule").as_deref(), Some("house/alias"));
    }
}

#[test]
fn what_a_rule_forbids_is_not_sent() {
    // Nothing of this gateway is outside, so a rule that wants only that leaves nothing.
    let mut fleet = fleet();
    let require = v1::Requirements { locality: Some(v1::Locality::External.into()), ..v1::Requirements::default() };
    fleet.config.rules = vec![v1::Rule { name: "house/out".into(), require: Some(require), ..v1::Rule::default() }];
    let mut proxy = serving(&fleet);
    let exchange = proxy.send(0, &from("another", MODEL));
    assert_eq!(proxy.received(exchange).status, 503);
    assert!(proxy.forwarded(exchange).is_none());
}
