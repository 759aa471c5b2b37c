//! `/tokenize` and `/detokenize`.

use std::borrow::Cow;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;

use super::Shared;
use super::error::ApiError;
use super::generate::{encode, render_chat};
use super::options::served;

#[derive(Deserialize)]
struct Tokenize<'a> {
    #[serde(borrow)]
    model: Option<Cow<'a, str>>,
    prompt: Option<String>,
    messages: Option<IgnoredAny>,
    add_special_tokens: Option<bool>,
    return_token_strs: Option<bool>,
}

#[derive(Deserialize)]
struct Detokenize<'a> {
    #[serde(borrow)]
    model: Option<Cow<'a, str>>,
    tokens: Vec<u32>,
}

pub(super) async fn tokenize(State(worker): Shared, body: Bytes) -> Result<Response, ApiError> {
    let request: Tokenize<'_> = serde_json::from_slice(&body).map_err(|error| ApiError::json(&error))?;
    served(worker.config(), request.model.as_deref())?;
    let tokens = match (request.prompt, request.messages) {
        (Some(prompt), None) => encode(&worker, prompt, request.add_special_tokens.unwrap_or(true)).await?,
        (None, Some(_)) => encode(&worker, render_chat(&worker, &body)?, false).await?,
        _ => return Err(ApiError::bad_request("either prompt or messages must be given", None)),
    };
    let text = &worker.model.text;
    let strings = (request.return_token_strs == Some(true))
        .then(|| tokens.iter().map(|token| text.token_str(*token)).collect::<Vec<_>>());
    let max_model_len = worker.config().model_len();
    let body = json!({"count": tokens.len(), "max_model_len": max_model_len, "tokens": tokens, "token_strs": strings});
    Ok(Json(body).into_response())
}

pub(super) async fn detokenize(State(worker): Shared, body: Bytes) -> Result<Response, ApiError> {
    let request: Detokenize<'_> = serde_json::from_slice(&body).map_err(|error| ApiError::json(&error))?;
    served(worker.config(), request.model.as_deref())?;
    let prompt = worker
        .model
        .text
        .decode(&request.tokens)
        .map_err(|error| ApiError::bad_request(format!("cannot decode the tokens: {error}"), Some("tokens")))?;
    Ok(Json(json!({"prompt": prompt})).into_response())
}
