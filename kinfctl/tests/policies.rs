//! Policies as a user checks, tests and explains them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kinfctl"));
    command.args(arguments).current_dir(root());
    command
}

fn kinfctl(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output.stdout)))
}

/// A folder of its own, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("kinfctl-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn with_example(name: &str) -> Folder {
        let folder = Folder::new(name);
        for file in fs::read_dir(root().join("examples/policies")).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), folder.0.join(file.file_name())).unwrap();
        }
        folder
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// Replaces text of a file, which must be there.
    fn change(&self, file: &str, from: &str, to: &str) {
        let path = self.0.join(file);
        let before = fs::read_to_string(&path).unwrap();
        assert!(before.contains(from), "{file} has no {from:?}");
        // Renamed into place, so that whoever watches never reads half a file.
        let new = self.0.join(".new");
        fs::write(&new, before.replacen(from, to, 1)).unwrap();
        fs::rename(new, path).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_example_is_valid_without_a_warning() {
    let run = kinfctl(&["validate", "examples/policies"]);
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stdout));
    let printed = text(&run.stdout);
    assert!(printed.ends_with(
        "valid: 1 GatewayBackend, 1 InferencePool, 2 InferenceWorkerSet, 2 InferenceProvider, 1 InferencePolicy, 1 PolicyTest\n"
    ), "{printed}");
    let strict = kinfctl(&["validate", "examples/policies", "--strict"]);
    assert_eq!(strict.status.code(), Some(0), "{}", text(&strict.stdout));
}

#[test]
fn problems_are_told_to_programs() {
    let run = kinfctl(&["validate", "kinfctl/tests/broken.yaml", "--output", "json"]);
    assert_eq!(run.status.code(), Some(1));
    let report = json(&run);
    assert_eq!((&report["valid"], &report["errors"], &report["warnings"]), (&false.into(), &2.into(), &0.into()));
    let problem = &report["problems"][1];
    assert_eq!(
        (
            &problem["file"],
            &problem["line"],
            &problem["path"],
            &problem["severity"],
            &problem["message"],
            &problem["remedy"]
        ),
        (
            &"kinfctl/tests/broken.yaml".into(),
            &5.into(),
            &"spec.worker".into(),
            &"error".into(),
            &"unknown field".into(),
            &"did you mean `workerSets`?".into()
        )
    );
    let sarif = json(&kinfctl(&["validate", "kinfctl/tests/broken.yaml", "missing.yaml", "--output", "sarif"]));
    assert_eq!(sarif["version"], "2.1.0");
    let results = sarif["runs"][0]["results"].as_array().unwrap();
    assert_eq!(results.len(), 3);
    assert_eq!(results[1]["message"]["text"], "spec.worker: unknown field (did you mean `workerSets`?)");
    let place = &results[1]["locations"][0]["physicalLocation"];
    assert_eq!(place["artifactLocation"]["uri"], "kinfctl/tests/broken.yaml");
    assert_eq!((&place["region"]["startLine"], &results[1]["level"]), (&5.into(), &"error".into()));
    assert_eq!(results[2]["locations"][0]["physicalLocation"].get("region"), None);
    let rules = sarif["runs"][0]["tool"]["driver"]["rules"].as_array().unwrap();
    assert!(results.iter().all(|result| rules.iter().any(|rule| rule["id"] == result["ruleId"])));
}

#[test]
fn the_tests_of_the_example_pass() {
    let run = kinfctl(&["test", "examples/policies"]);
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stdout));
    let printed = text(&run.stdout);
    assert!(printed.starts_with("examples/policies/house-rules-test.yaml: house-rules\n  pass  "), "{printed}");
    assert!(printed.ends_with(" passed, 0 failed\n"), "{printed}");
    let report = json(&kinfctl(&["test", "examples/policies", "--output", "json"]));
    assert_eq!(report["failed"], 0);
    assert!(report["passed"].as_u64().is_some_and(|passed| passed > 20));
}

/// Each rule of the example, taken away or bent, must be missed by some test.
#[test]
fn the_tests_of_the_example_notice_every_rule() {
    for (number, (from, to)) in [
        ("when: {models: [standard-model]}", "when: {models: [standard]}"),
        ("candidates: {models: [glm-5.3, qwen-3.6-27b]}", "candidates: {models: [glm-5.3]}"),
        ("tags: {all: [complexity-low]}", "tags: {none: [complexity-high]}"),
        ("max: \"2\"", "max: \"1\""),
        ("max: \"2\"", "max: \"20\""),
        ("over: 30s", "over: 15s"),
        ("over: 30s", "over: 50s"),
        ("{providers: [bedrock]}, {providers: [databricks]}", "{providers: [databricks]}, {providers: [bedrock]}"),
        ("require: {locality: Local}", "minimize: Cost"),
        ("below: \"0.7\"", "max: \"0.7\""),
        ("status: 429, retryAfter: 30s", "status: 429, retryAfter: 31s"),
        ("tenants: [batch-team]", "tenants: ['*']"),
        ("aggregate: Average", "aggregate: Last"),
        ("atLeast: \"0.9\"", "atLeast: \"0.95\""),
    ]
    .into_iter()
    .enumerate()
    {
        let folder = Folder::with_example(&format!("bent-{number}"));
        folder.change("house-rules.yaml", from, to);
        let run = kinfctl(&["test", folder.path()]);
        assert_eq!(run.status.code(), Some(1), "{from} -> {to}: {}", text(&run.stdout));
        assert!(text(&run.stdout).contains("  FAIL  "), "{from} -> {to}: {}", text(&run.stdout));
    }
}

