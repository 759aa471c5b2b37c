//! What the control service takes from a model's tokenizer files: token ids to bytes, and all that the filter needs to
//! know the engine's prompt text (chat template, special tokens, normalization).
//!
//! Events need a byte-level BPE vocabulary, where the bytes of the tokens put together are the text. Of any other kind
//! [`Tokenizer::tokens`] says what is in the way, and the worker set runs in routed mode.

mod bytes;
mod config;
mod vocabulary;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kinference_protocol::v1;
use thiserror::Error;

pub use bytes::{TokenBytes, VocabularyTooLarge};

/// Largest `tokenizer.json` that is read, in bytes; the largest in use are about 40 MB.
const MAX_TOKENIZER_BYTES: u64 = 128 << 20;
/// Largest `tokenizer_config.json` that is read, in bytes.
const MAX_CONFIG_BYTES: u64 = 16 << 20;
/// Largest chat template that is read, in bytes.
const MAX_TEMPLATE_BYTES: u64 = 1 << 20;

/// Why a tokenizer's files cannot be used.
#[derive(Debug, Error)]
pub enum TokenizerError {
    /// A file that must be there is not.
    #[error("{path}: no such file; there must be the model's tokenizer.json (and tokenizer_config.json, chat_template.jinja where the model has them)", path = path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// A file cannot be read.
    #[error("{path}: cannot be read: {source}; check that the control service may read it", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is larger than any tokenizer's.
    #[error("{path}: {bytes} bytes, more than the {limit} that are read; is it the right file?", path = path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A file is not what its name says.
    #[error("{path}: {message}; take the file from the model's repository again", path = path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, with line and column where known.
        message: String,
    },
}

/// What keeps a tokenizer from being used in event mode. Not an error: the worker set runs in routed mode.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the tokenizer has {what}, which cannot be mapped to bytes; prefixes are learned from routing instead")]
pub struct Unsupported {
    /// The part, as the file names it.
    pub what: String,
}

/// A model's tokenizer, as far as routing needs it.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    /// The bytes of each token, or why they do not say what text is cached.
    pub tokens: Result<Arc<TokenBytes>, Unsupported>,
    /// What the tokenizer does to text first.
    pub normalization: v1::Normalization,
    /// The literal text of the special tokens that the engine puts before a completion prompt; "" for none.
    pub completion_prefix: String,
    /// Jinja source of the chat template, if the model has one.
    pub chat_template: Option<String>,
    /// `bos_token`, `eos_token` and the like: literal text by name.
    pub special_tokens: BTreeMap<String, String>,
}

/// The files of a tokenizer that are read, with their largest sizes in bytes.
const FILES: [(&str, u64); 3] = [
    ("tokenizer.json", MAX_TOKENIZER_BYTES),
    ("tokenizer_config.json", MAX_CONFIG_BYTES),
    ("chat_template.jinja", MAX_TEMPLATE_BYTES),
];

impl Tokenizer {
    /// Reads `tokenizer.json`, and where they exist `tokenizer_config.json` and `chat_template.jinja`, from a folder.
    ///
    /// # Errors
    /// See [`TokenizerError`]: a file that is missing, unreadable, too large, or not what it should be.
    pub fn load(folder: &Path) -> Result<Self, TokenizerError> {
        let [tokenizer, config, template] = FILES.map(|(name, limit)| read(&folder.join(name), limit));
        Self::from_texts(folder, tokenizer?, config?, template?)
    }

    /// Takes the same files from memory, by name. `place` is for messages: where they are from.
    ///
    /// # Errors
    /// As [`Tokenizer::load`].
    pub fn from_files(place: &Path, files: &BTreeMap<&str, &[u8]>) -> Result<Self, TokenizerError> {
        let text = |(name, limit): (&str, u64)| {
            let Some(content) = files.get(name) else { return Ok(None) };
            let (path, bytes) = (place.join(name), content.len() as u64);
            if bytes > limit {
                return Err(TokenizerError::TooLarge { path, bytes, limit });
            }
            let text = std::str::from_utf8(content);
            let text = text.map_err(|error| TokenizerError::Invalid { path, message: format!("not text: {error}") })?;
            Ok(Some(text.to_owned()))
        };
        let [tokenizer, config, template] = FILES.map(text);
        Self::from_texts(place, tokenizer?, config?, template?)
    }

    fn from_texts(
        place: &Path,
        tokenizer: Option<String>,
        config: Option<String>,
        template: Option<String>,
    ) -> Result<Self, TokenizerError> {
        let path = place.join("tokenizer.json");
        let text = tokenizer.ok_or_else(|| TokenizerError::Missing { path: path.clone() })?;
        let file: vocabulary::TokenizerFile = parse(&path, &text)?;
        let config: config::ConfigFile = match config {
            Some(text) => parse(&place.join("tokenizer_config.json"), &text)?,
            None => config::ConfigFile::default(),
        };
        let chat_template = template.or_else(|| config.chat_template());

        let (normalization, unsupported) = file.normalization();
        let tokens = match unsupported.or_else(|| file.unsupported()) {
            Some(what) => Err(Unsupported { what }),
            None => match file.token_bytes(&config) {
                Ok(tokens) => Ok(Arc::new(tokens)),
                Err(error) => return Err(TokenizerError::Invalid { path, message: error.to_string() }),
            },
        };
        Ok(Self {
            tokens,
            normalization,
            completion_prefix: config.completion_prefix(file.post_processor.as_ref()),
            chat_template,
            special_tokens: config.special_tokens(),
        })
    }

    /// The chat template in the form that filters get, if the model has one.
    #[must_use]
    pub fn template(&self) -> Option<v1::Template> {
        let source = self.chat_template.clone()?;
        Some(v1::Template { source, special_tokens: self.special_tokens.clone().into_iter().collect() })
    }
}

/// Reads a text file of limited size; `None` when there is none.
fn read(path: &Path, limit: u64) -> Result<Option<String>, TokenizerError> {
    let failed = |source| TokenizerError::Read { path: path.to_owned(), source };
    let bytes = match std::fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    if bytes > limit {
        return Err(TokenizerError::TooLarge { path: path.to_owned(), bytes, limit });
    }
    std::fs::read_to_string(path).map(Some).map_err(failed)
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path, text: &str) -> Result<T, TokenizerError> {
    serde_json::from_str(text)
        .map_err(|error| TokenizerError::Invalid { path: path.to_owned(), message: format!("not valid: {error}") })
}

#[cfg(test)]
mod tests;
