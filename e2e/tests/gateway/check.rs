//! A gateway that nobody tells anything: what it does with requests, and what `kinfctl check` says of it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use kinference_bench::load::Client;
use kinference_bench::stack::{Envoy, RunFolder, Stack, filter_module, kinfctl_program, until};

use crate::common::{alone, chat, instant_workers, prompt, send, stack};

fn kinfctl() -> Command {
    Command::new(kinfctl_program().expect("kinfctl"))
}

/// An Envoy for a gateway backend that the stack's control service does not have.
async fn gateway_of(backend: &str, stack: &Stack, folder: &RunFolder) -> Envoy {
    let (control, module) = (stack.control_grpc().to_string(), filter_module().expect("the filter"));
    let mut command = kinfctl();
    command.args(["envoy-config", "--admin", "127.0.0.1:0", "--listen", "127.0.0.1:0"]);
    command.args(["--gateway-backend", backend, "--control", &control]).arg("--wasm").arg(module);
    let written = command.output().expect("kinfctl runs");
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    let bootstrap = folder.path().join("envoy.yaml");
    std::fs::write(&bootstrap, written.stdout).expect("a bootstrap file");
    Envoy::start(&bootstrap, folder.path(), 1).await.expect("a gateway")
}

/// Waits until `kinfctl check` says something of the Envoy that runs in this folder.
async fn said(stack: &Stack, envoy: &Path, expected: &str) {
    let admin = std::fs::read_to_string(envoy.join("envoy-admin.txt")).expect("an admin address");
    let control = stack.control().pages().to_string();
    let found = until(expected, Duration::from_secs(20), async || {
        let run = kinfctl().args(["check", "--control", &control, "--envoy-admin", &admin]).output();
        let text = String::from_utf8_lossy(&run.map_err(|error| error.to_string())?.stdout).into_owned();
        if text.contains(expected) { Ok(()) } else { Err(text) }
    });
    if let Err(error) = found.await {
        panic!("{error}");
    }
}

#[test]
fn a_gateway_without_snapshot_takes_no_other_backends_workers_and_is_told_apart() {
    alone(90, async {
        let stack = stack(instant_workers(2)).await;
        let folder = RunFolder::new().expect("a folder");
        let lost = gateway_of("mistyped", &stack, &folder).await;
        said(&stack, folder.path(), "✗ the filter runs, and has no snapshot yet").await;
        said(&stack, &stack.folder(), "✓ the filter runs and has a snapshot").await;

        // The stack has workers of another backend: a prompt must not end there.
        let request = chat(stack.model(), &prompt(1, 50), 4);
        let answer = send(&Client::of(lost.gateway()), &request).await.expect("an answer");
        assert_eq!(answer.status, 503, "{}", answer.text());
        assert!(send(&stack.client(), &request).await.expect("an answer").status.is_success());
    });
}
