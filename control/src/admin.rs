//! HTTP for people and probes: `/metrics`, `/healthz`, `/readyz`, `/status`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use tokio::sync::{mpsc, oneshot, watch};

use crate::eds::Peers;
use crate::metrics::Metrics;
use crate::state::Status;
use crate::tls::Tls;

/// `None` once ready; until then the reason why not.
pub type Readiness = Option<String>;

/// What the pages are made from.
#[derive(Debug, Clone)]
pub struct Admin {
    /// All metrics.
    pub metrics: Arc<Metrics>,
    /// Whether a configuration is in force.
    pub readiness: watch::Receiver<Readiness>,
    /// Asks the core for its status.
    pub status: mpsc::Sender<oneshot::Sender<Status>>,
    /// Connected Envoys.
    pub peers: Arc<Peers>,
    /// TLS of the gRPC port, where there is any.
    pub tls: Option<Tls>,
}

/// The pages.
pub fn router(admin: Admin) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/status", get(status))
        .with_state(admin)
}

async fn metrics(State(admin): State<Admin>) -> Response {
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, content_type)], admin.metrics.text()).into_response()
}

async fn ready(State(admin): State<Admin>) -> Response {
    match admin.readiness.borrow().as_ref() {
        None => "ok\n".into_response(),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")).into_response(),
    }
}

async fn status(State(admin): State<Admin>) -> Response {
    let (sender, receiver) = oneshot::channel();
    let asked = admin.status.send(sender).await;
    match receiver.await {
        Ok(mut status) if asked.is_ok() => {
            status.envoys = admin.peers.list();
            status.link.tls = admin.tls.as_ref().map(Tls::status);
            Json(status).into_response()
        }
        _ => (StatusCode::SERVICE_UNAVAILABLE, "the service is shutting down\n").into_response(),
    }
}
