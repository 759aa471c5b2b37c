//! Runs a workload against an endpoint.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{Method, Response};
use serde::Serialize;
use tokio::task::JoinSet;

use super::client::Client;
use super::error::LoadError;
use super::pace::Pace;
use super::progress::Progress;
use super::record::{Failure, Record};
use super::sse::{Reader, Stream};
use super::workload::{Session, Workload};

const JSON: &[(&str, &str)] = &[("content-type", "application/json")];

/// How a workload is put to an endpoint.
#[derive(Debug, Clone)]
pub struct Options {
    /// The model to ask for.
    pub model: String,
    /// When sessions start.
    pub pace: Pace,
    /// Ask for answers of exactly the workload's length (vLLM's `ignore_eos`), so that every run has the same work to do.
    pub exact_answers: bool,
    /// A request that takes longer counts as failed.
    pub timeout: Duration,
}

/// What came of it.
#[derive(Debug, Clone)]
pub struct Run {
    /// Every request of the workload, in no order.
    pub records: Vec<Record>,
    /// From the start to the end of the last answer.
    pub elapsed: Duration,
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    messages: &'a [Message<'a>],
    stream: bool,
    stream_options: StreamOptions,
    max_tokens: usize,
    temperature: f32,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    ignore_eos: bool,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: &'a str,
}

/// What the tasks of a run share.
struct Shared {
    client: Client,
    options: Options,
    answer_tokens: usize,
    start: Instant,
    progress: Progress,
}

/// The first model that an endpoint serves.
///
/// # Errors
/// The endpoint cannot be reached, or names none.
pub async fn first_model(client: &Client) -> Result<String, LoadError> {
    let answer = client.get("/v1/models").await?;
    let fail = |reason: String| LoadError::NoModel { url: client.endpoint().to_string(), reason };
    if !answer.status.is_success() {
        return Err(fail(format!("HTTP {}", answer.status.as_u16())));
    }
    let model = answer.json()["data"][0]["id"].as_str().map(str::to_owned);
    model.ok_or_else(|| fail("the list is empty or none".into()))
}

/// Sends every request of the workload and waits for all answers. Single failures are recorded; dropping the future ends all requests.
///
/// # Errors
/// A setting out of range.
pub async fn run(
    client: &Client,
    workload: &Workload,
    options: &Options,
    progress: Progress,
) -> Result<Run, LoadError> {
    workload.validate()?;
    options.pace.validate()?;
    let sessions = workload.sessions();
    let schedule = options.pace.schedule(sessions.len(), workload.seed);
    let shared = Arc::new(Shared {
        client: client.clone(),
        options: options.clone(),
        answer_tokens: workload.answer_tokens,
        start: Instant::now(),
        progress,
    });
    let mut tasks: JoinSet<Vec<Record>> = JoinSet::new();
    match (options.pace, schedule) {
        (Pace::Closed { concurrency }, _) => {
            let waiting: VecDeque<_> = sessions.into_iter().enumerate().collect();
            let waiting = Arc::new(Mutex::new(waiting));
            for _ in 0..concurrency {
                let (shared, waiting) = (shared.clone(), waiting.clone());
                let next = move || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                tasks.spawn(async move {
                    let mut records = Vec::new();
                    while let Some((number, session)) = next() {
                        let due = shared.start.elapsed();
                        records.extend(converse(&shared, number, session, due).await);
                    }
                    records
                });
            }
        }
        (Pace::Open { .. }, schedule) => {
            for ((number, session), due) in sessions.into_iter().enumerate().zip(schedule.unwrap_or_default()) {
                let shared = shared.clone();
                tasks.spawn(async move {
                    tokio::time::sleep_until((shared.start + due).into()).await;
                    converse(&shared, number, session, due).await
                });
            }
        }
    }
    let mut records = Vec::new();
    while let Some(done) = tasks.join_next().await {
        // A task ends early only when the runtime is being shut down.
        records.extend(done.unwrap_or_default());
    }
    shared.progress.finish();
    let elapsed = records.iter().map(|record| record.sent + record.end).max().unwrap_or_default();
    Ok(Run { records, elapsed })
}

