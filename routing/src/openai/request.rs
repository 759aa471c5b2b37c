//! Reading a request's body: model, prompt, and the few options that matter to routing.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use minijinja::Value;
use serde::de::{Deserializer as _, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::budget::{AnyValue, Budget};
use super::error::RequestError;
use super::message::{Lenient, Messages, MessagesVisitor};

/// Bodies larger than this are not read as prompts: no model's context is as long, so they are mostly images, and what a
/// template makes of one in memory may be many times as large.
const LARGEST_PROMPT: usize = 8 << 20;

/// The paths that are routed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/chat/completions`
    ChatCompletions,
    /// `/v1/completions`
    Completions,
    /// `/v1/embeddings`
    Embeddings,
}

impl Endpoint {
    /// The endpoint of a path; a query and a closing slash do not matter.
    #[must_use]
    pub fn of_path(path: &str) -> Option<Self> {
        let path = without_query(path);
        match path.strip_suffix('/').unwrap_or(path) {
            "/v1/chat/completions" => Some(Self::ChatCompletions),
            "/v1/completions" => Some(Self::Completions),
            "/v1/embeddings" => Some(Self::Embeddings),
            _ => None,
        }
    }

    /// The path after the API's base path.
    #[must_use]
    pub fn suffix(self) -> &'static str {
        match self {
            Self::ChatCompletions => "/chat/completions",
            Self::Completions => "/completions",
            Self::Embeddings => "/embeddings",
        }
    }
}

/// The path of a request's target.
#[must_use]
pub fn without_query(target: &str) -> &str {
    target.split(['?', '#']).next().unwrap_or_default()
}

/// A request, borrowed from its body where possible.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The model asked for.
    pub model: Model<'a>,
    /// What the engine is to continue.
    pub prompt: Prompt<'a>,
    /// The answer is to be a stream of events.
    pub stream: bool,
    /// The stream is to end with usage figures.
    pub include_usage: bool,
    /// Keeps the request's cache entries apart from those of other salts.
    pub cache_salt: Option<Cow<'a, str>>,
    /// The text of a completion is taken without the special tokens that the model's prompts begin with.
    pub bare: bool,
}

/// The model's name, and where it stands in the body.
#[derive(Debug, Clone)]
pub struct Model<'a> {
    /// The name.
    pub name: Cow<'a, str>,
    /// Bytes of the body that hold the JSON string, quotes included: the last, when the key is there several times.
    pub span: Range<usize>,
    /// The same of every value that some parser takes for the model, in order: each of several, and those of `Model` and
    /// the like. Engines take the last.
    pub spans: Vec<Range<usize>>,
}

/// What the engine is to continue.
#[derive(Debug, Clone)]
pub enum Prompt<'a> {
    /// A conversation, to be rendered by the model's chat template.
    Chat(Box<Chat<'a>>),
    /// A text, taken as it is.
    Text(Cow<'a, str>),
    /// A prompt whose text is not known here: token ids, images, unknown forms.
    Opaque,
}

/// A conversation and the options that templates see.
#[derive(Debug, Clone)]
pub struct Chat<'a> {
    /// The messages.
    pub messages: Messages<'a>,
    /// Tools that the model may call.
    pub tools: Option<Value>,
    /// Documents for retrieval.
    pub documents: Option<Value>,
    /// The template is to end with the opening of an answer (default).
    pub add_generation_prompt: bool,
    /// The last message is to be continued rather than closed.
    pub continue_final_message: bool,
    /// Further variables for the template.
    pub template_kwargs: Option<Value>,
    /// How hard the model is to think.
    pub reasoning_effort: Option<Value>,
    /// The request brings a template of its own, which is not known here.
    pub own_template: bool,
    /// Special tokens are to be added although the template writes them.
    pub add_special_tokens: bool,
}

impl Default for Chat<'_> {
    fn default() -> Self {
        Self {
            messages: Messages::Unknown,
            tools: None,
            documents: None,
            add_generation_prompt: true,
            continue_final_message: false,
            template_kwargs: None,
            reasoning_effort: None,
            own_template: false,
            add_special_tokens: false,
        }
    }
}

/// Reads a request's body.
///
/// # Errors
/// When the body is not a JSON object or names no model. What else may be wrong with it is for the engine to say.
pub fn parse(endpoint: Endpoint, body: &[u8]) -> Result<Request<'_>, RequestError> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(RequestError::Empty);
    }
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let fields = deserializer
        .deserialize_map(Fields { endpoint, large: body.len() > LARGEST_PROMPT })
        .and_then(|fields| deserializer.end().map(|()| fields))
        // The message of serde_json quotes no input but the name of an unexpected type and the position.
        .map_err(|error| RequestError::Json(position(&error)))?;
    let raw = fields.model.ok_or(RequestError::NoModel)?;
    let name: Cow<'_, str> =
        serde_json::from_str::<Lenient<'_>>(raw).ok().and_then(Lenient::text).ok_or(RequestError::ModelType)?;
    if name.is_empty() {
        return Err(RequestError::ModelType);
    }
    let span = |raw: &&str| {
        // `raw` is a part of `body`, so the distance of their beginnings is its place.
        let start = (raw.as_ptr() as usize).wrapping_sub(body.as_ptr() as usize);
        start..start + raw.len()
    };
    Ok(Request {
        model: Model { name, span: span(&raw), spans: fields.models.iter().map(span).collect() },
        prompt: fields.prompt,
        stream: fields.stream,
        include_usage: fields.include_usage,
        cache_salt: fields.cache_salt,
        bare: fields.bare,
    })
}

