//! What the tests share.

use std::pin::pin;
use std::time::Duration;

use kinference_bench::load::{Answer, Client, LoadError};
use kinference_bench::sim::Config;
use kinference_bench::stack::{Balancing, Stack, StackOptions, until};
use serde_json::{Value, json};
use tokio::sync::Mutex;

/// Tokens of a KV-cache block of the simulated workers.
pub(crate) const BLOCK: u64 = 16;
/// Most tokens that end within one chunk of 256 bytes of the test's words.
pub(crate) const CHUNK: u64 = 80;

/// One at a time: each test has two cores' worth of processes.
static SERIAL: Mutex<()> = Mutex::const_new(());

/// Runs a test alone and within a time. Whatever the test started is still there when it panics, so that the ends of its logs are shown.
pub(crate) fn alone(seconds: u64, test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let _serial = SERIAL.lock().await;
        let mut test = pin!(test);
        let ended = tokio::time::timeout(Duration::from_secs(seconds), &mut test).await;
        assert!(ended.is_ok(), "the test took longer than {seconds} s");
    });
}

/// Workers with times of a small, fast engine: a token takes 4 ms or less.
pub(crate) fn workers(count: usize) -> Config {
    Config { workers: count, time_scale: 0.5, ..Config::ephemeral() }
}

/// Workers that take no time.
pub(crate) fn instant_workers(count: usize) -> Config {
    Config { workers: count, time_scale: 0.0, ..Config::ephemeral() }
}

/// A stack with our filter.
pub(crate) async fn stack(sim: Config) -> Stack {
    stack_with(sim, Balancing::Kinference).await
}

/// A stack with any balancing.
pub(crate) async fn stack_with(sim: Config, balancing: Balancing) -> Stack {
    let options = StackOptions { sim, balancing, ..StackOptions::default() };
    match Stack::start(options).await {
        Ok(stack) => stack,
        Err(error) => panic!("{error}"),
    }
}

/// A long prompt of its own for each number: about `tokens` tokens.
pub(crate) fn prompt(number: u64, tokens: usize) -> String {
    let mut random = kinference_bench::load::Random::new(number, 1);
    format!("Document {number}: {}", kinference_bench::load::words(&mut random, tokens))
}

/// A chat request that is not streamed.
pub(crate) fn chat(model: &str, prompt: &str, max_tokens: usize) -> Value {
    json!({
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "ignore_eos": true,
    })
}

/// An answer with what the gateway's debug headers and the engine say of it.
#[derive(Debug)]
pub(crate) struct Reply {
    /// Tokens that the filter predicted to be cached.
    pub(crate) predicted: u64,
    /// Tokens that the engine found cached.
    pub(crate) cached: u64,
    /// Tokens of the prompt.
    pub(crate) prompt: u64,
    /// The worker, "namespace/set/worker" or the like.
    pub(crate) destination: String,
    /// The snapshot's epoch, which all filters of a control service share at rest.
    pub(crate) epoch: u64,
}

impl Reply {
    pub(crate) fn of(answer: &Answer) -> Self {
        assert!(answer.status.is_success(), "HTTP {}: {}", answer.status, answer.text());
        let header = |name: &str| match answer.header(name) {
            Some(value) => value.to_owned(),
            None => panic!("no header {name} in {:?}", answer.headers),
        };
        let usage = answer.json()["usage"].clone();
        Self {
            predicted: header("x-kinference-predicted-cached-tokens").parse().expect("a number of tokens"),
            cached: usage["prompt_tokens_details"]["cached_tokens"].as_u64().expect("cached_tokens"),
            prompt: usage["prompt_tokens"].as_u64().expect("prompt_tokens"),
            destination: header("x-kinference-destination"),
            // "epoch:sequence"; the sequence moves all the time.
            epoch: header("x-kinference-epoch")
                .split(':')
                .next()
                .and_then(|epoch| epoch.parse().ok())
                .expect("an epoch"),
        }
    }

    /// Fails when the prediction is off by more than is allowed: a block above, a chunk and a block below.
    pub(crate) fn assert_predicted(&self) {
        assert!(self.predicted <= self.cached + BLOCK, "claims what the worker does not have: {self:?}");
        assert!(self.predicted + CHUNK + BLOCK >= self.cached, "knows less than it should: {self:?}");
    }
}

/// Sends a chat request through the gateway and reads what is said of it.
pub(crate) async fn ask(stack: &Stack, client: &Client, prompt: &str) -> Reply {
    Reply::of(&send(client, &chat(stack.model(), prompt, 4)).await.expect("an answer"))
}

/// Sends a chat request.
pub(crate) async fn send(client: &Client, body: &Value) -> Result<Answer, LoadError> {
    client.post("/v1/chat/completions", body.to_string()).await
}

/// Waits until every filter holds exactly the chunks that the control service knows of, and these are at least `least`.
pub(crate) async fn indexes_agree(stack: &Stack, least: u64) {
    let agreed = until("equal prefix indexes", Duration::from_secs(10), async || {
        let status = stack.status().await.map_err(|error| error.to_string())?;
        let chunks = status["backends"]["default/main"]["prefixIndex"]["chunks"].as_u64().unwrap_or_default();
        let filters = status["filters"].as_array().cloned().unwrap_or_default();
        let held: Vec<_> = filters.iter().map(|filter| filter["indexChunks"].as_u64().unwrap_or_default()).collect();
        let equal = held.len() >= 2 && held.iter().all(|held| *held == chunks);
        if equal && chunks >= least { Ok(()) } else { Err(format!("{chunks} chunks (of {least}), filters {held:?}")) }
    });
    if let Err(error) = agreed.await {
        panic!("{error}");
    }
}

/// The index of a worker by its destination header.
pub(crate) fn worker_of(destination: &str) -> usize {
    let digits = destination.rsplit('w').next().unwrap_or_default();
    digits.parse().unwrap_or_else(|_| panic!("{destination:?} names no worker of the stack"))
}

/// A figure of every worker.
pub(crate) async fn figures(stack: &Stack, name: &str) -> Vec<u64> {
    let stats = stack.worker_stats().await.expect("statistics");
    stats.iter().map(|worker| worker[name].as_u64().unwrap_or_default()).collect()
}
