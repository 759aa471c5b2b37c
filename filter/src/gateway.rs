//! What all requests of one VM share.

pub mod attempts;
pub mod clock;
pub mod metrics;
pub mod peers;
pub mod reports;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use kinference_protocol::v1;
use kinference_routing::decide::Destination;
use kinference_routing::ledger::Ledger;
use kinference_routing::snapshot::{ApplyError, Changes, Outcome, Replica, Snapshot};

use crate::config::{FailureMode, PluginConfig};
use crate::host::{Host, Severity};
use attempts::{Attempts, CallOutcome};
use clock::Clock;
use metrics::Metric;
use peers::Peers;
use reports::Outbox;

/// Largest body before a snapshot says otherwise.
const DEFAULT_BODY_LIMIT: u64 = 8 << 20;
/// Ticks while reports wait, or something else is on its way.
const BUSY: Duration = Duration::from_millis(20);
/// Ticks while there is nothing to do.
const IDLE: Duration = Duration::from_millis(250);
/// Time between two clearings of what is past its time.
const TIDY_MS: u64 = 1_000;

/// The state of one VM.
#[derive(Debug, Default)]
pub struct Gateway {
    /// The plugin's configuration.
    pub plugin: PluginConfig,
    /// The clock that all other times are read from.
    pub clock: Clock,
    /// The snapshot.
    pub replica: Replica,
    /// What this proxy did since.
    pub ledger: Ledger,
    /// Other VMs of the proxy.
    pub peers: Peers,
    /// Reports to send.
    pub reports: Outbox,
    /// Requests that may go to providers.
    pub attempts: Rc<RefCell<Attempts>>,
    /// Providers that the proxy has no way to, as was told.
    unreachable: Vec<String>,
    current_ms: u64,
    tidied_ms: u64,
    requests: u64,
    busy: Option<bool>,
}

impl Gateway {
    /// The state of a VM that starts.
    #[must_use]
    pub fn new(plugin: PluginConfig, attempts: Rc<RefCell<Attempts>>) -> Self {
        let replica = Replica::reaching(plugin.providers.iter().cloned());
        Self { plugin, attempts, replica, ..Self::default() }
    }

    /// Largest request body in bytes.
    #[must_use]
    pub fn body_limit(&self) -> usize {
        let configured = self.replica.current().map_or(0, |snapshot| snapshot.config.backend.request_body_limit);
        let limit = if configured == 0 { DEFAULT_BODY_LIMIT } else { configured };
        usize::try_from(limit).unwrap_or(usize::MAX)
    }

    /// What to do when nothing can be decided.
    #[must_use]
    pub fn failure_mode(&self) -> FailureMode {
        match self.replica.current().map(|snapshot| snapshot.config.backend.failure_mode()) {
            None => self.plugin.failure_mode,
            Some(v1::FailureMode::Open) => FailureMode::Open,
            Some(v1::FailureMode::Closed) => FailureMode::Closed,
        }
    }

    /// Milliseconds since the snapshot was last known to be current.
    #[must_use]
    pub fn snapshot_age_ms(&self) -> u64 {
        self.clock.last().saturating_sub(self.current_ms)
    }

    /// The snapshot is too old to trust its prefixes and loads.
    #[must_use]
    pub fn is_stale(&self, snapshot: &Snapshot) -> bool {
        self.snapshot_age_ms() > snapshot.config.backend.stale_after_ms
    }

    /// A number for the next request.
    pub fn next_request(&mut self) -> u64 {
        self.requests += 1;
        self.requests
    }

    /// Notes a report, and sees that it will be sent soon.
    pub fn report(&mut self, host: &dyn Host, request: u64, place: Option<&Destination>, event: v1::report::Event) {
        if !self.reports.push(request, place, event) {
            host.count(Metric::ReportsDropped, 1);
        }
        self.pace(host, true);
    }

    /// Ticks often or seldom from now on.
    pub fn pace(&mut self, host: &dyn Host, busy: bool) {
        if self.busy != Some(busy) {
            self.busy = Some(busy);
            host.tick_every(if busy { BUSY } else { IDLE });
        }
    }

