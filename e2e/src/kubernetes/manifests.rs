//! Objects as YAML, given to the API server as `kubectl apply --server-side` does.

use std::path::{Path, PathBuf};

use kinference_bench::stack::StackError;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Client, discovery};
use serde::Deserialize;
use serde_json::Value;

use super::error::KubernetesError;

/// Who the API server notes as the owner of the applied fields.
const MANAGER: &str = "kinference-tests";

/// An object, and where it comes from.
#[derive(Debug, Clone)]
pub struct Manifest {
    /// The file, or what made the text.
    pub from: String,
    /// The object.
    pub object: Value,
}

impl Manifest {
    /// Its kind and name.
    #[must_use]
    pub fn title(&self) -> String {
        format!("{} {}", self.kind(), self.name())
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.object["kind"].as_str().unwrap_or_default()
    }
}

/// Reads the documents of a YAML text, empty ones left out.
///
/// # Errors
/// Text that is no YAML.
pub fn read(from: &str, text: &str) -> Result<Vec<Manifest>, KubernetesError> {
    let mut manifests = Vec::new();
    for document in serde_yaml_ng::Deserializer::from_str(text) {
        let object = Value::deserialize(document)
            .map_err(|error| KubernetesError::Manifest { what: from.to_owned(), reason: error.to_string() })?;
        if !object.is_null() {
            manifests.push(Manifest { from: from.to_owned(), object });
        }
    }
    Ok(manifests)
}

/// Reads a YAML file, or all of a folder by their names.
///
/// # Errors
/// What cannot be read, or is no YAML.
pub fn read_files(path: &Path) -> Result<Vec<Manifest>, KubernetesError> {
    let mut files: Vec<PathBuf> = if path.is_dir() {
        let entries = std::fs::read_dir(path).map_err(StackError::io("read", path))?;
        let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
        files.filter(|path| path.extension().is_some_and(|extension| extension == "yaml")).collect()
    } else {
        vec![path.to_owned()]
    };
    files.sort();
    let mut manifests = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).map_err(StackError::io("read", &file))?;
        manifests.extend(read(&file.display().to_string(), &text)?);
    }
    Ok(manifests)
}

/// Applies objects in their order, in `namespace` where they name none and are of one.
///
/// # Errors
/// The first that the API server refuses, in its words.
pub async fn apply(client: &Client, namespace: &str, manifests: &[Manifest]) -> Result<(), KubernetesError> {
    for manifest in manifests {
        put(client, namespace, manifest, &PatchParams::apply(MANAGER).force().validation_strict()).await?;
    }
    Ok(())
}

/// Asks the API server whether it would take an object, without leaving anything there.
///
/// # Errors
/// Why it would not, in its words.
pub async fn dry_run(client: &Client, namespace: &str, manifest: &Manifest) -> Result<(), KubernetesError> {
    put(client, namespace, manifest, &PatchParams::apply(MANAGER).force().validation_strict().dry_run()).await
}

async fn put(
    client: &Client,
    namespace: &str,
    manifest: &Manifest,
    params: &PatchParams,
) -> Result<(), KubernetesError> {
    let what = || format!("apply {} of {}", manifest.title(), manifest.from);
    let bad = |reason: String| KubernetesError::Manifest { what: what(), reason };
    let mut object: DynamicObject =
        serde_json::from_value(manifest.object.clone()).map_err(|error| bad(error.to_string()))?;
    let types = object.types.clone().ok_or_else(|| bad("it has no apiVersion and kind".into()))?;
    let kind = GroupVersionKind::try_from(&types).map_err(|error| bad(error.to_string()))?;
    let name = object.metadata.name.clone().ok_or_else(|| bad("it has no metadata.name".into()))?;
    let (resource, capabilities) = discovery::pinned_kind(client, &kind).await.map_err(KubernetesError::api(what()))?;
    let api: Api<DynamicObject> = if capabilities.scope == discovery::Scope::Cluster {
        Api::all_with(client.clone(), &resource)
    } else {
        let namespace = object.metadata.namespace.get_or_insert_with(|| namespace.to_owned());
        Api::namespaced_with(client.clone(), namespace, &resource)
    };
    api.patch(&name, params, &Patch::Apply(&object)).await.map_err(KubernetesError::api(what()))?;
    Ok(())
}
