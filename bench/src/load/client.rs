//! An HTTP client for one endpoint, on kept-alive connections without Nagle's delay.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client as Pool, Error};
use hyper_util::rt::TokioExecutor;

use super::error::LoadError;

/// Time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Where requests go: `http://HOST:PORT`, with or without a path such as `/v1` at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    authority: Authority,
    base: String,
}

impl Endpoint {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`LoadError::Url`] says what is wrong with it.
    pub fn parse(url: &str) -> Result<Self, LoadError> {
        let fail = |reason: &str| LoadError::Url { url: url.to_owned(), reason: reason.to_owned() };
        let uri: Uri = url.parse().map_err(|error| fail(&format!("{error}")))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(fail("TLS is not supported, put a plain HTTP port of the gateway here")),
            _ => return Err(fail("it must begin with http://")),
        }
        let authority = uri.authority().cloned().ok_or_else(|| fail("it names no host"))?;
        let base = uri.path().trim_end_matches('/');
        Ok(Self { authority, base: base.strip_suffix("/v1").unwrap_or(base).to_owned() })
    }

    /// The URL of a path below it, which begins with a slash.
    fn uri(&self, path: &str) -> Result<Uri, LoadError> {
        let fail = |reason: String| LoadError::Url { url: format!("{self}{path}"), reason };
        let path = PathAndQuery::try_from(format!("{}{path}", self.base)).map_err(|error| fail(error.to_string()))?;
        let builder = Uri::builder().scheme(Scheme::HTTP).authority(self.authority.clone()).path_and_query(path);
        builder.build().map_err(|error| fail(error.to_string()))
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "http://{}{}", self.authority, self.base)
    }
}

/// A client of one endpoint. Copies share their connections.
#[derive(Debug, Clone)]
pub struct Client {
    pool: Pool<HttpConnector, Full<Bytes>>,
    endpoint: Endpoint,
    headers: Vec<(String, String)>,
}

/// A complete answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// HTTP status.
    pub status: StatusCode,
    /// Response headers.
    pub headers: hyper::HeaderMap,
    /// Body.
    pub body: Bytes,
}

impl Answer {
    /// The body as text, with replacement characters where it is none.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON; null where it is none.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// A response header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

impl Client {
    /// A client that sends `headers` with every request.
    #[must_use]
    pub fn new(endpoint: Endpoint, headers: Vec<(String, String)>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let pool = Pool::builder(TokioExecutor::new()).pool_max_idle_per_host(usize::MAX).build(connector);
        Self { pool, endpoint, headers }
    }

    /// A client of `http://ADDRESS`.
    #[must_use]
    pub fn of(address: SocketAddr) -> Self {
        // An address is always a valid authority.
        let authority = address.to_string().parse().unwrap_or_else(|_| Authority::from_static("localhost"));
        Self::new(Endpoint { authority, base: String::new() }, Vec::new())
    }

    /// Where it sends.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Sends a request and gives the response with its body still to come.
    ///
    /// # Errors
    /// A path or header that is none, or no answer.
    pub async fn open(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Response<Incoming>, LoadError> {
        let uri = self.endpoint.uri(path)?;
        let url = uri.to_string();
        let own = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in own.chain(headers.iter().copied()) {
            request = request.header(name, value);
        }
        let request = request
            .body(Full::new(body.into()))
            .map_err(|error| LoadError::Setting(format!("a header cannot be sent: {error}")))?;
        self.pool.request(request).await.map_err(|error| LoadError::Unreachable { url, reason: reason(&error) })
    }

    /// Sends a request and reads the whole answer.
    ///
    /// # Errors
    /// As [`Client::open`], or an answer that breaks off.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Answer, LoadError> {
        let response = self.open(method, path, headers, body).await?;
        let (head, body) = response.into_parts();
        let body = body.collect().await.map_err(|error| LoadError::Unreachable {
            url: format!("{}{path}", self.endpoint),
            reason: format!("the answer broke off: {error}"),
        })?;
        Ok(Answer { status: head.status, headers: head.headers, body: body.to_bytes() })
    }

    /// GETs a path.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub async fn get(&self, path: &str) -> Result<Answer, LoadError> {
        self.send(Method::GET, path, &[], Bytes::new()).await
    }

    /// POSTs JSON.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub async fn post(&self, path: &str, body: impl Into<Bytes>) -> Result<Answer, LoadError> {
        self.send(Method::POST, path, &[("content-type", "application/json")], body).await
    }
}

/// The innermost cause says most ("connection refused"); the outer ones say that a request failed.
fn reason(error: &Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_with_and_without_a_path() {
        for (url, models) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080/v1/models"),
            ("http://127.0.0.1:8080/", "http://127.0.0.1:8080/v1/models"),
            ("http://host/v1/", "http://host/v1/models"),
            ("http://[::1]:80/team/v1", "http://[::1]:80/team/v1/models"),
        ] {
            assert_eq!(Endpoint::parse(url).unwrap().uri("/v1/models").unwrap().to_string(), models);
        }
        for bad in ["", "127.0.0.1:8080", "https://host", "ftp://host", "http://", "http://a b"] {
            let message = Endpoint::parse(bad).unwrap_err().to_string();
            assert!(message.contains("http://HOST:PORT"), "{message}");
        }
    }
}
