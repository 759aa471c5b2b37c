//! The HTTP interface of one worker, as vLLM's API server offers it.

mod answer;
mod error;
mod fault;
mod generate;
mod options;
mod stream;
mod tokens;

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use axum::{Json, Router};
use serde_json::json;

use super::metrics;
use super::worker::Worker;
use error::ApiError;

/// Largest request body that is read.
const MAX_BODY: usize = 256 << 20;

type Shared = State<Arc<Worker>>;

/// Serves until the runtime ends.
pub(super) async fn serve(listener: tokio::net::TcpListener, worker: Arc<Worker>) {
    let listener = listener.tap_io(|connection| {
        // Streams are written a token at a time.
        let _ = connection.set_nodelay(true);
    });
    let router = router(worker);
    // Ends only with the runtime: accept errors are retried inside.
    let _ = axum::serve(listener, router).await;
}

fn router(worker: Arc<Worker>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(generate::chat))
        .route("/v1/completions", post(generate::completion))
        .route("/v1/models", get(models))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/health", get(|| async { StatusCode::OK }))
        .route("/ping", get(|| async { StatusCode::OK }))
        .route("/version", get(|| async { Json(json!({"version": "0.32.0"})) }))
        .route("/load", get(load))
        .route("/is_sleeping", get(|| async { Json(json!({"is_sleeping": false})) }))
        .route("/kv_event_sources", get(event_sources))
        .route("/reset_prefix_cache", post(reset_prefix_cache))
        .route("/metrics", get(metrics_page))
        .layer(middleware::from_fn_with_state(worker.clone(), while_responsive))
        // Must work while everything else hangs.
        .route("/sim/fault", post(fault::switch))
        .fallback(|| async { ApiError::not_found("Not Found", None) })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(worker)
}

async fn while_responsive(State(worker): Shared, request: Request, next: Next) -> Response {
    worker.responsive().await;
    next.run(request).await
}

async fn models(State(worker): Shared) -> Response {
    let config = worker.config();
    let root = config
        .tokenizer
        .as_ref()
        .map_or_else(|| format!("/models/{}", config.model), |folder| folder.display().to_string());
    let entry = |id: &str, root: &str, parent: Option<&str>| {
        json!({
            "id": id, "object": "model", "created": worker.created, "owned_by": "vllm", "root": root, "parent": parent,
            "max_model_len": parent.is_none().then(|| config.model_len()),
            "permission": [{
                "id": "modelperm-0000000000000000", "object": "model_permission", "created": worker.created,
                "allow_create_engine": false, "allow_sampling": true, "allow_logprobs": true, "allow_search_indices": false,
                "allow_view": true, "allow_fine_tuning": false, "organization": "*", "group": null, "is_blocking": false
            }]
        })
    };
    let base = entry(&config.model, &root, None);
    let adapters =
        config.lora_modules.iter().map(|name| entry(name, &format!("/adapters/{name}"), Some(&config.model)));
    let data: Vec<_> = [base].into_iter().chain(adapters).collect();
    Json(json!({"object": "list", "data": data})).into_response()
}

async fn load(State(worker): Shared) -> Response {
    let gauges = worker.engine().gauges();
    Json(json!({"server_load": gauges.running + gauges.waiting})).into_response()
}

async fn event_sources(State(worker): Shared) -> Response {
    let config = worker.config();
    if !config.kv_events {
        return Json(json!({})).into_response();
    }
    Json(json!({"0": {
        "enable_kv_cache_events": true,
        "publisher": "zmq",
        "endpoint": format!("tcp://*:{}", worker.addresses.kv.port()),
        "replay_endpoint": format!("tcp://*:{}", worker.addresses.replay.port()),
        "buffer_steps": config.replay_buffer,
        "hwm": 100_000,
        "max_queue_size": 100_000,
        "topic": config.event_topic(),
    }}))
    .into_response()
}

async fn reset_prefix_cache(State(worker): Shared) -> Response {
    let success = worker.engine().reset_cache();
    Json(json!({"success": success})).into_response()
}

async fn metrics_page(State(worker): Shared) -> Response {
    let (counters, gauges) = {
        let engine = worker.engine();
        (engine.metrics().clone(), engine.gauges())
    };
    let page = metrics::render(worker.config(), &counters, gauges);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response()
}

/// The load report that a client asks for with `endpoint-load-metrics-format`, for its response's header.
fn load_report(worker: &Worker, headers: &HeaderMap) -> Option<(HeaderName, HeaderValue)> {
    let format = headers.get("endpoint-load-metrics-format")?;
    let gauges = worker.engine().gauges();
    let (waiting, usage) = (gauges.waiting as f64, gauges.cache_usage);
    let report = if format.as_bytes().eq_ignore_ascii_case(b"TEXT") {
        format!("TEXT named_metrics.num_requests_waiting={waiting:?}, named_metrics.kv_cache_usage_perc={usage:?}")
    } else if format.as_bytes().eq_ignore_ascii_case(b"JSON") {
        let metrics = json!({"named_metrics": {"num_requests_waiting": waiting, "kv_cache_usage_perc": usage}});
        format!("JSON {metrics}")
    } else {
        return None;
    };
    Some((HeaderName::from_static("endpoint-load-metrics"), HeaderValue::from_str(&report).ok()?))
}

#[cfg(test)]
mod tests;
