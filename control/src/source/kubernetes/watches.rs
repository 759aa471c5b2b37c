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
/// Between attempts there are pauses of five seconds at most, and a watch that works says nothing while nothing changes. So
/// once all was listed, trouble that was not met again for so long is over.
const TROUBLE: Duration = Duration::from_secs(20);
/// Refused so often in a row, it will be refused until somebody grants the right.
const REFUSALS: u32 = 4;

/// Notes that something changed, for who looks at it later.
#[derive(Debug, Default)]
pub(super) struct News(AtomicBool);

impl News {
    pub(super) fn note(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Reads all that there is, and says whether something changed since the last time. The note is taken before the
    /// reading: what changes in between is read, and noted for the next time; the other way round its note would go with
    /// this one's, and it might not be looked at for as long as nothing else changes. While nothing can be read, the note
    /// stays.
    pub(super) fn read<T>(&self, read: impl FnOnce() -> Option<T>) -> Option<(bool, T)> {
        let changed = self.0.swap(false, Ordering::AcqRel);
        let all = read();
        if all.is_none() && changed {
            self.note();
        }
        Some((changed, all?))
    }
}

/// What watches tell.
#[derive(Debug, Clone)]
pub(super) struct Signals {
    /// Something changed.
    pub(super) changed: Arc<Notify>,
    /// One of the five kinds changed.
    pub(super) resources: Arc<News>,
    pub(super) metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct Health {
    /// All was listed once.
    listed: bool,
    trouble: Option<(Trouble, Instant)>,
    /// Refusals since anything else came of it.
    refusals: u32,
}

impl Health {
    /// It works.
    fn works(&mut self, listed: bool) {
        self.listed |= listed;
        self.trouble = None;
        self.refusals = 0;
    }

    /// It does not.
    fn fails(&mut self, trouble: Trouble) {
        self.refusals = if trouble.is_refusal { self.refusals.saturating_add(1) } else { 0 };
        self.trouble = Some((trouble, Instant::now()));
    }

    /// It is known what there is, or that it cannot be known. An API server that fails, or refuses once while it starts,
    /// has not said so.
    fn settled(&self) -> bool {
        self.listed || self.refusals >= REFUSALS
    }
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

    /// True once it is known what there is, or that the API server goes on refusing to say it.
    pub(super) fn settled(&self) -> bool {
        self.health().settled()
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
                    lock(&health).works(matches!(event, Event::InitDone));
                    if subject.is_own {
                        signals.resources.note();
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
    health.fails(trouble);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trouble(kind: &'static str, is_refusal: bool) -> Trouble {
        Trouble { kind, text: String::new(), is_refusal }
    }

    #[test]
    fn a_change_between_the_note_and_the_reading_is_looked_at_again() {
        let news = News::default();
        assert_eq!(news.read(|| Some(0)), Some((false, 0)));
        news.note();
        let late = news.read(|| {
            news.note();
            Some(1)
        });
        assert_eq!(late, Some((true, 1)));
        assert_eq!(news.read(|| Some(2)), Some((true, 2)));
        assert_eq!(news.read(|| Some(3)), Some((false, 3)));
        // Not all was listed yet.
        news.note();
        assert_eq!(news.read(|| None::<u8>), None);
        assert_eq!(news.read(|| Some(4)), Some((true, 4)));
    }

    #[test]
    fn only_what_was_listed_or_goes_on_being_refused_is_settled() {
        let mut health = Health::default();
        for _ in 0..100 {
            health.fails(trouble("other", false));
            health.fails(trouble(UNREACHABLE, false));
        }
        assert!(!health.settled(), "an API server that fails says nothing of what there is");
        (1..REFUSALS).for_each(|_| health.fails(trouble("forbidden", true)));
        assert!(!health.settled(), "rights may be on their way");
        health.fails(trouble("other", false));
        (1..REFUSALS).for_each(|_| health.fails(trouble("forbidden", true)));
        assert!(!health.settled());
        health.fails(trouble("forbidden", true));
        assert!(health.settled());
        health.works(false);
        assert!(!health.settled());
        health.works(true);
        health.fails(trouble("other", false));
        assert!(health.settled());
    }
}
