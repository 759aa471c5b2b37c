//! The text of a request's prompt, as the engine of a worker set would tokenize it.

use std::borrow::Cow;

use kinference_protocol::v1::{Normalization, PrefixMode};
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use crate::openai::{Chat, Content, Messages, Part, Prompt, Request};
use crate::snapshot::WorkerSet;

/// A prompt's text, and what may be concluded from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptText<'a> {
    /// The engine's own text: chunks of it are comparable with the engine's cache.
    Exact(Cow<'a, str>),
    /// A text that begins alike for prompts that begin alike, good for learning where prefixes were sent (routed mode).
    Likeness(Cow<'a, str>),
}

impl PromptText<'_> {
    /// The text.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Exact(text) | Self::Likeness(text) => text,
        }
    }

    /// It is the engine's own.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        matches!(self, Self::Exact(_))
    }
}

/// The prompt of a request, for the workers of `set`. `body` is the request's body, `now` seconds since 1970 for templates
/// that write the date.
#[must_use]
pub fn text<'a>(request: &'a Request<'_>, body: &'a [u8], set: &WorkerSet, now: u64) -> PromptText<'a> {
    let exact = match (&request.prompt, &set.template) {
        _ if set.wire.prefix_mode() != PrefixMode::Events => None,
        (Prompt::Chat(chat), Some(template)) => template.render(chat, now).ok().map(Cow::Owned),
        (Prompt::Text(text), _) if request.bare || set.wire.completion_prefix.is_empty() => {
            Some(Cow::Borrowed(&**text))
        }
        (Prompt::Text(text), _) => Some(Cow::Owned(format!("{}{text}", set.wire.completion_prefix))),
        (Prompt::Chat(_), None) | (Prompt::Opaque, _) => None,
    };
    match exact {
        Some(text) if set.wire.normalization() == Normalization::Nfc => PromptText::Exact(nfc(text)),
        Some(text) => PromptText::Exact(text),
        None => PromptText::Likeness(likeness(request, body)),
    }
}

fn nfc(text: Cow<'_, str>) -> Cow<'_, str> {
    if text.is_ascii() || is_nfc_quick(text.chars()) == IsNormalized::Yes {
        return text;
    }
    Cow::Owned(text.nfc().collect())
}

/// Roles and texts of a conversation in their order, the text of a completion, or the body itself.
fn likeness<'a>(request: &'a Request<'_>, body: &'a [u8]) -> Cow<'a, str> {
    match &request.prompt {
        Prompt::Text(text) => Cow::Borrowed(text),
        Prompt::Chat(chat) => match plain(chat) {
            Some(text) => Cow::Owned(text),
            None => readable(body),
        },
        Prompt::Opaque => readable(body),
    }
}

/// The body up to where it stops being text, if it does.
fn readable(body: &[u8]) -> Cow<'_, str> {
    Cow::Borrowed(body.utf8_chunks().next().map_or("", |chunk| chunk.valid()))
}

fn plain(chat: &Chat<'_>) -> Option<String> {
    let Messages::List(messages) = &chat.messages else { return None };
    let mut text = String::new();
    if let Some(tools) = &chat.tools {
        text.push_str(&tools.to_string());
    }
    for message in messages {
        text.push_str(&message.role);
        text.push('\n');
        match &message.content {
            Content::Null | Content::Unknown => {}
            Content::Text(content) => text.push_str(content),
            Content::Parts(parts) => parts.iter().for_each(|part| match part {
                Part::Text(content) => text.push_str(content),
                // Two images after the same words are two prompts.
                Part::Other(hash) => text.push_str(&format!("\u{FFFC}{hash:016x}")),
            }),
        }
        for more in [&message.extra.tool_calls, &message.extra.tool_call_id, &message.extra.name].into_iter().flatten()
        {
            text.push_str(&more.to_string());
        }
        text.push('\n');
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::{Endpoint, parse};

    fn alike(endpoint: Endpoint, body: &str) -> String {
        let request = parse(endpoint, body.as_bytes()).unwrap();
        likeness(&request, body.as_bytes()).into_owned()
    }

    #[test]
    fn prompts_that_differ_in_more_than_words_are_not_alike() {
        let image = |url: &str| {
            let part = format!(r#"{{"type":"image_url","image_url":{{"url":"{url}"}}}}"#);
            let words = r#"{"type":"text","text":"What is this?"}"#;
            alike(
                Endpoint::ChatCompletions,
                &format!(r#"{{"model":"m","messages":[{{"role":"user","content":[{words},{part},{words}]}}]}}"#),
            )
        };
        let (cat, dog) = (image("data:cat"), image("data:dog"));
        let common = cat.bytes().zip(dog.bytes()).take_while(|(a, b)| a == b).count();
        assert!(cat[..common].contains("What is this?") && common < cat.len() / 2, "{cat:?} and {dog:?}");
        assert_eq!(image("data:cat"), cat);
        let call = |arguments: &str| {
            let call = format!(r#"{{"id":"c","function":{{"name":"f","arguments":"{arguments}"}}}}"#);
            alike(
                Endpoint::ChatCompletions,
                &format!(r#"{{"model":"m","messages":[{{"role":"assistant","tool_calls":[{call}]}}]}}"#),
            )
        };
        assert_ne!(call("1"), call("2"));
        // What is no text is alike up to there.
        let request = parse(Endpoint::Completions, br#"{"model":"m","prompt":[1]}"#).unwrap();
        assert_eq!(likeness(&request, b"abc\xffdef"), "abc");
    }
}
