//! Running other programs, and saying so.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Says what is being done.
pub(crate) fn step(what: &str) {
    println!("== {what}");
}

/// Runs a command and fails when it does.
pub(crate) fn status(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("cannot start {name}"))?;
    if !status.success() {
        bail!("{name} failed ({status})");
    }
    Ok(())
}

/// Runs a command that is silent for minutes, and says every half minute that it still runs.
pub(crate) fn patiently(command: &mut Command) -> Result<()> {
    const EVERY: Duration = Duration::from_secs(30);
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
    let start = Instant::now();
    let mut said = 0;
    loop {
        if let Some(status) = child.try_wait().with_context(|| format!("cannot wait for {name}"))? {
            if !status.success() {
                bail!("{name} failed ({status})");
            }
            return Ok(());
        }
        let elapsed = start.elapsed();
        if elapsed.as_secs() / EVERY.as_secs() > said {
            said = elapsed.as_secs() / EVERY.as_secs();
            println!("   still at it after {} s", elapsed.as_secs());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Runs cargo in the repository.
pub(crate) fn cargo<S: AsRef<OsStr>>(root: &Path, args: impl IntoIterator<Item = S>) -> Result<()> {
    status(&mut cargo_command(root, args))
}

/// Cargo with arguments, to be run in the repository.
pub(crate) fn cargo_command<S: AsRef<OsStr>>(root: &Path, args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root);
    command
}

/// One of the repository's own programs, built before.
pub(crate) fn program_command(root: &Path, name: &str) -> Command {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    let mut command = Command::new(target.join("debug").join(name));
    command.current_dir(root);
    command
}

/// Runs one of the repository's own programs.
pub(crate) fn program(root: &Path, name: &str, args: &[&str]) -> Result<()> {
    status(program_command(root, name).args(args))
}
