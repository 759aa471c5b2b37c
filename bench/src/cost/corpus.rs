//! Prompts of known tokens: what a prompt is in text and what an engine would have in its cache for it, made from the same
//! seed by the client and by the worker, so that nobody has to tokenize while the clock runs.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::error::CostError;
use crate::load::{Client, Random, words};

/// Families of prompts with a common prefix.
pub(super) const FAMILIES: u64 = 16;
/// Share of a prompt that its family has in common, in percent.
const SHARED_PERCENT: usize = 90;

/// A prompt. The same values give the same text and the same tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Prompt {
    /// Length of what the user says, in bytes, to within a word.
    pub(super) bytes: usize,
    /// 0 to [`FAMILIES`] - 1.
    pub(super) family: u64,
    /// Makes what follows the prefix its own.
    pub(super) number: u64,
}

/// A piece of text with its tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Piece {
    /// Lower-case words with a space before each: fit for JSON as it is.
    pub(super) text: String,
    pub(super) tokens: Vec<u32>,
}

/// Words that are one token each wherever they stand, and the tokens that the chat template puts around a message.
#[derive(Debug)]
pub(super) struct Corpus {
    model: String,
    words: Vec<(String, u32)>,
    head: Vec<u32>,
    foot: Vec<u32>,
    prefixes: BTreeMap<(usize, u64), Piece>,
}

impl Corpus {
    /// Learns the words and the template from an engine's `/tokenize`, and makes the prefixes for prompts of these sizes.
    ///
    /// # Errors
    /// The engine does not answer, or its tokens of a whole prompt are not the ones put together here.
    pub(super) async fn new(engine: &Client, model: &str, sizes: &[usize]) -> Result<Self, CostError> {
        let mut list = Vec::new();
        let distinct: BTreeSet<String> = words(&mut Random::new(1, 1), 5000).split(' ').map(str::to_owned).collect();
        for word in distinct {
            let text = format!(" {word}");
            if let [token] =
                *tokenize(engine, json!({"model": model, "prompt": text, "add_special_tokens": false})).await?
            {
                list.push((text, token));
            }
        }
        let [(first, token), (second, _), ..] = &*list else {
            return Err(CostError::Unexpected("the tokenizer has no words that are one token each".into()));
        };
        let (one, other) = (chat(engine, model, first).await?, chat(engine, model, second).await?);
        let at = one
            .iter()
            .zip(&other)
            .position(|(a, b)| a != b)
            .filter(|at| one[*at] == *token && one.len() == other.len());
        let at = at.ok_or_else(|| CostError::Unexpected("a word in a message is not one token".into()))?;
        let (head, foot) = (one[..at].to_vec(), one[at + 1..].to_vec());
        let mut corpus = Self { model: model.to_owned(), words: list, head, foot, prefixes: BTreeMap::new() };
        for (bytes, family) in sizes.iter().flat_map(|bytes| (0..FAMILIES).map(move |family| (*bytes, family))) {
            let prefix = corpus.piece(seed(bytes, family, 0), bytes * SHARED_PERCENT / 100);
            corpus.prefixes.insert((bytes, family), prefix);
        }
        for bytes in sizes {
            let prompt = Prompt { bytes: *bytes, family: 1, number: 1 };
            if chat(engine, model, &corpus.text(prompt)).await? != corpus.tokens(prompt) {
                return Err(CostError::Unexpected(format!(
                    "a prompt of {bytes} bytes has other tokens than its words"
                )));
            }
        }
        Ok(corpus)
    }

    /// Random words of about this many bytes.
    pub(super) fn piece(&self, seed: u64, bytes: usize) -> Piece {
        let mut random = Random::new(seed, 2);
        let mut piece = Piece { text: String::with_capacity(bytes + 16), tokens: Vec::with_capacity(bytes / 5 + 4) };
        while piece.text.len() < bytes {
            let (word, token) = &self.words[random.below(self.words.len())];
            piece.text.push_str(word);
            piece.tokens.push(*token);
        }
        piece
    }

