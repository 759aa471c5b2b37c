//! Programs that are built from Go modules, since their projects publish no binaries in a package registry.
//!
//! Each has a folder below `xtask/go` with a `go.mod` and a `go.sum` that pin every module it is made of.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{cache, on_path};
use crate::run::{patiently, step};

/// A program of a Go module.
pub(super) struct Program {
    /// Its folder below `xtask/go`, and the first part of its folder in the cache.
    pub(super) folder: &'static str,
    /// The module that it is a part of, as that folder's `go.mod` requires it.
    pub(super) module: &'static str,
    /// Its package.
    pub(super) package: &'static str,
    /// The file's name.
    pub(super) name: &'static str,
    /// What the linker is told beside leaving out symbols; `{version}` stands for the version without its `v`.
    pub(super) link: &'static str,
    /// How long a build takes on two cores, in words.
    pub(super) takes: &'static str,
}

impl Program {
    /// The program in the cache, built when it is not there.
    pub(super) fn get(&self, root: &Path) -> Result<PathBuf> {
        let (folder, version) = self.place(root)?;
        let program = folder.join(self.name);
        if program.is_file() {
            return Ok(program);
        }
        step(&format!(
            "building {} {version} from its Go modules into {} ({} on two cores, seconds when Go has built it before)",
            self.name,
            folder.display(),
            self.takes
        ));
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        // Moved at the end, so that a build that was cut off leaves no half program behind.
        let unfinished = folder.join(format!("{}.unfinished", self.name));
        let flags = format!("-s -w {}", self.link.replace("{version}", &version));
        let mut build = Command::new(go()?);
        build.args(["build", "-mod=readonly", "-ldflags", &flags, "-o"]).arg(&unfinished);
        build.arg(self.package).current_dir(wrapper(root, self.folder));
        patiently(&mut build)?;
        std::fs::rename(&unfinished, &program).with_context(|| format!("cannot move {}", unfinished.display()))?;
        Ok(program)
    }

    /// The program in the cache, when it is there.
    pub(super) fn built(&self, root: &Path) -> Result<Option<PathBuf>> {
        let program = self.place(root)?.0.join(self.name);
        Ok(program.is_file().then_some(program))
    }

    /// Where the cache keeps it, and its version.
    fn place(&self, root: &Path) -> Result<(PathBuf, String)> {
        let version = required(root, self.folder, self.module)?;
        Ok((cache()?.join(format!("{}-{version}", self.folder)), version))
    }
}

/// Definitions of kinds (CRDs) that a module has as files.
pub(super) struct Definitions {
    /// Its folder below `xtask/go`, and the first part of its folder in the cache.
    pub(super) folder: &'static str,
    /// The module, as that folder's `go.mod` requires it.
    pub(super) module: &'static str,
    /// Files of the module; a folder stands for the YAML files in it.
    pub(super) files: &'static [&'static str],
}

impl Definitions {
    /// Copies the files to the cache, when they are not there, all into one folder under their own names.
    pub(super) fn fetch(&self, root: &Path) -> Result<()> {
        let version = required(root, self.folder, self.module)?;
        let target = cache()?.join(format!("{}-{version}", self.folder)).join("crds");
        if target.is_dir() {
            return Ok(());
        }
        step(&format!("fetching the CRDs of {} {version} into {}", self.module, target.display()));
        let source = self.download(root)?;
        let unfinished = target.with_extension("unfinished");
        std::fs::create_dir_all(&unfinished).with_context(|| format!("cannot create {}", unfinished.display()))?;
        for path in self.files.iter().map(|file| source.join(file)) {
            for file in if path.is_dir() { yaml_files(&path)? } else { vec![path] } {
                let content = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
                std::fs::write(unfinished.join(file.file_name().context("a file without a name")?), content)?;
            }
        }
        std::fs::rename(&unfinished, &target).with_context(|| format!("cannot move {}", unfinished.display()))
    }

    /// The module's own folder, in Go's cache.
    fn download(&self, root: &Path) -> Result<PathBuf> {
        let mut download = Command::new(go()?);
        download.args(["mod", "download", "-json", self.module]).current_dir(wrapper(root, self.folder));
        let output = download.output().context("cannot start go")?;
        if !output.status.success() {
            bail!("go mod download {} failed: {}", self.module, String::from_utf8_lossy(&output.stderr).trim());
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let folder = text.lines().find_map(|line| line.trim().strip_prefix("\"Dir\": \"")?.split('"').next());
        let folder =
            folder.with_context(|| format!("go mod download does not say where {} is:\n{text}", self.module))?;
        Ok(PathBuf::from(folder))
    }
}

fn yaml_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    Ok(files.filter(|path| path.extension().is_some_and(|extension| extension == "yaml")).collect())
}

/// The version of a module that a folder's `go.mod` requires, without its `v`.
fn required(root: &Path, folder: &str, module: &str) -> Result<String> {
    let path = wrapper(root, folder).join("go.mod");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let version = text.lines().find_map(|line| {
        let mut words = line.trim().trim_start_matches("require ").split_whitespace();
        (words.next() == Some(module)).then(|| words.next()?.strip_prefix('v').map(str::to_owned))?
    });
    version.with_context(|| format!("{} does not require {module}", path.display()))
}

fn wrapper(root: &Path, folder: &str) -> PathBuf {
    root.join("xtask/go").join(folder)
}

fn go() -> Result<PathBuf> {
    on_path("go").context(
        "there is no go on the PATH; install Go 1.26 or later (https://go.dev/dl). kube-apiserver and Helm are built with \
         it, unless $KUBEBUILDER_ASSETS (a folder with kube-apiserver and etcd) or $KUBECONFIG (a cluster), and $HELM name \
         what is there; the CRDs of other projects are fetched with it",
    )
}
