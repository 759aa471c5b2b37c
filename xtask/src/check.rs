//! Tests and checks.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Result, bail};

use crate::run::{cargo, cargo_command, program, status, step};
use crate::setup::kubernetes::Server;
use crate::{build, codegen, setup};

/// A stage of the tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Stage {
    /// Tests beside the code, of every crate.
    Unit,
    /// The real filter under wasmtime.
    Wasm,
    /// The filter's cost in instructions, against the checked-in table.
    Fuel,
    /// Predictions against a captured run of a real vLLM.
    Truth,
    /// A real Envoy, the control service, simulated workers.
    E2e,
}

const ALL: [Stage; 5] = [Stage::Unit, Stage::Wasm, Stage::Fuel, Stage::Truth, Stage::E2e];

/// Runs the stages, all when none is named.
///
/// Every call of cargo names the whole workspace, since dependencies would be built again with the features that a part
/// of it asks for.
pub(crate) fn test(root: &Path, only: &[Stage]) -> Result<()> {
    let start = Instant::now();
    let envoy = setup::run()?;
    build(root)?;
    for stage in ALL.into_iter().filter(|stage| only.is_empty() || only.contains(stage)) {
        step(&format!("{stage:?} tests ({} s so far)", start.elapsed().as_secs()));
        match stage {
            Stage::Unit => {
                let args =
                    ["test", "--workspace", "--lib", "--bins", "--test", "cli", "--test", "policies", "--test", "live"];
                status(cargo_command(root, args).env("ENVOY", &envoy))?;
            }
            Stage::Wasm => cargo(root, ["test", "--workspace", "--test", "filter"])?,
            Stage::Fuel => program(root, "fuel", &[])?,
            Stage::Truth => program(root, "kinference-truth", &[])?,
            Stage::E2e => {
                let args = ["test", "--workspace", "--test", "gateway", "--", "--test-threads=1"];
                status(cargo_command(root, args).env("ENVOY", &envoy))?;
            }
        }
    }
    println!("all tests passed in {} s", start.elapsed().as_secs());
    Ok(())
}

/// Runs the tests on a real Kubernetes API server, those whose names contain one of `names` when there are any.
///
/// What a machine cannot run is left out, and said.
pub(crate) fn kubernetes(root: &Path, names: &[String]) -> Result<()> {
    let start = Instant::now();
    let envoy = setup::run()?;
    let assets = setup::kubernetes::run(root)?;
    build(root)?;
    step("tests on a Kubernetes API server");
    let mut command = cargo_command(root, ["test", "--workspace", "--test", "kubernetes", "--", "--test-threads=1"]);
    command.args(names);
    command.env("ENVOY", &envoy).env("HELM", &assets.helm);
    let own = match &assets.server {
        Server::Programs(folder) => {
            command.env("KUBEBUILDER_ASSETS", folder);
            true
        }
        Server::Cluster(kubeconfig) => {
            println!(
                "skipped: the tests that stop the API server or change all of it, which is not theirs ($KUBECONFIG)"
            );
            command.env("KUBECONFIG", kubeconfig).args(["--skip", "outage::"]);
            false
        }
    };
    match &assets.istiod {
        Some(istiod) if own => {
            command.env("ISTIOD", istiod);
        }
        istiod => {
            if istiod.is_none() {
                println!("skipped: the test with istiod, which is not built (`cargo xtask setup --istio`)");
            }
            command.args(["--skip", "istio::"]);
        }
    }
    status(&mut command)?;
    println!("the tests on a Kubernetes API server passed in {} s", start.elapsed().as_secs());
    Ok(())
}

/// Everything that continuous integration asks for.
pub(crate) fn ci(root: &Path) -> Result<()> {
    step("format");
    cargo(root, ["fmt", "--all", "--check"])?;
    step("generated files");
    codegen::run(root, true)?;
    step("lints");
    cargo(root, ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    deny(root)?;
    test(root, &[])?;
    kubernetes(root, &[])
}

/// Licences, sources and bans. Advisories need a database from the network and are for a scheduled job.
fn deny(root: &Path) -> Result<()> {
    step("dependencies");
    let here = |command: &mut Command| {
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    if !here(&mut cargo_command(root, ["deny", "--version"])) {
        if std::env::var_os("CI").is_none() {
            println!("cargo-deny is not installed, its checks are left out (cargo install --locked cargo-deny)");
            return Ok(());
        }
        cargo(root, ["install", "--locked", "--quiet", "cargo-deny"])?;
    }
    if cargo(root, ["deny", "check", "bans", "licenses", "sources"]).is_err() {
        bail!("cargo deny found something; see above and deny.toml");
    }
    Ok(())
}
