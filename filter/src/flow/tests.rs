use kinference_protocol::v1::{self, control_message::Message};

use super::*;
use crate::config::PluginConfig;
use crate::fake::Fake;

#[test]
fn another_name_of_the_model_is_the_only_change_to_a_body() {
    let body = br#"{"seed":9007199254740993, "model" : "alias","model2":"alias","top_p":1.0}"#;
    let request = openai::parse(Endpoint::Completions, body).unwrap();
    let fake = Fake::post(Some(body));
    forward_as(&fake, &request, body, "real\"model");
    let expected = br#"{"seed":9007199254740993, "model" : "real\"model","model2":"alias","top_p":1.0}"#;
    assert_eq!(fake.body.borrow().as_deref(), Some(&expected[..]));
    assert_eq!(fake.request_header("content-length"), Some(expected.len().to_string().into_bytes()));

    let fake = Fake::post(Some(body));
    forward_as(&fake, &request, body, "alias");
    assert_eq!(fake.body.borrow().as_deref(), Some(&body[..]));
    assert_eq!(fake.request_header("content-length"), None);
}

/// A gateway that holds an empty snapshot with this failure mode.
fn gateway(mode: v1::FailureMode) -> Gateway {
    let backend = v1::Backend { chunk_bytes: 256, failure_mode: mode.into(), ..v1::Backend::default() };
    let config = v1::Config { backend: Some(backend), ..v1::Config::default() };
    let sections = v1::Sections { config: Some(config), ..v1::Sections::default() };
    let part = v1::SnapshotPart { epoch: 1, last: true, sections: Some(sections), ..v1::SnapshotPart::default() };
    let mut gateway = Gateway::new(PluginConfig::default(), Rc::default());
    gateway.replica.apply(v1::ControlMessage { message: Some(Message::Snapshot(part)) }).unwrap();
    gateway
}

#[test]
fn the_failure_mode_says_what_becomes_of_a_request_that_cannot_be_read() {
    for (mode, verdict, status) in
        [(v1::FailureMode::Open, Verdict::Continue, 0), (v1::FailureMode::Closed, Verdict::Pause, 503)]
    {
        let fake = Fake::post(None);
        let mut flow = RequestFlow::new(Rc::new(RefCell::new(gateway(mode))));
        assert_eq!(flow.request_headers(&fake, false), Verdict::Pause);
        assert_eq!(flow.request_body(&fake, 10, true), verdict);
        assert_eq!(fake.status.get(), status);
        flow.over(&fake);
    }
}
