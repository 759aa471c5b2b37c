//! The program as a user runs it.

use std::path::Path;
use std::process::{Command, Output};

fn kinfctl(arguments: &[&str]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let program = Command::new(env!("CARGO_BIN_EXE_kinfctl")).args(arguments).current_dir(root).output();
    program.unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn valid_resources_are_counted() {
    let run = kinfctl(&["validate", "examples/local"]);
    assert!(run.status.success());
    assert_eq!(text(&run.stdout), "valid: 1 GatewayBackend, 1 InferencePool, 1 InferenceWorkerSet\n");
}

#[test]
fn problems_end_with_1_and_are_not_coloured_in_a_file() {
    let run = kinfctl(&["validate", "kinfctl/tests/broken.yaml", "missing.yaml"]);
    assert_eq!(run.status.code(), Some(1));
    let expected = "\
kinfctl/tests/broken.yaml:4: spec.workerSets: missing (the field is required)
kinfctl/tests/broken.yaml:5: spec.worker: unknown field (did you mean `workerSets`?)
missing.yaml: cannot be read: No such file or directory (os error 2)
3 problems
";
    assert_eq!(text(&run.stdout), expected);
}

#[test]
fn errors_say_what_and_where_on_standard_error() {
    let run = kinfctl(&["envoy-config"]);
    assert_eq!(run.status.code(), Some(1));
    assert_eq!(text(&run.stdout), "");
    assert!(text(&run.stderr).starts_with("error: --wasm is missing"), "{}", text(&run.stderr));
    let run = kinfctl(&["envoy-config", "--body-limit", "8MB", "--wasm", "f"]);
    assert_eq!(run.status.code(), Some(2));
    assert!(text(&run.stderr).contains("`8MB` is not a size"), "{}", text(&run.stderr));
}

#[test]
fn help_has_examples_and_completions_know_the_commands() {
    for command in ["envoy-config", "status", "check", "validate", "test", "explain", "crds", "completions"] {
        let help = text(&kinfctl(&[command, "--help"]).stdout);
        assert!(help.contains("Example"), "{command}: {help}");
    }
    let script = text(&kinfctl(&["completions", "bash"]).stdout);
    assert!(script.contains("envoy-config"), "{script}");
}
