//! Engine metrics by HTTP: one reader for each engine process, however many ranks it has.

pub mod parse;

use std::error::Error as _;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::StatusCode;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kinference_api::ObjectKey;
use kinference_api::kinds::Engine;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use crate::clock::Clock;
use crate::state::{Input, ScrapeError};
use parse::{EngineMetrics, PageParser};

/// More than any engine's page.
const MAX_PAGE_BYTES: usize = 32 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1000);

/// An engine process and how to read its metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The worker set.
    pub set: ObjectKey,
    /// Where the engine serves HTTP.
    pub address: SocketAddr,
    /// Path of the metrics, with a leading slash.
    pub path: String,
    /// How often.
    pub interval: Duration,
    /// Which names to look for.
    pub engine: Engine,
}

impl Target {
    /// How long a read may take. An engine under load answers late; one that hangs must show soon.
    fn timeout(&self) -> Duration {
        (self.interval * 4).clamp(Duration::from_secs(1), Duration::from_secs(5))
    }
}

/// An HTTP client for short requests to workers, with kept-alive connections.
pub type HttpClient = Client<HttpConnector, http_body_util::Full<Bytes>>;
type PageClient = Client<HttpConnector, Empty<Bytes>>;

fn connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector
}

/// A client that can send bodies.
pub fn http_client() -> HttpClient {
    Client::builder(TokioExecutor::new()).build(connector())
}

/// Reads one target for ever, and tells the core every result.
pub async fn run(target: Target, clock: Clock, core: mpsc::Sender<Input>) {
    let client: PageClient = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(1).build(connector());
    let mut ticks = tokio::time::interval(target.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let began = clock.now_ms();
        let read = tokio::time::timeout(target.timeout(), read(&client, &target)).await;
        let result = read.unwrap_or(Err(ScrapeError::Timeout));
        let input = Input::Scraped { set: target.set.clone(), address: target.address, began, result };
        if core.send(input).await.is_err() {
            return;
        }
    }
}

async fn read(client: &PageClient, target: &Target) -> Result<EngineMetrics, ScrapeError> {
    let uri = format!("http://{}{}", target.address, target.path);
    let uri = uri.parse().map_err(|error| ScrapeError::Bad(format!("{uri} is no address: {error}")))?;
    let response = client.get(uri).await.map_err(|error| classify(&error))?;
    if response.status() != StatusCode::OK {
        return Err(ScrapeError::Bad(format!("{} answered {}", target.path, response.status())));
    }
    let mut body = response.into_body();
    let mut parser = PageParser::new(target.engine);
    let mut bytes = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| ScrapeError::Bad(format!("the page broke off: {error}")))?;
        if let Some(piece) = frame.data_ref() {
            bytes += piece.len();
            if bytes > MAX_PAGE_BYTES {
                return Err(ScrapeError::Bad(format!("the page has more than {MAX_PAGE_BYTES} bytes")));
            }
            parser.push(piece);
        }
    }
    Ok(parser.finish())
}

/// Tells a refused connection from other faults.
fn classify(error: &hyper_util::client::legacy::Error) -> ScrapeError {
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(io) = inner.downcast_ref::<std::io::Error>() {
            match io.kind() {
                std::io::ErrorKind::ConnectionRefused => return ScrapeError::Refused,
                std::io::ErrorKind::TimedOut => return ScrapeError::Timeout,
                _ => return ScrapeError::Bad(io.to_string()),
            }
        }
        cause = inner.source();
    }
    ScrapeError::Bad(error.to_string())
}

#[cfg(test)]
mod tests;
