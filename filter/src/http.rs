//! Callbacks of one request.

use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;

use crate::envoy::Envoy;
use crate::flow::{RequestFlow, Verdict};
use crate::provider::ProviderFlow;

pub(crate) struct Http {
    flow: RequestFlow,
    envoy: Envoy,
}

impl Http {
    pub(crate) fn new(flow: RequestFlow, envoy: Envoy) -> Self {
        Self { flow, envoy }
    }
}

impl From<Verdict> for Action {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Continue => Self::Continue,
            Verdict::Pause => Self::Pause,
        }
    }
}

impl Context for Http {
    fn on_done(&mut self) -> bool {
        self.flow.over(&self.envoy);
        true
    }
}

impl HttpContext for Http {
    fn on_http_request_headers(&mut self, _: usize, end: bool) -> Action {
        self.flow.request_headers(&self.envoy, end).into()
    }

    fn on_http_request_body(&mut self, bytes: usize, end: bool) -> Action {
        self.flow.request_body(&self.envoy, bytes, end).into()
    }

    fn on_http_request_trailers(&mut self, _: usize) -> Action {
        self.flow.request_trailers(&self.envoy).into()
    }

    fn on_http_response_headers(&mut self, _: usize, end: bool) -> Action {
        self.flow.response_headers(&self.envoy, end);
        Action::Continue
    }

    fn on_http_response_body(&mut self, bytes: usize, end: bool) -> Action {
        self.flow.response_body(&self.envoy, bytes, end);
        Action::Continue
    }

    fn on_http_response_trailers(&mut self, _: usize) -> Action {
        self.flow.response_trailers(&self.envoy);
        Action::Continue
    }

    fn on_log(&mut self) {
        self.flow.over(&self.envoy);
    }
}

pub(crate) struct ProviderHttp {
    flow: ProviderFlow,
    envoy: Envoy,
}

impl ProviderHttp {
    pub(crate) fn new(flow: ProviderFlow, envoy: Envoy) -> Self {
        Self { flow, envoy }
    }
}

impl Context for ProviderHttp {}

impl HttpContext for ProviderHttp {
    fn on_http_request_headers(&mut self, _: usize, end: bool) -> Action {
        self.flow.request_headers(&self.envoy, end).into()
    }

    fn on_http_request_body(&mut self, bytes: usize, end: bool) -> Action {
        self.flow.request_body(&self.envoy, bytes, end).into()
    }

    fn on_http_request_trailers(&mut self, _: usize) -> Action {
        self.flow.request_trailers(&self.envoy).into()
    }

    fn on_http_response_headers(&mut self, _: usize, _: bool) -> Action {
        self.flow.response_headers(&self.envoy).into()
    }
}
