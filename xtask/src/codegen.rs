//! Generated files: written by `cargo xtask generate`, compared by `cargo xtask generate --check`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Writes every generated file, or with `check` fails when one of them differs from what the code would write.
pub(crate) fn run(root: &Path, check: bool) -> Result<()> {
    let mut stale = Vec::new();
    for (path, content) in protocol(root)? {
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

/// Rust types of the protocol, compiled by protox so that no protoc needs to be installed.
fn protocol(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let proto = root.join("protocol/proto");
    let descriptors = protox::compile(["snapshot.proto"], [&proto]).context("protocol/proto/snapshot.proto")?;
    let out = std::env::temp_dir().join(format!("kinference-generate-{}", std::process::id()));
    std::fs::create_dir_all(&out)?;
    let mut config = prost_build::Config::new();
    config.btree_map(["."]);
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
