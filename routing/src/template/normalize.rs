//! Messages and tools as vLLM hands them to a template: only known fields, text parts joined or listed, arguments parsed.

use std::borrow::Cow;

use minijinja::Value;
use minijinja::value::ValueKind;

use super::source::Shape;
use crate::openai::{Content, Message, Part, value_of};

/// A line that some clients put first into the system prompt, different in each request; vLLM drops it since 0.32.
const BILLING_LINE: &str = "x-anthropic-billing-header";

/// A message with its role settled and its texts apart.
struct Normal<'a> {
    role: Cow<'a, str>,
    parts: Vec<Cow<'a, str>>,
    message: &'a Message<'a>,
}

/// The messages as a template sees them, or `None` when a part's text is not known here.
pub(super) fn messages<'a>(messages: &'a [Message<'a>], shape: &Shape) -> Option<Value> {
    let mut list: Vec<Normal<'_>> = Vec::with_capacity(messages.len());
    for message in messages {
        let mut parts = parts(&message.content)?;
        let developer = message.role == "developer" && !shape.names_developer;
        let role = if developer { Cow::Borrowed("system") } else { Cow::Borrowed(&*message.role) };
        if role == "system" {
            parts.iter_mut().for_each(drop_billing_line);
        }
        match list.last_mut() {
            Some(before) if developer && before.role == "system" => before.parts.append(&mut parts),
            _ => list.push(Normal { role, parts, message }),
        }
    }
    Some(list.iter().map(|normal| one(normal, shape)).collect::<Vec<_>>().into())
}

fn parts<'a>(content: &'a Content<'_>) -> Option<Vec<Cow<'a, str>>> {
    match content {
        Content::Null => Some(Vec::new()),
        Content::Text(text) => Some(vec![Cow::Borrowed(&**text)]),
        Content::Parts(parts) => parts
            .iter()
            .map(|part| match part {
                Part::Text(text) => Some(Cow::Borrowed(&**text)),
                Part::Other(_) => None,
            })
            .collect(),
        Content::Unknown => None,
    }
}

fn drop_billing_line(part: &mut Cow<'_, str>) {
    if part.starts_with(BILLING_LINE) {
        let rest = part.split_once('\n').map_or("", |(_, rest)| rest).to_owned();
        *part = Cow::Owned(rest);
    }
}

fn one(normal: &Normal<'_>, shape: &Shape) -> Value {
    let parts = &normal.parts;
    let content = if shape.lists_content {
        parts
            .iter()
            .map(|text| Value::from_pairs([("type", Value::from("text")), ("text", Value::from(text))]))
            .collect::<Vec<_>>()
            .into()
    } else {
        match parts.as_slice() {
            [single] => Value::from(&**single),
            _ => Value::from(parts.join("\n")),
        }
    };
    let extra = &normal.message.extra;
    let mut fields = vec![("role", Value::from(&*normal.role)), ("content", content)];
    let calls = extra.tool_calls.as_ref().filter(|calls| calls.len() != Some(0)).map(tool_calls);
    let others = [
        ("name", extra.name.clone()),
        ("task", extra.task.clone()),
        ("tool_calls", calls),
        ("tool_call_id", extra.tool_call_id.clone()),
        ("reasoning", extra.reasoning.clone()),
        ("reasoning_content", extra.reasoning.clone()),
    ];
    fields.extend(others.into_iter().filter_map(|(name, value)| Some((name, value?))));
    Value::from_pairs(fields)
}

/// Calls with their arguments parsed from the JSON string into an object; bad JSON gives an empty one.
fn tool_calls(calls: &Value) -> Value {
    let list = calls.try_iter().ok().filter(|_| calls.kind() == ValueKind::Seq);
    let Some(calls) = list else { return Value::from(Vec::<Value>::new()) };
    calls
        .map(|call| replace(&call, "function", |function| replace(function, "arguments", parsed)))
        .collect::<Vec<_>>()
        .into()
}

fn parsed(arguments: &Value) -> Value {
    let Some(text) = arguments.as_str() else { return arguments.clone() };
    value_of(text).unwrap_or_else(|| Value::from_pairs(Vec::<(&str, Value)>::new()))
}

/// The map with the value of one key changed, the order kept.
fn replace(map: &Value, key: &str, change: impl Fn(&Value) -> Value) -> Value {
    let Ok(keys) = map.try_iter() else { return map.clone() };
    if map.kind() != ValueKind::Map {
        return map.clone();
    }
    let fields = keys.map(|name| {
        let value = map.get_item(&name).unwrap_or_default();
        let value = if name.as_str() == Some(key) { change(&value) } else { value };
        (name, value)
    });
    Value::from_pairs(fields.collect::<Vec<_>>())
}

/// Tools with the fields that the engine's own types have, in their order; absent ones are null, others are dropped.
/// `None` for what is no list, which the engine refuses.
pub(super) fn tools(tools: &Value) -> Option<Value> {
    let list = tools.try_iter().ok().filter(|_| tools.kind() == ValueKind::Seq)?;
    let field =
        |map: &Value, name: &str| map.get_attr(name).ok().filter(|v| !v.is_undefined()).unwrap_or(Value::from(()));
    let tools = list.map(|tool| {
        let function = field(&tool, "function");
        let kind = field(&tool, "type");
        let kind = if kind.is_none() { Value::from("function") } else { kind };
        let function =
            Value::from_pairs(["name", "description", "parameters"].map(|name| (name, field(&function, name))));
        Value::from_pairs([("type", kind), ("function", function)])
    });
    Some(tools.collect::<Vec<_>>().into())
}
