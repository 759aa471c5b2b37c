//! A closed loop of requests for a fixed time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use hyper::Method;
use tokio::task::JoinSet;

use super::corpus::{Corpus, FAMILIES, Prompt};
use super::error::CostError;
use super::instant::{ORDER, Order};
use crate::load::{Client, Random};

/// A request that takes longer fails.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What is sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    /// Length of prompts.
    pub(super) bytes: usize,
    /// Requests at any time.
    pub(super) concurrency: usize,
    /// For how long new ones are sent.
    pub(super) time: Duration,
    /// Chunks of an answer.
    pub(super) chunks: u32,
    /// Time between them in milliseconds.
    pub(super) pace_ms: u64,
    /// Whether usage is asked for.
    pub(super) usage: bool,
    /// Whether workers publish what they store and evict.
    pub(super) events: bool,
}

/// What came of it.
#[derive(Debug, Clone, Default)]
pub(super) struct Driven {
    /// From sending a request to the first bytes of its answer's body, in milliseconds.
    pub(super) first_ms: Vec<f64>,
    /// To the end of its answer.
    pub(super) whole_ms: Vec<f64>,
    /// From the first request to the last answer's end.
    pub(super) seconds: f64,
    /// Pieces in which bodies arrived.
    pub(super) pieces: u64,
}

/// Every prompt of a process has a number of its own, so that no prompt is sent twice.
static NUMBER: AtomicU64 = AtomicU64::new(1);

/// Sends requests through the gateway. All must succeed.
///
/// # Errors
/// The first request that fails.
pub(super) async fn drive(client: &Client, corpus: &Arc<Corpus>, load: Load) -> Result<Driven, CostError> {
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..load.concurrency {
        let (client, corpus) = (client.clone(), corpus.clone());
        tasks.spawn(async move {
            let mut driven = Driven::default();
            while start.elapsed() < load.time {
                one(&client, &corpus, load, &mut driven).await?;
            }
            Ok::<_, CostError>(driven)
        });
    }
    let mut all = Driven::default();
    while let Some(done) = tasks.join_next().await {
        let done = done.map_err(|error| CostError::Unexpected(error.to_string()))??;
        all.first_ms.extend(done.first_ms);
        all.whole_ms.extend(done.whole_ms);
        all.pieces += done.pieces;
    }
    all.seconds = start.elapsed().as_secs_f64();
    Ok(all)
}

async fn one(client: &Client, corpus: &Corpus, load: Load, driven: &mut Driven) -> Result<(), CostError> {
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let family = Random::new(number, 4).next() % FAMILIES;
    let prompt = Prompt { bytes: load.bytes, family, number };
    let body = corpus.body(&corpus.text(prompt), load.usage);
    let order =
        Order { prompt: load.events.then_some(prompt), chunks: load.chunks, pace_ms: load.pace_ms, usage: load.usage };
    let sent = Instant::now();
    let answer = tokio::time::timeout(TIMEOUT, ask(client, body, &order)).await;
    let Answered { first, pieces, .. } =
        answer.map_err(|_| CostError::Unexpected(format!("no answer within {} s", TIMEOUT.as_secs())))??;
    let ms = |at: Instant| (at - sent).as_secs_f64() * 1000.0;
    driven.first_ms.push(ms(first));
    driven.whole_ms.push(ms(Instant::now()));
    driven.pieces += pieces;
    Ok(())
}

/// An answer that came whole.
pub(super) struct Answered {
    /// When the body's first bytes came.
    pub(super) first: Instant,
    /// Pieces in which it came.
    pub(super) pieces: u64,
    /// Cached tokens that the gateway predicted.
    pub(super) predicted: Option<u64>,
}

/// Sends one request and reads its answer.
///
/// # Errors
/// No answer, one that is no success, or one that breaks off.
pub(super) async fn ask(client: &Client, body: String, order: &Order) -> Result<Answered, CostError> {
    let order = order.header();
    let headers = [("content-type", "application/json"), (ORDER, &*order)];
    let response = client.open(Method::POST, "/v1/chat/completions", &headers, body).await?;
    let status = response.status();
    let predicted = response.headers().get("x-kinference-predicted-cached-tokens");
    let predicted = predicted.and_then(|tokens| tokens.to_str().ok()?.parse().ok());
    let mut body = response.into_body();
    let (mut first, mut pieces) = (None, 0);
    while let Some(frame) = body.frame().await {
        frame.map_err(|error| CostError::Unexpected(format!("an answer broke off: {error}")))?;
        first.get_or_insert_with(Instant::now);
        pieces += 1;
    }
    match first {
        Some(first) if status.is_success() => Ok(Answered { first, pieces, predicted }),
        _ => Err(CostError::Unexpected(format!("a request got HTTP {}", status.as_u16()))),
    }
}

/// The middle of some figures; of an even number the lower one. 0 when there are none.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    crate::load::Percentiles::of(values.into_iter().collect()).p50
}

/// Counts by name, from the text of a metrics page: the value of the first line that starts so.
pub(super) fn metric(page: &str, start: &str) -> Option<f64> {
    page.lines().find(|line| line.starts_with(start))?.rsplit(' ').next()?.parse().ok()
}
