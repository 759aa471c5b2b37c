//! The fleet's control endpoint: faults, reset, statistics.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use super::error::SimError;
use super::fault::Fault;
use super::fleet::Shared;

/// Serves until its task is aborted.
pub(super) async fn serve(listener: tokio::net::TcpListener, fleet: Arc<Shared>) {
    let router = Router::new()
        .route("/fault", post(fault))
        .route("/reset", post(reset))
        .route("/stats", get(stats))
        .with_state(fleet);
    let _ = axum::serve(listener, router).await;
}

async fn fault(State(fleet): State<Arc<Shared>>, body: Bytes) -> Response {
    match parse(&body) {
        Ok((worker, fault)) => done(fleet.fault(worker, fault).await),
        Err(message) => (StatusCode::BAD_REQUEST, Json(json!({"error": message}))).into_response(),
    }
}

async fn reset(State(fleet): State<Arc<Shared>>) -> Response {
    done(fleet.reset().await)
}

async fn stats(State(fleet): State<Arc<Shared>>) -> Response {
    Json(json!({"workers": fleet.stats().await})).into_response()
}

/// `{"worker": 1, "kind": ...}`
fn parse(body: &[u8]) -> Result<(usize, Fault), String> {
    let mut body: Value = serde_json::from_slice(body).map_err(|error| format!("not JSON: {error}"))?;
    let worker = body
        .as_object_mut()
        .and_then(|body| body.remove("worker"))
        .and_then(|worker| worker.as_u64())
        .ok_or("the body must be an object with the number of a \"worker\" and a fault's \"kind\"")?;
    let fault = serde_json::from_value(body).map_err(|error| format!("not a fault: {error}"))?;
    Ok((worker as usize, fault))
}

fn done(result: Result<(), SimError>) -> Response {
    let status = match result {
        Ok(()) => return Json(json!({"done": true})).into_response(),
        Err(SimError::NoSuchWorker { .. }) => StatusCode::NOT_FOUND,
        Err(SimError::WrongState { .. }) => StatusCode::CONFLICT,
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let message = result.err().map(|error| error.to_string());
    (status, Json(json!({"error": message}))).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_strictly() {
        let parsed = |body: &str| parse(body.as_bytes());
        assert_eq!(parsed(r#"{"worker":1,"kind":"die"}"#).unwrap(), (1, Fault::Die));
        assert_eq!(
            parsed(r#"{"kind":"drop_events","count":3,"worker":0}"#).unwrap(),
            (0, Fault::DropEvents { count: 3, from_replay: false })
        );
        for bad in [
            "",
            "[]",
            r#"{"kind":"die"}"#,
            r#"{"worker":1}"#,
            r#"{"worker":1,"kind":"sulk"}"#,
            r#"{"worker":1,"kind":"drop_events","cuont":3}"#,
        ] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }
}
