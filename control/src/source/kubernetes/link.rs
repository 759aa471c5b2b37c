//! All watches of a cluster together, and whether its API server is there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kinference_api::{Kind, ObjectKey};
use kube::api::{Api, ApiResource, DynamicObject};
use kube::runtime::watcher;
use kube::{Client, Resource as _};
use tokio::sync::Notify;

use super::assemble::Around;
use super::needs::{Needs, PodScope};
use super::objects;
use super::pods::{self, Pod};
use super::trouble::{MISSING, Subject, Trouble, UNREACHABLE};
use super::watches::{News, Signals, Watch};
use crate::conditions::pace::Currents;
use crate::metrics::Metrics;
use crate::source::models::ConfigMapFiles;
use crate::state::SourceReport;

/// An API server that does not answer within this time is not there.
const ANSWER: Duration = Duration::from_secs(5);

/// Resources of the five kinds.
pub(super) type Objects = Vec<(Kind, Arc<DynamicObject>)>;

/// The watches.
pub(super) struct Link {
    client: Client,
    address: String,
    namespaces: Vec<String>,
    signals: Signals,
    kinds: Vec<(Kind, Watch<DynamicObject>)>,
    pods: BTreeMap<PodScope, Watch<Pod>>,
    config_maps: BTreeMap<ObjectKey, Watch<ConfigMap>>,
    secrets: BTreeMap<ObjectKey, Watch<Secret>>,
    /// Whether the API server answered last; None before it was asked.
    answer: Arc<Mutex<Option<Result<(), Trouble>>>>,
}

impl Link {
    /// Watches the five kinds in these namespaces; in all when there are none.
    pub(super) fn start(client: Client, address: String, namespaces: Vec<String>, metrics: Arc<Metrics>) -> Self {
        let signals = Signals { changed: Arc::new(Notify::new()), resources: Arc::new(News::default()), metrics };
        let scopes: Vec<Option<&String>> =
            if namespaces.is_empty() { vec![None] } else { namespaces.iter().map(Some).collect() };
        let mut kinds = Vec::new();
        for kind in Kind::ALL {
            let resource = objects::api_resource(kind);
            for scope in &scopes {
                let (api, place) = match scope {
                    Some(namespace) => {
                        let api = Api::namespaced_with(client.clone(), namespace, &resource);
                        (api, format!("namespace {namespace}"))
                    }
                    None => (Api::all_with(client.clone(), &resource), "all namespaces".to_owned()),
                };
                let subject = Subject { resource: role_name(&resource), place, is_own: true };
                let config = watcher::Config::default();
                let watch = Watch::start(api, config, resource.clone(), subject, objects::strip, signals.clone());
                kinds.push((kind, watch));
            }
        }
        Self {
            client,
            address,
            namespaces,
            signals,
            kinds,
            pods: BTreeMap::new(),
            config_maps: BTreeMap::new(),
            secrets: BTreeMap::new(),
            answer: Arc::default(),
        }
    }

    /// Completes when something changed.
    pub(super) async fn changed(&self) {
        self.signals.changed.notified().await;
    }

    /// Asks the API server whether it is there; the answer is in the next report.
    pub(super) fn probe(&self) {
        let (client, answer, changed) = (self.client.clone(), self.answer.clone(), self.signals.changed.clone());
        tokio::spawn(async move {
            let asked = tokio::time::timeout(ANSWER, client.apiserver_version()).await;
            let now = match asked {
                Ok(Ok(_)) => Ok(()),
                // One that refuses to say its version is there; who says that it cannot serve is not, or stands before it.
                Ok(Err(kube::Error::Api(status))) if status.code < 500 => Ok(()),
                Ok(Err(error)) => Err(Trouble::unreachable(&error)),
                Err(_) => Err(Trouble::silent(ANSWER)),
            };
            let before = answer.lock().unwrap_or_else(PoisonError::into_inner).replace(now.clone());
            match (&before, &now) {
                (None | Some(Ok(())), Err(trouble)) => {
                    tracing::warn!("{}; what was read stays in force", trouble.text);
                    changed.notify_one();
                }
                (Some(Err(_)), Ok(())) => {
                    tracing::info!("the API server answers again");
                    changed.notify_one();
                }
                _ => {}
            }
        });
    }

