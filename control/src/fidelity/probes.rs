//! The conversations that are compared. Each has something that renderers get wrong.

use kinference_routing::openai::Endpoint;

/// A request without its model.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) name: &'static str,
    pub(super) body: &'static str,
}

impl Probe {
    pub(super) fn endpoint(&self) -> Endpoint {
        if self.body.contains("\"messages\"") { Endpoint::ChatCompletions } else { Endpoint::Completions }
    }
}

/// A tool whose schema has key order, numbers and characters that a careless serializer changes.
macro_rules! tools {
    () => {
        r#""tools": [{"type": "function", "function": {"name": "get_weather", "description": "Weather <now> & later, für alle",
        "parameters": {"type": "object", "required": ["city"], "properties": {"unit": {"enum": ["C", "F"], "type": "string"},
        "city": {"type": "string"}, "days": {"type": "number", "maximum": 1.0, "minimum": 1e-3}}}}}]"#
    };
}

pub(super) const PROBES: &[Probe] = &[
    Probe {
        name: "one question",
        body: r#"{"messages": [{"role": "user", "content": "What is the capital of France?"}]}"#,
    },
    Probe {
        name: "several turns",
        body: r#"{"messages": [
            {"role": "system", "content": "You are a careful assistant.\n\nAnswer briefly."},
            {"role": "user", "content": "  Leading and trailing spaces  \n"},
            {"role": "assistant", "content": "Noted: naïve café, 東京, 🙂."},
            {"role": "user", "content": "Cafe\u0301 or Café?\tWhich one is <b>right</b> & why?"}]}"#,
    },
    Probe {
        name: "text in parts",
        body: r#"{"messages": [{"role": "user", "content": [
            {"type": "text", "text": "First part."}, {"type": "text", "text": "Second part."}]}]}"#,
    },
    Probe {
        name: "tools",
        body: concat!(r#"{"messages": [{"role": "user", "content": "How is the weather in Oslo?"}], "#, tools!(), "}"),
    },
    Probe {
        name: "a tool call and its answer",
        body: concat!(
            r#"{"messages": [
            {"role": "user", "content": "How is the weather in Oslo?"},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "call_1", "type": "function",
                "function": {"name": "get_weather", "arguments": "{\"unit\": \"C\", \"city\": \"Oslo\"}"}}]},
            {"role": "tool", "tool_call_id": "call_1", "content": "{\"temperature\": -3.5}"},
            {"role": "user", "content": "Thanks!"}], "#,
            tools!(),
            "}"
        ),
    },
    Probe { name: "a completion", body: r#"{"prompt": "Once upon a time, in a café\nfar  away 🙂, there was"}"# },
];
