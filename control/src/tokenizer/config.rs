//! `tokenizer_config.json`: special tokens, the chat template, and what is put before a prompt.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::vocabulary::prefix_of;

/// Tokenizer classes that build their own post-processor from `add_bos_token`, whatever `tokenizer.json` says.
const BOS_BY_CONFIG: [&str; 4] =
    ["LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", "CodeLlamaTokenizerFast"];

#[derive(Debug, Default, Deserialize)]
#[serde(transparent)]
pub(super) struct ConfigFile {
    fields: Map<String, Value>,
}

/// A token as configurations write it: its text, or an object with its text as `content`.
fn text(token: &Value) -> Option<String> {
    let text = token.as_str().or_else(|| token.get("content")?.as_str())?;
    Some(text.to_owned())
}

impl ConfigFile {
    /// The chat template; of several named ones, the one named `default`.
    pub(super) fn chat_template(&self) -> Option<String> {
        match self.fields.get("chat_template")? {
            Value::String(source) => Some(source.clone()),
            Value::Array(named) => {
                let default = named.iter().find(|one| one.get("name").and_then(Value::as_str) == Some("default"))?;
                Some(default.get("template")?.as_str()?.to_owned())
            }
            Value::Object(named) => Some(named.get("default")?.as_str()?.to_owned()),
            _ => None,
        }
    }

    /// All special tokens with a name of their own, as templates can refer to them.
    pub(super) fn special_tokens(&self) -> BTreeMap<String, String> {
        let own = self.fields.iter().filter(|(name, _)| name.ends_with("_token") && !name.starts_with("add_"));
        let extra = self.fields.get("extra_special_tokens").and_then(Value::as_object);
        let all = own.chain(extra.into_iter().flatten());
        all.filter_map(|(name, token)| Some((name.clone(), text(token)?))).collect()
    }

    /// Tokens that are declared here and not always in `tokenizer.json`.
    pub(super) fn added_tokens(&self) -> impl Iterator<Item = (u32, Vec<u8>)> {
        let declared = self.fields.get("added_tokens_decoder").and_then(Value::as_object);
        declared.into_iter().flatten().filter_map(|(id, token)| Some((id.parse().ok()?, text(token)?.into_bytes())))
    }

    /// What the engine puts before a completion prompt.
    pub(super) fn completion_prefix(&self, post_processor: Option<&Value>) -> String {
        let flag = self.fields.get("add_bos_token").and_then(Value::as_bool);
        let bos = || self.fields.get("bos_token").and_then(text).unwrap_or_default();
        let class = self.fields.get("tokenizer_class").and_then(Value::as_str).unwrap_or("");
        if BOS_BY_CONFIG.contains(&class)
            && let Some(add) = flag
        {
            return if add { bos() } else { String::new() };
        }
        match post_processor.and_then(prefix_of) {
            Some(prefix) => prefix,
            None if flag == Some(true) => bos(),
            None => String::new(),
        }
    }
}
