//! Chat messages, read leniently: what routing does not understand makes the prompt's text unknown, never the request bad.

use std::borrow::Cow;
use std::fmt;

use minijinja::Value;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::budget::{AnyValue, Budget};
use crate::prefix::hash_chunk;

/// The `messages` of a chat request.
#[derive(Debug, Clone)]
pub enum Messages<'a> {
    /// A list of messages.
    List(Vec<Message<'a>>),
    /// Something else; the engine will say what it thinks of it.
    Unknown,
}

/// One message, as it came.
#[derive(Debug, Clone, Default)]
pub struct Message<'a> {
    /// `system`, `user`, `assistant`, `tool`, `developer` or what a template knows besides.
    pub role: Cow<'a, str>,
    /// What it says.
    pub content: Content<'a>,
    /// Fields that engines hand on to templates besides role and content: name, task, tool_calls, tool_call_id, reasoning
    /// (also as reasoning_content). In the order of the engine's own message.
    pub extra: Extra,
}

/// Further fields of a message that templates may use.
#[derive(Debug, Clone, Default)]
pub struct Extra {
    /// Name of the speaker.
    pub name: Option<Value>,
    /// Task marker of some models.
    pub task: Option<Value>,
    /// Calls that the assistant made.
    pub tool_calls: Option<Value>,
    /// The call that a tool message answers.
    pub tool_call_id: Option<Value>,
    /// The assistant's reasoning.
    pub reasoning: Option<Value>,
}

/// The content of a message.
#[derive(Debug, Clone, Default)]
pub enum Content<'a> {
    /// Absent or null.
    #[default]
    Null,
    /// A string.
    Text(Cow<'a, str>),
    /// A list of parts.
    Parts(Vec<Part<'a>>),
    /// Something else.
    Unknown,
}

/// A part of a message's content.
#[derive(Debug, Clone)]
pub enum Part<'a> {
    /// Text (also `input_text`, `output_text`, `refusal`, or a bare string).
    Text(Cow<'a, str>),
    /// An image, audio, or anything else that is not text; a hash tells one from another.
    Other(u64),
}

/// A string, or something else that is passed over.
#[derive(Debug, Clone)]
pub(super) enum Lenient<'a> {
    Text(Cow<'a, str>),
    Null,
    Other,
}

impl<'a> Lenient<'a> {
    pub(super) fn text(self) -> Option<Cow<'a, str>> {
        match self {
            Self::Text(text) => Some(text),
            Self::Null | Self::Other => None,
        }
    }
}

/// Visitor methods for the JSON types that a reader does not expect: read past them, and give a fixed answer.
macro_rules! otherwise {
    ($other:expr; $($kind:ident)*) => { $(otherwise!(@ $kind $other);)* };
    (@ scalars $other:expr) => {
        fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> { Ok($other) }
        fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> { Ok($other) }
        fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> { Ok($other) }
        fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> { Ok($other) }
    };
    (@ null $other:expr) => {
        fn visit_unit<E>(self) -> Result<Self::Value, E> { Ok($other) }
    };
    (@ text $other:expr) => {
        fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> { Ok($other) }
    };
    (@ seq $other:expr) => {
        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            Ok($other)
        }
    };
    (@ map $other:expr) => {
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            Ok($other)
        }
    };
}

/// Visitor methods for a string, borrowed from the body where it has no escapes.
macro_rules! text {
    ($make:expr) => {
        fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
            Ok($make(Cow::Borrowed(text)))
        }
        fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
            Ok($make(Cow::Owned(text.to_owned())))
        }
        fn visit_string<E>(self, text: String) -> Result<Self::Value, E> {
            Ok($make(Cow::Owned(text)))
        }
    };
}

/// A visitor that reads a type as far as a budget goes.
macro_rules! within_budget {
    ($type:ident, $visitor:ident) => {
        #[derive(Clone, Copy)]
        pub(super) struct $visitor<'b>(pub(super) &'b Budget);
        impl<'de> DeserializeSeed<'de> for $visitor<'_> {
            type Value = $type<'de>;
            fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
                deserializer.deserialize_any(self)
            }
        }
    };
}

impl<'de> Deserialize<'de> for Lenient<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LenientVisitor)
    }
}

