use std::fs;
use std::path::Path;

use super::*;
use crate::ObjectKey;
use crate::kinds::{Engine, FailureMode, Objective, Role};

mod broken;
mod limits;
mod policies;

fn file(path: &str, content: &str) -> SourceFile {
    SourceFile { path: PathBuf::from(path), content: content.as_bytes().to_vec() }
}

/// Every problem of one file, as a user sees them.
fn problems(path: &str, content: &str) -> Vec<String> {
    match load_files(vec![file(path, content)]) {
        Ok(_) => Vec::new(),
        Err(Problems(problems)) => problems.iter().map(Problem::to_string).collect(),
    }
}

/// A folder of its own for a test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("kinference-api-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn write(&self, name: &str, content: &str) {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A document of a provider, the smallest of the kinds.
fn provider(name: &str) -> String {
    format!(
        "apiVersion: kinference.dev/v1alpha1\nkind: InferenceProvider\nmetadata: {{name: {name}}}\n\
         spec: {{api: OpenAI, endpoint: 'https://x', models: [{{name: m}}]}}\n"
    )
}

#[test]
fn every_field_of_every_kind_is_read() {
    let resources = load_files(vec![file("all.yaml", include_str!("tests/all.yaml"))])
        .unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(resources.len(), 8);
    assert_eq!(resources.policy_tests.len(), 1);
    let test = &resources.policy_tests[0];
    assert_eq!(test.spec.cases[2].expect.rule.as_deref(), Some("burst-to-cloud"));
    let history = test.spec.state.workers["qwen/a"].history.as_ref().unwrap();
    assert_eq!(history.queued_requests[0].0.0.as_millis(), 20_000);
    assert_eq!(test.case_lines, [131, 132, 133]);
    assert_eq!(test.backend(&resources), Some(&ObjectKey::new("default", "main")));

    let qwen = &resources.worker_sets[&ObjectKey::new("default", "qwen")];
    assert_eq!(qwen.labels["tier"], "cheap");
    assert_eq!(qwen.spec.engine, Engine::Vllm);
    let statics = qwen.spec.workers.static_workers.as_ref().unwrap();
    assert_eq!(statics[1].kv_replay_port, Some(5560));
    assert_eq!(qwen.spec.metrics.interval.as_millis(), 250);
    let glm = &resources.worker_sets[&ObjectKey::new("default", "glm")];
    assert_eq!(glm.spec.role, Role::Prefill);
    assert_eq!(glm.spec.kv_events, None);
    let hub = glm.spec.model.tokenizer.hugging_face.as_ref().unwrap();
    assert_eq!((hub.revision.as_str(), hub.token_secret_ref.as_ref().unwrap().key.as_str()), ("main", "token"));

    let main = &resources.backends[&ObjectKey::new("default", "main")].spec;
    let tenancy = main.tenancy.as_ref().unwrap();
    assert_eq!(tenancy.identify.len(), 3);
    assert_eq!(tenancy.tenants[0].limits.unwrap().tokens_per_minute, Some(200_000));
    assert_eq!(main.tags.as_ref().unwrap().classifiers.len(), 3);
    assert_eq!(main.failure_mode, FailureMode::Closed);

    let rules = &resources.policies[&ObjectKey::new("default", "house-rules")].spec.rules;
    assert_eq!(rules[1].minimize, Some(Objective::Cost));
    assert_eq!(rules[2].fallback[1].providers, ["databricks"]);
    let bedrock = &resources.providers[&ObjectKey::new("default", "bedrock")].spec.models[0];
    assert_eq!(bedrock.expected_ttft.unwrap().as_millis(), 900);
    assert_eq!(bedrock.price_per_million_tokens.as_ref().unwrap().input.get(), 0.6);
}

#[test]
fn what_is_left_out_has_its_documented_default() {
    let text = "apiVersion: kinference.dev/v1alpha1\nkind: GatewayBackend\nmetadata: {name: main}\n\
        spec: {providers: [{name: p}]}\n---\n"
        .to_string()
        + &provider("p");
    let resources = load_files(vec![file("a.yaml", &text)]).unwrap();
    let main = &resources.backends[&ObjectKey::new("default", "main")].spec;
    assert_eq!(main.request_body_limit.to_string(), "8Mi");
    assert_eq!(main.stale_after.to_string(), "10s");
    assert_eq!(main.prefix_index.max_bytes.to_string(), "64Mi");
    assert_eq!(main.prefix_index.chunk_bytes, 256);
    assert_eq!(main.failure_mode, FailureMode::Open);
    let timeout = resources.providers.values().next().unwrap().spec.request_timeout;
    assert_eq!(timeout.as_millis(), 120_000);
}

