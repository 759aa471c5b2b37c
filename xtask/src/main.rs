//! `cargo xtask`: every routine task of this repository, one way to run it.

mod codegen;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Every routine task of this repository.")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Writes the files that are generated from code.
    Generate {
        /// Only compare; fail when a file is not current.
        #[arg(long)]
        check: bool,
    },
}

fn main() -> Result<()> {
    let root = root();
    match Cli::parse().task {
        Task::Generate { check } => codegen::run(&root, check),
    }
}

/// The repository's root: the parent of this crate's folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}
