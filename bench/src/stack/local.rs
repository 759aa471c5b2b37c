//! A stack, from its start to its end.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::control::ControlService;
use super::envoy::Envoy;
use super::error::StackError;
use super::files;
use super::poll::until;
use super::process::{Process, RunFolder};
use super::programs::Programs;
use super::source::Source;
use super::tls::ControlTls;
use crate::load::{Answer, Client};
use crate::sim::{Addresses, Config, Fault};

/// Time for a process to start.
const START: Duration = Duration::from_secs(20);
/// Time for the parts to find each other.
const SETTLE: Duration = Duration::from_secs(20);

/// How Envoy picks a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Balancing {
    /// Our filter names it.
    Kinference,
    /// Envoy's RANDOM, without our filter: what a plain Kubernetes Service does.
    Random,
    /// Envoy's ROUND_ROBIN, without our filter.
    RoundRobin,
}

impl Balancing {
    /// Name in tables and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kinference => "kinference",
            Self::Random => "random",
            Self::RoundRobin => "round-robin",
        }
    }
}

/// What a stack is made of.
#[derive(Debug, Clone)]
pub struct StackOptions {
    /// The simulated workers. Ports that are 0 are chosen freely.
    pub sim: Config,
    /// Workers that run already. With these no simulator is started, and of `sim` only the model's name counts and whether
    /// there are KV events.
    pub running: Option<Vec<Addresses>>,
    /// Where the control service's configuration comes from.
    pub source: Source,
    /// How Envoy picks a worker.
    pub balancing: Balancing,
    /// Envoy's worker threads.
    pub concurrency: u32,
    /// The gateway's address; port 0 is any free one.
    pub listen: SocketAddr,
    /// Silence of the control service after which filters ignore prefixes and load.
    pub stale_after: Duration,
    /// Mutual TLS between Envoy and the control service.
    pub control_tls: Option<ControlTls>,
}

impl Default for StackOptions {
    fn default() -> Self {
        Self {
            sim: Config::ephemeral(),
            running: None,
            source: Source::default(),
            balancing: Balancing::Kinference,
            concurrency: 2,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            stale_after: Duration::from_secs(10),
            control_tls: None,
        }
    }
}

/// A running stack. Dropping it kills every process; when a test is failing, the ends of all logs are shown and the logs kept.
#[derive(Debug)]
pub struct Stack {
    // Fields are dropped in this order: the front first.
    envoy: Envoy,
    control: ControlService,
    sim: Option<Simulator>,
    folder: RunFolder,
    options: StackOptions,
    workers: Vec<Addresses>,
}

/// The simulated workers' process.
#[derive(Debug)]
struct Simulator {
    process: Process,
    control: Client,
}

/// Processor time in seconds that each process has used since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// Envoy, with the filter inside.
    pub envoy: f64,
    /// The control service.
    pub control: f64,
    /// All simulated workers.
    pub sim: f64,
}

/// Memory that each process holds at present, in bytes (resident set).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Envoy, with the filter inside.
    pub envoy: u64,
    /// The control service.
    pub control: u64,
}

impl Stack {
    /// Starts everything, and returns when the gateway serves and every worker that accepts connections is known to it.
    ///
    /// # Errors
    /// A program that was not built, or a process that did not start or settle in time, with the end of its log.
    pub async fn start(options: StackOptions) -> Result<Self, StackError> {
        let programs = Programs::find()?;
        let folder = RunFolder::new()?;
        let (sim, workers) = match &options.running {
            Some(workers) => (None, workers.clone()),
            None => {
                let (sim, workers) = start_sim(&programs, &folder, &options.sim).await?;
                (Some(sim), workers)
            }
        };
        if let Source::Files = options.source {
            files::write(folder.path(), &options.sim.model, &workers, options.stale_after)?;
        }
        let flags = options.control_tls.as_ref().map(ControlTls::control_flags).unwrap_or_default();
        let control = ControlService::start_with("kinference-control", &options.source, flags, folder.path()).await?;
        let bootstrap = write_bootstrap(&programs, &folder, &options, control.grpc())?;
        let envoy = Envoy::start(&bootstrap, folder.path(), options.concurrency).await?;
        let mut stack = Self { envoy, control, sim, folder, workers, options };
        if let Err(error) = stack.settle().await {
            stack.folder.keep();
            let logs = stack.tails();
            return Err(stack.envoy.process().error(format!("{error}\n{logs}")));
        }
        Ok(stack)
    }

