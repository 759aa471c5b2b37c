//! Chat and text completions: from a request body to the engine, and its answer to the client.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use kinference_routing::openai::{Endpoint, Prompt as RoutedPrompt, parse};

use super::answer::{Api, Head, write_full};
use super::error::ApiError;
use super::options::{Options, Prompt, served};
use super::stream::Events;
use super::{Shared, load_report};
use crate::sim::engine::NewRequest;
use crate::sim::progress::Progress;
use crate::sim::worker::{Worker, random, unix_time};

/// A text at least this long is tokenized on another thread, so that it does not delay other requests' tokens.
const LONG_TEXT: usize = 64 * 1024;

pub(super) async fn chat(State(worker): Shared, headers: HeaderMap, body: Bytes) -> Result<Response, ApiError> {
    generate(worker, Api::Chat, headers, body).await
}

pub(super) async fn completion(State(worker): Shared, headers: HeaderMap, body: Bytes) -> Result<Response, ApiError> {
    generate(worker, Api::Completion, headers, body).await
}

async fn generate(worker: Arc<Worker>, api: Api, headers: HeaderMap, body: Bytes) -> Result<Response, ApiError> {
    check_rank(&headers)?;
    let mut options = Options::parse(&body)?;
    let config = worker.config();
    let (model, lora) = served(config, options.model.as_deref())?;
    let prompt = match api {
        Api::Chat => encode(&worker, render_chat(&worker, &body)?, false).await?,
        Api::Completion => match options.prompt.take() {
            Some(Prompt::Text(text)) => encode(&worker, text, true).await?,
            Some(Prompt::Tokens(tokens)) => tokens,
            Some(Prompt::Texts(mut texts)) if texts.len() == 1 => encode(&worker, texts.remove(0), true).await?,
            Some(Prompt::TokenLists(mut lists)) if lists.len() == 1 => lists.remove(0),
            Some(_) => return Err(ApiError::bad_request("only one prompt per request is simulated", Some("prompt"))),
            None => {
                return Err(ApiError::bad_request(
                    "Either prompt or prompt_embeds must be provided and non-empty.",
                    Some("prompt"),
                ));
            }
        },
    };
    let limit = answer_limit(config.model_len(), prompt.len(), options.max_tokens()?)?;
    let answer = worker.model.text.answer(&prompt, config.answer_tokens, limit, options.ignore_end());
    let format = options.format();
    let (prompt, tokens): (Arc<[u32]>, Arc<[u32]>) = (prompt.into(), answer.tokens.into());

    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let head = Head {
        api,
        id: header("x-request-id").unwrap_or_else(|| format!("{:016x}", random())),
        created: unix_time().as_secs(),
        model: model.to_owned(),
        format,
        block_size: config.block_size,
        prompt_details: config.prompt_tokens_details,
        prompt: prompt.clone(),
        answer: tokens.clone(),
    };
    let report = load_report(&worker, &headers);
    let ticket = worker.submit(NewRequest {
        id: 0,
        prompt,
        answer: tokens,
        finish: answer.finish,
        lora,
        salt: options.cache_salt.take(),
        session: header("x-session-id"),
        report_hits: options.report_hits(),
        progress: Arc::new(Progress::default()),
    });

    let mut response = if format.stream {
        let mut response = Response::new(Body::new(Events::new(worker, head, ticket)));
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
        response
    } else {
        let seen = ticket.progress.finished().await;
        worker.responsive().await;
        let full = write_full(&head, &worker.model.text, seen, ticket.progress.cached());
        let mut response = Response::new(Body::from(full));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    };
    response.headers_mut().extend(report);
    Ok(response)
}

/// Every worker has a single data-parallel rank.
fn check_rank(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(rank) = headers.get("x-data-parallel-rank") else { return Ok(()) };
    match rank.to_str().ok().and_then(|rank| rank.trim().parse::<i64>().ok()) {
        Some(0) => Ok(()),
        Some(rank) => Err(ApiError::bad_request(format!("data_parallel_rank {rank} is out of range [0, 1)."), None)),
        // Not a number: ignored, as in vLLM.
        None => Ok(()),
    }
}

/// How many tokens the answer may have.
fn answer_limit(model_len: usize, prompt: usize, max_tokens: Option<usize>) -> Result<usize, ApiError> {
    match (model_len.saturating_sub(prompt), max_tokens) {
        _ if prompt == 0 => Err(ApiError::bad_request("The decoder prompt cannot be empty", Some("prompt"))),
        (0, _) => Err(ApiError::prompt_too_long(model_len, prompt.min(model_len + 1))),
        (room, Some(wanted)) if wanted > room => Err(ApiError::answer_too_long(model_len, prompt, wanted)),
        (room, wanted) => Ok(wanted.unwrap_or(room)),
    }
}

/// The text that the model's template makes of a chat request.
pub(super) fn render_chat(worker: &Worker, body: &[u8]) -> Result<String, ApiError> {
    let Some(template) = &worker.model.template else {
        return Err(ApiError::bad_request(
            "the tokenizer has no chat template; use /v1/completions or another tokenizer",
            None,
        ));
    };
    let request =
        parse(Endpoint::ChatCompletions, body).map_err(|error| ApiError::bad_request(error.to_string(), None))?;
    let RoutedPrompt::Chat(chat) = &request.prompt else {
        return Err(ApiError::bad_request("Field required", Some("messages")));
    };
    template
        .render(chat, unix_time().as_secs())
        .map_err(|error| ApiError::bad_request(format!("cannot render the messages: {error}"), Some("messages")))
}

/// Tokens of a prompt.
pub(super) async fn encode(worker: &Worker, text: String, add_special: bool) -> Result<Vec<u32>, ApiError> {
    let encoded = if text.len() < LONG_TEXT {
        worker.model.text.encode(&text, add_special)
    } else {
        let model = worker.model.clone();
        tokio::task::spawn_blocking(move || model.text.encode(&text, add_special))
            .await
            .unwrap_or_else(|error| Err(error.to_string()))
    };
    encoded.map_err(|error| ApiError::bad_request(format!("cannot tokenize the prompt: {error}"), Some("prompt")))
}