    /// Applies a message of the control service; what hangs on the snapshot follows.
    ///
    /// # Errors
    /// When it does not apply; nothing has changed then.
    pub fn apply(&mut self, host: &dyn Host, message: v1::ControlMessage) -> Result<Outcome, ApplyError> {
        let is_snapshot = matches!(message.message, Some(v1::control_message::Message::Snapshot(_)));
        let before = if is_snapshot { self.addresses() } else { BTreeMap::new() };
        let outcome = self.replica.apply(message)?;
        match &outcome {
            Outcome::Part => return Ok(outcome),
            Outcome::Current => {}
            Outcome::Delta(changes) => {
                self.ledger.changed(changes);
                host.count(Metric::DeltasApplied, 1);
            }
            Outcome::Full => {
                self.replaced(&before);
                host.count(Metric::SnapshotsApplied, 1);
            }
        }
        self.current_ms = self.clock.last();
        self.tell_unreachable(host);
        Ok(outcome)
    }

    /// Says once which providers the proxy has no way to.
    fn tell_unreachable(&mut self, host: &dyn Host) {
        if self.replica.unreachable().eq(self.unreachable.iter().map(String::as_str)) {
            return;
        }
        self.unreachable = self.replica.unreachable().map(str::to_owned).collect();
        if !self.unreachable.is_empty() {
            let names = self.unreachable.join(", ");
            let message = format!(
                "kinference: no listener leads to the providers {names}, which are passed over; make the proxy's \
                 configuration anew with `kinfctl envoy-config`"
            );
            host.log(Severity::Warning, &message);
        }
    }

    fn addresses(&self) -> BTreeMap<u32, String> {
        let workers = self.replica.current().map(|snapshot| &snapshot.workers);
        workers.into_iter().flatten().map(|(id, worker)| (*id, worker.address.clone())).collect()
    }

    /// Another snapshot is in force: its loads are new, and an id may mean another worker than before.
    fn replaced(&mut self, before: &BTreeMap<u32, String>) {
        let now = self.addresses();
        let emptied = before.iter().filter(|(id, address)| now.get(id) != Some(address)).map(|(id, _)| *id).collect();
        self.ledger.tidy(|id| now.get(&id).is_some_and(|address| before.get(&id) == Some(address)), self.clock.last());
        self.ledger.changed(&Changes { emptied });
    }

    /// Takes the prompts of whole answers to be computed once their predicted time has passed, and says so.
    pub fn take_prefilled(&mut self, host: &dyn Host) {
        for (request, worker) in self.ledger.prefilled(self.clock.last()) {
            self.peers.touch();
            let event = v1::report::Event::FirstToken(v1::FirstToken { after_ms: 0, estimated: true });
            self.report(host, request, Some(&Destination::Worker(worker)), event);
        }
    }

    /// Takes in what came of calls to providers.
    pub fn take_outcomes(&mut self) {
        let (outcomes, now_ms) = (self.attempts.borrow_mut().take_outcomes(), self.clock.last());
        for (cluster, outcome) in outcomes {
            match outcome {
                CallOutcome::Answered => self.ledger.provider_answered(&cluster),
                CallOutcome::Failed { patience_ms } => self.ledger.provider_failed(&cluster, patience_ms, now_ms),
            }
        }
    }

    /// On a tick: clears what is past its time, and shows the state.
    pub fn tick(&mut self, host: &dyn Host) {
        let now = self.clock.last();
        self.take_prefilled(host);
        self.take_outcomes();
        if now.saturating_sub(self.tidied_ms) < TIDY_MS {
            return;
        }
        self.tidied_ms = now;
        self.tidy();
        if let Some(snapshot) = self.replica.current() {
            host.record(Metric::IndexBytes, snapshot.index.bytes() as u64);
            host.record(Metric::IndexChunks, snapshot.index.chunks() as u64);
            host.record(Metric::SnapshotSequence, snapshot.sequence);
            host.record(Metric::SnapshotAge, self.snapshot_age_ms());
        }
    }

    fn tidy(&mut self) {
        if let Some(snapshot) = self.replica.current() {
            self.ledger.tidy(|worker| snapshot.workers.contains_key(&worker), self.clock.last());
        }
    }
}
