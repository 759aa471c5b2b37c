//! `POST /sim/fault`: the switches of one worker, on its own port.

use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::Shared;
use super::error::ApiError;
use crate::sim::fault::Fault;

/// Time for the answer to leave before the worker, and with it the connection, goes.
const LAST_WORDS: Duration = Duration::from_millis(20);

pub(super) async fn switch(State(worker): Shared, body: Bytes) -> Result<Response, ApiError> {
    let fault: Fault = serde_json::from_slice(&body)
        .map_err(|error| ApiError::bad_request(format!("not a fault: {error}"), Some("kind")))?;
    if worker.switch(&fault) {
        return Ok(Json(json!({"done": true})).into_response());
    }
    let fleet = worker.fleet.clone();
    let index = worker.index;
    tokio::spawn(async move {
        tokio::time::sleep(LAST_WORDS).await;
        // Nobody listens any more only when the fleet is being stopped.
        let _ = fleet.send((index, fault));
    });
    Ok((StatusCode::ACCEPTED, Json(json!({"done": false}))).into_response())
}
