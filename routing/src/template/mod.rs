//! Chat templates, rendered to the text that the engine itself would tokenize (invariants P2 and P4).
//!
//! vLLM renders with Jinja2 in a sandbox: `trim_blocks`, `lstrip_blocks`, loop controls, `tojson` as Python's
//! `json.dumps(ensure_ascii=False)`, `raise_exception` and `strftime_now`. The same is set up here on minijinja.

mod date;
mod normalize;
mod python;
mod source;

use std::collections::BTreeMap;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value};
use thiserror::Error as ThisError;

use crate::openai::{Chat, Messages};

/// Instructions that one rendering may take. A message takes some 50, so this is thousands of messages, and bounds a
/// template that loops for long.
const FUEL: u64 = 4_000_000;
/// Depth of macros and includes; small, since a wasm VM's stack is.
const RECURSION: usize = 64;
/// The only template of an environment.
const NAME: &str = "chat";

/// Why a chat template cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
pub enum TemplateError {
    /// The source is not a template that this renderer knows.
    #[error("the chat template does not compile: {0}")]
    Compile(String),
    /// The template refused the conversation, or ran out of its bounds. The reason quotes no message.
    #[error("the chat template does not render this conversation: {0}")]
    Render(String),
    /// The conversation has parts whose text is not known here (images, a template of its own, unknown forms).
    #[error("the conversation's text is not known here")]
    Opaque,
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: Vec<(String, Value)>,
    shape: source::Shape,
}

impl ChatTemplate {
    /// Compiles a template. `special_tokens` are the variables (`bos_token` and the like) that it sees.
    ///
    /// # Errors
    /// When the source does not compile.
    pub fn compile(source: &str, special_tokens: &BTreeMap<String, String>) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| TemplateError::Compile(error.to_string()))?);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_formatter(python::format);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(RECURSION);
        environment.add_filter("tojson", python::tojson);
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment
            .add_template_owned(NAME, source::without_generation_tags(source))
            .map_err(|error| TemplateError::Compile(error.to_string()))?;
        Ok(Self {
            environment,
            special_tokens: special_tokens.iter().map(|(name, text)| (name.clone(), Value::from(text))).collect(),
            shape: source::Shape::of(source),
        })
    }

    /// Renders a conversation. `now` is the time in seconds since 1970, for templates that write the date; it is taken
    /// as the engine's local time.
    ///
    /// # Errors
    /// When the text is not known here, or the template refuses the conversation.
    pub fn render(&self, chat: &Chat<'_>, now: u64) -> Result<String, TemplateError> {
        let Messages::List(messages) = &chat.messages else { return Err(TemplateError::Opaque) };
        if chat.own_template || chat.continue_final_message || chat.add_special_tokens {
            return Err(TemplateError::Opaque);
        }
        let messages = normalize::messages(messages, &self.shape).ok_or(TemplateError::Opaque)?;
        let mut context: BTreeMap<&str, Value> = BTreeMap::new();
        for (name, text) in &self.special_tokens {
            context.insert(name, text.clone());
        }
        let tools = match &chat.tools {
            Some(tools) => normalize::tools(tools).ok_or(TemplateError::Opaque)?,
            None => Value::from(()),
        };
        context.insert("tools", tools);
        context.insert("documents", chat.documents.clone().unwrap_or_else(|| Value::from(())));
        context.insert("add_generation_prompt", Value::from(chat.add_generation_prompt));
        context.insert("strftime_now", Value::from_function(move |format: &str| date::strftime(now, format)));
        if let Some(effort) = &chat.reasoning_effort {
            context.insert("enable_thinking", Value::from(effort.as_str() != Some("none")));
            context.insert("reasoning_effort", effort.clone());
        }
        let kwargs = chat.template_kwargs.as_ref().map(pairs).unwrap_or_default();
        for (name, value) in &kwargs {
            context.insert(name, value.clone());
        }
        context.insert("messages", messages);
        let template =
            self.environment.get_template(NAME).map_err(|error| TemplateError::Compile(error.to_string()))?;
        template.render(Value::from(context)).map_err(|error| TemplateError::Render(reason(&error)))
    }
}

/// What went wrong and in which line of the template; the error's own text may quote a message.
fn reason(error: &Error) -> String {
    match error.line() {
        Some(line) => format!("{} in line {line} of the template", error.kind()),
        None => error.kind().to_string(),
    }
}

fn pairs(map: &Value) -> Vec<(String, Value)> {
    let Ok(keys) = map.try_iter() else { return Vec::new() };
    keys.filter_map(|key| Some((key.as_str()?.to_owned(), map.get_item(&key).ok()?))).collect()
}

#[cfg(test)]
mod tests;
