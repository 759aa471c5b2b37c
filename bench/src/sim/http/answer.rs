//! Response bodies, written straight as text: they are the simulator's hottest path, and their field order is vLLM's.

use std::fmt::Write;
use std::sync::Arc;

use super::options::Format;
use crate::sim::progress::{Finish, Seen};
use crate::sim::text::Text;

const FINGERPRINT: &str = "vllm-0.32.0-sim";

/// Which API a request came by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Api {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completion,
}

/// What is known of a response from the start.
#[derive(Debug, Clone)]
pub(super) struct Head {
    pub(super) api: Api,
    pub(super) id: String,
    /// Seconds since the Unix epoch.
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) format: Format,
    pub(super) block_size: usize,
    /// Whether usage tells cached tokens.
    pub(super) prompt_details: bool,
    pub(super) prompt: Arc<[u32]>,
    pub(super) answer: Arc<[u32]>,
}

impl Head {
    /// The opening of the response object, up to its choices.
    pub(super) fn opening(&self) -> String {
        let (prefix, object) = match (self.api, self.format.stream) {
            (Api::Chat, false) => ("chatcmpl", "chat.completion"),
            (Api::Chat, true) => ("chatcmpl", "chat.completion.chunk"),
            (Api::Completion, _) => ("cmpl", "text_completion"),
        };
        let id = quoted(&format!("{prefix}-{}", self.id));
        format!(
            r#"{{"id":{id},"object":"{object}","created":{},"model":{},"choices":["#,
            self.created,
            quoted(&self.model)
        )
    }

    /// Prompt tokens that this request added to the cache, which only chat tells.
    fn created_cache_tokens(&self, cached: usize) -> String {
        match self.api {
            Api::Chat => (self.prompt.len() / self.block_size * self.block_size).saturating_sub(cached).to_string(),
            Api::Completion => "null".into(),
        }
    }

    /// `usage` without details.
    fn counts(&self, out: &mut String, completion: usize) {
        let prompt = self.prompt.len();
        let total = prompt + completion;
        let _ = write!(
            out,
            r#""usage":{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{completion}"#
        );
    }

    /// `usage` as chunks carry it on the way.
    pub(super) fn running_usage(&self, out: &mut String, completion: usize) {
        if self.format.continuous_usage {
            out.push(',');
            self.counts(out, completion);
            out.push_str(r#","completion_tokens_details":null}"#);
        } else if self.api == Api::Completion {
            out.push_str(r#","usage":null"#);
        }
    }

    /// `usage` of a stream's last chunk.
    pub(super) fn final_usage(&self, out: &mut String, completion: usize, cached: usize) {
        self.counts(out, completion);
        if self.prompt_details {
            let created = self.created_cache_tokens(cached);
            let _ = write!(
                out,
                r#","prompt_tokens_details":{{"cached_tokens":{cached},"created_cache_tokens":{created}}}"#
            );
        }
        let _ = write!(out, r#"}},"system_fingerprint":"{FINGERPRINT}""#);
    }

    /// Token ids where they were asked for, else null.
    pub(super) fn ids(&self, out: &mut String, ids: &[u32]) {
        if !self.format.token_ids {
            out.push_str("null");
            return;
        }
        out.push('[');
        for (at, id) in ids.iter().enumerate() {
            let _ = write!(out, "{}{id}", if at == 0 { "" } else { "," });
        }
        out.push(']');
    }
}

/// A response that comes whole.
pub(super) fn write_full(head: &Head, text: &Text, seen: Seen, cached: usize) -> String {
    let tokens = &head.answer[..seen.tokens.min(head.answer.len())];
    let finish = seen.finish.unwrap_or(Finish::Abort).name();
    let mut out = head.opening();
    out.reserve(1024 + 8 * tokens.len());
    match head.api {
        Api::Chat => {
            out.push_str(r#"{"index":0,"message":{"role":"assistant","content":""#);
            spoken(&mut out, text, tokens);
            out.push_str(r#"","refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null,"#);
            let _ = write!(out, r#""finish_reason":"{finish}","stop_reason":null,"token_ids":"#);
            head.ids(&mut out, tokens);
            out.push_str(r#","routed_experts":null}]"#);
        }
        Api::Completion => {
            out.push_str(r#"{"index":0,"text":""#);
            spoken(&mut out, text, tokens);
            let _ = write!(out, r#"","logprobs":null,"finish_reason":"{finish}","stop_reason":null,"token_ids":"#);
            head.ids(&mut out, tokens);
            out.push_str(r#","prompt_logprobs":null,"prompt_token_ids":"#);
            head.ids(&mut out, &head.prompt);
            out.push_str(r#","routed_experts":null}]"#);
        }
    }
    let _ = write!(out, r#","service_tier":null,"system_fingerprint":"{FINGERPRINT}","#);
    head.counts(&mut out, tokens.len());
    if head.prompt_details {
        let created = head.created_cache_tokens(cached);
        let _ = write!(
            out,
            r#","prompt_tokens_details":{{"cached_tokens":{cached},"created_cache_tokens":{created},"multimodal_tokens":null}}"#
        );
    } else {
        out.push_str(r#","prompt_tokens_details":null"#);
    }
    out.push_str(r#","completion_tokens_details":null}"#);
    if head.api == Api::Chat {
        out.push_str(r#","prompt_logprobs":null,"prompt_token_ids":"#);
        head.ids(&mut out, &head.prompt);
        out.push_str(r#","prompt_text":null"#);
    }
    out.push_str(r#","kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}"#);
    out
}

/// The text of answer tokens. Words are plain letters, so that nothing needs escaping.
pub(super) fn spoken(out: &mut String, text: &Text, tokens: &[u32]) {
    for token in tokens {
        out.push_str(text.answer_text(*token));
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
