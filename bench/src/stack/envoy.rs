//! Envoy as a process.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::error::StackError;
use super::poll::until;
use super::process::Process;
use super::programs;
use crate::load::Client;

/// Time for it to start.
const START: Duration = Duration::from_secs(20);

/// A running Envoy. Dropping it kills it.
#[derive(Debug)]
pub struct Envoy {
    process: Process,
    admin: Client,
    gateway: SocketAddr,
}

impl Envoy {
    /// Starts it with a bootstrap file, whose admin page is on any free port, and returns when it has a listener and is
    /// ready. It logs below `folder`.
    ///
    /// # Errors
    /// It is missing, or did not start, with the end of its log.
    pub async fn start(bootstrap: &Path, folder: &Path, concurrency: u32) -> Result<Self, StackError> {
        let admin_file = folder.join("envoy-admin.txt");
        let mut command = Command::new(programs::envoy()?);
        command.arg("-c").arg(bootstrap).arg("--admin-address-path").arg(&admin_file);
        command.args(["--concurrency", &concurrency.to_string()]);
        command.args(["--disable-hot-restart", "--log-level", "warning", "--component-log-level", "wasm:info"]);
        let mut process = Process::start("envoy", command, folder)?;
        let found = until("Envoy's admin page and listener", START, async || {
            if let Some(how) = process.ended() {
                // Found, and bad: there is no use in looking further.
                return Ok(Err(format!("ended early ({how})")));
            }
            let text = std::fs::read_to_string(&admin_file).map_err(|error| format!("no admin address: {error}"))?;
            let admin: SocketAddr = text.trim().parse().map_err(|error| format!("admin address {text:?}: {error}"))?;
            let admin = Client::of(admin);
            let ready = admin.get("/ready").await.map_err(|error| error.to_string())?;
            let listeners = admin.get("/listeners").await.map_err(|error| error.to_string())?.text();
            let gateway =
                listeners.lines().find_map(|line| line.rsplit("::").next()?.trim().parse::<SocketAddr>().ok());
            match gateway {
                Some(gateway) if ready.status.is_success() => Ok(Ok((admin, gateway))),
                _ => Err(format!("ready: {}, listeners: {listeners:?}", ready.text().trim())),
            }
        });
        match found.await {
            Ok(Ok((admin, gateway))) => Ok(Self { process, admin, gateway }),
            Ok(Err(reason)) => Err(process.error(reason)),
            Err(error) => Err(process.error(error.to_string())),
        }
    }

    /// A client of its admin pages.
    #[must_use]
    pub fn admin(&self) -> &Client {
        &self.admin
    }

    /// The address of its listener.
    #[must_use]
    pub fn gateway(&self) -> SocketAddr {
        self.gateway
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
