//! Watches of the API server, each with all that it selects in memory.
//!
//! A list that is read again replaces the old one at once and whole, so nothing flickers when a connection was lost; and
//! while there is none, what was read stays.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::Resource;
use kube::api::Api;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{Lookup, Store};
use kube::runtime::watcher::{self, Event, watcher};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::trouble::{Subject, Trouble, UNREACHABLE};
use crate::metrics::Metrics;

/// The API server ends a watch after this time and it is begun anew; a dead connection is noticed a little later.
const WATCH_S: u32 = 60;
/// Between attempts, doubled up to the longest.
const SHORTEST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A watch that works says nothing while nothing changes; trouble that was not met again for so long is over.
const TROUBLE: Duration = Duration::from_secs(20);

/// What watches tell.
#[derive(Debug, Clone)]
pub(super) struct Signals {
    /// Something changed.
    pub(super) changed: Arc<Notify>,
    /// One of the five kinds changed since this was taken.
    pub(super) resources: Arc<AtomicBool>,
    pub(super) metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct Health {
    /// All was listed once.
    listed: bool,
    trouble: Option<(Trouble, Instant)>,
}

/// A watch; it ends when this is dropped.
pub(super) struct Watch<K: Resource + 'static>
where
    K::DynamicType: Hash + Eq,
{
    store: Store<K>,
    health: Arc<Mutex<Health>>,
    task: AbortHandle,
}

/// What a watch shows, for whoever does not own it.
pub(super) struct View<K: Resource + 'static>
where
    K::DynamicType: Hash + Eq,
{
    store: Store<K>,
    health: Arc<Mutex<Health>>,
}

impl<K: Resource + 'static> Drop for Watch<K>
where
    K::DynamicType: Hash + Eq,
{
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<K> Watch<K>
where
    K: Resource
        + Lookup<DynamicType = <K as Resource>::DynamicType>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
    <K as Resource>::DynamicType: Hash + Eq + Clone + Send + Sync,
{
    /// Watches what `config` selects; `strip` drops what need not be kept.
    pub(super) fn start(
        api: Api<K>,
        config: watcher::Config,
        kind: <K as Resource>::DynamicType,
        subject: Subject,
        strip: fn(&mut K),
        signals: Signals,
    ) -> Self {
        let writer = Writer::new(kind);
        let store = writer.as_reader();
        let health = Arc::new(Mutex::new(Health::default()));
        let task = tokio::spawn(follow(api, config, writer, health.clone(), subject, strip, signals));
        Self { store, health, task: task.abort_handle() }
    }
}

impl<K: Resource + Clone + 'static> View<K>
where
    K::DynamicType: Hash + Eq + Clone,
{
    /// All that there is, once it was listed.
    pub(super) fn objects(&self) -> Option<Vec<Arc<K>>> {
        lock(&self.health).listed.then(|| self.store.state())
    }
}

impl<K: Resource + Clone + 'static> Watch<K>
where
    K::DynamicType: Hash + Eq + Clone,
{
    /// The same for somebody else.
    pub(super) fn view(&self) -> View<K> {
        View { store: self.store.clone(), health: self.health.clone() }
    }

    /// All that there is, once it was listed.
    pub(super) fn objects(&self) -> Option<Vec<Arc<K>>> {
        self.health().listed.then(|| self.store.state())
    }

    /// How many objects it holds.
    pub(super) fn len(&self) -> usize {
        self.store.len()
    }

    /// True once it is known what there is, or why that cannot be known.
    pub(super) fn settled(&self) -> bool {
        let health = self.health();
        health.listed || health.trouble.as_ref().is_some_and(|(trouble, _)| trouble.kind != UNREACHABLE)
    }

    /// What is in its way.
    pub(super) fn trouble(&self) -> Option<Trouble> {
        let health = self.health();
        let lasts = |since: &Instant| !health.listed || since.elapsed() < TROUBLE;
        health.trouble.as_ref().filter(|(_, since)| lasts(since)).map(|(trouble, _)| trouble.clone())
    }

    fn health(&self) -> std::sync::MutexGuard<'_, Health> {
        lock(&self.health)
    }
}

/// What a lock guards is whole after every statement, so one that panicked left nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn follow<K>(
    api: Api<K>,
    config: watcher::Config,
    mut writer: Writer<K>,
    health: Arc<Mutex<Health>>,
    subject: Subject,
    strip: fn(&mut K),
    signals: Signals,
) where
    K: Resource
        + Lookup<DynamicType = <K as Resource>::DynamicType>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + 'static,
    <K as Resource>::DynamicType: Hash + Eq + Clone,
{
    let mut events = watcher(api, config.timeout(WATCH_S)).boxed();
    let mut pause = SHORTEST_PAUSE;
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                let event = event.modify(strip);
                let news = !matches!(event, Event::Init | Event::InitApply(_));
                writer.apply_watcher_event(&event);
                if news {
                    pause = SHORTEST_PAUSE;
                    {
                        let mut health = lock(&health);
                        health.listed |= matches!(event, Event::InitDone);
                        health.trouble = None;
                    }
                    if subject.is_own {
                        signals.resources.store(true, Ordering::Release);
                    }
                    signals.changed.notify_one();
                }
            }
            Err(error) => {
                let trouble = Trouble::of_watch(&error, &subject);
                signals.metrics.source_error(trouble.kind);
                // The list is read again at once.
                if trouble.kind == "expired" {
                    continue;
                }
                tell(&health, trouble);
                signals.changed.notify_one();
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

fn tell(health: &Mutex<Health>, trouble: Trouble) {
    let mut health = lock(health);
    let known = health.trouble.as_ref().is_some_and(|(known, since)| *known == trouble && since.elapsed() < TROUBLE);
    // That the API server is gone is told once, not by every watch.
    if !known && trouble.kind != UNREACHABLE {
        tracing::warn!("{}", trouble.text);
    }
    health.trouble = Some((trouble, Instant::now()));
}
