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
        (Prompt::Text(text), _) if set.wire.completion_prefix.is_empty() => Some(Cow::Borrowed(&**text)),
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
            None => String::from_utf8_lossy(body),
        },
        Prompt::Opaque => String::from_utf8_lossy(body),
    }
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
                Part::Other => text.push('\u{FFFC}'),
            }),
        }
        text.push('\n');
    }
    Some(text)
}
