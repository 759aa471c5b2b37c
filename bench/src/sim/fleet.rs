//! A fleet of workers in one process. Each runs on a thread with a runtime of its own, so that one can die like a
//! process: with its runtime go its tasks, and with those all its sockets.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use futures::future::{join_all, try_join_all};
use kinference_routing::template::ChatTemplate;
use serde::Serialize;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::JoinHandle;

use super::config::Config;
use super::control;
use super::error::SimError;
use super::fault::Fault;
use super::run::run;
use super::sockets::{Addresses, Reserved};
use super::text::Text;
use super::worker::{Model, Stats, Worker};

/// A running fleet. Dropping it ends it without waiting; [`Fleet::stop`] waits.
pub struct Fleet {
    shared: Arc<Shared>,
    control: Option<SocketAddr>,
    tasks: Vec<JoinHandle<()>>,
}

/// Shared with the control endpoint and with the task that workers send their own end to.
pub(super) struct Shared {
    model: Arc<Model>,
    addresses: Vec<Addresses>,
    slots: Vec<Mutex<Slot>>,
    commands: mpsc::UnboundedSender<(usize, Fault)>,
}

/// A worker's place, whether it lives or not.
struct Slot {
    index: usize,
    reserved: Reserved,
    state: State,
    /// The present or last worker, for its figures.
    worker: Option<Arc<Worker>>,
}

enum State {
    Dead,
    Refusing,
    Running(Life),
}

/// Ends the worker's thread when dropped.
struct Life {
    stop: oneshot::Sender<()>,
    gone: oneshot::Receiver<()>,
}

/// A worker as the control endpoint shows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkerStatus {
    /// Its number.
    pub worker: usize,
    /// `running`, `hanging`, `dead` or `refusing`.
    pub state: &'static str,
    /// Where it listens when it runs.
    #[serde(flatten)]
    pub addresses: Addresses,
    /// Its figures since its last start; those of its life when it is dead.
    #[serde(flatten)]
    pub stats: Stats,
}