    fn prefix(&self, prompt: Prompt) -> &Piece {
        static NONE: Piece = Piece { text: String::new(), tokens: Vec::new() };
        self.prefixes.get(&(prompt.bytes, prompt.family)).unwrap_or(&NONE)
    }

    fn tail(&self, prompt: Prompt, prefix: &Piece) -> Piece {
        self.piece(seed(prompt.bytes, prompt.family, prompt.number + 1), prompt.bytes.saturating_sub(prefix.text.len()))
    }

    /// What the user says.
    pub(super) fn text(&self, prompt: Prompt) -> String {
        let prefix = self.prefix(prompt);
        let tail = self.tail(prompt, prefix);
        [prefix.text.as_str(), &tail.text].concat()
    }

    /// All tokens, those of the template included.
    pub(super) fn tokens(&self, prompt: Prompt) -> Vec<u32> {
        let prefix = self.prefix(prompt);
        let tail = self.tail(prompt, prefix);
        [&*self.head, &*prefix.tokens, &*tail.tokens, &*self.foot].concat()
    }

    /// Tokens that are the same in all prompts of the family.
    pub(super) fn shared_tokens(&self, prompt: Prompt) -> usize {
        self.head.len() + self.prefix(prompt).tokens.len()
    }

    /// All tokens of a message that is this piece.
    pub(super) fn message(&self, piece: &Piece) -> Vec<u32> {
        [&*self.head, &*piece.tokens, &*self.foot].concat()
    }

    /// The request for this text, streamed.
    pub(super) fn body(&self, text: &str, usage: bool) -> String {
        let options = if usage { r#","stream_options":{"include_usage":true}"# } else { "" };
        let model = &self.model;
        format!(
            r#"{{"model":"{model}","messages":[{{"role":"user","content":"{text}"}}],"max_tokens":8,"stream":true{options}}}"#
        )
    }
}

/// Sizes, families and numbers of prompts are small: they do not meet.
fn seed(bytes: usize, family: u64, number: u64) -> u64 {
    (bytes as u64) << 40 ^ family << 34 ^ number
}

async fn chat(engine: &Client, model: &str, text: &str) -> Result<Vec<u32>, CostError> {
    tokenize(engine, json!({"model": model, "messages": [{"role": "user", "content": text}]})).await
}

async fn tokenize(engine: &Client, request: Value) -> Result<Vec<u32>, CostError> {
    #[derive(Deserialize)]
    struct Tokens {
        tokens: Vec<u32>,
    }
    let answer = engine.post("/tokenize", request.to_string()).await?;
    let tokens: Result<Tokens, _> = serde_json::from_slice(&answer.body);
    let refused = |_| CostError::Unexpected(format!("/tokenize answered HTTP {}", answer.status.as_u16()));
    tokens.map(|tokens| tokens.tokens).map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Config, Fleet};

    #[tokio::test]
    async fn prompts_share_their_familys_prefix_and_have_the_tokens_of_the_tokenizer() {
        let fleet = Fleet::start(Config { workers: 1, kv_events: false, ..Config::ephemeral() }).await.unwrap();
        // Creation compares whole prompts with the tokenizer.
        let corpus = Corpus::new(&Client::of(fleet.workers()[0].http), "tiny", &[1000, 4096]).await.unwrap();
        let prompt = |family, number| Prompt { bytes: 4096, family, number };
        let (a, b, c) = (corpus.tokens(prompt(0, 1)), corpus.tokens(prompt(0, 2)), corpus.tokens(prompt(1, 1)));
        let common = |a: &[u32], b: &[u32]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
        let shared = corpus.shared_tokens(prompt(0, 1));
        assert!((shared..shared + 3).contains(&common(&a, &b)), "{} of {shared}", common(&a, &b));
        assert!(common(&a, &c) < 20);
        assert_eq!(corpus.tokens(prompt(0, 1)), a);
        let text = corpus.text(prompt(3, 7));
        assert!((4096..4116).contains(&text.len()));
        let body: Value = serde_json::from_str(&corpus.body(&text, true)).unwrap();
        assert_eq!(body["messages"][0]["content"], text);
        assert_eq!(body["stream_options"]["include_usage"], true);
        fleet.stop().await;
    }
}
