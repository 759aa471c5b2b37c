//! Where the configuration comes from: the five kinds in a Kubernetes cluster, the Pods that are workers, and the
//! ConfigMaps and Secrets that they name.
//!
//! Nothing is read but what is needed: the five kinds, Pods by the selectors of worker sets, ConfigMaps and Secrets by
//! name. Without the API server, what was read stays in force.

mod assemble;
mod client;
mod link;
mod needs;
mod objects;
mod pods;
mod trouble;
mod watches;

use std::sync::Arc;
use std::time::Duration;

use kinference_api::Kind;
use kube::Client;
use kube::api::DynamicObject;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::judge::{Keeper, Read};
use crate::cli::KubernetesArgs;
use crate::conditions::pace::Currents;
use crate::metrics::Metrics;
use crate::state::{Faults, Input, Plan};
use assemble::{Around, Assembler};
use link::Link;
use needs::Needs;

pub(crate) use objects::api_resource;

/// Changes come in bunches; what comes within this time is taken together.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// How often the API server is asked whether it is there, and tokenizers' folders are looked at.
const PROBE: Duration = Duration::from_secs(2);

/// The cluster as a source.
pub struct Kubernetes {
    link: Link,
    thinker: Option<Thinker>,
    needs: Needs,
    /// The first plan was made: from then on nothing is waited for.
    begun: bool,
}

/// What decides, apart from what watches, so that it can be sent where thinking long is no harm.
#[derive(Debug, Default)]
struct Thinker {
    keeper: Keeper,
    assembler: Assembler,
    /// As they were judged last.
    read: Option<Read>,
    /// What is to be in force, without what it refers to.
    judged: Option<Plan>,
}

impl Kubernetes {
    /// Begins to watch; does not wait for the API server.
    ///
    /// # Errors
    /// When it is not known where the API server is, or how to talk to it.
    pub async fn start(args: &KubernetesArgs, metrics: Arc<Metrics>) -> anyhow::Result<Self> {
        let (client, address) = client::connect(args).await?;
        let link = Link::start(client, address, args.namespace.clone(), metrics);
        Ok(Self { link, thinker: Some(Thinker::default()), needs: Needs::default(), begun: false })
    }

    /// The client of the API server.
    pub fn client(&self) -> Client {
        self.link.client().clone()
    }

    /// What the cluster shows of the statuses of the five kinds, whenever it is asked for; None before all were listed.
    pub fn statuses(&self) -> impl Fn() -> Option<Currents> + Send + 'static {
        self.link.statuses()
    }

    /// Tells the core what is to be in force, now and after every change, until shutdown.
    pub async fn run(mut self: Box<Self>, core: mpsc::Sender<Input>, shutdown: CancellationToken) {
        let mut probes = tokio::time::interval(PROBE);
        loop {
            tokio::select! {
                () = self.link.changed() => tokio::time::sleep(DEBOUNCE).await,
                _ = probes.tick() => self.link.probe(),
                () = shutdown.cancelled() => return,
            }
            let result = match self.step().await {
                Ok(result) => result,
                Err(error) => {
                    tracing::error!("following the cluster failed: {error}");
                    return;
                }
            };
            let report = Input::Source(self.link.report());
            let news = result.map(Input::Config).into_iter().chain([report]);
            for input in news {
                if core.send(input).await.is_err() {
                    return;
                }
            }
        }
    }

    /// Looks at what there is. The result is None while it is not known, and when nothing changed.
    async fn step(&mut self) -> Result<Option<Result<Plan, Faults>>, tokio::task::JoinError> {
        let Some((changed, objects)) = self.link.objects() else { return Ok(None) };
        let mut verdict = Verdict::default();
        if changed {
            verdict = self.think(move |thinker| thinker.judge(&objects)).await?;
            if let Some(needs) = verdict.needs.take() {
                self.needs = needs;
                self.link.follow(&self.needs);
            }
        }
        if let Some(faults) = verdict.refused {
            return Ok(Some(Err(faults)));
        }
        // Nothing is decided with half of the workers; once they are known, this is looked at again.
        if !self.begun && !self.link.settled() {
            return Ok(None);
        }
        let around = self.link.around(&self.needs);
        let plan = self.think(move |thinker| thinker.assemble(verdict.anew, &around)).await?;
        self.begun |= plan.is_some();
        Ok(plan.map(Ok))
    }

    async fn think<R: Send + 'static>(
        &mut self,
        what: impl FnOnce(&mut Thinker) -> R + Send + 'static,
    ) -> Result<R, tokio::task::JoinError> {
        let mut thinker = self.thinker.take().unwrap_or_default();
        let (thinker, result) = tokio::task::spawn_blocking(move || {
            let result = what(&mut thinker);
            (thinker, result)
        })
        .await?;
        self.thinker = Some(thinker);
        Ok(result)
    }
}

/// What came of looking at the resources.
#[derive(Debug, Default)]
struct Verdict {
    /// They are not what they were.
    anew: bool,
    /// What else is to be read now.
    needs: Option<Needs>,
    /// Why nothing can be in force, when nothing is.
    refused: Option<Faults>,
}

impl Thinker {
    fn judge(&mut self, objects: &[(Kind, Arc<DynamicObject>)]) -> Verdict {
        let read = objects::read(objects);
        // A status that was written is no news.
        if self.read.as_ref() == Some(&read) {
            return Verdict::default();
        }
        if self.read.is_none() {
            self.keeper = Keeper::recalling(objects::last_good(objects));
        }
        self.read = Some(read.clone());
        let mut verdict = Verdict { anew: true, ..Verdict::default() };
        match self.keeper.judge(read) {
            Ok(plan) => {
                verdict.needs = Some(needs::of(&plan.fleets, self.keeper.in_force()));
                self.judged = Some(plan);
            }
            Err(faults) => match &mut self.judged {
                // The workers of the configuration in force go on coming and going.
                Some(plan) => plan.faults = faults,
                None => verdict.refused = Some(faults),
            },
        }
        verdict
    }

    fn assemble(&mut self, anew: bool, around: &Around) -> Option<Plan> {
        let judged = self.judged.as_ref()?;
        let anew = anew || self.assembler.files_changed();
        self.assembler.plan(judged, anew, around)
    }
}
