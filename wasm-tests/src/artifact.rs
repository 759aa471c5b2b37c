//! The filter's module: where it is, and how it is built.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use wasmtime::{Config, Engine, Module};

/// Names a module to test instead of building one.
pub const VARIABLE: &str = "KINFERENCE_FILTER_WASM";

/// The module's path. Unless the variable [`VARIABLE`] names one, it is built, which takes a moment when it is current.
///
/// # Errors
/// When it cannot be built.
pub fn path() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(VARIABLE) {
        return Ok(path.into());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the crate has no parent folder")?;
    let arguments =
        ["build", "--quiet", "-p", "kinference-filter", "--profile", "wasm", "--target", "wasm32-unknown-unknown"];
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status =
        Command::new(cargo).args(arguments).current_dir(root).status().context("cargo could not be started")?;
    if !status.success() {
        bail!(
            "the filter could not be built by `cargo {}`; is the target there (`rustup target add \
             wasm32-unknown-unknown`)? Or set {VARIABLE} to a module",
            arguments.join(" ")
        );
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join("wasm32-unknown-unknown/wasm/kinference_filter.wasm"))
}

/// The compiled module, compiled once in a process.
///
/// # Errors
/// When there is none, or it is not a module.
pub fn module() -> Result<&'static Module> {
    static MODULE: OnceLock<Result<Module, String>> = OnceLock::new();
    let module = MODULE.get_or_init(|| compile().map_err(|error| format!("{error:#}")));
    module.as_ref().map_err(|error| anyhow::anyhow!("{error}"))
}

fn compile() -> Result<Module> {
    let path = path()?;
    let bytes = std::fs::read(&path).with_context(|| format!("{} cannot be read", path.display()))?;
    let mut config = Config::new();
    config.consume_fuel(true);
    let engine = Engine::new(&config).map_err(|error| anyhow::anyhow!("{error:?}"))?;
    Module::new(&engine, bytes).map_err(|error| anyhow::anyhow!("{}: {error:?}", path.display()))
}