struct LenientVisitor;

impl<'de> Visitor<'de> for LenientVisitor {
    type Value = Lenient<'de>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }
    text!(Lenient::Text);
    otherwise!(Lenient::Null; null);
    otherwise!(Lenient::Other; scalars seq map);
}

within_budget!(Messages, MessagesVisitor);

impl<'de> Visitor<'de> for MessagesVisitor<'_> {
    type Value = Messages<'de>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of messages")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        let mut all_known = true;
        while let Some(message) = seq.next_element_seed(MessageVisitor(self.0))? {
            match message {
                MaybeMessage::Known(message) if self.0.take() => list.push(*message),
                MaybeMessage::Known(_) | MaybeMessage::Unknown => all_known = false,
            }
        }
        Ok(if all_known { Messages::List(list) } else { Messages::Unknown })
    }
    otherwise!(Messages::Unknown; scalars null text map);
}

pub(super) enum MaybeMessage<'a> {
    Known(Box<Message<'a>>),
    Unknown,
}

within_budget!(MaybeMessage, MessageVisitor);

impl<'de> Visitor<'de> for MessageVisitor<'_> {
    type Value = MaybeMessage<'de>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut message = Box::<Message<'de>>::default();
        let mut role = None;
        let mut reasoning_content = None;
        let value = AnyValue(self.0);
        while let Some(key) = map.next_key::<Lenient<'de>>()? {
            // The last of several equal keys counts, as in Python's parser.
            match key.text().as_deref() {
                Some("role") => role = map.next_value::<Lenient<'de>>()?.text(),
                Some("content") => message.content = map.next_value_seed(ContentVisitor(self.0))?,
                Some("name") => message.extra.name = present(map.next_value_seed(value)?),
                Some("task") => message.extra.task = present(map.next_value_seed(value)?),
                Some("tool_calls") => message.extra.tool_calls = present(map.next_value_seed(value)?),
                Some("tool_call_id") => message.extra.tool_call_id = present(map.next_value_seed(value)?),
                Some("reasoning") => message.extra.reasoning = present(map.next_value_seed(value)?),
                Some("reasoning_content") => reasoning_content = present(map.next_value_seed(value)?),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        if message.extra.reasoning.is_none() {
            message.extra.reasoning = reasoning_content;
        }
        Ok(match role {
            Some(role) => {
                message.role = role;
                MaybeMessage::Known(message)
            }
            None => MaybeMessage::Unknown,
        })
    }
    otherwise!(MaybeMessage::Unknown; scalars null text seq);
}

fn present(value: Value) -> Option<Value> {
    if value.is_none() { None } else { Some(value) }
}

within_budget!(Content, ContentVisitor);

impl<'de> Visitor<'de> for ContentVisitor<'_> {
    type Value = Content<'de>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text or a list of parts")
    }
    text!(Content::Text);
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut parts = Vec::new();
        while let Some(part) = seq.next_element()? {
            if self.0.take() {
                parts.push(part);
            }
        }
        Ok(Content::Parts(parts))
    }
    otherwise!(Content::Null; null);
    otherwise!(Content::Unknown; scalars map);
}

impl<'de> Deserialize<'de> for Part<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PartVisitor)
    }
}

struct PartVisitor;

impl<'de> Visitor<'de> for PartVisitor {
    type Value = Part<'de>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a part of a message")
    }
    text!(Part::Text);
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut kind, mut text, mut refusal, mut other) = (None, None, None, 0);
        while let Some(key) = map.next_key::<Lenient<'de>>()? {
            match key.text().as_deref() {
                Some("type") => kind = map.next_value::<Lenient<'de>>()?.text(),
                Some("text") => text = map.next_value::<Lenient<'de>>()?.text(),
                Some("refusal") => refusal = map.next_value::<Lenient<'de>>()?.text(),
                _ => other = hash_chunk(map.next_value::<&RawValue>()?.get().as_bytes(), other),
            }
        }
        let said = match kind.as_deref() {
            Some("text" | "input_text" | "output_text") | None => text,
            Some("refusal") => refusal,
            Some(_) => None,
        };
        Ok(said.map_or(Part::Other(other), Part::Text))
    }
    otherwise!(Part::Other(0); scalars null seq);
}
