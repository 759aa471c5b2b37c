//! The snapshot of a gateway backend as people may see it, for `kinfctl explain`.

use kinference_api::ObjectKey;

use super::{Fleet, Full};

/// Why there is no snapshot to show.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoSnapshot {
    /// No such gateway backend.
    #[error("there is no GatewayBackend {asked}; {}", listed(known))]
    Unknown {
        /// "namespace/name"
        asked: String,
        /// Those that there are.
        known: Vec<String>,
    },
    /// None was named, and there are several.
    #[error("there are several GatewayBackends; name one of {}", .0.join(", "))]
    Several(Vec<String>),
    /// No configuration is in force yet.
    #[error("no configuration is in force yet; /readyz says why")]
    NotYet,
}

fn listed(names: &[String]) -> String {
    match names {
        [] => "there is none at all; /readyz says why".into(),
        names => format!("there is {}", names.join(", ")),
    }
}

impl Fleet {
    /// What the filters of a gateway backend were told, without credentials. No name stands for the only one.
    ///
    /// # Errors
    /// When there is no such gateway backend, or none was named and there are several, or nothing was told yet.
    pub fn full_to_show(&self, backend: Option<&ObjectKey>) -> Result<Full, NoSnapshot> {
        let names = || self.backends.keys().map(ToString::to_string).collect::<Vec<_>>();
        let backend = match (backend, self.backends.len()) {
            (Some(key), _) => {
                self.backends.get(key).ok_or_else(|| NoSnapshot::Unknown { asked: key.to_string(), known: names() })?
            }
            (None, 2..) => return Err(NoSnapshot::Several(names())),
            (None, _) => self.backends.values().next().ok_or(NoSnapshot::NotYet)?,
        };
        backend.full_to_show().ok_or(NoSnapshot::NotYet)
    }
}