    /// Waits until the parts know each other: Envoy has its endpoints, the control service has heard of every worker that
    /// accepts connections, and with our filter every VM holds the present snapshot.
    ///
    /// # Errors
    /// [`StackError::Timeout`] with what was still missing.
    pub async fn settle(&mut self) -> Result<(), StackError> {
        let (workers, total) = match &self.options.source {
            Source::Files => (self.workers.len(), self.workers.len()),
            Source::Given(source) => (source.workers, source.endpoints),
            Source::Kubernetes(source) => (source.workers, source.endpoints),
        };
        let alive = workers - self.options.sim.refuse.len();
        until("Envoy's endpoints", SETTLE, async || {
            let clusters = self.envoy.admin().get("/clusters").await.map_err(|error| error.to_string())?.text();
            let hosts = clusters
                .lines()
                .filter(|line| line.starts_with("kinference_workers::") && line.contains("::cx_active::"));
            let hosts = hosts.count();
            if hosts == total { Ok(()) } else { Err(format!("{hosts} of {total} endpoints")) }
        })
        .await?;
        // One for each worker thread, and one for the main thread, which serves nothing.
        let filters =
            if self.options.balancing == Balancing::Kinference { self.options.concurrency as usize + 1 } else { 0 };
        let events = self.options.sim.kv_events;
        let seen = until("a settled control service", SETTLE, async || {
            let status = self.status().await.map_err(|error| error.to_string())?;
            settled(&status, &self.options.source, alive, events, filters)
                .map_err(|missing| format!("{missing}; status: {status}"))
        });
        seen.await
    }

    /// A client of the gateway.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::of(self.envoy.gateway())
    }

    /// The gateway's address.
    #[must_use]
    pub fn gateway(&self) -> SocketAddr {
        self.envoy.gateway()
    }

    /// Where the workers listen, in order.
    #[must_use]
    pub fn workers(&self) -> &[Addresses] {
        &self.workers
    }

    /// The name of the served model.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.options.sim.model
    }

    /// The control service.
    #[must_use]
    pub fn control(&self) -> &ControlService {
        &self.control
    }

    /// A client of the control service's HTTP pages.
    #[must_use]
    pub fn control_admin(&self) -> &Client {
        self.control.admin()
    }

    /// The address of the control service's gRPC port.
    #[must_use]
    pub fn control_grpc(&self) -> SocketAddr {
        self.control.grpc()
    }

    /// The address of the control service's HTTP pages.
    #[must_use]
    pub fn control_address(&self) -> SocketAddr {
        self.control.pages()
    }

    /// A client of Envoy's admin pages.
    #[must_use]
    pub fn envoy_admin(&self) -> &Client {
        self.envoy.admin()
    }

    /// The folder with configuration and logs, removed with the stack.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// The control service's status.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn status(&self) -> Result<Value, StackError> {
        self.control.status().await
    }

    /// Envoy's counters and gauges whose names contain `part`.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn envoy_stats(&self, part: &str) -> Result<std::collections::BTreeMap<String, u64>, StackError> {
        let text = self.envoy.admin().get("/stats").await?.text();
        let stats = text.lines().filter_map(|line| line.split_once(": "));
        Ok(stats
            .filter(|(name, _)| name.contains(part))
            .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
            .collect())
    }

    /// Kills the control service, as `kill -9` does.
    pub fn kill_control(&mut self) {
        self.control.kill();
    }

    /// Starts the control service again at the same addresses.
    ///
    /// # Errors
    /// It did not start, with the end of its log.
    pub async fn restart_control(&mut self) -> Result<(), StackError> {
        self.control.restart().await
    }

    /// Switches a fault on one worker.
    ///
    /// # Errors
    /// The simulator refuses, and says why.
    pub async fn fault(&self, worker: usize, fault: &Fault) -> Result<(), StackError> {
        let mut body = json!(fault);
        body["worker"] = json!(worker);
        let sim = self.sim.as_ref().ok_or(StackError::NotSimulated)?;
        accepted(&format!("fault {fault:?}"), sim.control.post("/fault", body.to_string()).await?)
    }

    /// State and figures of every worker.
    ///
    /// # Errors
    /// The simulator does not answer.
    pub async fn worker_stats(&self) -> Result<Vec<Value>, StackError> {
        let sim = self.sim.as_ref().ok_or(StackError::NotSimulated)?;
        let stats = sim.control.get("/stats").await?.json();
        Ok(stats["workers"].as_array().cloned().unwrap_or_default())
    }

    /// Processor time that each process has used so far.
    #[must_use]
    pub fn cpu(&self) -> Cpu {
        let sim = self.sim.as_ref().map_or(0.0, |sim| sim.process.cpu_seconds());
        Cpu { envoy: self.envoy.process().cpu_seconds(), control: self.control.process().cpu_seconds(), sim }
    }

    /// Memory that each process holds at present.
    #[must_use]
    pub fn memory(&self) -> Memory {
        Memory { envoy: self.envoy.process().memory_bytes(), control: self.control.process().memory_bytes() }
    }

    /// The first process that ended by itself, if any did.
    pub fn ended(&mut self) -> Option<StackError> {
        let sim = self.sim.as_mut().map(|sim| &mut sim.process);
        [self.envoy.process_mut(), self.control.process_mut()].into_iter().chain(sim).find_map(|process| {
            let how = process.ended()?;
            Some(process.error(format!("ended by itself ({how})")))
        })
    }

    fn tails(&self) -> String {
        let tail = |process: &Process| format!("--- the end of {}'s log ---\n{}\n", process.name(), process.tail());
        self.sim
            .iter()
            .map(|sim| &sim.process)
            .chain([self.control.process(), self.envoy.process()])
            .map(tail)
            .collect()
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}logs and configuration are kept in {}", self.tails(), self.folder.path().display());
        }
    }
}

