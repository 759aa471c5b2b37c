//! Tokenizers by place, read again only when their files changed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kinference_api::ObjectKey;
use kinference_api::compile::{TokenizerSource, WorkerSetSpec};

use super::watch::tokenizer_fingerprint;
use crate::state::Model;
use crate::tokenizer::{Tokenizer, TokenizerError};

/// A ConfigMap with a tokenizer's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConfigMapFiles {
    /// Changes with the content.
    pub(super) version: String,
    /// Contents by key.
    pub(super) files: BTreeMap<String, Vec<u8>>,
}

/// ConfigMaps that worker sets refer to, or why one is not there.
pub(super) type ConfigMaps = BTreeMap<ObjectKey, Result<ConfigMapFiles, String>>;

/// Where a tokenizer was read from, and in which version.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Folder(PathBuf),
    ConfigMap(ObjectKey, String),
}

#[derive(Debug)]
struct Cached {
    /// Of a folder's files.
    fingerprint: u64,
    model: Result<Arc<Tokenizer>, String>,
    used: bool,
}

#[derive(Debug, Default)]
pub(super) struct Models {
    by_place: BTreeMap<Place, Cached>,
}

impl Models {
    /// The tokenizers of worker sets. `maps` is None where there are no ConfigMaps at all.
    pub(super) fn load<'s>(
        &mut self,
        sets: impl Iterator<Item = &'s WorkerSetSpec>,
        maps: Option<&ConfigMaps>,
    ) -> BTreeMap<ObjectKey, Model> {
        self.by_place.values_mut().for_each(|cached| cached.used = false);
        let mut models = BTreeMap::new();
        for set in sets {
            models.entry(set.key.clone()).or_insert_with(|| self.model(set, maps));
        }
        self.by_place.retain(|_, cached| cached.used);
        models
    }

    /// True when files of a tokenizer changed since they were read.
    pub(super) fn changed(&self) -> bool {
        self.by_place.iter().any(|(place, cached)| match place {
            Place::Folder(folder) => tokenizer_fingerprint(folder) != cached.fingerprint,
            Place::ConfigMap(..) => false,
        })
    }

    fn model(&mut self, set: &WorkerSetSpec, maps: Option<&ConfigMaps>) -> Model {
        match &set.tokenizer {
            TokenizerSource::Folder(folder) => {
                let fingerprint = tokenizer_fingerprint(folder);
                self.read(Place::Folder(folder.clone()), fingerprint, || Tokenizer::load(folder))
            }
            TokenizerSource::ConfigMap(name) => {
                let Some(maps) = maps else {
                    return Err(format!(
                        "a tokenizer from ConfigMap {name:?} needs Kubernetes; with files, use tokenizer.path"
                    ));
                };
                let key = set.key.sibling(name);
                let map = maps.get(&key).ok_or_else(|| format!("ConfigMap {key} has not been read yet"))?;
                let map = map.as_ref().map_err(String::clone)?;
                let files = map.files.iter().map(|(name, content)| (name.as_str(), content.as_slice())).collect();
                let place = Place::ConfigMap(key.clone(), map.version.clone());
                let path = format!("ConfigMap {key}");
                self.read(place, 0, || Tokenizer::from_files(Path::new(&path), &files))
            }
            TokenizerSource::HuggingFace(hub) => {
                let repository = &hub.repository;
                Err(format!("fetching {repository:?} is not supported yet; download it and use tokenizer.path"))
            }
        }
    }

    fn read(
        &mut self,
        place: Place,
        fingerprint: u64,
        load: impl FnOnce() -> Result<Tokenizer, TokenizerError>,
    ) -> Model {
        if let Some(cached) = self.by_place.get_mut(&place)
            && cached.fingerprint == fingerprint
        {
            cached.used = true;
            return cached.model.clone();
        }
        let model = load().map(Arc::new).map_err(|error| error.to_string());
        match (&model, &place) {
            (Ok(_), Place::Folder(folder)) => tracing::info!(folder = %folder.display(), "tokenizer loaded"),
            (Ok(_), Place::ConfigMap(key, _)) => tracing::info!(config_map = %key, "tokenizer loaded"),
            (Err(error), _) => tracing::warn!("{error}"),
        }
        self.by_place.insert(place, Cached { fingerprint, model: model.clone(), used: true });
        model
    }
}
