//! `kinfctl explain --control`, against an address that answers as a control service does.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kinference_protocol::{dump, v1};
use kinference_routing::prefix::{Chunks, namespace_seed};
use prost::Message;
use serde_json::Value;

/// A prompt of ten chunks.
fn prompt() -> String {
    "The same words, again and again, so that there is something to hold. ".chars().cycle().take(640).collect()
}

/// What the filters of a gateway backend were told: two workers, of which the second one holds the whole prompt, and a
/// rule against batch work on a busy pool.
fn snapshot() -> Vec<u8> {
    let backend = v1::Backend {
        name: "default/main".into(),
        chunk_bytes: 64,
        index_max_bytes: 1 << 20,
        stale_after_ms: 10_000,
        ..Default::default()
    };
    let set = v1::WorkerSet {
        id: 1,
        name: "default/tiny".into(),
        model: "tiny".into(),
        prefix_mode: v1::PrefixMode::Events.into(),
        prefix_domain: "d".into(),
        bytes_per_token: 4.0,
        block_tokens: 16,
        ..Default::default()
    };
    let bound = v1::Bound { signal: 0, bound: Some(v1::bound::Bound::AtLeast(2.0)) };
    let when = v1::When {
        tags_any: vec!["batch".into()],
        pools: vec![v1::PoolBound { pool: 1, bound: Some(bound) }],
        ..Default::default()
    };
    let answer = v1::Answer { status: 429, retry_after_s: 30, message: "Batch work waits.".into() };
    let rule = v1::Rule { name: "house/busy".into(), when: Some(when), reject: Some(answer), ..Default::default() };
    let signal = v1::WindowedSignal { signal: v1::Signal::QueuedRequests.into(), ..Default::default() };
    let config = v1::Config {
        backend: Some(backend),
        worker_sets: vec![set],
        rules: vec![rule],
        pools: vec![v1::Pool { id: 1, name: "gpu".into(), worker_sets: vec![1] }],
        signals: vec![signal],
        tenancy: Some(v1::Tenancy { deny_unidentified: true, ..Default::default() }),
        ..Default::default()
    };
    let worker = |id: u32, name: &str, queued: f32| v1::Worker {
        id,
        worker_set: 1,
        name: name.into(),
        address: format!("127.0.0.1:{}", 9000 + id),
        state: v1::WorkerState::Ready.into(),
        load: Some(v1::Load { known: true, queued_requests: queued, running_requests: 4.0, ..Default::default() }),
        signals: vec![queued],
        ..Default::default()
    };
    let pools = vec![v1::PoolState { id: 1, signals: vec![2.5] }];
    let workers = v1::Workers { upsert: vec![worker(0, "a", 0.0), worker(1, "b", 5.0)], pools, ..Default::default() };
    let text = prompt();
    let hashes = Chunks::new(text.as_bytes(), 64, namespace_seed("d", "", "")).all().to_vec();
    let page = v1::PrefixPage { page: 0, workers: vec![0b10; hashes.len()], tokens: vec![16; hashes.len()], hashes };
    let prefix = v1::Prefix { pages: vec![page], ..Default::default() };
    let sections = v1::Sections { config: Some(config), workers: Some(workers), prefix: Some(prefix) };
    let part = v1::SnapshotPart { epoch: 7, sequence: 12, part: 0, last: true, sections: Some(sections) };
    let message = v1::ControlMessage { message: Some(v1::control_message::Message::Snapshot(part)) };
    dump::join(&[message.encode_to_vec().into()])
}

/// Answers one request for `path`, and gives the address.
fn serve(path: &'static str, status: &'static str, body: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 2048];
        let length = stream.read(&mut request).unwrap();
        let asked = String::from_utf8_lossy(&request[..length]).into_owned();
        assert!(asked.starts_with(&format!("GET {path} HTTP/1.1\r\n")), "{asked}");
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&body).unwrap();
    });
    address
}

fn kinfctl(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kinfctl")).args(arguments).output().unwrap()
}

