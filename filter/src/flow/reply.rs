//! What the filter answers itself, as OpenAI's API would.

use kinference_routing::Rejection;
use kinference_routing::openai::RequestError;
use serde::Serialize;

use super::caller::Unknown;
use crate::gateway::metrics::Metric;
use crate::host::Exchange;

/// Seconds after which a client may try again when nothing is available.
const DEFAULT_RETRY: &str = "1";
/// The header that says so.
const RETRY_AFTER: &str = "retry-after";

/// The debug header that names the rule that decided.
pub(super) const RULE: &str = "x-kinference-rule";

/// Text that may stand in a header.
pub(super) fn visible(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect()
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Vec<u8>,
    /// Counts it, when it is an error.
    pub(super) metric: Option<Metric>,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    error: ErrorObject<'a>,
}

#[derive(Serialize)]
struct ErrorObject<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    param: Option<&'a str>,
    code: Option<&'a str>,
}

#[derive(Serialize)]
struct ModelList<'a> {
    object: &'a str,
    data: Vec<ModelObject<'a>>,
}

#[derive(Serialize)]
struct ModelObject<'a> {
    id: &'a str,
    object: &'a str,
    created: u64,
    owned_by: &'a str,
}

fn json() -> (&'static str, String) {
    ("content-type", "application/json".to_owned())
}

fn error(status: u16, message: &str, param: Option<&str>, code: Option<&str>, metric: Metric) -> Reply {
    let kind = if status >= 500 { "server_error" } else { "invalid_request_error" };
    let body = ErrorBody { error: ErrorObject { message, kind, param, code } };
    let mut headers = vec![json()];
    if matches!(status, 429 | 503) {
        headers.push((RETRY_AFTER, DEFAULT_RETRY.to_owned()));
    }
    Reply { status, headers, body: serde_json::to_vec(&body).unwrap_or_default(), metric: Some(metric) }
}

