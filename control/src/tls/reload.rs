//! Follows the files of TLS: a good change takes force for the connections that come after it, a bad one changes nothing
//! and is told.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::ServerConfig;
use serde::Serialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::material::{Content, Material, rfc3339};
use super::{TlsError, TlsFiles};
use crate::metrics::Metrics;

/// How often the files are read. Their content decides, so that it does not matter how they are changed: in place, renamed
/// over, or by the symbolic link that a mounted Secret is swapped with.
const POLL: Duration = Duration::from_secs(2);
/// Two reads this far apart must be equal: a pair is two files, and one of them may be written yet.
const QUIET: Duration = Duration::from_millis(100);

/// TLS as it is in force. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tls {
    current: watch::Receiver<Current>,
    refused: Arc<watch::Sender<Option<String>>>,
}

#[derive(Debug, Clone)]
struct Current {
    material: Material,
    /// Why the files' present content is not in force.
    problem: Option<String>,
}

/// TLS as `/status` shows it.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TlsStatus {
    /// When the certificate in force expires, in RFC 3339.
    pub certificate_expires: String,
    /// When the last of the clients' authorities expires, in RFC 3339; absent without any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_ca_expires: Option<String>,
    /// Why the files as they are now are not in force; absent when they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Who was refused last, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_refused: Option<String>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// What is wrong with them: nothing is served before they are right once.
    pub fn load(files: TlsFiles, metrics: Arc<Metrics>) -> Result<(Self, Follower), TlsError> {
        let content = Content::read(&files)?;
        let material = Material::new(&files, &content, now())?;
        metrics.tls_loaded(&material);
        let in_force = content.fingerprint();
        let (sender, current) = watch::channel(Current { material, problem: None });
        let tls = Self { current, refused: Arc::new(watch::Sender::new(None)) };
        Ok((tls, Follower { files, in_force, problem: None, sender, metrics }))
    }

    /// How the next connection is encrypted and authenticated.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.current.borrow().material.config.clone()
    }

    /// Notes that somebody was refused.
    pub(super) fn refuse(&self, who_and_why: String) {
        self.refused.send_replace(Some(who_and_why));
    }

    /// The present status.
    pub fn status(&self) -> TlsStatus {
        let current = self.current.borrow();
        TlsStatus {
            certificate_expires: rfc3339(current.material.expires),
            client_ca_expires: current.material.client_ca_expires.map(rfc3339),
            problem: current.problem.clone(),
            last_refused: self.refused.borrow().clone(),
        }
    }
}

/// Looks at the files again and again.
#[derive(Debug)]
pub struct Follower {
    files: TlsFiles,
    /// Fingerprint of the content in force.
    in_force: u64,
    /// Why the content seen last is not in force, to say it once.
    problem: Option<String>,
    sender: watch::Sender<Current>,
    metrics: Arc<Metrics>,
}

impl Follower {
    /// Runs until shutdown.
    pub async fn run(mut self, shutdown: CancellationToken) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(POLL) => {}
                () = shutdown.cancelled() => return,
            }
            let files = self.files.clone();
            match tokio::task::spawn_blocking(move || settled(&files)).await {
                Ok(Some(content)) => self.take(content, now()),
                // Between two states: the next round sees.
                Ok(None) => {}
                Err(error) => tracing::error!("the files of TLS could not be looked at: {error}"),
            }
        }
    }

    /// Puts content in force, if it is another one and good.
    pub(super) fn take(&mut self, content: Result<Content, TlsError>, now: i64) {
        let fingerprint = content.as_ref().map(Content::fingerprint).ok();
        if fingerprint == Some(self.in_force) {
            if self.problem.take().is_some() {
                tracing::info!("TLS: the files are again those in force");
                self.sender.send_modify(|current| current.problem = None);
            }
            return;
        }
        let made = content.and_then(|content| Material::new(&self.files, &content, now));
        match (made, fingerprint) {
            (Ok(material), Some(fingerprint)) => {
                tracing::info!(expires = rfc3339(material.expires), "TLS: new files are in force");
                self.metrics.tls_loaded(&material);
                self.in_force = fingerprint;
                self.problem = None;
                self.sender.send_replace(Current { material, problem: None });
            }
            (Err(error), _) => {
                let problem = error.to_string();
                // Tried again every time, as time alone can make it right; said once.
                if self.problem.as_ref() != Some(&problem) {
                    tracing::warn!("TLS: the last good files stay in force: {problem}");
                    self.metrics.tls_refused_files();
                    self.sender.send_modify(|current| current.problem = Some(problem.clone()));
                    self.problem = Some(problem);
                }
            }
            // Only what was read can be made use of.
            (Ok(_), None) => {}
        }
    }
}

/// The files' content once two reads agree; `None` while they do not.
fn settled(files: &TlsFiles) -> Option<Result<Content, TlsError>> {
    let before = Content::read(files).map(|content| content.fingerprint()).ok();
    std::thread::sleep(QUIET);
    let after = Content::read(files);
    (before == after.as_ref().map(Content::fingerprint).ok()).then_some(after)
}

/// Seconds since 1970.
pub(super) fn now() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}
