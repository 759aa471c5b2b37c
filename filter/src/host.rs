//! What the filter needs of the proxy that it runs in. `envoy` provides it through proxy-wasm; other hosts may do so
//! otherwise.

use std::time::Duration;

use crate::gateway::metrics::Metric;

/// What every part needs.
pub trait Host {
    /// Time since 1970.
    fn now(&self) -> Duration;
    /// Adds to a counter.
    fn count(&self, metric: Metric, by: u64);
    /// Sets a gauge, or adds a value to a histogram.
    fn record(&self, metric: Metric, value: u64);
    /// Writes a line to the proxy's log, never with a prompt's text.
    fn log(&self, severity: Severity, message: &str);
    /// Asks for ticks at this interval from now on.
    fn tick_every(&self, period: Duration);
    /// Reads a value that all VMs of the process share, with a version for [`Host::share`].
    fn shared(&self, key: &str) -> Option<(Vec<u8>, u32)>;
    /// Writes a value that all VMs of the process share. With `version`: only when nobody wrote it since it was read, or
    /// for 0, whatever it is. False when somebody did.
    fn share(&self, key: &str, value: &[u8], version: u32) -> bool;
}

/// How much a log line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The course of things.
    Info,
    /// Something is missing, and requests are served all the same.
    Warning,
    /// Somebody must act.
    Error,
}

/// One request and its answer, while they pass.
///
/// Request headers can be read and written until the request was sent on, those of the response until their callback has
/// returned.
pub trait Exchange: Host {
    /// A header of the request.
    fn request_header(&self, name: &str) -> Option<Vec<u8>>;
    /// Every line of these headers of the request, by their names, which are in lower case; a proxy may give only the first
    /// line for [`Exchange::request_header`].
    fn request_header_lines<'n>(&self, names: &[&'n str]) -> Vec<(&'n str, Vec<u8>)>;
    /// Sets a header of the request.
    fn set_request_header(&self, name: &str, value: &str);
    /// Removes every header of that name from the request.
    fn remove_request_header(&self, name: &str);
    /// Names of the request's headers, each once or more often.
    fn request_headers(&self) -> Vec<String>;
    /// Lets the proxy choose the request's route again, by the headers as they are now.
    fn choose_route_anew(&self);
    /// The first `length` bytes of the request's body.
    fn request_body(&self, length: usize) -> Option<Vec<u8>>;
    /// Puts `body` in the place of the whole body of `length` bytes.
    fn replace_request_body(&self, length: usize, body: &[u8]);
    /// Answers the request here; it goes no further.
    fn respond(&self, status: u16, headers: &[(&str, &str)], body: &[u8]);
    /// A header of the response.
    fn response_header(&self, name: &str) -> Option<Vec<u8>>;
    /// Sets a header of the response.
    fn set_response_header(&self, name: &str, value: &str);
    /// Names of the response's headers, each once or more often.
    fn response_headers(&self) -> Vec<String>;
    /// Removes every header of that name from the response.
    fn remove_response_header(&self, name: &str);
    /// A piece of the response's body that is passing.
    fn response_body(&self, start: usize, length: usize) -> Option<Vec<u8>>;
    /// Where the answer comes from.
    fn origin(&self) -> Origin;
    /// The connection to the worker broke, rather than the one to the client.
    fn upstream_broke(&self) -> bool;
}

/// Where an answer comes from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Origin {
    /// `ip:port` of the worker that the proxy tried last.
    pub address: Option<String>,
    /// That worker answered; otherwise the proxy did.
    pub answered: bool,
    /// How many times the proxy sent the request to a worker, when it tells.
    pub attempts: Option<u32>,
    /// The proxy answered because no connection to a worker held.
    pub unreachable: bool,
}

/// A stream of messages to the control service.
pub trait Stream: Host {
    /// Opens a stream through a cluster; gives its token.
    fn open(&self, cluster: &str) -> Option<u32>;
    /// Sends a message. False when the stream is gone.
    fn send(&self, token: u32, message: &[u8]) -> bool;
    /// Ends a stream.
    fn cancel(&self, token: u32);
}