    /// All resources of the five kinds, once all of them were listed, and whether one changed since they were asked for
    /// last.
    pub(super) fn objects(&self) -> Option<(bool, Objects)> {
        self.signals.resources.read(|| {
            let mut all = Vec::new();
            for (kind, watch) in &self.kinds {
                all.extend(watch.objects()?.into_iter().map(|object| (*kind, object)));
            }
            Some(all)
        })
    }

    /// What the watches of the five kinds show of statuses, whenever it is asked for; None before all were listed.
    pub(super) fn statuses(&self) -> impl Fn() -> Option<Currents> + Send + 'static {
        let views: Vec<_> = self.kinds.iter().map(|(kind, watch)| (*kind, watch.view())).collect();
        move || {
            let mut all = Vec::new();
            for (kind, view) in &views {
                all.extend(view.objects()?.into_iter().map(|object| (*kind, object)));
            }
            Some(objects::currents(&all))
        }
    }

    /// The client of the API server.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Watches what is needed, and nothing else any longer.
    pub(super) fn follow(&mut self, needs: &Needs) {
        let (client, signals) = (&self.client, &self.signals);
        self.pods.retain(|scope, _| needs.pods.contains(scope));
        for scope in &needs.pods {
            self.pods.entry(scope.clone()).or_insert_with(|| {
                let resource = pods::api_resource();
                let api = Api::namespaced_with(client.clone(), &scope.namespace, &resource);
                let config = watcher::Config::default().labels(&scope.selector);
                let subject = subject("pods", format!("namespace {}", scope.namespace));
                Watch::start(api, config, resource, subject, pods::strip, signals.clone())
            });
        }
        self.config_maps.retain(|key, _| needs.config_maps.contains(key));
        for key in &needs.config_maps {
            self.config_maps.entry(key.clone()).or_insert_with(|| {
                let api: Api<ConfigMap> = Api::namespaced(client.clone(), &key.namespace);
                let subject = subject("configmaps", format!("ConfigMap {key}"));
                Watch::start(api, only(key), (), subject, strip_config_map, signals.clone())
            });
        }
        self.secrets.retain(|key, _| needs.secrets.contains(key));
        for key in &needs.secrets {
            self.secrets.entry(key.clone()).or_insert_with(|| {
                let api: Api<Secret> = Api::namespaced(client.clone(), &key.namespace);
                let subject = subject("secrets", format!("Secret {key}"));
                Watch::start(api, only(key), (), subject, strip_secret, signals.clone())
            });
        }
    }

    /// True once everything that is followed is known, or known to be out of reach.
    pub(super) fn settled(&self) -> bool {
        self.pods.values().all(Watch::settled)
            && self.config_maps.values().all(Watch::settled)
            && self.secrets.values().all(Watch::settled)
    }

    /// What is known of it.
    pub(super) fn around(&self, needs: &Needs) -> Around {
        let pods = self.pods.iter().map(|(scope, watch)| (scope.clone(), watch.objects()));
        let config_maps = self.config_maps.iter().filter_map(|(key, watch)| {
            let files = one(watch, "ConfigMap", key)?.map(|map| config_map_files(&map));
            Some((key.clone(), files))
        });
        let secrets = self.secrets.iter().filter_map(|(key, watch)| {
            let data = one(watch, "Secret", key)?.map(|secret| {
                let data = secret.data.iter().flatten();
                data.map(|(key, value)| (key.clone(), value.0.clone())).collect()
            });
            Some((key.clone(), data))
        });
        Around {
            pods: pods.collect(),
            config_maps: config_maps.collect(),
            secrets: secrets.collect(),
            of_providers: needs.of_providers.clone(),
        }
    }

    /// How the cluster is followed.
    pub(super) fn report(&self) -> SourceReport {
        let (missing, others): (Vec<_>, Vec<_>) = self
            .kinds
            .iter()
            .filter_map(|(kind, watch)| Some((*kind, watch.trouble()?)))
            .partition(|(_, trouble)| trouble.kind == MISSING);
        let mut missing: Vec<String> =
            missing.iter().map(|(kind, _)| role_name(&objects::api_resource(*kind))).collect();
        missing.dedup();
        let mut troubles: Vec<Trouble> = others.into_iter().map(|(_, trouble)| trouble).collect();
        // All of them at once, since one command installs them.
        troubles.extend((!missing.is_empty()).then(|| Trouble::missing(&missing)));
        troubles.extend(self.pods.values().filter_map(Watch::trouble));
        troubles.extend(self.config_maps.values().filter_map(Watch::trouble));
        troubles.extend(self.secrets.values().filter_map(Watch::trouble));
        // Whether it can be reached is for the probe to say, which asks more often.
        troubles.retain(|trouble| trouble.kind != UNREACHABLE);
        let answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut problems: Vec<String> = troubles.into_iter().map(|trouble| trouble.text).collect();
        problems.sort();
        problems.dedup();
        if let Some(Err(trouble)) = &*answer {
            problems.insert(0, trouble.text.clone());
        }
        let counts = [
            ("pods", self.pods.values().map(Watch::len).sum()),
            ("resources", self.kinds.iter().map(|(_, watch)| watch.len()).sum()),
            ("config_maps", self.config_maps.values().map(Watch::len).sum()),
            ("secrets", self.secrets.values().map(Watch::len).sum()),
        ];
        counts.into_iter().for_each(|(kind, count): (_, usize)| self.signals.metrics.source_holds(kind, count));
        SourceReport {
            from: self.address.clone(),
            namespaces: self.namespaces.clone(),
            connected: matches!(&*answer, Some(Ok(()))),
            problems,
        }
    }
}

