//! Generated files: written by `cargo xtask generate`, compared by `cargo xtask generate --check`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::run::{cargo, program_command, status};

/// Writes every generated file, or with `check` fails when one of them differs from what the code would write.
pub(crate) fn run(root: &Path, check: bool) -> Result<()> {
    let mut stale = Vec::new();
    let mut files = protocol(root)?;
    files.extend(definitions(root)?);
    for (path, content) in files {
        let old = std::fs::read_to_string(&path).unwrap_or_default();
        if old == content {
            continue;
        }
        if check {
            stale.push(path);
            continue;
        }
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
        println!("wrote {}", path.display());
    }
    if !stale.is_empty() {
        let names: Vec<_> = stale.iter().map(|path| path.display().to_string()).collect();
        bail!(
            "generated files are not current: {} (run `cargo xtask generate` and commit the result)",
            names.join(", ")
        );
    }
    Ok(())
}

/// The custom resource definitions, by themselves and in the chart. `kinfctl` writes them, so that this program needs
/// none of the crates that know the kinds.
fn definitions(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    cargo(root, ["build", "--quiet", "--workspace", "--bin", "kinfctl"])?;
    let out = scratch("crds")?;
    status(program_command(root, "kinfctl").args(["crds", "--folder"]).arg(&out))?;
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&out)? {
        let entry = entry?;
        let content = std::fs::read_to_string(entry.path())?;
        for folder in ["crds", "charts/kinference/files/crds"] {
            files.push((root.join(folder).join(entry.file_name()), content.clone()));
        }
    }
    std::fs::remove_dir_all(&out)?;
    Ok(files)
}

/// A new folder for what is generated before it is compared.
fn scratch(name: &str) -> Result<PathBuf> {
    let folder = std::env::temp_dir().join(format!("kinference-generate-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder)
}

/// Rust types of the protocol, compiled by protox so that no protoc needs to be installed.
fn protocol(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let proto = root.join("protocol/proto");
    let descriptors = protox::compile(["snapshot.proto"], [&proto]).context("protocol/proto/snapshot.proto")?;
    let out = scratch("protocol")?;
    let mut config = prost_build::Config::new();
    config.btree_map(["."]);
    // It holds a credential; `protocol/src/lib.rs` says what may be shown of it.
    config.skip_debug(["kinference.snapshot.v1.Provider"]);
    tonic_prost_build::configure()
        .out_dir(&out)
        .client_mod_attribute(".", "#[cfg(feature = \"grpc\")]")
        .server_mod_attribute(".", "#[cfg(feature = \"grpc\")]")
        .build_transport(true)
        .compile_fds_with_config(descriptors, config)?;
    let name = "kinference.snapshot.v1.rs";
    let content = std::fs::read_to_string(out.join(name))?;
    std::fs::remove_dir_all(&out)?;
    Ok(vec![(root.join("protocol/src/generated").join(name), content)])
}
