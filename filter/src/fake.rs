//! A proxy for tests: it has one request and its answer, and keeps what is done to them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use crate::gateway::metrics::Metric;
use crate::host::{Exchange, Host, Origin, Severity};

#[derive(Default)]
pub(crate) struct Fake {
    pub(crate) headers: RefCell<BTreeMap<String, String>>,
    pub(crate) body: RefCell<Option<Vec<u8>>>,
    pub(crate) answer: RefCell<BTreeMap<String, String>>,
    /// What the filter answered itself.
    pub(crate) status: Cell<u16>,
    pub(crate) text: RefCell<String>,
}

impl Fake {
    pub(crate) fn post(body: Option<&[u8]>) -> Self {
        let fake = Self { body: RefCell::new(body.map(<[u8]>::to_vec)), ..Self::default() };
        fake.set_request_header(":path", "/v1/completions");
        fake.set_request_header(":method", "POST");
        fake
    }

    pub(crate) fn header(&self, name: &str) -> Option<String> {
        self.headers.borrow().get(name).cloned()
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
        self.header(name).map(String::into_bytes)
    }
    fn request_header_lines<'n>(&self, names: &[&'n str]) -> Vec<(&'n str, Vec<u8>)> {
        names.iter().filter_map(|name| Some((*name, self.request_header(name)?))).collect()
    }
    fn set_request_header(&self, name: &str, value: &str) {
        self.headers.borrow_mut().insert(name.to_owned(), value.to_owned());
    }
    fn remove_request_header(&self, name: &str) {
        self.headers.borrow_mut().remove(name);
    }
    fn request_headers(&self) -> Vec<String> {
        self.headers.borrow().keys().cloned().collect()
    }
    fn choose_route_anew(&self) {}
    fn request_body(&self, length: usize) -> Option<Vec<u8>> {
        self.body.borrow().as_ref().map(|body| body[..length].to_vec())
    }
    fn replace_request_body(&self, length: usize, body: &[u8]) {
        assert_eq!(self.body.borrow().as_ref().map(Vec::len), Some(length));
        self.body.replace(Some(body.to_vec()));
    }
    fn respond(&self, status: u16, _: &[(&str, &str)], body: &[u8]) {
        self.status.set(status);
        self.text.replace(String::from_utf8(body.to_vec()).unwrap());
    }
    fn response_header(&self, name: &str) -> Option<Vec<u8>> {
        self.answer.borrow().get(name).map(|value| value.clone().into_bytes())
    }
    fn set_response_header(&self, name: &str, value: &str) {
        self.answer.borrow_mut().insert(name.to_owned(), value.to_owned());
    }
    fn response_headers(&self) -> Vec<String> {
        self.answer.borrow().keys().cloned().collect()
    }
    fn remove_response_header(&self, name: &str) {
        self.answer.borrow_mut().remove(name);
    }
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