impl Fleet {
    /// Starts a fleet and returns when every worker accepts connections, those in `refuse` excepted.
    ///
    /// # Errors
    /// A setting out of range, a tokenizer that cannot be used, or a port that cannot be bound.
    pub async fn start(config: Config) -> Result<Self, SimError> {
        config.validate()?;
        let text = Text::load(config.tokenizer.as_deref())?;
        let template = compile_template(&config, &text)?;
        let reserved: Vec<_> =
            (0..config.workers).map(|index| Reserved::new(&config, index)).collect::<Result<_, _>>()?;
        let (commands, mut received) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            addresses: reserved.iter().map(|reserved| reserved.addresses).collect(),
            slots: reserved
                .into_iter()
                .enumerate()
                .map(|(index, reserved)| {
                    let state = if config.refuse.contains(&index) { State::Refusing } else { State::Dead };
                    Mutex::new(Slot { index, reserved, state, worker: None })
                })
                .collect(),
            model: Arc::new(Model { config, text, template }),
            commands,
        });
        shared.reset().await?;

        let mut fleet = Self { shared: shared.clone(), control: None, tasks: Vec::new() };
        if let Some(port) = shared.config().control_port {
            let addr = SocketAddr::new(shared.config().host, port);
            let bind = |source| SimError::Bind { what: "the control endpoint", addr, source };
            let listener = tokio::net::TcpListener::bind(addr).await.map_err(bind)?;
            fleet.control = Some(listener.local_addr().map_err(bind)?);
            fleet.tasks.push(tokio::spawn(control::serve(listener, shared.clone())));
        }
        fleet.tasks.push(tokio::spawn(async move {
            while let Some((worker, fault)) = received.recv().await {
                // A worker that ends itself gets no answer; the control endpoint gives one.
                let _ = shared.fault(worker, fault).await;
            }
        }));
        Ok(fleet)
    }

    /// Where the workers listen, in order.
    pub fn workers(&self) -> &[Addresses] {
        &self.shared.addresses
    }

    /// Where the control endpoint listens, if there is one.
    pub fn control(&self) -> Option<SocketAddr> {
        self.control
    }

    /// Switches a fault on one worker, and returns when it has taken effect.
    ///
    /// # Errors
    /// No such worker, or a switch that its state does not allow.
    pub async fn fault(&self, worker: usize, fault: Fault) -> Result<(), SimError> {
        self.shared.fault(worker, fault).await
    }

    /// Restarts every worker that is not refusing: empty caches, counters at zero, faults gone.
    ///
    /// # Errors
    /// A port that cannot be bound again.
    pub async fn reset(&self) -> Result<(), SimError> {
        self.shared.reset().await
    }

    /// State and figures of all workers.
    pub async fn stats(&self) -> Vec<WorkerStatus> {
        self.shared.stats().await
    }

    /// Ends all workers and the control endpoint, and returns when their sockets are closed.
    pub async fn stop(self) {
        for task in &self.tasks {
            task.abort();
        }
        join_all(self.shared.slots.iter().map(async |slot| slot.lock().await.kill(State::Dead).await)).await;
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Shared {
    pub(super) fn config(&self) -> &Config {
        &self.model.config
    }

    pub(super) async fn fault(&self, worker: usize, fault: Fault) -> Result<(), SimError> {
        let last = self.slots.len() - 1;
        let mut slot = self.slots.get(worker).ok_or(SimError::NoSuchWorker { worker, last })?.lock().await;
        let running = matches!(slot.state, State::Running(_));
        match fault {
            Fault::Die if matches!(slot.state, State::Refusing) => {}
            Fault::Die => slot.kill(State::Dead).await,
            Fault::Refuse => slot.kill(State::Refusing).await,
            Fault::Restart => {
                slot.kill(State::Dead).await;
                slot.start(self).await?;
            }
            Fault::Revive if running => {
                return Err(SimError::WrongState {
                    worker,
                    state: "running",
                    advice: "use restart, or let it die first",
                });
            }
            Fault::Revive => slot.start(self).await?,
            Fault::Hang | Fault::Resume | Fault::DropEvents { .. } | Fault::ReorderEvents { .. } => {
                match &slot.worker {
                    Some(worker) if running => {
                        worker.switch(&fault);
                    }
                    _ => return Err(SimError::WrongState { worker, state: "dead", advice: "revive it first" }),
                }
            }
        }
        Ok(())
    }

    pub(super) async fn reset(&self) -> Result<(), SimError> {
        let restart = async |slot: &Mutex<Slot>| {
            let mut slot = slot.lock().await;
            if matches!(slot.state, State::Refusing) {
                return Ok(());
            }
            slot.kill(State::Dead).await;
            slot.start(self).await
        };
        try_join_all(self.slots.iter().map(restart)).await.map(|_| ())
    }

    pub(super) async fn stats(&self) -> Vec<WorkerStatus> {
        join_all(self.slots.iter().map(async |slot| slot.lock().await.status())).await
    }
}

impl Slot {
    /// Ends the worker if it runs, and leaves the slot in `state`.
    async fn kill(&mut self, state: State) {
        if let State::Running(life) = std::mem::replace(&mut self.state, state) {
            drop(life.stop);
            // An error means that the thread is gone as well.
            let _ = life.gone.await;
        }
    }

    /// Starts a worker in a slot without one, and waits until it accepts connections.
    async fn start(&mut self, shared: &Shared) -> Result<(), SimError> {
        let listeners = self.reserved.listen()?;
        let worker =
            Arc::new(Worker::new(shared.model.clone(), self.index, self.reserved.addresses, shared.commands.clone()));
        let (stop, stopped) = oneshot::channel::<()>();
        let (end, gone) = oneshot::channel();
        let (ready, started) = oneshot::channel();
        let fail = |reason: String| SimError::Start { worker: self.index, reason };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(2)
            .build()
            .map_err(|error| fail(error.to_string()))?;
        let runs = worker.clone();
        let live = move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    () = run(runs, listeners, ready) => {}
                }
            });
            runtime.shutdown_background();
            let _ = end.send(());
        };
        std::thread::Builder::new()
            .name(format!("sim-worker-{}", self.index))
            .spawn(live)
            .map_err(|error| fail(error.to_string()))?;
        match started.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(fail("its thread ended early".into())),
        }
        self.state = State::Running(Life { stop, gone });
        self.worker = Some(worker);
        Ok(())
    }

    fn status(&self) -> WorkerStatus {
        let hangs = self.worker.as_ref().is_some_and(|worker| *worker.hang.borrow());
        let state = match self.state {
            State::Dead => "dead",
            State::Refusing => "refusing",
            State::Running(_) if hangs => "hanging",
            State::Running(_) => "running",
        };
        let stats = self.worker.as_ref().map(|worker| worker.stats()).unwrap_or_default();
        WorkerStatus { worker: self.index, state, addresses: self.reserved.addresses, stats }
    }
}

fn compile_template(config: &Config, text: &Text) -> Result<Option<ChatTemplate>, SimError> {
    let settings = text.settings();
    let Some(source) = &settings.chat_template else { return Ok(None) };
    let special_tokens: BTreeMap<_, _> = settings.special_tokens.iter().cloned().collect();
    let template = ChatTemplate::compile(source, &special_tokens).map_err(|error| SimError::Tokenizer {
        path: config.tokenizer.clone().unwrap_or_else(|| "(built in)".into()),
        reason: error.to_string(),
    })?;
    Ok(Some(template))
}

#[cfg(test)]
mod tests;
