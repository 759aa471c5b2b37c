//! What a client sees when its request cannot be served.

use kinference_bench::load::Answer;
use serde_json::json;

use crate::common::{alone, ask, chat, instant_workers, send, stack};

fn assert_error(answer: &Answer, status: u16, code: Option<&str>) {
    assert_eq!(answer.status.as_u16(), status, "{}", answer.text());
    let body = answer.json();
    assert!(body["error"]["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
    assert!(body["error"]["type"].is_string(), "{body}");
    if let Some(code) = code {
        assert_eq!(body["error"]["code"], code, "{body}");
    }
    let kind = answer.header("content-type").unwrap_or_default();
    assert!(kind.starts_with("application/json"), "{kind}");
}

#[test]
fn bad_requests_get_errors_of_the_api_and_reach_no_worker() {
    alone(60, async {
        let stack = stack(instant_workers(2)).await;
        let client = stack.client();
        for body in ["{", "", "[]", "null", r#"{"model": 7, "messages": []}"#, "\u{0}\u{1}"] {
            let answer = client.post("/v1/chat/completions", body.to_owned()).await.expect("an answer");
            assert_error(&answer, 400, None);
        }
        let answer = send(&client, &chat("no-such-model", "hello", 4)).await.expect("an answer");
        assert_error(&answer, 404, Some("model_not_found"));

        let body = json!({"model": stack.model(), "messages": [], "padding": "x".repeat(9 << 20)}).to_string();
        let answer = client.post("/v1/chat/completions", body).await.expect("an answer");
        assert_error(&answer, 413, None);

        assert_eq!(crate::common::figures(&stack, "requests").await, [0, 0]);
        // The gateway serves on as if nothing had been.
        ask(&stack, &client, "hello").await;
    });
}
