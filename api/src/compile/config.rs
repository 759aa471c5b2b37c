//! A fleet and its assets to the `Config` section of the snapshot.

use std::collections::BTreeMap;

use kinference_protocol::v1;

use super::{CompileError, FleetSpec, WorkerSetAssets, WorkerSetSpec};
use crate::ObjectKey;
use crate::kinds::Role;

/// The snapshot's configuration for a fleet. Worker sets keep the fleet's order and ids; equal templates are sent
/// once. `backend.chunk_bytes` is what the user asked for: a control service that coarsened the grid overwrites it.
///
/// # Errors
/// [`CompileError::MissingAssets`] for a worker set that `assets` lacks; [`CompileError::SameId`].
pub fn config(fleet: &FleetSpec, assets: &BTreeMap<ObjectKey, WorkerSetAssets>) -> Result<v1::Config, CompileError> {
    let mut config = v1::Config {
        backend: Some(backend(fleet)),
        rules: fleet.rules.clone(),
        providers: fleet.providers.iter().map(|provider| provider.wire.clone()).collect(),
        signals: fleet.signals.clone(),
        tenancy: (fleet.tenancy != v1::Tenancy::default()).then(|| fleet.tenancy.clone()),
        ..Default::default()
    };
    let mut names: BTreeMap<u32, &ObjectKey> = BTreeMap::new();
    for set in &fleet.worker_sets {
        if let Some(other) = names.insert(set.id, &set.key) {
            return Err(CompileError::SameId(other.clone(), set.key.clone()));
        }
        let known = assets.get(&set.key).ok_or_else(|| CompileError::MissingAssets(set.key.clone()))?;
        let template = known.template.as_ref().map(|template| {
            let place = config.templates.iter().position(|t| t == template);
            place.unwrap_or_else(|| {
                config.templates.push(template.clone());
                config.templates.len() - 1
            }) as u32
        });
        config.worker_sets.push(worker_set(set, known, template));
    }
    let id_of = |key: &ObjectKey| fleet.worker_sets.iter().find(|set| set.key == *key).map(|set| set.id);
    let pools = (0..).zip(&fleet.pools).map(|(id, pool)| v1::Pool {
        id,
        name: pool.key.name.clone(),
        worker_sets: pool.worker_sets.iter().filter_map(id_of).collect(),
    });
    config.pools = pools.collect();
    Ok(config)
}

fn backend(fleet: &FleetSpec) -> v1::Backend {
    let settings = &fleet.settings;
    v1::Backend {
        name: fleet.backend.to_string(),
        request_body_limit: settings.request_body_limit,
        debug_headers: settings.debug_headers,
        failure_mode: settings.failure_mode.into(),
        stale_after_ms: u64::try_from(settings.stale_after.as_millis()).unwrap_or(u64::MAX),
        index_max_bytes: settings.index_max_bytes,
        chunk_bytes: settings.chunk_bytes,
    }
}

fn worker_set(set: &WorkerSetSpec, assets: &WorkerSetAssets, template: Option<u32>) -> v1::WorkerSet {
    let role = match set.role {
        Role::Both => v1::Role::Both,
        Role::Prefill => v1::Role::Prefill,
        Role::Decode => v1::Role::Decode,
    };
    let name = set.key.to_string();
    v1::WorkerSet {
        id: set.id,
        model: set.model.clone(),
        adapters: assets.adapters.clone(),
        prefix_mode: assets.prefix_mode.into(),
        // The set's own name: two sets of one model may run different engines, templates or block sizes, and then the
        // same text is not the same prefix.
        prefix_domain: name.clone(),
        name,
        template,
        normalization: assets.normalization.into(),
        completion_prefix: assets.completion_prefix.clone(),
        // `max` also turns NaN into the bound.
        bytes_per_token: assets.bytes_per_token.max(0.1),
        block_tokens: assets.block_tokens.max(1),
        role: role.into(),
        routed_ttl_ms: u64::try_from(assets.routed_ttl.as_millis()).unwrap_or(u64::MAX),
        labels: set.labels.clone().into_iter().collect(),
    }
}
