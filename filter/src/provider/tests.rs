use kinference_protocol::v1::{self, control_message::Message};
use kinference_routing::Choice;
use kinference_routing::decide::{Destination, Expectation, ProviderRoute, Stop};
use kinference_routing::snapshot::Replica;

use super::*;
use crate::fake::Fake;
use crate::gateway::attempts::Allowed;

const CLUSTER: &str = "kinference_provider_default_cloud";
const BODY: &[u8] = br#"{"model": "glm", "prompt":"say \"hi\"", "seed":9007199254740993}"#;

fn provider() -> v1::Provider {
    v1::Provider {
        name: "cloud".into(),
        cluster: CLUSTER.into(),
        authority: "cloud.example".into(),
        base_path: "/api/v1".into(),
        authorization: "Bearer s3cret".into(),
        request_timeout_ms: 5000,
        ready: true,
        ..v1::Provider::default()
    }
}

/// A request that may go to the provider, and the attempts that say so.
fn allowed() -> (Rc<RefCell<Attempts>>, Allowed) {
    let backend = v1::Backend { chunk_bytes: 256, ..v1::Backend::default() };
    let config = v1::Config { backend: Some(backend), providers: vec![provider()], ..v1::Config::default() };
    let sections = v1::Sections { config: Some(config), ..v1::Sections::default() };
    let part = v1::SnapshotPart { epoch: 1, last: true, sections: Some(sections), ..v1::SnapshotPart::default() };
    let mut replica = Replica::default();
    replica.apply(v1::ControlMessage { message: Some(Message::Snapshot(part)) }).unwrap();
    let route = ProviderRoute { name: "cloud".into(), cluster: CLUSTER.into(), upstream_model: "vendor/glm-1".into() };
    let first =
        Stop { destination: Destination::Provider(route), model: "glm".into(), expected: Expectation::default() };
    let choice = Choice {
        first,
        next: Vec::new(),
        rule: None,
        prompt_tokens: 3,
        chunks: Vec::new(),
        believe_ms: 0,
        routed: false,
    };
    let attempts = Rc::default();
    let allowed = Attempts::allow(&attempts, replica.current().unwrap(), &choice).unwrap();
    (attempts, allowed)
}

/// What the first half of the filter sends on, with what a client may have sent.
fn sent_on(token: &str) -> Fake {
    let fake = Fake::post(Some(BODY));
    for (name, value) in [
        (":authority", "gateway.internal"),
        ("content-type", "application/json"),
        ("accept", "text/event-stream"),
        ("accept-encoding", "gzip"),
        ("authorization", "Bearer the client's own"),
        ("cookie", "session=1"),
        ("x-forwarded-for", "10.1.2.3"),
        ("x-data-parallel-rank", "1"),
        ("x-envoy-retry-on", "reset"),
        (ATTEMPT, token),
    ] {
        fake.set_request_header(name, value);
    }
    fake
}

fn pass(flow: &mut ProviderFlow, fake: &Fake) -> Verdict {
    match flow.request_headers(fake, false) {
        Verdict::Pause if fake.status.get() == 0 => flow.request_body(fake, BODY.len(), true),
        verdict => verdict,
    }
}

#[test]
fn a_provider_gets_its_own_request_and_nothing_of_the_clients_but_the_body() {
    let (attempts, allowed) = allowed();
    let fake = sent_on(&allowed.token().to_string());
    let mut flow = ProviderFlow::new(CLUSTER.into(), attempts);
    assert_eq!(pass(&mut flow, &fake), Verdict::Continue);
    let body = br#"{"model": "vendor/glm-1", "prompt":"say \"hi\"", "seed":9007199254740993}"#;
    assert_eq!(fake.body.borrow().as_deref(), Some(&body[..]));
    let headers: Vec<(String, String)> = fake.headers.borrow().clone().into_iter().collect();
    let expected = [
        (":authority", "cloud.example"),
        (":method", "POST"),
        (":path", "/api/v1/completions"),
        ("accept", "text/event-stream"),
        ("authorization", "Bearer s3cret"),
        ("content-length", &body.len().to_string()),
        ("content-type", "application/json"),
        (TIMEOUT, "5000"),
    ];
    assert_eq!(headers, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
}

#[test]
fn nothing_passes_that_was_not_decided() {
    let (attempts, allowed) = allowed();
    let token = allowed.token().to_string();
    let other = (token.parse::<u64>().unwrap() + 1).to_string();
    for (token, cluster) in [
        ("", CLUSTER),
        ("x", CLUSTER),
        (other.as_str(), CLUSTER),
        (token.as_str(), "kinference_provider_default_elsewhere"),
    ] {
        let fake = sent_on(token);
        let mut flow = ProviderFlow::new(cluster.into(), Rc::clone(&attempts));
        assert_eq!(pass(&mut flow, &fake), Verdict::Pause);
        assert_eq!(fake.status.get(), 503);
        assert!(fake.text.borrow().contains("provider_not_chosen"));
        assert_ne!(fake.header("authorization").as_deref(), Some("Bearer s3cret"));
    }
    drop(allowed);
    let fake = sent_on(&token);
    assert_eq!(pass(&mut ProviderFlow::new(CLUSTER.into(), attempts), &fake), Verdict::Pause);
    assert_eq!(fake.status.get(), 503, "the request was over");
}

#[test]
fn answers_about_the_gateways_own_affairs_do_not_reach_clients() {
    for (status, shown, kept) in [
        ("200", 0, true),
        ("429", 0, true),
        ("400", 0, true),
        ("101", 502, false),
        ("401", 502, false),
        ("402", 502, false),
        ("410", 502, false),
        ("404", 502, false),
        ("302", 502, false),
    ] {
        let (attempts, allowed) = allowed();
        let fake = sent_on(&allowed.token().to_string());
        let mut flow = ProviderFlow::new(CLUSTER.into(), attempts);
        pass(&mut flow, &fake);
        for (name, value) in [
            (":status", status),
            ("content-type", "application/json"),
            ("retry-after", "7"),
            ("set-cookie", "a=b"),
            ("openai-organization", "ours"),
        ] {
            fake.set_response_header(name, value);
        }
        let verdict = flow.response_headers(&fake);
        assert_eq!((fake.status.get(), verdict == Verdict::Continue), (shown, kept), "{status}");
        if kept {
            let names: Vec<String> = fake.answer.borrow().keys().cloned().collect();
            assert_eq!(names, [":status", "content-type", "retry-after"]);
        } else {
            assert!(fake.text.borrow().contains("provider_failed"));
        }
    }
}