impl Reply {
    /// The list of models.
    pub(super) fn models<'a>(names: impl Iterator<Item = &'a &'a str>) -> Self {
        let data = names.map(|id| ModelObject { id, object: "model", created: 0, owned_by: "kinference" }).collect();
        let list = ModelList { object: "list", data };
        Self { status: 200, headers: vec![json()], body: serde_json::to_vec(&list).unwrap_or_default(), metric: None }
    }

    pub(super) fn unknown_path() -> Self {
        let message =
            "This gateway serves POST /v1/chat/completions, /v1/completions, /v1/embeddings, and GET /v1/models.";
        error(404, message, None, Some("unknown_url"), Metric::RejectedPath)
    }

    pub(super) fn wrong_method(allowed: &'static str) -> Self {
        let message = format!("This path takes {allowed} requests only.");
        let mut reply = error(405, &message, None, Some("method_not_supported"), Metric::RejectedPath);
        reply.headers.push(("allow", allowed.to_owned()));
        reply
    }

    pub(super) fn too_large(limit: usize) -> Self {
        let message =
            format!("The request body is larger than {limit} bytes, which is the most that this gateway takes.");
        error(413, &message, None, Some("request_too_large"), Metric::RejectedTooLarge)
    }

    pub(super) fn invalid(problem: &RequestError) -> Self {
        let code = if problem.param().is_some() { "missing_model" } else { "invalid_json" };
        error(400, &problem.to_string(), problem.param(), Some(code), Metric::RejectedInvalid)
    }

    pub(super) fn rejected(rejection: &Rejection) -> Self {
        let (param, metric) = match rejection {
            Rejection::UnknownModel(_) => (Some("model"), Metric::RejectedModel),
            Rejection::Forbidden(_) => (Some("model"), Metric::RejectedPolicy),
            Rejection::Rule { .. } => (None, Metric::RejectedPolicy),
            Rejection::NoWorkers(_) => (None, Metric::RejectedUnavailable),
        };
        let mut reply = error(rejection.status(), &rejection.to_string(), param, Some(rejection.code()), metric);
        if let Some(seconds) = rejection.retry_after_s() {
            reply.headers.retain(|(name, _)| *name != RETRY_AFTER);
            reply.headers.push((RETRY_AFTER, seconds.to_string()));
        }
        reply
    }

    /// Says which rule rejects.
    pub(super) fn name_rule(&mut self, rejection: &Rejection) {
        if let Rejection::Rule { rule, .. } = rejection {
            self.headers.push((RULE, visible(rule)));
        }
    }

    pub(crate) fn provider_not_chosen() -> Self {
        let message = "Requests reach this provider only by the gateway's choice.";
        error(503, message, None, Some("provider_not_chosen"), Metric::ProviderRefused)
    }

    pub(crate) fn provider_failed(reason: &str) -> Self {
        let message = format!("The provider that this request was sent to cannot take it: {reason}.");
        error(502, &message, None, Some("provider_failed"), Metric::ProviderRefused)
    }

    /// Answers the request with it, and counts it.
    pub(crate) fn send(&self, host: &dyn Exchange) {
        if let Some(metric) = self.metric {
            host.count(metric, 1);
        }
        let headers: Vec<(&str, &str)> = self.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        host.respond(self.status, &headers, &self.body);
    }

    fn unidentified() -> Self {
        let message = "This gateway cannot tell who sends the request; ask its operators how to identify yourself.";
        error(401, message, None, Some("unidentified"), Metric::RejectedPolicy)
    }

    pub(super) fn unknown(reason: Unknown) -> Self {
        match reason {
            Unknown::Nobody => Self::unidentified(),
            Unknown::Unreadable => {
                let message = "The headers that say who sends the request, or what is in it, cannot be read.";
                error(400, message, None, Some("unreadable_identity"), Metric::RejectedInvalid)
            }
        }
    }

    pub(super) fn undecided() -> Self {
        let message = "The gateway has not learned yet which workers there are; try again later.";
        error(503, message, None, Some("not_ready"), Metric::RejectedUnavailable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(reply: &Reply) -> &str {
        std::str::from_utf8(&reply.body).unwrap()
    }

    #[test]
    fn errors_have_openais_form() {
        let reply = Reply::rejected(&Rejection::UnknownModel("a\"b".into()));
        assert_eq!(reply.status, 404);
        assert_eq!(
            text(&reply),
            r#"{"error":{"message":"The model `a\"b` does not exist or you do not have access to it.","type":"invalid_request_error","param":"model","code":"model_not_found"}}"#
        );
        let reply = Reply::invalid(&RequestError::Empty);
        assert!(text(&reply).ends_with(r#""type":"invalid_request_error","param":null,"code":"invalid_json"}}"#));
    }

    #[test]
    fn what_passes_says_when_to_come_back() {
        for reply in [Reply::undecided(), Reply::rejected(&Rejection::NoWorkers("m".into()))] {
            assert_eq!(reply.status, 503);
            assert!(reply.headers.contains(&("retry-after", "1".to_owned())));
            assert!(text(&reply).contains("server_error"));
        }
        for (stated, told) in [(0, "1"), (60, "60")] {
            let rejection =
                Rejection::Rule { rule: "p/r".into(), status: 429, retry_after_s: stated, message: "Busy.".into() };
            let reply = Reply::rejected(&rejection);
            let told = ("retry-after", told.to_owned());
            assert_eq!(reply.headers.iter().filter(|(name, _)| *name == "retry-after").collect::<Vec<_>>(), [&told]);
        }
    }

    #[test]
    fn models_are_listed() {
        let names = ["a", "b"];
        assert_eq!(
            text(&Reply::models(names.iter())),
            r#"{"object":"list","data":[{"id":"a","object":"model","created":0,"owned_by":"kinference"},{"id":"b","object":"model","created":0,"owned_by":"kinference"}]}"#
        );
    }
}
