//! The check behind the condition `PromptFidelity` (invariant P4): does the filter's prompt text equal the engine's?
//!
//! Probe conversations are put together exactly as the filter does it, by the same code, and the engine is asked to
//! tokenize the same requests. The bytes of its tokens must be our text.

mod probes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Request, StatusCode, header};
use kinference_protocol::v1::{self, Normalization, PrefixMode};
use kinference_routing::openai;
use kinference_routing::prompt::{self, PromptText};
use kinference_routing::snapshot::WorkerSet;
use kinference_routing::template::ChatTemplate;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::scrape::HttpClient;
use crate::state::{Check, Verdict};
use probes::{PROBES, Probe};

const TIMEOUT: Duration = Duration::from_secs(10);
const MAX_ANSWER_BYTES: usize = 4 << 20;

/// Asks one engine process about every probe.
pub async fn check(client: &HttpClient, check: &Check) -> Verdict {
    let mut answers = Vec::new();
    for probe in PROBES {
        match ask(client, check, probe).await {
            Answer::Tokens(tokens) => answers.push((probe, tokens)),
            // The engine refuses such a conversation, so there is nothing in its cache that could be claimed wrongly.
            Answer::Refused => {}
            Answer::Unavailable(why) => return Verdict::NoAnswer(format!("{}: {why}", check.address)),
        }
    }
    judge(check, &answers)
}

/// Compares with the normalization that the tokenizer's files state, and then with the other: engines go by the model's
/// family, not by the files.
fn judge(check: &Check, answers: &[(&Probe, Vec<u32>)]) -> Verdict {
    let stated = check.tokenizer.normalization;
    let other = if stated == Normalization::Nfc { Normalization::None } else { Normalization::Nfc };
    match compare_all(check, stated, answers) {
        Ok(()) => Verdict::Equal(stated),
        Err(why) => match compare_all(check, other, answers) {
            Ok(()) => Verdict::Equal(other),
            Err(_) => Verdict::Different(why),
        },
    }
}

fn compare_all(check: &Check, normalization: Normalization, answers: &[(&Probe, Vec<u32>)]) -> Result<(), String> {
    let set = worker_set(check, normalization)?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut compared = 0;
    for (probe, tokens) in answers {
        // The filter makes no claim about what it cannot render.
        let Some(ours) = ours(probe, check, &set, now) else { continue };
        compare(&ours, tokens, check).map_err(|why| format!("probe {:?}: {why}", probe.name))?;
        compared += 1;
    }
    if compared == 0 { Err("there is no probe that both render".into()) } else { Ok(()) }
}

/// The set as a filter would have it in event mode.
fn worker_set(check: &Check, normalization: Normalization) -> Result<WorkerSet, String> {
    let template = match &check.template {
        None => None,
        Some(template) => {
            let tokens: BTreeMap<_, _> = template.special_tokens.clone().into_iter().collect();
            let compiled = ChatTemplate::compile(&template.source, &tokens).map_err(|error| error.to_string())?;
            Some(Arc::new(compiled))
        }
    };
    let wire = v1::WorkerSet {
        prefix_mode: PrefixMode::Events.into(),
        normalization: normalization.into(),
        completion_prefix: check.tokenizer.completion_prefix.clone(),
        ..Default::default()
    };
    Ok(WorkerSet { wire, template })
}

/// The request that a client would send.
fn request(probe: &Probe, model: &str) -> Value {
    let mut request: Value = serde_json::from_str(probe.body).unwrap_or_default();
    request["model"] = json!(model);
    request
}

/// Our text of a probe; absent when the filter would not know it.
fn ours(probe: &Probe, check: &Check, set: &WorkerSet, now: u64) -> Option<Vec<u8>> {
    let body = request(probe, &check.model).to_string();
    let parsed = openai::parse(probe.endpoint(), body.as_bytes()).ok()?;
    match prompt::text(&parsed, body.as_bytes(), set, now) {
        PromptText::Exact(text) => Some(text.into_owned().into_bytes()),
        PromptText::Likeness(_) => None,
    }
}

fn compare(ours: &[u8], tokens: &[u32], check: &Check) -> Result<(), String> {
    let vocabulary = check.tokenizer.tokens.as_ref().map_err(ToString::to_string)?;
    let mut theirs = Vec::new();
    for token in tokens {
        let bytes = vocabulary.get(*token).ok_or_else(|| {
            format!("the engine used token {token}, which the tokenizer's files do not have; are they the engine's?")
        })?;
        theirs.extend_from_slice(bytes);
    }
    if theirs == ours {
        return Ok(());
    }
    let at = theirs.iter().zip(ours).take_while(|(a, b)| a == b).count();
    Err(format!(
        "the texts differ from byte {at} on (ours has {}, the engine's {}); check that chat template and tokenizer are the engine's",
        ours.len(),
        theirs.len()
    ))
}

enum Answer {
    Tokens(Vec<u32>),
    /// The engine does not take this conversation.
    Refused,
    /// Not to be had now.
    Unavailable(String),
}

#[derive(Deserialize)]
struct Tokenized {
    tokens: Vec<u32>,
}

async fn ask(client: &HttpClient, check: &Check, probe: &Probe) -> Answer {
    match tokio::time::timeout(TIMEOUT, post(client, check, probe)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(why)) => Answer::Unavailable(why),
        Err(_) => Answer::Unavailable("POST /tokenize: no answer in time".into()),
    }
}

async fn post(client: &HttpClient, check: &Check, probe: &Probe) -> Result<Answer, String> {
    let mut body = request(probe, &check.model);
    if body.get("messages").is_some() {
        body["add_generation_prompt"] = json!(true);
    }
    let request = Request::post(format!("http://{}/tokenize", check.address))
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body.to_string())))
        .map_err(|error| error.to_string())?;
    let response = client.request(request).await.map_err(|error| format!("POST /tokenize: {error}"))?;
    let status = response.status();
    if status == StatusCode::BAD_REQUEST || status == StatusCode::UNPROCESSABLE_ENTITY {
        return Ok(Answer::Refused);
    }
    if status != StatusCode::OK {
        return Err(format!("POST /tokenize answered {status}"));
    }
    let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
    let body = body.map_err(|error| format!("POST /tokenize broke off: {error}"))?.to_bytes();
    let answer: Tokenized = serde_json::from_slice(&body)
        .map_err(|error| format!("POST /tokenize answered something else than tokens: {error}"))?;
    Ok(Answer::Tokens(answer.tokens))
}

#[cfg(test)]
mod tests;
