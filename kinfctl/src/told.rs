//! A decision's trace, told to people and to programs.

use kinference_api::plain;
use kinference_api::policy_test::{DEFAULT_PROMPT_TOKENS, TestRequest};
use kinference_routing::trace::{CandidateStanding, CandidateTrace, Trace};
use serde_json::{Value, json};

use crate::outcome::{Outcome, Place, is_chosen, short};
use crate::paint::Paint;
use crate::table::lay_out;

/// The whole decision as tables; every line starts with `indent`.
pub(crate) fn tables(request: &TestRequest, outcome: &Outcome, indent: &str, paint: Paint) -> String {
    let mut text = String::new();
    let tenant = request.tenant.as_deref().filter(|tenant| !tenant.is_empty()).unwrap_or("none stated");
    let tags = if request.tags.is_empty() { "none".to_string() } else { request.tags.join(", ") };
    let tokens = request.prompt_tokens.unwrap_or(DEFAULT_PROMPT_TOKENS);
    let asked = format!("model {}, tenant {tenant}, tags {tags}, {tokens} prompt tokens", request.model);
    let summary = outcome.summary();
    let decision = match &outcome.place {
        Place::Rejected { .. } => paint.red(&plain(&summary)),
        _ => paint.green(&plain(&summary)),
    };
    for (what, value) in [("request ", plain(&asked).into_owned()), ("decision", decision)] {
        text.push_str(&format!("{indent}{}  {value}\n", paint.bold(what)));
    }
    let Some(trace) = &outcome.trace else { return text };
    if !trace.rules.is_empty() {
        text.push('\n');
        text.push_str(&rules(trace, indent, paint));
    }
    if !trace.candidates.is_empty() {
        text.push('\n');
        text.push_str(&candidates(trace, indent, paint));
    }
    text
}

fn rules(trace: &Trace, indent: &str, paint: Paint) -> String {
    let rows = trace.rules.iter().map(|rule| match &rule.mismatch {
        None => vec![rule.name.clone(), "yes".into(), String::new()],
        Some(reason) => vec![rule.name.clone(), "no".into(), reason.clone()],
    });
    let rows: Vec<Vec<String>> = rows.collect();
    lay_out(indent, &["RULE", "MATCHES", "WHY NOT"], &rows, |column, cell| match (column, cell) {
        (None, title) => paint.dim(title),
        (Some(1), "yes") => paint.green(cell),
        (Some(_), _) => cell.to_string(),
    })
}

const COLUMNS: [&str; 9] =
    ["", "TIER", "PLACE", "MODEL", "CACHED", "TO COMPUTE", "QUEUED", "PREDICTED TTFT", "VERDICT"];

fn candidates(trace: &Trace, indent: &str, paint: Paint) -> String {
    let rows = trace.candidates.iter().map(|candidate| {
        vec![
            if is_chosen(trace, candidate) { "*" } else { " " }.to_string(),
            tier(candidate.tier),
            short(&candidate.name).to_string(),
            candidate.model.clone(),
            candidate.cached_tokens.to_string(),
            candidate.uncached_tokens.to_string(),
            format!("{:.0}", candidate.queued_tokens),
            format!("{:.0} ms", candidate.predicted_ttft_ms),
            verdict(trace, candidate),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    lay_out(indent, &COLUMNS, &rows, |column, cell| match (column, cell) {
        (None, title) => paint.dim(title),
        (Some(0), "*") => paint.green(cell),
        (Some(8), "chosen") => paint.green(cell),
        (Some(8), cell) if cell.starts_with("removed") => paint.red(cell),
        (Some(8), cell) if !cell.is_empty() && !cell.starts_with("chosen") => paint.yellow(cell),
        (Some(_), _) => cell.to_string(),
    })
}

fn tier(tier: usize) -> String {
    if tier == 0 { "candidates".to_string() } else { format!("fallback {tier}") }
}

/// Why the candidate was or was not chosen, where there is something to say.
fn verdict(trace: &Trace, candidate: &CandidateTrace) -> String {
    let removal = candidate.removal.as_ref().map(|removal| match removal.rule.as_str() {
        "" => format!("removed: {}", removal.reason),
        rule => format!("removed by {rule}: {}", removal.reason),
    });
    let standing = match candidate.standing {
        CandidateStanding::Usable => None,
        CandidateStanding::LoadUnknown => Some("its load is not known"),
        CandidateStanding::Suspect => Some("it may be down"),
        CandidateStanding::Unready => Some("not ready"),
    };
    match (is_chosen(trace, candidate), removal, standing) {
        (true, Some(removal), _) => format!("chosen all the same; {removal}"),
        (true, None, _) => "chosen".to_string(),
        (false, Some(removal), _) => removal,
        (false, None, standing) => standing.unwrap_or_default().to_string(),
    }
}

/// The whole decision for programs.
pub(crate) fn value(request: &TestRequest, outcome: &Outcome) -> Value {
    let trace = outcome.trace.as_ref();
    let rules = trace.into_iter().flat_map(|trace| &trace.rules);
    let rules = rules.map(|rule| json!({"name": rule.name, "matches": rule.mismatch.is_none(), "why": rule.mismatch}));
    let candidates = trace.into_iter().flat_map(|trace| trace.candidates.iter().map(move |c| (trace, c)));
    let candidates = candidates.map(|(trace, candidate)| {
        let removal = candidate.removal.as_ref().map(|removal| {
            json!({
                "rule": (!removal.rule.is_empty()).then_some(&removal.rule),
                "reason": removal.reason,
                "load": removal.load,
            })
        });
        json!({
            "kind": if candidate.worker.is_some() { "worker" } else { "provider" },
            "name": short(&candidate.name),
            "model": candidate.model,
            "tier": candidate.tier,
            "standing": format!("{:?}", candidate.standing),
            "chosen": is_chosen(trace, candidate),
            "removed": removal,
            "cachedTokens": candidate.cached_tokens,
            "uncachedTokens": candidate.uncached_tokens,
            "queuedTokens": candidate.queued_tokens,
            "runningRequests": candidate.running,
            "predictedTTFTMs": candidate.predicted_ttft_ms,
        })
    });
    json!({
        "request": {
            "model": request.model,
            "tenant": request.tenant,
            "tags": request.tags,
            "promptTokens": request.prompt_tokens.unwrap_or(DEFAULT_PROMPT_TOKENS),
        },
        "decision": decision(outcome),
        "rules": rules.collect::<Vec<_>>(),
        "candidates": candidates.collect::<Vec<_>>(),
    })
}

fn decision(outcome: &Outcome) -> Value {
    match &outcome.place {
        Place::Worker { name, set, model, predicted_ttft_ms } => json!({
            "worker": name, "workerSet": set, "model": model, "predictedTTFTMs": predicted_ttft_ms, "rule": outcome.rule,
        }),
        Place::Provider { name, model, predicted_ttft_ms } => json!({
            "provider": name, "model": model, "predictedTTFTMs": predicted_ttft_ms, "rule": outcome.rule,
        }),
        Place::Rejected { status, retry_after_s, message } => json!({
            "rejected": {"status": status, "retryAfterSeconds": retry_after_s, "message": message},
            "rule": outcome.rule,
        }),
    }
}
