//! Errors in vLLM's form.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// An error answer. Messages never quote the prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<&'static str>,
}

impl ApiError {
    pub(super) fn bad_request(message: impl Into<String>, param: Option<&'static str>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, kind: "BadRequestError", message: message.into(), param }
    }

    pub(super) fn not_found(message: impl Into<String>, param: Option<&'static str>) -> Self {
        Self { status: StatusCode::NOT_FOUND, kind: "NotFoundError", message: message.into(), param }
    }

    pub(super) fn unknown_model(model: &str) -> Self {
        Self::not_found(format!("The model `{model}` does not exist."), Some("model"))
    }

    pub(super) fn json(error: &serde_json::Error) -> Self {
        let what = match error.classify() {
            serde_json::error::Category::Data => "a field has a wrong type or is missing",
            _ => "the body is not valid JSON",
        };
        Self::bad_request(format!("{what} at line {} column {}", error.line(), error.column()), None)
    }

    /// The prompt alone fills the context or more. `at_least` is where counting stopped, as the engine stops one past its limit.
    pub(super) fn prompt_too_long(max_model_len: usize, at_least: usize) -> Self {
        Self::bad_request(
            format!(
                "This model's maximum context length is {max_model_len} tokens. However, your prompt contains at least {at_least} input \
                 tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. \
                 (parameter=input_tokens, value={at_least})"
            ),
            Some("input_tokens"),
        )
    }

    pub(super) fn answer_too_long(max_model_len: usize, prompt: usize, max_tokens: usize) -> Self {
        Self::bad_request(
            format!(
                "'max_tokens' or 'max_completion_tokens' is too large: {max_tokens}. This model's maximum context length is \
                 {max_model_len} tokens and your request has {prompt} input tokens ({max_tokens} > {max_model_len} - {prompt}). \
                 (parameter=max_tokens, value={max_tokens})"
            ),
            Some("max_tokens"),
        )
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = json!({"error": {
            "message": self.message, "type": self.kind, "param": self.param, "code": self.status.as_u16(),
        }});
        (self.status, Json(body)).into_response()
    }
}
