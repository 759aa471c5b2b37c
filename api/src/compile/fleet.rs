//! Resources to a fleet.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use kinference_protocol::v1;

use super::policies::{self, Policies};
use super::providers;
use super::{
    BackendSettings, CompileError, FleetSpec, KvPorts, PoolSpec, TokenizerSource, WorkerSetSpec, WorkerSpec,
    WorkersSpec,
};
use crate::kinds::{FailureMode, GatewayBackendSpec, InferenceWorkerSetSpec, Port, StaticWorker, Tokenizer};
use crate::{ObjectKey, Resource, Resources};

/// What the gateway backend `backend` serves.
///
/// # Errors
/// [`CompileError::UnknownBackend`]; [`CompileError::Unchecked`] when the resources did not come through
/// [`crate::source`] or [`crate::check`].
pub fn fleet(resources: &Resources, backend: &ObjectKey) -> Result<FleetSpec, CompileError> {
    let Some(resource) = resources.backends.get(backend) else {
        return Err(CompileError::UnknownBackend {
            wanted: backend.clone(),
            known: resources.backends.keys().cloned().collect(),
        });
    };
    let mut sets: BTreeMap<&ObjectKey, &Resource<InferenceWorkerSetSpec>> = BTreeMap::new();
    let mut pools = Vec::new();
    for reference in &resource.spec.pools {
        let key = backend.sibling(&reference.name);
        let members = resources.worker_sets_of_pool(&key);
        pools.push(PoolSpec { key, worker_sets: members.iter().map(|set| set.key.clone()).collect() });
        sets.extend(members.into_iter().map(|set| (&set.key, set)));
    }
    let providers = providers::providers(resources, resource);
    let Policies { rules, signals } = policies::compile(resources, backend, &pools, &providers);
    let worker_sets = (0..).zip(sets.values()).map(|(id, set)| worker_set(id, set));
    Ok(FleetSpec {
        backend: backend.clone(),
        settings: settings(&resource.spec),
        worker_sets: worker_sets.collect::<Result<_, _>>()?,
        pools,
        providers,
        rules,
        signals,
        tenancy: policies::tenancy(&resource.spec),
    })
}

fn settings(spec: &GatewayBackendSpec) -> BackendSettings {
    BackendSettings {
        request_body_limit: spec.request_body_limit.bytes(),
        debug_headers: spec.debug_headers,
        failure_mode: match spec.failure_mode {
            FailureMode::Open => v1::FailureMode::Open,
            FailureMode::Closed => v1::FailureMode::Closed,
        },
        stale_after: spec.stale_after.get(),
        index_max_bytes: spec.prefix_index.max_bytes.bytes(),
        chunk_bytes: spec.prefix_index.chunk_bytes,
    }
}

fn worker_set(id: u32, set: &Resource<InferenceWorkerSetSpec>) -> Result<WorkerSetSpec, CompileError> {
    let unchecked = |message: String| CompileError::Unchecked { resource: set.key.clone(), message };
    let spec = &set.spec;
    let folder = set.origin.file().parent().unwrap_or(Path::new(""));
    let ports = spec.kv_events.as_ref().map(|kv| KvPorts { events: kv.port, replay: kv.replay_port });
    let workers = match (&spec.workers.static_workers, &spec.workers.selector) {
        (Some(list), None) => {
            let workers = list.iter().map(|w| worker(w, &spec.workers.port, ports));
            WorkersSpec::Static(workers.collect::<Result<_, _>>().map_err(unchecked)?)
        }
        (None, Some(selector)) => {
            WorkersSpec::Selector { selector: selector.clone(), port: spec.workers.port.clone(), kv_events: ports }
        }
        _ => {
            return Err(unchecked("spec.workers needs exactly one of selector and static".into()));
        }
    };
    Ok(WorkerSetSpec {
        id,
        key: set.key.clone(),
        labels: set.labels.clone(),
        engine: spec.engine,
        model: spec.model.name.clone(),
        tokenizer: tokenizer(&spec.model.tokenizer, folder).map_err(unchecked)?,
        chat_template: spec.model.chat_template.clone(),
        workers,
        data_parallel_size: spec.workers.data_parallel_size.max(1),
        kv_topic: spec.kv_events.as_ref().map(|kv| kv.topic.clone()),
        metrics_path: spec.metrics.path.clone(),
        metrics_interval: spec.metrics.interval.get(),
        role: spec.role,
    })
}

fn worker(worker: &StaticWorker, of_set: &Port, kv: Option<KvPorts>) -> Result<WorkerSpec, String> {
    let ip: IpAddr = worker.address.parse().map_err(|_| format!("`{}` is not an IP address", worker.address))?;
    let port = worker.port.or(of_set.number()).ok_or_else(|| format!("port `{of_set}` is not a number"))?;
    Ok(WorkerSpec {
        name: worker.name.clone(),
        ip,
        port,
        kv_events: kv.map(|set| KvPorts {
            events: worker.kv_events_port.unwrap_or(set.events),
            replay: worker.kv_replay_port.or(set.replay),
        }),
    })
}

fn tokenizer(tokenizer: &Tokenizer, folder: &Path) -> Result<TokenizerSource, String> {
    match (&tokenizer.path, &tokenizer.config_map, &tokenizer.hugging_face) {
        (Some(path), None, None) => Ok(TokenizerSource::Folder(folder.join(path))),
        (None, Some(map), None) => Ok(TokenizerSource::ConfigMap(map.name.clone())),
        (None, None, Some(hub)) => Ok(TokenizerSource::HuggingFace(hub.clone())),
        _ => Err("spec.model.tokenizer needs exactly one of path, configMap and huggingFace".into()),
    }
}