async fn start_sim(
    programs: &Programs,
    folder: &RunFolder,
    config: &Config,
) -> Result<(Simulator, Vec<Addresses>), StackError> {
    let config = Config { control_port: config.control_port.or(Some(0)), ..config.clone() };
    let file = folder.path().join("sim.json");
    std::fs::write(&file, json!(config).to_string()).map_err(StackError::io("write", &file))?;
    let mut command = Command::new(&programs.sim);
    command.arg("--config").arg(&file);
    let mut sim = Process::start("kinference-sim", command, folder.path())?;
    let output = sim.says("ready ", START).await?;
    let workers = files::addresses(&output);
    let control = files::address(&output, "control");
    match control {
        Some(control) if workers.len() == config.workers => {
            Ok((Simulator { process: sim, control: Client::of(control) }, workers))
        }
        _ => Err(sim.error("did not say where its workers and its control endpoint are".into())),
    }
}

/// Has kinfctl write Envoy's configuration.
fn write_bootstrap(
    programs: &Programs,
    folder: &RunFolder,
    options: &StackOptions,
    control: SocketAddr,
) -> Result<PathBuf, StackError> {
    let mut command = Command::new(&programs.kinfctl);
    command.args(["envoy-config", "--admin", "127.0.0.1:0"]);
    options.source.tell_gateway(&mut command);
    command.args(["--control", &control.to_string(), "--listen", &options.listen.to_string()]);
    command.args(["--balancing", options.balancing.name()]).arg("--wasm").arg(&programs.filter);
    if let Some(tls) = &options.control_tls {
        command.args(tls.envoy_flags(folder.path()));
    }
    let output = command.output().map_err(StackError::io("run", &programs.kinfctl))?;
    if !output.status.success() {
        return Err(StackError::Process {
            process: "kinfctl envoy-config".into(),
            reason: format!("failed ({})", output.status),
            log: "its output".into(),
            tail: String::from_utf8_lossy(&output.stderr).into_owned(),
        });
    }
    let config = folder.path().join("envoy.yaml");
    std::fs::write(&config, output.stdout).map_err(StackError::io("write", &config))?;
    Ok(config)
}

/// Whether the control service's status shows what a settled stack shows; if not, what is missing.
fn settled(status: &Value, source: &Source, alive: usize, events: bool, filters: usize) -> Result<(), String> {
    let set = &status["workerSets"][source.worker_set()];
    let workers: Vec<&Value> = set["workers"].as_object().map(|workers| workers.values().collect()).unwrap_or_default();
    let count = |test: &dyn Fn(&Value) -> bool| workers.iter().filter(|worker| test(worker)).count();
    let ready = count(&|worker| worker["state"] == "ready" && worker["load"]["known"] == true);
    if ready < alive {
        return Err(format!("{ready} of {alive} workers are ready"));
    }
    if events {
        let current = count(&|worker| worker["events"]["current"] == true);
        if current < alive {
            return Err(format!("the events of {current} of {alive} workers are taken in"));
        }
        if set["prefixMode"] != "events" || set["promptFidelity"] != true {
            return Err("the engine's prompt text is not known to be the filter's".into());
        }
    }
    let backend = &status["backends"][source.backend()];
    let number = |name: &str| backend[name].as_u64().unwrap_or_default() as usize;
    let (connected, current) = (number("filtersConnected"), number("filtersCurrent"));
    if current < filters || current < connected {
        return Err(format!("{current} filters of {connected} connected ones hold the snapshot; {filters} are to"));
    }
    Ok(())
}

fn accepted(what: &str, answer: Answer) -> Result<(), StackError> {
    if answer.status.is_success() {
        return Ok(());
    }
    Err(StackError::Refused { what: what.to_owned(), status: answer.status.as_u16(), body: answer.text() })
}