fn explain(path: &'static str, arguments: &[&str]) -> Output {
    let address = serve(path, "200 OK", snapshot());
    kinfctl(&[&["explain", "--control", &address], arguments].concat())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A file of a request for the prompt, removed at its end.
struct RequestFile(PathBuf);

impl RequestFile {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("kinfctl-live-{name}-{}.json", std::process::id()));
        fs::write(&path, serde_json::json!({"model": "tiny", "prompt": prompt()}).to_string()).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for RequestFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn the_prompt_is_looked_up_in_the_live_index() {
    let file = RequestFile::new("prompt");
    let arguments = ["--file", file.path(), "--tenant", "research", "--tags", "batchless,pii", "--output", "json"];
    let run = explain("/snapshot", &arguments);
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    let report: Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(report["snapshot"]["gatewayBackend"], "default/main");
    assert_eq!((&report["snapshot"]["epoch"], &report["snapshot"]["sequence"]), (&7.into(), &12.into()));
    assert_eq!(report["request"]["promptTokens"], 160);
    assert_eq!(report["request"]["tags"], serde_json::json!(["batchless", "pii"]));
    let place = |name: &str| {
        let mut places = report["candidates"].as_array().unwrap().iter();
        places.find(|place| place["name"] == name).unwrap().clone()
    };
    assert_eq!((&place("tiny/b")["cachedTokens"], &place("tiny/a")["cachedTokens"]), (&144.into(), &0.into()));
    assert_eq!(report["decision"]["worker"], "tiny/b", "the one that holds the prompt");
    assert_eq!(report["rules"][0]["matches"], false);
    assert_eq!(report["snapshot"]["workers"][1]["load"]["queuedRequests"], 5.0);
    assert_eq!(report["snapshot"]["pools"][0]["signals"]["QueuedRequests"], 2.5);
    assert!(!text(&run.stdout).contains("again and again"), "the prompt is not printed");
}

#[test]
fn tables_show_rules_places_load_and_signals() {
    let arguments = ["--gateway-backend", "team/main", "--model", "tiny", "--tenant", "t", "--prompt-tokens", "100"];
    let run = explain("/snapshot/team/main", &arguments);
    let expected = "\
snapshot  default/main, epoch 7 sequence 12
request   model tiny, tenant t, tags none, 100 prompt tokens
decision  worker tiny/a, model tiny

RULE        MATCHES  WHY NOT
house/busy  no       none of the tags [\"batch\"]
";
    let printed = text(&run.stdout);
    assert!(printed.starts_with(expected), "{printed}{}", text(&run.stderr));
    let tables = "
WORKER  STATE  QUEUED  RUNNING  KV   IN FLIGHT  PREFILL TOKENS  QueuedRequests
tiny/a  ready  0       4        0 %  0          0               0
tiny/b  ready  5       4        0 %  0          0               5

POOL  QueuedRequests
gpu   2.5

Without --request the prompt is not known: no cached prefix is counted.
";
    assert!(printed.ends_with(tables), "{printed}");

    let run = explain("/snapshot", &["--model", "tiny", "--tenant", "t", "--tag", "batch"]);
    let printed = text(&run.stdout);
    assert!(printed.contains("rejected with status 429, retryAfter 30s: Batch work waits."), "{printed}");
    assert!(printed.contains("house/busy  yes"), "{printed}");
    let run = explain("/snapshot", &["--model", "tiny"]);
    let printed = text(&run.stdout);
    assert!(printed.contains("rejected with status 401"), "{printed}");
}

#[test]
fn wrong_addresses_and_backends_say_what_to_do() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let failure = |arguments: &[&str]| {
        let run = kinfctl(&[&["explain", "--model", "tiny"], arguments].concat());
        assert_ne!(run.status.code(), Some(0));
        text(&run.stderr)
    };
    let error = failure(&["--control", &closed]);
    let expected = format!("error: no answer from http://{closed}/snapshot; is kinference-control running");
    assert!(error.starts_with(&expected), "{error}");

    let body = b"there is no GatewayBackend default/other; there is default/main\n".to_vec();
    let address = serve("/snapshot/default/other", "404 Not Found", body);
    let error = failure(&["--control", &address, "--gateway-backend", "other"]);
    let expected = format!(
        "error: http://{address}/snapshot/default/other answered 404 Not Found: there is no GatewayBackend \
         default/other; there is default/main\n"
    );
    assert_eq!(error, expected);

    let error = failure(&["--control", &serve("/snapshot", "200 OK", b"<html>hello</html>".to_vec())]);
    assert!(error.contains("is not a snapshot of a kinference-control"), "{error}");
    let error = failure(&["--control", "not an address"]);
    assert!(error.contains("write HOST:PORT"), "{error}");
    let error = failure(&["--control", &closed, "examples/policies"]);
    assert!(error.contains("cannot be used with"), "{error}");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("Cargo.toml");
    let error = failure(&["--control", &closed, "--request", root.to_str().unwrap()]);
    assert!(error.contains("is not JSON"), "{error}");
}