/// What is wrong, without any of the client's text.
fn position(error: &serde_json::Error) -> String {
    let what = match error.classify() {
        serde_json::error::Category::Eof => "it ends early",
        serde_json::error::Category::Syntax => "syntax error",
        serde_json::error::Category::Data | serde_json::error::Category::Io => "not an object",
    };
    format!("{what} at line {} column {}", error.line(), error.column())
}

struct Collected<'a> {
    model: Option<&'a str>,
    /// Values of all keys that some parser takes for the model.
    models: Vec<&'a str>,
    prompt: Prompt<'a>,
    stream: bool,
    include_usage: bool,
    cache_salt: Option<Cow<'a, str>>,
    bare: bool,
}

/// Values of the model that are kept; a body with more is wrong.
const MODELS: usize = 64;

struct Fields {
    endpoint: Endpoint,
    /// The body is too large to be read as a prompt.
    large: bool,
}

impl<'de> Visitor<'de> for Fields {
    type Value = Collected<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut collected = Collected {
            model: None,
            models: Vec::with_capacity(1),
            prompt: Prompt::Opaque,
            stream: false,
            include_usage: false,
            cache_salt: None,
            bare: false,
        };
        let mut chat = Box::<Chat<'de>>::default();
        let is_chat = self.endpoint == Endpoint::ChatCompletions && !self.large;
        let is_completion = self.endpoint == Endpoint::Completions && !self.large;
        let mut truncated = false;
        // What a prompt is made of, and what tells how to answer, which is known however large the prompt is.
        let (budget, flags) = (Budget::default(), Budget::default());
        let (value, flag) = (AnyValue(&budget), AnyValue(&flags));
        while let Some(key) = map.next_key::<Lenient<'de>>()? {
            let Some(key) = key.text() else { return Err(A::Error::custom("a key is not a string")) };
            // The last of several equal keys counts, as in Python's parser.
            match &*key {
                name if name.eq_ignore_ascii_case("model") => {
                    let raw = map.next_value::<&RawValue>()?.get();
                    if collected.models.len() == MODELS {
                        return Err(A::Error::custom("the model is named too often"));
                    }
                    collected.models.push(raw);
                    if name == "model" {
                        collected.model = Some(raw);
                    }
                }
                "stream" => collected.stream = is_true(&map.next_value_seed(flag)?),
                "stream_options" => {
                    let options = map.next_value_seed(flag)?;
                    collected.include_usage = options.get_attr("include_usage").is_ok_and(|value| is_true(&value));
                }
                "cache_salt" => collected.cache_salt = map.next_value::<Lenient<'de>>()?.text(),
                "truncate_prompt_tokens" => truncated = !map.next_value_seed(flag)?.is_none(),
                "add_special_tokens" if is_completion => {
                    collected.bare = map.next_value_seed(flag)? == Value::from(false);
                }
                "prompt" if is_completion => {
                    collected.prompt = map.next_value::<Lenient<'de>>()?.text().map_or(Prompt::Opaque, Prompt::Text);
                }
                "messages" if is_chat => chat.messages = map.next_value_seed(MessagesVisitor(&budget))?,
                "tools" if is_chat => chat.tools = some(map.next_value_seed(value)?),
                "documents" if is_chat => chat.documents = some(map.next_value_seed(value)?),
                "add_generation_prompt" if is_chat => {
                    chat.add_generation_prompt = is_true(&map.next_value_seed(flag)?);
                }
                "continue_final_message" if is_chat => {
                    chat.continue_final_message = is_true(&map.next_value_seed(flag)?);
                }
                "add_special_tokens" if is_chat => chat.add_special_tokens = is_true(&map.next_value_seed(flag)?),
                "chat_template_kwargs" if is_chat => chat.template_kwargs = some(map.next_value_seed(value)?),
                "reasoning_effort" if is_chat => chat.reasoning_effort = some(map.next_value_seed(value)?),
                "chat_template" if is_chat => chat.own_template = !map.next_value_seed(flag)?.is_none(),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        if is_chat {
            collected.prompt = Prompt::Chat(chat);
        }
        if truncated || budget.exceeded() {
            collected.prompt = Prompt::Opaque;
        }
        Ok(collected)
    }
}

fn some(value: Value) -> Option<Value> {
    if value.is_none() { None } else { Some(value) }
}

fn is_true(value: &Value) -> bool {
    *value == Value::from(true)
}

#[cfg(test)]
mod tests;
