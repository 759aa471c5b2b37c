use std::cell::Cell;
use std::collections::BTreeMap;

use kinference_protocol::v1::{self, control_message::Message};

use super::*;
use crate::config::PluginConfig;
use crate::host::{Host, Origin};

/// A proxy that has one request, and keeps what is done to it.
#[derive(Default)]
struct Fake {
    headers: RefCell<BTreeMap<String, String>>,
    body: RefCell<Option<Vec<u8>>>,
    status: Cell<u16>,
}

impl Fake {
    fn post(body: Option<&[u8]>) -> Self {
        let fake = Self { body: RefCell::new(body.map(<[u8]>::to_vec)), ..Self::default() };
        fake.set_request_header(":path", "/v1/completions");
        fake.set_request_header(":method", "POST");
        fake
    }
}

impl Host for Fake {
    fn now(&self) -> Duration {
        Duration::from_secs(1_790_000_000)
    }
    fn count(&self, _: Metric, _: u64) {}
    fn record(&self, _: Metric, _: u64) {}
    fn log(&self, _: Severity, _: &str) {}
    fn tick_every(&self, _: Duration) {}
    fn shared(&self, _: &str) -> Option<(Vec<u8>, u32)> {
        None
    }
    fn share(&self, _: &str, _: &[u8], _: u32) -> bool {
        true
    }
}

impl Exchange for Fake {
    fn request_header(&self, name: &str) -> Option<Vec<u8>> {
        self.headers.borrow().get(name).map(|value| value.clone().into_bytes())
    }
    fn set_request_header(&self, name: &str, value: &str) {
        self.headers.borrow_mut().insert(name.to_owned(), value.to_owned());
    }
    fn remove_request_header(&self, name: &str) {
        self.headers.borrow_mut().remove(name);
    }
    fn request_body(&self, length: usize) -> Option<Vec<u8>> {
        self.body.borrow().as_ref().map(|body| body[..length].to_vec())
    }
    fn replace_request_body(&self, length: usize, body: &[u8]) {
        assert_eq!(self.body.borrow().as_ref().map(Vec::len), Some(length));
        self.body.replace(Some(body.to_vec()));
    }
    fn respond(&self, status: u16, _: &[(&str, &str)], _: &[u8]) {
        self.status.set(status);
    }
    fn response_header(&self, _: &str) -> Option<Vec<u8>> {
        None
    }
    fn set_response_header(&self, _: &str, _: &str) {}
    fn response_body(&self, _: usize, _: usize) -> Option<Vec<u8>> {
        None
    }
    fn origin(&self) -> Origin {
        Origin::default()
    }
    fn upstream_broke(&self) -> bool {
        false
    }
}

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
    let mut gateway = Gateway::new(PluginConfig::default());
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
