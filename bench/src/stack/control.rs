//! The control service as a process.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::error::StackError;
use super::process::{Process, free_port};
use super::programs::Programs;
use super::source::Source;
use crate::load::Client;

/// Time for it to listen.
const START: Duration = Duration::from_secs(20);

/// A running control service. Dropping it kills it.
#[derive(Debug)]
pub struct ControlService {
    process: Process,
    program: PathBuf,
    folder: PathBuf,
    source: Source,
    flags: Vec<OsString>,
    grpc: SocketAddr,
    pages: SocketAddr,
    admin: Client,
}

impl ControlService {
    /// Starts one that logs below `folder`, where its files are too (in `config`) unless they come from elsewhere, and
    /// returns when it listens.
    ///
    /// # Errors
    /// It was not built, or did not start, with the end of its log.
    pub async fn start(name: &str, source: &Source, folder: &Path) -> Result<Self, StackError> {
        Self::start_with(name, source, Vec::new(), folder).await
    }

    /// Starts one with further flags.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_with(
        name: &str,
        source: &Source,
        flags: Vec<OsString>,
        folder: &Path,
    ) -> Result<Self, StackError> {
        let program = Programs::find()?.control;
        let grpc = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let pages = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let process = start(name, command(&program, source, &flags, folder, grpc, pages), folder).await?;
        let (folder, source, admin) = (folder.to_owned(), source.clone(), Client::of(pages));
        Ok(Self { process, program, folder, source, flags, grpc, pages, admin })
    }

    /// Kills it, as `kill -9` does.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again at the same addresses.
    ///
    /// # Errors
    /// It did not start, with the end of its log.
    pub async fn restart(&mut self) -> Result<(), StackError> {
        self.process.kill();
        let name = self.process.name().to_owned();
        let command = command(&self.program, &self.source, &self.flags, &self.folder, self.grpc, self.pages);
        self.process = start(&name, command, &self.folder).await?;
        // The old client's connections ended with the old process.
        self.admin = Client::of(self.pages);
        Ok(())
    }

    /// Where its gRPC services are.
    #[must_use]
    pub fn grpc(&self) -> SocketAddr {
        self.grpc
    }

    /// Where its HTTP pages are.
    #[must_use]
    pub fn pages(&self) -> SocketAddr {
        self.pages
    }

    /// A client of its HTTP pages.
    #[must_use]
    pub fn admin(&self) -> &Client {
        &self.admin
    }

    /// Its status.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn status(&self) -> Result<Value, StackError> {
        Ok(self.admin.get("/status").await?.json())
    }

    /// The process.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// The process, to ask how it ended.
    pub fn process_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

fn command(
    program: &Path,
    source: &Source,
    flags: &[OsString],
    folder: &Path,
    grpc: SocketAddr,
    pages: SocketAddr,
) -> Command {
    let mut command = Command::new(program);
    source.tell(&mut command, &folder.join("config"));
    command.args(["--listen", &grpc.to_string(), "--admin", &pages.to_string()]).args(flags);
    command
}

async fn start(name: &str, command: Command, folder: &Path) -> Result<Process, StackError> {
    let mut process = Process::start(name, command, folder)?;
    process.says("listening ", START).await?;
    Ok(process)
}
