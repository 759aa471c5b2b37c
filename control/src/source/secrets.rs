//! Secrets in files, as Kubernetes mounts them: a folder for each, with a file for each key.
//!
//! Those of namespace N are in `N/NAME/KEY`; those of the namespace `default` may also be in `NAME/KEY`. Only Secrets
//! that the configuration refers to are read.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use kinference_api::compile::FleetSpec;
use kinference_api::{DEFAULT_NAMESPACE, ObjectKey};

use crate::credential::{Credential, Credentials};

/// More is no credential.
const MOST_BYTES: u64 = 64 << 10;

/// The folder of Secrets, and those that are in use.
#[derive(Debug)]
pub(super) struct Secrets {
    folder: Option<PathBuf>,
    /// By the Secret's name: a number that changes with its content.
    seen: BTreeMap<ObjectKey, u64>,
}

impl Secrets {
    pub(super) fn new(folder: Option<PathBuf>) -> Self {
        Self { folder, seen: BTreeMap::new() }
    }

    /// The credentials that these fleets' providers state, or why they are not there.
    pub(super) fn load(&mut self, fleets: &[FleetSpec]) -> Credentials {
        self.seen.clear();
        let providers = fleets.iter().flat_map(|fleet| &fleet.providers);
        let mut credentials = Credentials::new();
        for provider in providers {
            let Some(name) = &provider.secret else { continue };
            let secret = provider.key.sibling(name);
            let data = self.read(&secret);
            self.seen.insert(secret.clone(), fingerprint(data.as_ref().ok()));
            let credential = data.and_then(|data| Credential::from_data(&secret, &data));
            credentials.insert(provider.key.clone(), credential);
        }
        credentials
    }

    /// True when a Secret in use is not as it was.
    pub(super) fn changed(&self) -> bool {
        self.seen.iter().any(|(secret, seen)| fingerprint(self.read(secret).as_ref().ok()) != *seen)
    }

    fn read(&self, secret: &ObjectKey) -> Result<BTreeMap<String, Vec<u8>>, String> {
        let Some(folder) = &self.folder else {
            return Err(format!("Secret {secret}: where Secrets are is not known; say so with --secrets DIR"));
        };
        let own = folder.join(&secret.namespace).join(&secret.name);
        let short = folder.join(&secret.name);
        let place = if secret.namespace == DEFAULT_NAMESPACE && !own.is_dir() { short } else { own };
        if !place.is_dir() {
            return Err(format!(
                "Secret {secret}: there is no folder {}; put a file for each key there",
                place.display()
            ));
        }
        keys(&place).map_err(|error| format!("Secret {secret}: {}: {error}; check who may read it", place.display()))
    }
}

fn keys(folder: &Path) -> std::io::Result<BTreeMap<String, Vec<u8>>> {
    let mut keys = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        // A mount keeps its versions in hidden folders, and its keys are links into them.
        let data = std::fs::metadata(entry.path())?;
        if !name.starts_with('.') && data.is_file() && data.len() <= MOST_BYTES {
            keys.insert(name, std::fs::read(entry.path())?);
        }
    }
    Ok(keys)
}

fn fingerprint(data: Option<&BTreeMap<String, Vec<u8>>>) -> u64 {
    let mut hasher = DefaultHasher::new();
    data.hash(&mut hasher);
    hasher.finish()
}
