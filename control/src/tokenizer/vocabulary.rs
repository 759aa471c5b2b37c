//! `tokenizer.json`: which kind of tokenizer it is, and what its tokens mean.

use kinference_protocol::v1::Normalization;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::bytes::{ByteTable, TokenBytes, VocabularyTooLarge};
use super::config::ConfigFile;

/// The parts of `tokenizer.json` that matter here.
#[derive(Debug, Deserialize)]
pub(super) struct TokenizerFile {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default)]
    normalizer: Option<Value>,
    #[serde(default)]
    pre_tokenizer: Option<Value>,
    #[serde(default)]
    pub(super) post_processor: Option<Value>,
    #[serde(default)]
    decoder: Option<Value>,
    model: Model,
}

#[derive(Debug, Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
}

/// Merges and the like are skipped; they are most of the file.
#[derive(Debug, Deserialize)]
struct Model {
    /// Old files leave it out.
    #[serde(rename = "type", default)]
    kind: Option<String>,
    /// An object for BPE and WordPiece, a list for Unigram.
    #[serde(default)]
    vocab: Option<Vocabulary>,
    #[serde(default)]
    merges: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    byte_fallback: Option<bool>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Vocabulary {
    Ids(std::collections::HashMap<String, u32>),
    Other(serde::de::IgnoredAny),
}

/// The steps of a component: those of a `Sequence` one by one, or the component itself.
pub(super) fn steps<'a>(component: &'a Value, list: &str) -> Vec<&'a Value> {
    if kind(component) != "Sequence" {
        return vec![component];
    }
    let inner = component.get(list).and_then(Value::as_array);
    inner.into_iter().flatten().flat_map(|step| steps(step, list)).collect()
}

pub(super) fn kind(component: &Value) -> &str {
    component.get("type").and_then(Value::as_str).unwrap_or("")
}

impl TokenizerFile {
    /// What happens to text before it is cut, and what of it is not supported.
    pub(super) fn normalization(&self) -> (Normalization, Option<String>) {
        let Some(normalizer) = &self.normalizer else { return (Normalization::None, None) };
        let mut normalization = Normalization::None;
        for step in steps(normalizer, "normalizers") {
            match kind(step) {
                "NFC" => normalization = Normalization::Nfc,
                other => return (normalization, Some(format!("the normalizer {other:?}"))),
            }
        }
        (normalization, None)
    }

    /// What is in the way of reading tokens as bytes of the text, if anything.
    pub(super) fn unsupported(&self) -> Option<String> {
        let model = &self.model;
        let model_kind = model.kind.as_deref().unwrap_or(if model.merges.is_some() { "BPE" } else { "unknown" });
        if model_kind != "BPE" {
            return Some(format!("a vocabulary of kind {model_kind:?} (SentencePiece and the like)"));
        }
        if model.byte_fallback == Some(true) {
            return Some("a SentencePiece vocabulary (byte_fallback)".into());
        }
        let affix = |affix: &Option<String>| affix.as_deref().is_some_and(|text| !text.is_empty());
        if affix(&model.continuing_subword_prefix) || affix(&model.end_of_word_suffix) {
            return Some("subword prefixes or word suffixes in its vocabulary".into());
        }
        if !matches!(model.vocab, Some(Vocabulary::Ids(_))) {
            return Some("no vocabulary of token to id".into());
        }
        let mut byte_level = false;
        for step in self.pre_tokenizer.iter().flat_map(|component| steps(component, "pretokenizers")) {
            match kind(step) {
                "ByteLevel" if step.get("add_prefix_space") == Some(&Value::Bool(true)) => {
                    return Some("a pre-tokenizer that adds a space before the text".into());
                }
                "ByteLevel" => byte_level = true,
                "Split" | "Punctuation" if step.get("behavior").and_then(Value::as_str) == Some("Removed") => {
                    return Some(format!("a pre-tokenizer that drops text ({})", kind(step)));
                }
                "Split" | "Punctuation" | "Digits" | "UnicodeScripts" | "FixedLength" => {}
                other => return Some(format!("the pre-tokenizer {other:?}")),
            }
        }
        let decoder = self.decoder.iter().flat_map(|component| steps(component, "decoders"));
        if !byte_level && !decoder.into_iter().any(|step| kind(step) == "ByteLevel") {
            return Some("a BPE vocabulary that is not byte-level".into());
        }
        None
    }

    /// The bytes of each token. Added tokens stand for their literal text; they win over the vocabulary's spelling.
    pub(super) fn token_bytes(&self, config: &ConfigFile) -> Result<TokenBytes, VocabularyTooLarge> {
        let table = ByteTable::new();
        let vocabulary = match &self.model.vocab {
            Some(Vocabulary::Ids(ids)) => Some(ids),
            Some(Vocabulary::Other(_)) | None => None,
        };
        let spelled = vocabulary.into_iter().flatten();
        let spelled = spelled.filter_map(|(token, id)| Some((*id, table.decode(token)?)));
        let declared = config.added_tokens();
        let added = self.added_tokens.iter().map(|token| (token.id, token.content.clone().into_bytes()));
        TokenBytes::new(spelled.chain(declared).chain(added))
    }
}

/// The literal text of the special tokens that a post-processor puts before a single sequence; `None` when it is not one
/// that adds tokens.
pub(super) fn prefix_of(post_processor: &Value) -> Option<String> {
    let mut prefix = None;
    for step in steps(post_processor, "processors") {
        match kind(step) {
            "TemplateProcessing" => {
                let tokens = step.get("special_tokens").and_then(Value::as_object);
                let before = step.get("single").and_then(Value::as_array).into_iter().flatten();
                let before = before.map_while(|piece| piece.get("SpecialToken"));
                let text: String = before.map(|piece| literal(piece, tokens)).collect();
                // Later processors wrap what earlier ones made.
                prefix = Some(text + prefix.as_deref().unwrap_or(""));
            }
            "BertProcessing" | "RobertaProcessing" => {
                let cls = step.get("cls").and_then(|cls| cls.get(0)).and_then(Value::as_str);
                prefix = Some(cls.unwrap_or("").to_owned() + prefix.as_deref().unwrap_or(""));
            }
            _ => {}
        }
    }
    prefix
}

fn literal(piece: &Value, tokens: Option<&Map<String, Value>>) -> String {
    let id = piece.get("id").and_then(Value::as_str).unwrap_or("");
    let spelled = tokens.and_then(|tokens| tokens.get(id)?.get("tokens")?.as_array());
    match spelled {
        Some(spelled) => spelled.iter().filter_map(Value::as_str).collect(),
        None => id.to_owned(),
    }
}
