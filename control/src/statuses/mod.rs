//! Writes statuses to the API server: one replica, only what changed. What a status says is made in
//! [`conditions`](crate::conditions); here are the requests.

pub mod election;
pub mod lease;
mod write;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::conditions::Assessments;
use crate::conditions::pace::{Currents, Pace, Write};
use crate::core::Question;
use crate::metrics::Metrics;
use election::Election;
use write::Written;

/// Whose fields statuses and the Lease are, for `kubectl get --show-managed-fields`.
pub const FIELD_MANAGER: &str = "kinference-control";
/// How often is looked whether something is to be written.
const TICK: Duration = Duration::from_secs(1);
/// A request that takes longer has failed.
const REQUEST: Duration = Duration::from_secs(5);
/// Requests at a time.
const AT_A_TIME: usize = 8;

/// What the writer needs.
pub struct Writer<C> {
    /// The API server.
    pub client: Client,
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease, which the replicas of one release have in common.
    pub lease: String,
    /// Name of this replica, which no other has.
    pub identity: String,
    /// This process's clock.
    pub clock: Clock,
    /// Asks the core what is to be said.
    pub questions: mpsc::Sender<Question>,
    /// What the watches show; none before they have shown all.
    pub currents: C,
    /// Where writes are counted.
    pub metrics: Arc<Metrics>,
}

impl<C: Fn() -> Option<Currents> + Send + 'static> Writer<C> {
    /// Runs until shutdown. Whatever the API server does, the core does not wait for it.
    pub async fn run(self, shutdown: CancellationToken) {
        let (leads_until, leads) = watch::channel(0);
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), &self.namespace);
        let election = Election::new(self.identity.clone());
        let name = self.lease.clone();
        let lease = lease::run(leases, &name, election, self.clock, leads_until, shutdown.clone());
        tokio::join!(lease, self.write(leads, shutdown));
    }

    async fn write(self, leads: watch::Receiver<u64>, shutdown: CancellationToken) {
        let mut pace = Pace::default();
        let mut led = false;
        let mut trouble = Trouble::default();
        loop {
            tokio::select! {
                () = tokio::time::sleep(TICK) => {}
                () = shutdown.cancelled() => return,
            }
            let leading = self.clock.now_ms() < *leads.borrow();
            if leading != led {
                tracing::info!(
                    identity = self.identity,
                    "this replica {}",
                    if leading { "writes statuses" } else { "does not write statuses any more" }
                );
                self.metrics.status_leader.set(i64::from(leading));
                // What another replica wrote meanwhile is in the watch, and nowhere else.
                pace = Pace::default();
                led = leading;
            }
            if !leading {
                continue;
            }
            let (Some(assessments), Some(currents)) = (self.assessments().await, (self.currents)()) else { continue };
            pace.keep(&currents);
            let time = Time(Timestamp::now());
            let due = pace.due(&assessments, &currents, self.clock.now_ms(), &time);
            let writes = stream::iter(due).map(|write| self.one(write, &leads)).buffer_unordered(AT_A_TIME);
            let done: Vec<(Write, Option<Written>)> = writes.collect().await;
            for (write, written) in &done {
                let Some(written) = written else { continue };
                self.metrics.status_written(write.resource.0, written.label());
                let now = self.clock.now_ms();
                match written {
                    Written::Taken => {
                        trouble.over();
                        pace.written(write, now);
                    }
                    Written::Conflict | Written::Gone => pace.overtaken(write, now),
                    Written::Refused(why) => {
                        let (kind, key) = &write.resource;
                        pace.failed(write, now);
                        trouble.is(&format!(
                            "the status of {kind} {key} cannot be written: {why}; it will be tried again (the service \
                             account needs patch on the status of the kinds of kinference.dev)"
                        ));
                    }
                    Written::Unanswered(why) => {
                        pace.failed(write, now);
                        trouble.is(&format!("statuses cannot be written: {why}; that will be tried again"));
                    }
                }
            }
        }
    }

    /// Writes one, unless the lease has run out meanwhile.
    async fn one(&self, write: Write, leads: &watch::Receiver<u64>) -> (Write, Option<Written>) {
        if self.clock.now_ms() >= *leads.borrow() {
            return (write, None);
        }
        let written = write::write(&self.client, &write).await;
        (write, Some(written))
    }

    async fn assessments(&self) -> Option<Assessments> {
        let (sender, receiver) = oneshot::channel();
        self.questions.send(Question::Assessments(sender)).await.ok()?;
        receiver.await.ok()
    }
}

/// Tells a trouble once, and its end.
#[derive(Debug, Default)]
struct Trouble(Option<String>);

impl Trouble {
    fn is(&mut self, what: &str) {
        if self.0.as_deref() != Some(what) {
            tracing::warn!("{what}");
            self.0 = Some(what.to_owned());
        }
    }

    fn over(&mut self) {
        if self.0.take().is_some() {
            tracing::info!("the API server answers again");
        }
    }
}

/// The answer, or an error when it takes too long.
async fn within<T>(time: Duration, request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, kube::Error> {
    match tokio::time::timeout(time, request).await {
        Ok(answer) => answer,
        Err(elapsed) => Err(kube::Error::Service(Box::new(elapsed))),
    }
}