/// A resource as roles name it.
fn role_name(resource: &ApiResource) -> String {
    format!("{}.{}", resource.plural, resource.group)
}

fn subject(resource: &str, place: String) -> Subject {
    Subject { resource: resource.to_owned(), place, is_own: false }
}

/// Of one object by its name, which a role can allow by `resourceNames`.
fn only(key: &ObjectKey) -> watcher::Config {
    watcher::Config::default().fields(&format!("metadata.name={}", key.name))
}

/// The object, or why there is none; None while that is not known. An API server that fails for a moment does not say
/// that there is none.
fn one<K>(watch: &Watch<K>, kind: &str, key: &ObjectKey) -> Option<Result<Arc<K>, String>>
where
    K: kube::Resource<DynamicType = ()> + Clone + 'static,
{
    match watch.objects() {
        Some(objects) => {
            let missing = || format!("there is no {kind} {key}; create it");
            Some(objects.into_iter().next().ok_or_else(missing))
        }
        None if watch.settled() => watch.trouble().map(|trouble| Err(trouble.text)),
        None => None,
    }
}

fn config_map_files(map: &ConfigMap) -> ConfigMapFiles {
    let texts = map.data.iter().flatten().map(|(name, text)| (name.clone(), text.clone().into_bytes()));
    let binaries = map.binary_data.iter().flatten().map(|(name, bytes)| (name.clone(), bytes.0.clone()));
    let version = map.meta().resource_version.clone().unwrap_or_default();
    ConfigMapFiles { version, files: texts.chain(binaries).collect() }
}

fn strip_config_map(map: &mut ConfigMap) {
    map.metadata.managed_fields = None;
    map.metadata.annotations = None;
}

/// Annotations may hold what was applied last, and so the secret once more.
fn strip_secret(secret: &mut Secret) {
    secret.metadata.managed_fields = None;
    secret.metadata.annotations = None;
}
