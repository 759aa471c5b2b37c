//! What this filter did since the last snapshot: requests in flight, prefixes just sent, workers that failed to connect,
//! providers that failed.
//!
//! Without it a burst between two snapshots would pile onto the worker that looked best in the first.

use std::collections::BTreeMap;

use crate::prefix::Recent;
use crate::snapshot::{Changes, Worker};

/// How long a worker that refused a connection is avoided, unless a newer snapshot says it is gone.
const SUSPECT_MS: u64 = 5_000;
/// After so many failures in a row a provider is avoided for the same time, or as long as it asks for.
const PROVIDER_FAILURES: u32 = 3;
/// The longest that a provider is avoided for, and after which a failure is forgotten.
const PATIENCE_MS: u64 = 60_000;
/// Assumed prompt tokens of a queued request that no filter knows of.
const UNKNOWN_REQUEST_TOKENS: f32 = 512.0;

/// Weight of the newest request in the moving average of tokens to compute.
const TYPICAL_WEIGHT: f32 = 1.0 / 32.0;

/// In-flight figures of one worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Uncached prompt tokens sent, for which no first token has come.
    pub pending_tokens: u32,
    /// Requests sent that have not ended.
    pub requests: u32,
}

/// What this filter VM, and the other VMs of its proxy, have in flight.
#[derive(Debug, Default)]
pub struct Ledger {
    own: BTreeMap<u32, Account>,
    peers: BTreeMap<u32, InFlight>,
    suspects: BTreeMap<u32, u64>,
    /// Providers that failed, by the proxy's cluster.
    failing: BTreeMap<String, Failing>,
    recent: Recent,
    tickets: u64,
    /// Moving average of the tokens that a request has to compute.
    typical_tokens: Option<f32>,
    /// Requests whose first token nobody will see, by the time at which it is taken to have come.
    unseen: BTreeMap<(u64, u64), Unseen>,
}

#[derive(Debug)]
struct Unseen {
    worker: u32,
    opened: u64,
    pending: u32,
}

#[derive(Debug, Default)]
struct Account {
    /// Tells a worker from a later one with the same id.
    opened: u64,
    now: InFlight,
}

#[derive(Debug, Default)]
struct Failing {
    count: u32,
    last_ms: u64,
    avoided_until_ms: u64,
}

/// A request in flight. Hand it back with [`Ledger::first_token`] and [`Ledger::finished`].
#[derive(Debug)]
pub struct Ticket {
    worker: u32,
    opened: u64,
    /// Still counted as pending prefill.
    pending: u32,
    /// Where it stands among the requests whose first token nobody will see.
    unseen: Option<(u64, u64)>,
}

/// A worker's load as the decision sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Standing {
    /// Prefill tokens before a new request's.
    pub queued_tokens: f32,
    /// Requests that run or wait.
    pub running: f32,
}

impl Ledger {
    /// Notes a request that is being sent to `worker` with `uncached_tokens` to compute.
    pub fn sent(&mut self, worker: u32, uncached_tokens: u32) -> Ticket {
        let tokens = uncached_tokens as f32;
        self.typical_tokens =
            Some(self.typical_tokens.map_or(tokens, |typical| typical + (tokens - typical) * TYPICAL_WEIGHT));
        self.tickets += 1;
        let opened = self.tickets;
        let account = self.own.entry(worker).or_insert_with(|| Account { opened, ..Account::default() });
        account.now.pending_tokens = account.now.pending_tokens.saturating_add(uncached_tokens);
        account.now.requests = account.now.requests.saturating_add(1);
        Ticket { worker, opened: account.opened, pending: uncached_tokens, unseen: None }
    }

    /// Nobody will see this request's first token, since its answer comes whole: its prompt is taken to be computed at
    /// `due_ms`. Without that, a worker with long whole answers would look as if prefill were queued all the while.
    /// `request` is handed back by [`prefilled`](Self::prefilled).
    pub fn expect_unseen(&mut self, ticket: &mut Ticket, due_ms: u64, request: u64) {
        let pending = std::mem::take(&mut ticket.pending);
        let key = (due_ms, request);
        ticket.unseen = Some(key);
        self.unseen.insert(key, Unseen { worker: ticket.worker, opened: ticket.opened, pending });
    }

    /// Requests, and their workers, whose prompts are taken to have been computed by now.
    pub fn prefilled(&mut self, now_ms: u64) -> Vec<(u64, u32)> {
        let mut done = Vec::new();
        while let Some(entry) = self.unseen.first_entry().filter(|entry| entry.key().0 <= now_ms) {
            let ((_, request), unseen) = entry.remove_entry();
            done.push((request, unseen.worker));
            self.computed(unseen.worker, unseen.opened, unseen.pending);
        }
        done
    }

    /// Notes the first token: the prompt is computed.
    pub fn first_token(&mut self, ticket: &mut Ticket) {
        let unseen = ticket.unseen.take().and_then(|key| self.unseen.remove(&key));
        let pending = std::mem::take(&mut ticket.pending).saturating_add(unseen.map_or(0, |unseen| unseen.pending));
        self.computed(ticket.worker, ticket.opened, pending);
    }

    fn computed(&mut self, worker: u32, opened: u64, pending: u32) {
        if let Some(account) = self.account(worker, opened) {
            account.now.pending_tokens = account.now.pending_tokens.saturating_sub(pending);
        }
    }

