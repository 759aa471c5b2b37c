//! Mutual TLS between Envoy and the control service.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Files of mutual TLS between Envoy and the control service, which is at 127.0.0.1.
#[derive(Debug, Clone)]
pub struct ControlTls {
    /// The authority of both.
    pub ca: PathBuf,
    /// The control service's certificate and key.
    pub control: (PathBuf, PathBuf),
    /// Envoy's certificate and key.
    pub envoy: (PathBuf, PathBuf),
}

impl ControlTls {
    /// For `kinference-control`.
    pub(super) fn control_flags(&self) -> Vec<OsString> {
        flags(&[("--tls-cert", &self.control.0), ("--tls-key", &self.control.1), ("--tls-client-ca", &self.ca)])
    }

    /// For `kinfctl envoy-config`, which writes Envoy's secrets into `folder`.
    pub(super) fn envoy_flags(&self, folder: &Path) -> Vec<OsString> {
        flags(&[
            ("--control-cert", &self.envoy.0),
            ("--control-key", &self.envoy.1),
            ("--control-ca", &self.ca),
            ("--control-secrets", folder),
        ])
    }
}

fn flags(files: &[(&str, &Path)]) -> Vec<OsString> {
    files.iter().flat_map(|(flag, file)| [OsString::from(flag), file.as_os_str().to_owned()]).collect()
}