#[test]
fn what_a_cluster_exported_is_read() {
    let text = r#"{"apiVersion": "kinference.dev/v1alpha1", "kind": "InferenceProvider",
        "metadata": {"name": "p", "namespace": "team", "uid": "1", "resourceVersion": "2", "generation": 3,
            "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": [{"x": 1}], "annotations": {"a/b": "c"}},
        "spec": {"api": "OpenAI", "endpoint": "https://x", "models": [{"name": "m"}]},
        "status": {"conditions": []}}"#;
    let resources = load_files(vec![file("a.json", text)]).unwrap_or_else(|problems| panic!("{problems}"));
    assert!(resources.providers.contains_key(&ObjectKey::new("team", "p")));
}

#[test]
fn folders_are_read_with_what_is_below_and_hidden_files_left_out() {
    let folder = Folder::new("folders");
    folder.write("a.yaml", &provider("a"));
    folder.write("below/b.yml", &provider("b"));
    folder.write(
        "below/c.json",
        r#"{"apiVersion": "kinference.dev/v1alpha1", "kind": "InferenceProvider",
        "metadata": {"name": "c"}, "spec": {"api": "OpenAI", "endpoint": "https://x", "models": [{"name": "m"}]}}"#,
    );
    folder.write("notes.txt", "no resource");
    folder.write(".hidden/a.yaml", &provider("a"));
    let resources = load(&[folder.0.clone(), folder.0.join("a.yaml")]).unwrap_or_else(|problems| panic!("{problems}"));
    let names: Vec<&str> = resources.providers.keys().map(|key| key.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
}

#[test]
fn the_fingerprint_changes_with_what_is_read_and_with_nothing_else() {
    let folder = Folder::new("fingerprint");
    folder.write("a.yaml", &provider("a"));
    // Nobody ever writes to it, so whoever reads it waits for good.
    let made = std::process::Command::new("mkfifo").arg(folder.0.join("pipe.yaml")).status().unwrap();
    assert!(made.success());
    let now = || {
        let (sender, receiver) = std::sync::mpsc::channel();
        let path = folder.0.clone();
        std::thread::spawn(move || sender.send(fingerprint(&[path])));
        receiver.recv_timeout(std::time::Duration::from_secs(30)).expect("it waits for a pipe")
    };
    let mut seen = now();
    folder.write("notes.txt", "no resource");
    folder.write(".hidden/a.yaml", &provider("a"));
    assert_eq!(now(), seen);
    let deep = "d/".repeat(20) + "deep.yaml";
    let dangling = |name: &str| std::os::unix::fs::symlink("nowhere", folder.0.join(name)).unwrap();
    let changes: [&dyn Fn(); 5] = [
        &|| folder.write("a.yaml", &provider("b")),
        &|| fs::rename(folder.0.join("a.yaml"), folder.0.join("b.yaml")).unwrap(),
        &|| folder.write(&deep, &provider("deep")),
        &|| dangling("gone.yaml"),
        &|| fs::remove_file(folder.0.join("b.yaml")).unwrap(),
    ];
    for change in changes {
        change();
        let before = std::mem::replace(&mut seen, now());
        assert_ne!(seen, before);
    }
}

#[test]
fn problems_of_all_files_come_together() {
    let folder = Folder::new("together");
    folder.write("a.yaml", "kind: [\n---\nkind: Nonsense\n");
    folder.write("b.yaml", &provider("b").replace("OpenAI", "OpenAi"));
    let Err(Problems(problems)) = load(&[folder.0.clone(), folder.0.join("missing.yaml")]) else {
        panic!("loaded");
    };
    let places: Vec<(String, usize)> =
        problems.iter().map(|p| (p.file.file_name().unwrap().to_string_lossy().into_owned(), p.line)).collect();
    let expected = [("a.yaml", 2), ("a.yaml", 3), ("a.yaml", 3), ("a.yaml", 3), ("b.yaml", 4), ("missing.yaml", 0)];
    assert_eq!(places, expected.map(|(name, line)| (name.to_string(), line)), "{problems:#?}");
}

#[test]
fn a_reference_to_what_could_not_be_read_is_no_second_problem() {
    let backend = "apiVersion: kinference.dev/v1alpha1\nkind: GatewayBackend\nmetadata: {name: main}\n\
        spec: {providers: [{name: p}, {name: q}]}\n---\n";
    let text = backend.to_string() + &provider("p").replace("api: OpenAI", "api: 7");
    assert_eq!(
        problems("a.yaml", &text),
        [
            "a.yaml:4: spec.providers[1].name: there is no InferenceProvider `q` (namespace default has none)",
            "a.yaml:9: spec.api: unknown value `7` (write OpenAI, Anthropic, Bedrock, Databricks)",
        ]
    );
}

