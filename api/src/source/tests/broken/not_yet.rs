//! Warnings of fields that the schema has and nothing reads.

use super::super::{examine_files, file};
use super::{HEAD, WORKER_SET};

#[test]
fn what_is_not_in_force_yet() {
    let warned = |document: &str, from: &str, to: &str| {
        let text = format!("{HEAD}{document}");
        assert!(text.contains(from), "the case does not apply: {from:?}");
        let loaded = examine_files(vec![file("f.yaml", &text.replacen(from, to, 1))]);
        loaded.problems.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for role in ["Prefill", "Decode"] {
        assert_eq!(
            warned(WORKER_SET, "spec:\n", &format!("spec:\n  role: {role}\n")),
            ["f.yaml:5: spec.role: warning: a worker set's role is not in force yet (the worker set gets whole \
              requests, prefill and decode)"]
        );
    }
    assert_eq!(warned(WORKER_SET, "spec:\n", "spec:\n  role: Both\n"), [""; 0]);
    assert_eq!(
        warned(WORKER_SET, "path: model", "huggingFace: {repository: a/b}"),
        [
            "f.yaml:8: spec.model.tokenizer.huggingFace: warning: fetching from the Hugging Face hub is not in force yet \
          (download the files and use `path` or `configMap`; until then there is no tokenizer, and prefixes are \
          learned from where requests were sent)"
        ]
    );
    let provider = "kind: InferenceProvider
metadata: {name: p}
spec:
  api: OpenAI
  endpoint: https://api.example.com/v1
  models: [{name: m, pricePerMillionTokens: {input: '1', output: '2'}}]
";
    assert_eq!(
        warned(provider, "{input: '1'", "{input: '1', cachedInput: '0.1'"),
        ["f.yaml:7: spec.models[0].pricePerMillionTokens.cachedInput: warning: a price of cached tokens is not in \
          force yet (all prompt tokens count at the price of `input`)"]
    );
    assert_eq!(warned(provider, "m", "m"), [""; 0]);
}