#[test]
fn a_failing_case_shows_its_whole_trace() {
    let folder = Folder::with_example("failing");
    folder.change("house-rules.yaml", "max: \"2\"", "max: \"20\"");
    let run = kinfctl(&["test", folder.path()]);
    assert_eq!(run.status.code(), Some(1));
    let printed = text(&run.stdout);
    for part in [
        "  FAIL  overflow (line 38)\n        expected  provider bedrock\n",
        "        got       worker glm/b, model glm-5.3\n",
        "        RULE                            MATCHES  WHY NOT\n",
        "        house-rules/pii-stays-local     no       none of the tags [\"pii-detected\"]\n",
        "           fallback 1  bedrock     glm-5.3  0       256         0       900 ms\n",
        " passed, 4 failed\n",
    ] {
        assert!(printed.contains(part), "no {part:?} in\n{printed}");
    }
    assert!(!printed.contains('\u{1b}'), "colours in a pipe");
    let report = json(&kinfctl(&["test", folder.path(), "--output", "json"]));
    let failed = report["cases"].as_array().unwrap().iter().find(|case| case["name"] == "overflow").unwrap();
    assert_eq!((&failed["line"], &failed["unmet"][0]), (&38.into(), &"provider bedrock".into()));
    assert_eq!(failed["outcome"]["decision"]["worker"], "glm/b");
}

