//! The HTTP interface against what a real engine answered.

use serde_json::{Value, json};

use crate::sim::testing::{HTTP, Http, Reply, captured, captured_config, chat, fleet};
use crate::sim::{Config, Fleet};

const CHAT: &str = "/v1/chat/completions";

/// Replaces what differs from run to run: ids, times, and what the model says.
fn blank(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match name.as_str() {
                    "id" | "created" | "content" | "text" | "system_fingerprint" if !value.is_null() => {
                        *value = json!("...")
                    }
                    "token_ids" if value.is_array() => *value = json!(["..."]),
                    _ => blank(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(blank),
        _ => {}
    }
}

fn blanked(mut value: Value) -> String {
    blank(&mut value);
    // As text, so that the order of fields counts.
    value.to_string()
}

async fn replay(http: &Http, fleet: &Fleet, entry: &Value) -> Reply {
    let addr = fleet.workers()[0].http;
    let headers: Vec<(String, String)> =
        serde_json::from_value::<Option<std::collections::BTreeMap<String, String>>>(entry["req_headers"].clone())
            .unwrap()
            .into_iter()
            .flatten()
            .collect();
    let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let body = if entry["req"].is_null() { String::new() } else { entry["req"].to_string() };
    http.send(entry["method"].as_str().unwrap().parse().unwrap(), addr, entry["path"].as_str().unwrap(), &headers, body)
        .await
}

#[tokio::test]
async fn every_captured_request_gets_the_captured_answer() {
    let fleet = fleet(captured_config()).await;
    let http = Http::new();
    let simulated = [
        "/v1/models",
        "/version",
        "/kv_event_sources",
        "/is_sleeping",
        "/load",
        CHAT,
        "/v1/completions",
        "/tokenize",
        "/detokenize",
        "/reset_prefix_cache",
    ];
    let mut compared = 0;
    for line in HTTP.lines() {
        let entry: Value = serde_json::from_str(line).unwrap();
        let (name, path) = (entry["name"].as_str().unwrap(), entry["path"].as_str().unwrap());
        if !simulated.contains(&path) {
            continue;
        }
        let reply = replay(&http, &fleet, &entry).await;
        let (expected, status) = (entry["resp"].as_str().unwrap(), entry["status"].as_u64().unwrap());
        assert_eq!(u64::from(reply.status.as_u16()), status, "{name}: {}", reply.body);
        assert_eq!(reply.headers["content-type"], entry["headers"]["content-type"].as_str().unwrap(), "{name}");
        let report = reply.headers.get("endpoint-load-metrics").map(|report| report.to_str().unwrap());
        assert_eq!(report, entry["headers"]["endpoint-load-metrics"].as_str(), "{name}");
        let pairs: Vec<(String, String)> = if name == "stream" {
            let expected = Reply { body: expected.to_owned(), ..reply_of(&reply) };
            assert_eq!(reply.events().len(), expected.events().len());
            std::iter::zip(reply.events(), expected.events())
                .map(|(ours, theirs)| (blanked(ours), blanked(theirs)))
                .collect()
        } else {
            vec![(blanked(reply.json()), blanked(serde_json::from_str(expected).unwrap()))]
        };
        for (ours, theirs) in pairs {
            match name {
                // Ports, and the permission's number.
                "kvsrc" => {
                    let ports = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
                    assert_eq!(ports(&ours), ports(&theirs));
                }
                _ => assert_eq!(ours, theirs, "{name}"),
            }
        }
        compared += 1;
    }
    assert_eq!(compared, 26);
    fleet.stop().await;
}

fn reply_of(reply: &Reply) -> Reply {
    Reply { status: reply.status, headers: reply.headers.clone(), body: String::new() }
}

#[tokio::test]
async fn the_next_turn_hits_prompt_and_answer() {
    let fleet = fleet(Config { block_size: 4, num_blocks: 200, ..captured_config() }).await;
    let (http, addr) = (Http::new(), fleet.workers()[0].http);
    let mut body = chat("What is a block?", 13);
    let first = http.post(addr, CHAT, &body).await.json();
    let answer = first["choices"][0]["message"].clone();
    for message in [answer, json!({"role": "user", "content": "And a prefix?"})] {
        body["messages"].as_array_mut().unwrap().push(json!({"role": message["role"], "content": message["content"]}));
    }
    let second = http.post(addr, CHAT, &body).await.json();
    // All but the answer's last token has been computed; the rest is whole blocks.
    let computed = first["usage"]["total_tokens"].as_u64().unwrap() - 1;
    assert_eq!(second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64(), Some(computed / 4 * 4));
    fleet.stop().await;
}

#[tokio::test]
async fn streams_say_what_whole_answers_say() {
    let fleet = fleet(captured_config()).await;
    let (http, addr) = (Http::new(), fleet.workers()[0].http);
    for (path, mut body) in
        [(CHAT, chat("hi", 9)), ("/v1/completions", json!({"prompt": "hi", "max_tokens": 9, "ignore_eos": true}))]
    {
        let whole = http.post(addr, path, &body).await.json();
        body["stream"] = json!(true);
        let plain = http.post(addr, path, &body).await.events();
        body["stream_options"] = json!({"include_usage": true});
        body["return_token_ids"] = json!(true);
        let mut full = http.post(addr, path, &body).await.events();

        let text = |choice: &Value| {
            let text = choice["delta"]["content"].as_str().or_else(|| choice["text"].as_str());
            text.or_else(|| choice["message"]["content"].as_str()).unwrap().to_owned()
        };
        let joined: String = plain.iter().map(|event| text(&event["choices"][0])).collect();
        assert_eq!(joined, text(&whole["choices"][0]));
        assert!(plain.iter().all(|event| event["usage"].is_null()));
        assert_eq!(plain.last().unwrap()["choices"][0]["finish_reason"], "length");

        let usage = full.pop().unwrap();
        assert_eq!(usage["choices"], json!([]));
        assert_eq!(usage["usage"]["completion_tokens"], 9);
        assert!(usage["usage"]["prompt_tokens_details"]["cached_tokens"].is_u64());
        let ids: usize =
            full.iter().filter_map(|event| event["choices"][0]["token_ids"].as_array()).map(Vec::len).sum();
        assert_eq!(ids, 9);
    }
    fleet.stop().await;
}

#[tokio::test]
async fn answers_end_by_themselves_unless_told_otherwise() {
    let fleet = fleet(Config { answer_tokens: 6, ..captured_config() }).await;
    let (http, addr) = (Http::new(), fleet.workers()[0].http);
    let ended = async |body: Value| {
        let reply = http.post(addr, CHAT, &body).await.json();
        (
            reply["usage"]["completion_tokens"].as_u64().unwrap(),
            reply["choices"][0]["finish_reason"].as_str().unwrap().to_owned(),
        )
    };
    let messages = json!([{"role": "user", "content": "hi"}]);
    assert_eq!(ended(json!({"model": "tiny", "messages": messages})).await, (6, "stop".into()));
    assert_eq!(
        ended(json!({"model": "tiny", "messages": messages, "max_completion_tokens": 3})).await,
        (3, "length".into())
    );
    assert_eq!(
        ended(json!({"model": "tiny", "messages": messages, "max_tokens": 9, "ignore_eos": true})).await,
        (9, "length".into())
    );
    let (tokens, reason) = ended(json!({"model": "tiny", "messages": messages, "ignore_eos": true})).await;
    assert!(tokens > 400 && reason == "length");
    fleet.stop().await;
}

#[tokio::test]
async fn bad_requests_get_errors_in_the_engines_form() {
    let fleet = fleet(Config { lora_modules: vec!["sql".into()], ..captured_config() }).await;
    let (http, addr) = (Http::new(), fleet.workers()[0].http);
    let long = "word ".repeat(600);
    let cases = [
        (CHAT, r#"{"model": "tiny", "messages": ["#.to_owned(), 400, Value::Null),
        (CHAT, String::new(), 400, Value::Null),
        (CHAT, json!({"model": "other", "messages": []}).to_string(), 404, json!("model")),
        (CHAT, json!({"model": "tiny", "messages": "hi"}).to_string(), 400, json!("messages")),
        (CHAT, chat(&long, 4).to_string(), 400, json!("input_tokens")),
        (CHAT, chat("hi", 600).to_string(), 400, json!("max_tokens")),
        (CHAT, chat("hi", 0).to_string(), 400, json!("max_tokens")),
        ("/v1/completions", json!({"model": "tiny"}).to_string(), 400, json!("prompt")),
        ("/v1/completions", json!({"model": "tiny", "prompt": ["a", "b"]}).to_string(), 400, json!("prompt")),
        ("/v1/completions", json!({"model": "tiny", "prompt": ""}).to_string(), 400, json!("prompt")),
        ("/v1/nonsense", "{}".to_owned(), 404, Value::Null),
    ];
    for (path, body, status, param) in cases {
        let reply = http.send("POST".parse().unwrap(), addr, path, &[], body.clone()).await;
        assert_eq!(reply.status.as_u16(), status, "{body}: {}", reply.body);
        let error = &reply.json()["error"];
        assert_eq!((&error["code"], &error["param"]), (&json!(status), &param), "{}", reply.body);
        assert!(error["message"].as_str().is_some_and(|message| !message.contains("word word")));
        assert!(error["type"].is_string());
    }
    assert_eq!(
        http.post(addr, CHAT, &json!({"model": "sql", "messages": [{"role": "user", "content": "hi"}]})).await.status,
        200
    );
    let models = http.get(addr, "/v1/models").await.json();
    assert_eq!((&models["data"][1]["id"], &models["data"][1]["parent"]), (&json!("sql"), &json!("tiny")));
    fleet.stop().await;
}

#[tokio::test]
async fn metrics_count_what_happened() {
    let fleet = fleet(captured_config()).await;
    let (http, addr) = (Http::new(), fleet.workers()[0].http);
    let entry = captured("chat1");
    for _ in 0..2 {
        replay(&http, &fleet, &entry).await;
    }
    let page = http.get(addr, "/metrics").await.body;
    let value = |series: &str| {
        let line = page.lines().find(|line| line.starts_with(series)).unwrap_or_else(|| panic!("no {series}"));
        line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
    };
    assert_eq!(value("vllm:prompt_tokens_total{"), 652.0);
    assert_eq!(value("vllm:prefix_cache_hits_total{"), 320.0);
    assert_eq!(value("vllm:generation_tokens_total{"), 16.0);
    assert_eq!(value("vllm:num_requests_running{"), 0.0);
    assert_eq!(value(r#"vllm:request_success_total{engine="0",finished_reason="length""#), 2.0);
    assert_eq!(value("vllm:time_to_first_token_seconds_count{"), 2.0);
    assert!(page.contains(r#"kv_cache_size_tokens="768""#));
    fleet.stop().await;
}
