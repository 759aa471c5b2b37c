//! What filters say: what they hold, and what became of requests.

use kinference_api::ObjectKey;
use kinference_protocol::v1::{self, report::Event};

use super::Fleet;
use super::fleet::settle;
use super::traffic::{FirstToken, Sent};

/// A connected filter.
#[derive(Debug, Clone)]
pub(super) struct Filter {
    pub(super) backend: ObjectKey,
    pub(super) hello: v1::Hello,
    pub(super) applied: Option<v1::Applied>,
    pub(super) last_rejection: Option<String>,
    pub(super) rejections: u64,
}

impl Fleet {
    pub(super) fn opened(&mut self, stream: u64, backend: &str, hello: v1::Hello) {
        let Ok(backend) = backend.parse::<ObjectKey>() else { return };
        tracing::info!(stream, %backend, proxy = hello.proxy_id, build = hello.filter_build, "filter connected");
        let filter = Filter { backend, hello, applied: None, last_rejection: None, rejections: 0 };
        self.filters.insert(stream, filter);
    }

    pub(super) fn closed(&mut self, stream: u64) {
        self.traffic.close(stream);
        if let Some(filter) = self.filters.remove(&stream) {
            tracing::info!(stream, backend = %filter.backend, proxy = filter.hello.proxy_id, "filter disconnected");
        }
    }

    pub(super) fn applied(&mut self, stream: u64, applied: v1::Applied) {
        if let Some(filter) = self.filters.get_mut(&stream) {
            filter.applied = Some(applied);
        }
    }

    pub(super) fn rejected(&mut self, stream: u64, rejected: v1::Rejected) {
        let Some(filter) = self.filters.get_mut(&stream) else { return };
        let v1::Rejected { epoch, sequence, reason, resync } = rejected;
        self.metrics.rejected(resync);
        if resync {
            tracing::info!(stream, epoch, sequence, "filter asks for a full snapshot: {reason}");
        } else {
            tracing::error!(stream, epoch, sequence, backend = %filter.backend, "filter refuses the snapshot: {reason}");
        }
        filter.rejections += 1;
        filter.last_rejection = Some(reason);
    }

    pub(super) fn reported(&mut self, stream: u64, batch: v1::Reports, now: u64) {
        if !self.filters.contains_key(&stream) {
            return;
        }
        if batch.dropped > 0 {
            self.metrics.reports_dropped.inc_by(batch.dropped);
            self.traffic.doubt(stream, now);
        }
        for v1::Report { request, worker, provider, event } in batch.reports {
            self.metrics.reported(event.as_ref());
            match event {
                Some(Event::Started(started)) => self.started(stream, request, worker, started, now),
                Some(Event::FirstToken(first)) if first.estimated => self.traffic.prefilled(stream, request),
                Some(Event::FirstToken(first)) => {
                    self.traffic.first_token(stream, request, worker, first.after_ms, now);
                }
                Some(Event::Finished(finished)) if !provider.is_empty() => {
                    self.finished_outside(stream, &provider, &finished);
                }
                Some(Event::Finished(finished)) => self.finished(stream, request, worker, &finished, now),
                None => {}
            }
        }
    }

    fn started(&mut self, stream: u64, request: u64, worker: Option<u32>, started: v1::Started, now: u64) {
        if let Some(backend) = self.filters.get(&stream).and_then(|filter| self.backends.get(&filter.backend)) {
            self.metrics.tenant_request(&backend.fleet.backend, backend.tenant(&started.tenant));
        }
        let Some(worker) = worker.and_then(|id| self.workers.get(&id)) else { return };
        let sent = Sent {
            worker: worker.id,
            serial: worker.serial,
            cached_tokens: started.cached_tokens,
            uncached_tokens: started.prompt_tokens.saturating_sub(started.cached_tokens),
            queued_tokens: started.queued_tokens,
            running: started.running,
            predicted_ttft_ms: started.predicted_ttft_ms,
        };
        let id = worker.id;
        let routed = self.sets.get(&worker.wanted.name.set).is_some_and(|set| !set.uses_events());
        self.traffic.started(stream, request, sent, now);
        if routed && !started.chunks.is_empty() {
            self.learn_routed(stream, id, &started.chunks, now);
        }
    }

    /// Chunks only mean something on the grid and in the namespaces that the filter had when it cut them.
    fn learn_routed(&mut self, stream: u64, worker: u32, chunks: &[u64], now: u64) {
        let Some(filter) = self.filters.get(&stream) else { return };
        let Some(backend) = self.backends.get_mut(&filter.backend) else { return };
        let epoch = filter.applied.as_ref().map_or(0, |applied| applied.epoch);
        if epoch == backend.epoch {
            // Fails only for a worker of another backend.
            let _ = backend.store.learn(worker, chunks, now);
        }
    }

    fn finished(&mut self, stream: u64, request: u64, worker: Option<u32>, finished: &v1::Finished, now: u64) {
        let ended = self.traffic.finished(stream, request, finished.after_ms, finished.completion_tokens);
        let id = worker.or_else(|| ended.as_ref().map(|ended| ended.sent.worker));
        let Some(worker) = id.and_then(|id| self.workers.get_mut(&id)) else { return };
        let set = worker.wanted.name.set.clone();
        self.metrics.finished(&set, finished);
        if finished.connect_failure {
            worker.health.suspect(now);
            self.urgent |= settle(worker, now);
            return;
        }
        let Some(ended) = ended.filter(|ended| ended.sent.serial == worker.serial) else { return };
        if let (Some(actual), 200..=299) = (finished.cached_tokens, finished.status) {
            self.metrics.cached_tokens_seen(&set, ended.sent.cached_tokens, actual);
        }
        if let Some(first) = ended.first_token {
            self.learn_first_token(&first);
        }
    }

    /// Only providers of the configuration have names in metrics.
    fn finished_outside(&self, stream: u64, provider: &str, finished: &v1::Finished) {
        let backend = self.filters.get(&stream).and_then(|filter| self.backends.get(&filter.backend));
        let known = backend.and_then(|backend| {
            backend.fleet.providers.iter().find(|spec| spec.wire.name == provider).map(|spec| &spec.key)
        });
        if let Some(key) = known {
            self.metrics.finished_outside(key, finished);
        }
    }

    pub(super) fn learn_first_tokens(&mut self, now: u64) {
        for first in self.traffic.first_tokens(now) {
            self.learn_first_token(&first);
        }
    }

    fn learn_first_token(&mut self, first: &FirstToken) {
        let Some(worker) = self.workers.get_mut(&first.worker).filter(|worker| worker.serial == first.serial) else {
            return;
        };
        if let Some(set) = self.sets.get_mut(&worker.wanted.name.set) {
            let seen = first.observation();
            worker.pace.observe(seen, &set.learner.model());
            set.learner.observe(seen);
        }
        self.metrics.first_token_seen(&worker.wanted.name.set, first.predicted_ms, first.after_ms);
    }
}
