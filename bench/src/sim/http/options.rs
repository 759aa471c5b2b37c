//! The fields of a request that the simulator acts on; others are accepted and ignored.

use std::borrow::Cow;

use serde::Deserialize;

use super::error::ApiError;
use crate::sim::config::Config;
use crate::sim::events::Lora;

/// Generation options of chat and completion requests.
#[derive(Debug, Deserialize)]
pub(super) struct Options<'a> {
    #[serde(borrow)]
    pub(super) model: Option<Cow<'a, str>>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    n: Option<u64>,
    #[serde(default)]
    ignore_eos: Option<bool>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    return_token_ids: Option<bool>,
    pub(super) cache_salt: Option<String>,
    vllm_xargs: Option<ExtraArguments>,
    pub(super) prompt: Option<Prompt>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
    continuous_usage_stats: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct ExtraArguments {
    kv_cache_report_mode: Option<String>,
}

/// The prompt of a completion request.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Prompt {
    /// Text to tokenize.
    Text(String),
    /// Tokens as they are.
    Tokens(Vec<u32>),
    /// A batch, of which only a single text is simulated.
    Texts(Vec<String>),
    /// A batch, of which only a single list is simulated.
    TokenLists(Vec<Vec<u32>>),
}

/// How the answer is to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Format {
    pub(super) stream: bool,
    /// Usage in a last chunk of its own.
    pub(super) include_usage: bool,
    /// Usage in every chunk.
    pub(super) continuous_usage: bool,
    /// Token ids beside the text.
    pub(super) token_ids: bool,
}

impl<'a> Options<'a> {
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, ApiError> {
        let options: Self = serde_json::from_slice(body).map_err(|error| ApiError::json(&error))?;
        if options.n.is_some_and(|n| n != 1) {
            return Err(ApiError::bad_request("only n = 1 is simulated", Some("n")));
        }
        if options.stream_options.is_some() && options.stream != Some(true) {
            return Err(ApiError::bad_request(
                "Stream options can only be defined when `stream=True`.",
                Some("stream_options"),
            ));
        }
        if options.cache_salt.as_deref() == Some("") {
            return Err(ApiError::bad_request(
                "Parameter 'cache_salt' must be a non-empty string if provided.",
                Some("cache_salt"),
            ));
        }
        Ok(options)
    }

    /// The greatest length of the answer, when the request states one.
    pub(super) fn max_tokens(&self) -> Result<Option<usize>, ApiError> {
        match self.max_completion_tokens.or(self.max_tokens) {
            None => Ok(None),
            Some(length) if length >= 1 => Ok(usize::try_from(length).ok()),
            Some(length) => {
                Err(ApiError::bad_request(format!("max_tokens must be at least 1, got {length}."), Some("max_tokens")))
            }
        }
    }

    pub(super) fn ignore_end(&self) -> bool {
        self.ignore_eos == Some(true)
    }

    pub(super) fn report_hits(&self) -> bool {
        self.vllm_xargs.as_ref().and_then(|extra| extra.kv_cache_report_mode.as_deref()) == Some("full")
    }

    pub(super) fn format(&self) -> Format {
        let stream = self.stream_options.unwrap_or_default();
        let include_usage = stream.include_usage == Some(true);
        Format {
            stream: self.stream == Some(true),
            include_usage,
            continuous_usage: include_usage && stream.continuous_usage_stats == Some(true),
            token_ids: self.return_token_ids == Some(true),
        }
    }
}

/// The served model of this name, and its adapter if it is one. A request without a name gets the base model, as in vLLM.
pub(super) fn served<'a>(config: &'a Config, name: Option<&str>) -> Result<(&'a str, Option<Lora>), ApiError> {
    let Some(name) = name.filter(|name| *name != config.model) else { return Ok((&config.model, None)) };
    let at =
        config.lora_modules.iter().position(|adapter| adapter == name).ok_or_else(|| ApiError::unknown_model(name))?;
    Ok((&config.lora_modules[at], Some(Lora { id: at as u64 + 1, name: name.to_owned() })))
}