    /// Notes the end of a request, however it ended.
    pub fn finished(&mut self, mut ticket: Ticket) {
        self.first_token(&mut ticket);
        if let Some(account) = self.account(ticket.worker, ticket.opened) {
            account.now.requests = account.now.requests.saturating_sub(1);
        }
    }

    fn account(&mut self, worker: u32, opened: u64) -> Option<&mut Account> {
        self.own.get_mut(&worker).filter(|account| account.opened == opened)
    }

    /// Believes until `until_ms` that `worker` holds these chunks.
    pub fn prefix_sent(&mut self, worker: u32, hashes: &[u64], until_ms: u64) {
        self.recent.sent(worker, hashes, until_ms);
    }

    /// The proxy could not connect to `worker`.
    pub fn suspect(&mut self, worker: u32, now_ms: u64) {
        self.suspects.insert(worker, now_ms.saturating_add(SUSPECT_MS));
        self.recent.forget_worker(worker);
    }

    /// `worker` answered.
    pub fn cleared(&mut self, worker: u32) {
        self.suspects.remove(&worker);
    }

    /// The worker failed to connect a short while ago.
    #[must_use]
    pub fn is_suspect(&self, worker: u32, now_ms: u64) -> bool {
        self.suspects.get(&worker).is_some_and(|until| *until > now_ms)
    }

    /// A provider failed, and asked for so much patience, if any. Once it did so several times in a row, it is avoided for
    /// a while; one failure may be the request's own fault.
    pub fn provider_failed(&mut self, cluster: &str, patience_ms: Option<u64>, now_ms: u64) {
        let failing = self.failing.entry(cluster.to_owned()).or_default();
        failing.count = failing.count.saturating_add(1);
        failing.last_ms = now_ms;
        if failing.count >= PROVIDER_FAILURES {
            failing.avoided_until_ms = now_ms.saturating_add(patience_ms.unwrap_or(SUSPECT_MS).min(PATIENCE_MS));
        }
    }

    /// A provider answered.
    pub fn provider_answered(&mut self, cluster: &str) {
        self.failing.remove(cluster);
    }

    /// The provider failed again and again a short while ago.
    #[must_use]
    pub fn avoids_provider(&self, cluster: &str, now_ms: u64) -> bool {
        self.failing.get(cluster).is_some_and(|failing| failing.avoided_until_ms > now_ms)
    }

    /// Chunks sent lately.
    #[must_use]
    pub fn recent(&self) -> &Recent {
        &self.recent
    }

    /// A delta was applied: what workers lost is not believed any more.
    pub fn changed(&mut self, changes: &Changes) {
        for id in &changes.emptied {
            self.recent.forget_worker(*id);
        }
    }

    /// Forgets workers that a snapshot does not list, and what is past its time.
    pub fn tidy(&mut self, listed: impl Fn(u32) -> bool, now_ms: u64) {
        self.own.retain(|id, _| listed(*id));
        self.suspects.retain(|id, until| listed(*id) && *until > now_ms);
        self.failing.retain(|_, failing| failing.last_ms.saturating_add(PATIENCE_MS) > now_ms);
        self.recent.expire(now_ms);
    }

    /// What this VM has in flight, for the other VMs of its proxy.
    pub fn own(&self) -> impl Iterator<Item = (u32, InFlight)> + '_ {
        self.own
            .iter()
            .filter(|(_, account)| account.now != InFlight::default())
            .map(|(id, account)| (*id, account.now))
    }

    /// Replaces what the other VMs of the proxy have in flight, summed up.
    pub fn set_peers(&mut self, peers: BTreeMap<u32, InFlight>) {
        self.peers = peers;
    }

    /// How many requests wait where `queued_tokens` are queued, going by what requests had to compute lately.
    #[must_use]
    pub fn waiting(&self, queued_tokens: f32) -> f32 {
        queued_tokens / self.typical_tokens.unwrap_or(UNKNOWN_REQUEST_TOKENS).max(1.0)
    }

    /// The load of a worker: what this proxy has in flight, which is known exactly, the share of other proxies in the
    /// control service's totals, and what the engine has from nobody known. Totals and engine figures are late; where this
    /// proxy sends everything they add nothing.
    #[must_use]
    pub fn standing(&self, worker: &Worker) -> Standing {
        let now = self.own.get(&worker.id).map(|account| account.now).unwrap_or_default();
        let peers = self.peers.get(&worker.id).copied().unwrap_or_default();
        let here_tokens = (now.pending_tokens.saturating_add(peers.pending_tokens)) as f32;
        let here_requests = (now.requests.saturating_add(peers.requests)) as f32;
        let Some(load) = &worker.load else { return Standing { queued_tokens: here_tokens, running: here_requests } };
        let proxies = load.proxies.max(1) as f32;
        let others = (proxies - 1.0) / proxies;
        let sane = |value: f32| if value.is_finite() { value.max(0.0) } else { 0.0 };
        let strangers = sane(load.strangers);
        let waiting_strangers = strangers.min(sane(load.queued_requests));
        Standing {
            queued_tokens: here_tokens
                + load.pending_prefill_tokens as f32 * others
                + waiting_strangers * UNKNOWN_REQUEST_TOKENS,
            running: here_requests + load.in_flight as f32 * others + strangers,
        }
    }
}

#[cfg(test)]
mod tests;
