//! Requests that are refused before any routing.

use thiserror::Error;

/// Why a request body is refused. All are the client's fault (status 400).
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RequestError {
    /// The body is empty.
    #[error("the request body is empty; send a JSON object")]
    Empty,
    /// The body is not JSON, or not a JSON object.
    #[error("the request body is not a valid JSON object: {0}")]
    Json(String),
    /// There is no model.
    #[error("the request names no model; set \"model\" to a model's name")]
    NoModel,
    /// The model is not a string.
    #[error("\"model\" must be a non-empty string")]
    ModelType,
}

impl RequestError {
    /// The parameter at fault, as OpenAI's error object names it.
    #[must_use]
    pub fn param(&self) -> Option<&'static str> {
        match self {
            Self::NoModel | Self::ModelType => Some("model"),
            Self::Empty | Self::Json(_) => None,
        }
    }
}
