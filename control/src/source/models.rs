//! Tokenizers by folder, read again only when their files changed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use kinference_api::compile::{TokenizerSource, WorkerSetSpec};

use super::watch::tokenizer_fingerprint;
use crate::state::Model;
use crate::tokenizer::Tokenizer;

#[derive(Debug)]
struct Cached {
    fingerprint: u64,
    model: Result<Arc<Tokenizer>, String>,
    used: bool,
}

#[derive(Debug, Default)]
pub(super) struct Models {
    by_folder: BTreeMap<PathBuf, Cached>,
}

impl Models {
    /// Begins a load: what is not asked for until `end` is forgotten.
    pub(super) fn begin(&mut self) {
        self.by_folder.values_mut().for_each(|cached| cached.used = false);
    }

    pub(super) fn end(&mut self) {
        self.by_folder.retain(|_, cached| cached.used);
    }

    /// True when files of a tokenizer changed since they were read.
    pub(super) fn changed(&self) -> bool {
        self.by_folder.iter().any(|(folder, cached)| tokenizer_fingerprint(folder) != cached.fingerprint)
    }

    pub(super) fn load(&mut self, set: &WorkerSetSpec) -> Model {
        let folder = match &set.tokenizer {
            TokenizerSource::Folder(folder) => folder,
            TokenizerSource::ConfigMap(name) => {
                return Err(format!(
                    "a tokenizer from ConfigMap {name:?} needs Kubernetes; with files, use tokenizer.path"
                ));
            }
            TokenizerSource::HuggingFace(hub) => {
                let repository = &hub.repository;
                return Err(format!(
                    "fetching {repository:?} is not supported yet; download it and use tokenizer.path"
                ));
            }
        };
        let fingerprint = tokenizer_fingerprint(folder);
        if let Some(cached) = self.by_folder.get_mut(folder)
            && cached.fingerprint == fingerprint
        {
            cached.used = true;
            return cached.model.clone();
        }
        let model = Tokenizer::load(folder).map(Arc::new).map_err(|error| error.to_string());
        match &model {
            Ok(_) => tracing::info!(folder = %folder.display(), "tokenizer loaded"),
            Err(error) => tracing::warn!("{error}"),
        }
        self.by_folder.insert(folder.clone(), Cached { fingerprint, model: model.clone(), used: true });
        model
    }
}