#[test]
fn lines_count_from_the_start_of_the_file() {
    let text = provider("a") + "---\n# comment\n\n" + &provider("b").replace("name: m", "name: m, nmae: n");
    assert_eq!(problems("a.yaml", &text), ["a.yaml:11: spec.models[0].nmae: unknown field (did you mean `name`?)"]);
}

#[test]
fn the_example_is_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let resources = load(&[root.join("examples/local")]).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(resources.backends.len(), 1);
}

#[test]
fn tests_are_for_people() {
    let folder = Folder::new("tests");
    let broken = "apiVersion: kinference.dev/v1alpha1\nkind: PolicyTest\nmetadata: {name: t}\ncases: [{nonsense: 1}]\n";
    folder.write("a.yaml", include_str!("tests/all.yaml"));
    folder.write("t.yaml", broken);
    folder.write("only-a-test.yaml", broken);
    let paths = [folder.0.clone()];
    let (all, resources) = (examine(&paths), examine_resources(&paths));
    let said = |loaded: &Loaded| loaded.problems.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert!(said(&all).iter().any(|line| line.contains("nonsense")), "{:?}", said(&all));
    let said = said(&resources);
    assert!(said.iter().all(|line| !line.contains("t.yaml")), "{said:?}");
    assert!(said.iter().all(|line| !line.contains("holds no resource")), "{said:?}");
    assert!(resources.resources.policy_tests.is_empty() && !resources.resources.policies.is_empty());
}

/// A policy that a failed write emptied must not lose its rules without a word.
#[test]
fn a_file_without_any_resource_is_an_error() {
    let remedy = "delete the file if that is meant, or end its name in something else than .yaml, .yml and .json";
    for content in ["", "\n", "# nothing yet\n", "# nothing\n---\n# here\n---\n", "---\nnull\n", "\u{feff}"] {
        let empty = file("p.yaml", content);
        let loaded = examine_files(vec![file("a.yaml", &provider("a")), empty]);
        let said: Vec<String> = loaded.problems.iter().map(ToString::to_string).collect();
        assert_eq!(said, [format!("p.yaml:1: the file holds no resource ({remedy})")], "{content:?}");
        assert!(loaded.valid().is_err(), "{content:?}");
    }
    assert_eq!(problems("p.json", "null"), [format!("p.json:1: the file holds no resource ({remedy})")]);
    // Which of the two is wrong is said once.
    let backend = "apiVersion: kinference.dev/v1alpha1\nkind: GatewayBackend\nmetadata: {name: main}\n\
        spec: {providers: [{name: p}]}\n";
    let Err(Problems(problems)) = load_files(vec![file("a.yaml", backend), file("p.yaml", "")]) else {
        panic!("loaded");
    };
    assert_eq!(problems.len(), 1, "{problems:#?}");
}

#[test]
fn a_folder_without_files_is_an_error() {
    let folder = Folder::new("no-files");
    folder.write("notes.txt", "no resource");
    folder.write("below/.hidden.yaml", &provider("a"));
    let loaded = examine(std::slice::from_ref(&folder.0));
    let said: Vec<String> = loaded.problems.iter().map(ToString::to_string).collect();
    let remedy = "resources are in files that end in .yaml, .yml or .json; name the folder that has them";
    assert_eq!(said, [format!("{}: no files were found here ({remedy})", folder.0.display())]);
    folder.write("below/a.yaml", &provider("a"));
    assert!(load(&[folder.0.join("below/a.yaml"), folder.0.clone()]).is_ok(), "the same file twice");
}

#[test]
fn what_is_quoted_of_a_file_is_shown_and_not_obeyed() {
    let text = provider("a").replace("api: OpenAI", "\"x\\ny\": 1, api: \"Open\\e[2JAI\\u202E\"");
    let found = problems("a\u{1b}.yaml", &text);
    assert_eq!(
        found,
        [
            "a\\u{1b}.yaml:4: spec.api: unknown value `Open\\u{1b}[2JAI\\u{202e}` (write OpenAI, Anthropic, Bedrock, \
             Databricks)",
            "a\\u{1b}.yaml:4: spec[\"x\\ny\"]: unknown field (known here: api, credentials, endpoint, models, region, \
             requestTimeout)",
        ]
    );
}