#[test]
fn tests_that_cannot_run_say_why() {
    let folder = Folder::with_example("unrunnable");
    folder.change("house-rules-test.yaml", "promptTokens: 900", "promptToken: 900");
    let run = kinfctl(&["test", folder.path()]);
    assert_eq!(run.status.code(), Some(1));
    let expected =
        "house-rules-test.yaml:9: cases[0].request.promptToken: unknown field (did you mean `promptTokens`?)\n";
    assert!(text(&run.stdout).contains(expected), "{}", text(&run.stdout));
    let none = kinfctl(&["test", "examples/local"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(text(&none.stderr).contains("there is no PolicyTest in these files"), "{}", text(&none.stderr));
    assert_eq!(kinfctl(&["test"]).status.code(), Some(2));
}

#[test]
fn watching_runs_the_tests_again_when_a_file_changed() {
    let folder = Folder::with_example("watching");
    let mut child = command(&["test", folder.path(), "--watch"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut until = |end: &str| loop {
        let line = lines.next().expect("it ended").unwrap();
        if line.ends_with(end) {
            break line;
        }
    };
    until(" passed, 0 failed");
    folder.change("house-rules.yaml", "max: \"2\"", "max: \"20\"");
    until(" failed");
    folder.change("house-rules.yaml", "max: \"20\"", "max: \"2\"");
    until(" passed, 0 failed");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn explanations_name_every_rule_and_place() {
    let folder = Folder::with_example("explain");
    let state = folder.0.join("busy.yaml");
    fs::write(&state, "workers: {glm/a: {queuedRequests: 9, cachedPrefixTokens: 640}, glm/b: {ready: false}}\n")
        .unwrap();
    let state = state.to_str().unwrap();
    let arguments = [
        "explain",
        "examples/policies",
        "--model",
        "glm-5.3",
        "--tenant",
        "research",
        "--prompt-tokens",
        "900",
        "--state",
        state,
    ];
    let run = kinfctl(&arguments);
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    let printed = text(&run.stdout);
    for part in [
        "request   model glm-5.3, tenant research, tags none, 900 prompt tokens\n",
        "decision  provider bedrock, model glm-5.3, rule house-rules/burst-to-cloud\n",
        "house-rules/burst-to-cloud      yes\n",
        "   candidates  glm/a       glm-5.3  640     260         4608    511 ms          removed by house-rules/burst-to-cloud: ",
        "   candidates  glm/b       glm-5.3  0       900         0       110 ms          not ready\n",
        "*  fallback 1  bedrock     glm-5.3  0       900         0       900 ms          chosen\n",
    ] {
        assert!(printed.contains(part), "no {part:?} in\n{printed}");
    }
    let tagged = kinfctl(&[&arguments[..], &["--tag", "pii-detected", "--output", "json"]].concat());
    let report = json(&tagged);
    assert_eq!(report["decision"]["rejected"]["status"], 503);
    assert_eq!(report["decision"]["rule"], "house-rules/pii-stays-local");
    let bedrock = report["candidates"].as_array().unwrap().iter().find(|place| place["name"] == "bedrock").unwrap();
    assert_eq!(
        (&bedrock["removed"]["rule"], &bedrock["removed"]["load"]),
        (&"house-rules/pii-stays-local".into(), &false.into())
    );
}

#[test]
fn explanations_take_a_request_as_clients_send_it() {
    let folder = Folder::with_example("request");
    let request = folder.0.join("chat.json.txt");
    let body = r#"{"model": "standard-model", "messages": [{"role": "user", "content": "Hello, how are you today?"}]}"#;
    fs::write(&request, body).unwrap();
    let path = request.to_str().unwrap();
    let report = json(&kinfctl(&[
        "explain",
        "examples/policies",
        "--tenant",
        "research",
        "--request",
        path,
        "--output",
        "json",
    ]));
    assert_eq!(
        (&report["request"]["model"], &report["request"]["promptTokens"]),
        (&"standard-model".into(), &(body.len() / 4).into())
    );
    assert_eq!(report["decision"]["rule"], "house-rules/one-stable-name");
    fs::write(&request, r#"{"messages": []}"#).unwrap();
    let bad = kinfctl(&["explain", "examples/policies", "--request", path]);
    assert_eq!(bad.status.code(), Some(1));
    assert!(text(&bad.stderr).contains("is not a request: "), "{}", text(&bad.stderr));
}

/// As the gateway does, and `explain --control` with it.
#[test]
fn explanations_refuse_a_request_without_tenant_where_the_gateway_does() {
    let folder = Folder::with_example("anonymous");
    let explain = |tenant: &[&str]| {
        let arguments = ["explain", folder.path(), "--model", "glm-5.3", "--output", "json"];
        json(&kinfctl(&[&arguments[..], tenant].concat()))
    };
    for tenant in [&[][..], &["--tenant", ""]] {
        assert_eq!(explain(tenant)["decision"]["rejected"]["status"], 401, "{tenant:?}");
    }
    assert!(explain(&["--tenant", "research"])["decision"]["worker"].is_string());
    folder.change("fleet.yaml", "unidentified: Deny", "unidentified: Allow");
    assert!(explain(&[])["decision"]["worker"].is_string());
}

#[test]
fn a_folder_without_files_is_not_valid() {
    let folder = Folder::new("nothing");
    for command in ["validate", "test"] {
        let run = kinfctl(&[command, folder.path()]);
        assert_eq!(run.status.code(), Some(1), "{command}");
        assert!(text(&run.stdout).contains(": no files were found here ("), "{}", text(&run.stdout));
    }
}

#[test]
fn what_files_hold_is_shown_and_not_obeyed() {
    let folder = Folder::with_example("escapes");
    folder.change("house-rules-test.yaml", "- name: overflow\n", "- name: \"over\\e[2Jflow\"\n");
    folder.change("house-rules.yaml", "max: \"2\"", "max: \"20\"");
    folder.change("house-rules.yaml", "No local worker may take this prompt.", "No\\e]0;local\\nworker");
    for arguments in [
        &["test", folder.path()][..],
        &["explain", folder.path(), "--model", "\u{1b}[31m", "--tenant", "research"],
        &[
            "explain",
            folder.path(),
            "--model",
            "glm-5.3",
            "--tenant",
            "research",
            "--gateway-backend",
            "x",
            "--state",
            "\u{1b}",
        ],
    ] {
        let run = kinfctl(arguments);
        let printed = text(&run.stdout) + &text(&run.stderr);
        assert!(!printed.contains('\u{1b}') && printed.contains("\\u{1b}"), "{arguments:?}: {printed}");
    }
}

#[test]
fn states_with_unknown_fields_and_names_are_refused() {
    let folder = Folder::with_example("state");
    let path = folder.0.join("state.txt");
    let explain =
        || kinfctl(&["explain", "examples/policies", "--model", "glm-5.3", "--state", path.to_str().unwrap()]);
    fs::write(&path, "workers:\n  glm/a: {queuedRequest: 9}\n").unwrap();
    let run = explain();
    assert_eq!(run.status.code(), Some(1));
    let expected =
        "state.txt:2: workers[\"glm/a\"].queuedRequest: unknown field (did you mean `queuedRequests`?)\n1 problem\n";
    assert!(text(&run.stdout).ends_with(expected), "{}", text(&run.stdout));
    fs::write(&path, "workers: {glm/c: {}}\n").unwrap();
    let run = explain();
    assert!(
        text(&run.stderr).contains("the state names `glm/c`, which default/main does not have"),
        "{}",
        text(&run.stderr)
    );
}
