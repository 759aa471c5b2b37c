//! Requests, and what is said of their answers.

use kinference_bench::load::{Answer, Client, LoadError};
use serde_json::{Value, json};

/// Tokens of a KV-cache block of the simulated workers.
pub const BLOCK: u64 = 16;
/// Most tokens that end within one chunk of 256 bytes of the test's words.
pub const CHUNK: u64 = 80;

/// A long prompt of its own for each number: about `tokens` tokens.
pub fn prompt(number: u64, tokens: usize) -> String {
    let mut random = kinference_bench::load::Random::new(number, 1);
    format!("Document {number}: {}", kinference_bench::load::words(&mut random, tokens))
}

/// A chat request that is not streamed.
pub fn chat(model: &str, prompt: &str, max_tokens: usize) -> Value {
    json!({
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "ignore_eos": true,
    })
}

/// Sends a chat request.
///
/// # Errors
/// No answer.
pub async fn send(client: &Client, body: &Value) -> Result<Answer, LoadError> {
    client.post("/v1/chat/completions", body.to_string()).await
}

/// An answer with what the gateway's debug headers and the engine say of it.
#[derive(Debug)]
pub struct Reply {
    /// Tokens that the filter predicted to be cached.
    pub predicted: u64,
    /// Tokens that the engine found cached.
    pub cached: u64,
    /// Tokens of the prompt.
    pub prompt: u64,
    /// The worker, "namespace/set/worker" or the like.
    pub destination: String,
    /// The snapshot's epoch, which all filters of a control service share at rest.
    pub epoch: u64,
}

impl Reply {
    /// Of an answer to a request that is not streamed.
    ///
    /// # Panics
    /// The answer is no success, or the gateway says nothing of it.
    pub fn of(answer: &Answer) -> Self {
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
    ///
    /// # Panics
    /// It is off by more.
    pub fn assert_predicted(&self) {
        assert!(self.predicted <= self.cached + BLOCK, "claims what the worker does not have: {self:?}");
        assert!(self.predicted + CHUNK + BLOCK >= self.cached, "knows less than it should: {self:?}");
    }
}