/// Runs a session, turn by turn.
async fn converse(shared: &Shared, number: usize, session: Session, mut due: Duration) -> Vec<Record> {
    let mut answers: Vec<String> = Vec::new();
    let mut records: Vec<Record> = Vec::with_capacity(session.turns.len());
    for turn in 0..session.turns.len() {
        let mut record = blank(number, turn, due);
        record.sent = shared.start.elapsed();
        if records.last().is_some_and(|last| last.failure.is_some()) {
            record.failure = Some(Failure::Skipped);
        } else {
            let want_text = turn + 1 < session.turns.len();
            let body = body(shared, &session, &answers);
            match ask(shared, &mut record, body, want_text).await {
                Ok(answer) => answers.push(answer),
                Err(failure) => record.failure = Some(failure),
            }
            record.end = shared.start.elapsed() - record.sent;
        }
        shared.progress.done(&record);
        records.push(record);
        due = shared.start.elapsed();
    }
    records
}

fn blank(session: usize, turn: usize, due: Duration) -> Record {
    Record {
        session,
        turn,
        sent: due,
        due,
        first: None,
        last: None,
        end: Duration::ZERO,
        chunks: 0,
        usage: None,
        predicted_cached: None,
        destination: None,
        failure: None,
    }
}

/// The request of the turn that follows the answers given so far.
fn body(shared: &Shared, session: &Session, answers: &[String]) -> Vec<u8> {
    let mut messages = Vec::with_capacity(2 * answers.len() + 2);
    messages.extend(session.system.as_deref().map(|content| Message { role: "system", content }));
    for (turn, question) in session.turns.iter().take(answers.len() + 1).enumerate() {
        messages.push(Message { role: "user", content: question });
        messages.extend(answers.get(turn).map(|content| Message { role: "assistant", content }));
    }
    let body = Body {
        model: &shared.options.model,
        messages: &messages,
        stream: true,
        stream_options: StreamOptions { include_usage: true },
        max_tokens: shared.answer_tokens,
        temperature: 0.0,
        ignore_eos: shared.options.exact_answers,
    };
    // Strings and numbers only: there is nothing that could fail.
    serde_json::to_vec(&body).unwrap_or_default()
}

/// Sends one request and reads its answer; gives the text when it is wanted.
async fn ask(shared: &Shared, record: &mut Record, body: Vec<u8>, want_text: bool) -> Result<String, Failure> {
    let start = Instant::now();
    let mut reader = Reader::new(want_text);
    let exchange = async {
        let response = shared
            .client
            .open(Method::POST, "/v1/chat/completions", JSON, body)
            .await
            .map_err(|error| Failure::NoAnswer(transport(error)))?;
        heed_headers(record, &response);
        if !response.status().is_success() {
            return Err(Failure::Status(response.status().as_u16()));
        }
        read(response, &mut reader).await
    };
    let ended = tokio::time::timeout(shared.options.timeout, exchange).await.unwrap_or(Err(Failure::Timeout));
    record.first = reader.first().map(|at| at - start);
    record.last = reader.last().map(|at| at - start);
    record.chunks = reader.chunks();
    ended?;
    let Stream { usage, text, .. } = reader.finish()?;
    record.usage = usage;
    Ok(text)
}

async fn read(response: Response<Incoming>, reader: &mut Reader) -> Result<(), Failure> {
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Failure::CutOff)?;
        if let Some(data) = frame.data_ref() {
            reader.push(data, Instant::now());
        }
    }
    Ok(())
}

/// Debug headers of the gateway, when they are on.
fn heed_headers(record: &mut Record, response: &Response<Incoming>) {
    let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
    record.predicted_cached =
        header("x-kinference-predicted-cached-tokens").and_then(|value| value.trim().parse().ok());
    record.destination = header("x-kinference-destination").map(str::to_owned);
}

fn transport(error: LoadError) -> String {
    match error {
        LoadError::Unreachable { reason, .. } => reason,
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
