//! Where the programs of a stack are.

use std::path::{Path, PathBuf};

use super::error::StackError;

/// Our own programs and files of a stack.
#[derive(Debug, Clone)]
pub(super) struct Programs {
    pub(super) sim: PathBuf,
    pub(super) control: PathBuf,
    pub(super) kinfctl: PathBuf,
    pub(super) filter: PathBuf,
}

impl Programs {
    /// Finds all of them, beside the running program.
    pub(super) fn find() -> Result<Self, StackError> {
        let folder = &folder()?;
        let target = folder.parent().unwrap_or(folder);
        let built = |what: &'static str, path: PathBuf| {
            if path.is_file() {
                return Ok(path);
            }
            let looked = format!("there is no {}", path.display());
            Err(StackError::Missing { what, looked, task: "test", does: "builds it first (so do `demo` and `build`)" })
        };
        Ok(Self {
            sim: built("kinference-sim", folder.join("kinference-sim"))?,
            control: built("kinference-control", folder.join("kinference-control"))?,
            kinfctl: built("kinfctl", folder.join("kinfctl"))?,
            filter: built("the filter", target.join("wasm32-unknown-unknown/wasm/kinference_filter.wasm"))?,
        })
    }
}

/// The filter's module.
///
/// # Errors
/// It was not built.
pub fn filter_module() -> Result<PathBuf, StackError> {
    Ok(Programs::find()?.filter)
}

/// The command line.
///
/// # Errors
/// It was not built.
pub fn kinfctl_program() -> Result<PathBuf, StackError> {
    Ok(Programs::find()?.kinfctl)
}

/// Where our own programs are.
fn folder() -> Result<PathBuf, StackError> {
    let own = std::env::current_exe().map_err(StackError::io("find", "the running program"))?;
    let own = own.parent().unwrap_or(Path::new("."));
    // Test programs are one folder below.
    let folder = if own.ends_with("deps") { own.parent().unwrap_or(own) } else { own };
    Ok(folder.to_owned())
}

/// The target folder's place for passing files.
pub(super) fn runs() -> Result<PathBuf, StackError> {
    let folder = folder()?;
    Ok(folder.parent().unwrap_or(&folder).join("kinference").join("runs"))
}

/// Envoy, where `cargo xtask setup` finds it or puts it.
pub(super) fn envoy() -> Result<PathBuf, StackError> {
    let missing = |looked: String| StackError::Missing { what: "Envoy", looked, task: "setup", does: "fetches it" };
    if let Some(path) = std::env::var_os("ENVOY").map(PathBuf::from) {
        return if path.is_file() {
            Ok(path)
        } else {
            Err(missing(format!("$ENVOY names {}, which is no file", path.display())))
        };
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&paths).map(|folder| folder.join("envoy")).find(|path| path.is_file());
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))
        .map(|cache| cache.join("kinference"));
    let fetched = || {
        let versions = cache.as_ref()?.read_dir().ok()?.filter_map(|entry| Some(entry.ok()?.path().join("envoy")));
        versions.filter(|path| path.is_file()).max()
    };
    on_path.or_else(fetched).ok_or_else(|| missing("it is neither in $ENVOY, nor on the PATH, nor in the cache".into()))
}
