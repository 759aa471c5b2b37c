//! HTTP for people and probes: `/metrics`, `/healthz`, `/readyz`, `/status`, `/snapshot`.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use kinference_api::ObjectKey;
use kinference_protocol::dump;
use tokio::sync::{mpsc, oneshot, watch};

use crate::core::Question;
use crate::eds::Peers;
use crate::metrics::Metrics;
use crate::state::NoSnapshot;
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
    /// Asks the core.
    pub questions: mpsc::Sender<Question>,
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
        .route("/snapshot", get(only_snapshot))
        .route("/snapshot/{namespace}/{name}", get(named_snapshot))
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
    match admin.ask(Question::Status).await {
        Some(mut status) => {
            status.envoys = admin.peers.list();
            status.link.tls = admin.tls.as_ref().map(Tls::status);
            Json(status).into_response()
        }
        None => stopping(),
    }
}

async fn only_snapshot(State(admin): State<Admin>) -> Response {
    snapshot(&admin, None).await
}

async fn named_snapshot(State(admin): State<Admin>, Path((namespace, name)): Path<(String, String)>) -> Response {
    snapshot(&admin, Some(ObjectKey::new(namespace, name))).await
}

/// What filters were told, so that `kinfctl explain` can decide as they do. Prompts stay with whoever asks.
async fn snapshot(admin: &Admin, backend: Option<ObjectKey>) -> Response {
    match admin.ask(|answer| Question::Snapshot { backend, answer }).await {
        Some(Ok(full)) => ([(header::CONTENT_TYPE, dump::MEDIA_TYPE)], dump::join(&full.parts)).into_response(),
        Some(Err(error)) => {
            let status = match &error {
                NoSnapshot::Unknown { .. } => StatusCode::NOT_FOUND,
                NoSnapshot::Several(_) => StatusCode::BAD_REQUEST,
                NoSnapshot::NotYet => StatusCode::SERVICE_UNAVAILABLE,
            };
            (status, format!("{error}\n")).into_response()
        }
        None => stopping(),
    }
}

fn stopping() -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, "the service is shutting down\n").into_response()
}

impl Admin {
    /// The core's answer; none when it has stopped.
    async fn ask<A>(&self, question: impl FnOnce(oneshot::Sender<A>) -> Question) -> Option<A> {
        let (sender, receiver) = oneshot::channel();
        self.questions.send(question(sender)).await.ok()?;
        receiver.await.ok()
    }
}
