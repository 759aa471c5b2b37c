//! KV events into the indexes, and what a restarted engine takes from them.

use super::Fleet;
use super::backend::by_events;
use crate::events::{FeedKind, FeedMessage, Health, KvEvent};
use crate::index::Applied;

impl Fleet {
    pub(super) fn feed(&mut self, message: FeedMessage) {
        // A message of a subscription that was given up may still be in the queue.
        let Some(&id) = self.subscribed.get(&message.worker_id) else { return };
        let Some(worker) = self.workers.get_mut(&id) else { return };
        let set = worker.wanted.name.set.clone();
        let name = worker.wanted.name.name.clone();
        let health = &mut worker.events;
        match message.kind {
            FeedKind::Events { events, skipped } => {
                health.batches += 1;
                let stored = events.iter().filter(|event| matches!(event, KvEvent::Stored(_))).count() as u64;
                let mut applied = Applied::default();
                for backend in self.backends.values_mut() {
                    for event in &events {
                        // Fails only where the backend does not have the worker.
                        if let Ok(done) = backend.store.apply(by_events(id), event) {
                            applied = done;
                        }
                    }
                }
                if applied.over_limit > 0 {
                    tracing::warn!(worker_set = %set, worker = name, "more blocks than any engine holds; some are not counted");
                }
                self.metrics.events(&set, stored, events.len() as u64 - stored, skipped.iter());
            }
            FeedKind::Reset { reason } => {
                let what = match reason {
                    crate::events::ResetReason::Restarted => {
                        health.restarts += 1;
                        worker.events_restarted = true;
                        "restart"
                    }
                    _ => {
                        health.gaps += 1;
                        "gap"
                    }
                };
                let reason = reason.to_string();
                tracing::warn!(worker_set = %set, worker = name, "what the worker holds is forgotten: {reason}");
                health.last_problem = Some(reason);
                self.metrics.event(&set, what);
                for backend in self.backends.values_mut() {
                    let _ = backend.store.clear(by_events(id));
                }
            }
            FeedKind::Health(news) => {
                let what = match news {
                    Health::Connected => {
                        health.connected = true;
                        "connected"
                    }
                    Health::Current => {
                        health.current = true;
                        "current"
                    }
                    Health::Incomplete => {
                        health.current = false;
                        health.last_problem = Some("replays fail: only what is stored from now on is known".into());
                        "incomplete"
                    }
                    Health::Disconnected { reason } => {
                        if health.connected {
                            tracing::warn!(worker_set = %set, worker = name, "KV events are disconnected: {reason}");
                        }
                        (health.connected, health.current) = (false, false);
                        health.last_problem = Some(reason);
                        "disconnected"
                    }
                    Health::Strange => {
                        health.last_problem = Some("something on the port is not a message of KV events".into());
                        "strange"
                    }
                };
                self.metrics.event(&set, what);
            }
        }
    }
    /// Another engine process answers under the worker's address: what the one before held is gone. The event stream
    /// would find out by itself, but a little later than the worker is ready again.
    pub(super) fn restarted(&mut self, id: u32) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        let name = worker.wanted.name.clone();
        worker.checked.came_back();
        let noticed = std::mem::take(&mut worker.events_restarted);
        if !noticed {
            worker.events.restarts += 1;
            (worker.events.connected, worker.events.current) = (false, false);
            worker.events.last_problem = Some("the engine was restarted".into());
            self.metrics.event(&name.set, "restart");
            tracing::warn!(worker_set = %name.set, worker = name.name, "what the worker holds is forgotten: its metrics are of another process");
        }
        for backend in self.backends.values_mut() {
            // Fails only where the backend does not have the worker.
            let _ = backend.store.clear(id);
        }
        if !noticed {
            self.follow_anew(id);
        }
        self.urgent = true;
    }
}
