use std::io::{Read, Write};
use std::net::TcpListener;

use super::report::render;
use super::{Args, run};
use crate::paint::Paint;
use crate::status::Status;

const HEALTHY: &str = r#"{
    "version": "0.1.0",
    "config": {"valid": true, "inForce": true, "problems": [], "loads": 1},
    "backends": {"default/main": {"epoch": 255, "sequence": 7, "workerSets": ["default/tiny"],
        "rules": ["house/cheap", "house/local"], "prefixIndex": {"chunks": 12345, "bytes": 2097152, "maxBytes": 67108864, "chunkBytes": 256,
            "wantedChunkBytes": 256}, "filtersConnected": 2, "filtersCurrent": 2}},
    "workerSets": {"default/tiny": {"model": "tiny", "prefixMode": "events", "promptFidelity": true,
        "bytesPerToken": 3.25, "blockTokens": 16, "workers": {
            "a": {"id": 0, "address": "127.0.0.1:18200", "state": "ready", "cachedTokens": 1234,
                "load": {"known": true, "queuedRequests": 2.0, "runningRequests": 0.5, "kvCacheUsage": 0.25,
                    "pendingPrefillTokens": 9, "inFlight": 3},
                "events": {"connected": true, "current": true, "batches": 4, "gaps": 1, "restarts": 0},
                "latency": {"baseMs": 12.4, "msPerToken": 0.05, "msPerRunning": 1.0, "samples": 1500}}}}},
    "resources": [
        {"kind": "GatewayBackend", "name": "default/main", "conditions": [
            {"type": "Ready", "status": "True", "reason": "AllWorkersReady", "message": "all 2 workers are ready"}]},
        {"kind": "InferencePolicy", "name": "default/house", "observedGeneration": 2, "conditions": [
            {"type": "Accepted", "status": "False", "reason": "Invalid", "message": "spec.rules[0]: bad"},
            {"type": "InForce", "status": "Unknown", "reason": "Held", "message": ""}]}],
    "filters": [{"backend": "default/main", "proxy": "envoy", "vm": "00ab", "build": "0.1.0", "epoch": 255,
        "sequence": 7, "indexChunks": 12345, "indexBytes": 1, "rejections": 0}],
    "envoys": [{"node": "envoy", "acknowledged": "3", "sent": "3"}],
    "fieldOfALaterVersion": {"x": 1}
}"#;

fn report(json: &str) -> String {
    let status: Status = serde_json::from_str(json).unwrap();
    render(&status, Paint::off())
}

#[test]
fn a_healthy_fleet_reads_well() {
    let expected = "\
configuration valid, loaded once  kinference-control 0.1.0

gateway backend default/main  epoch 255 sequence 7
  filters   2 connected, 2 current
  index     12,345 chunks of 256 bytes, 2.0 MiB of 64.0 MiB
  rules     2 in force: house/cheap, house/local
  sets      default/tiny

worker set default/tiny  model tiny
  prefixes  events
  fidelity  the filter's text equals the engine's
  tokenizer 3.25 bytes a token, blocks of 16 tokens
  WORKER  ADDRESS          STATE  QUEUED  RUNNING  KV    IN FLIGHT  CACHED  EVENTS          TTFT MODEL
  a       127.0.0.1:18200  ready  2       0.5      25 %  3          1,234   current, 1 gap  12 ms + 50 ms/1k tokens (1,500 samples)

resources
  KIND             NAME           CONDITIONS
  GatewayBackend   default/main   Ready
  InferencePolicy  default/house  not Accepted (Invalid), InForce unknown (Held)
  InferencePolicy default/house Accepted: spec.rules[0]: bad

filters
  PROXY  VM    GATEWAY BACKEND  EPOCH    SEQUENCE  CHUNKS  REFUSED  BUILD
  envoy  00ab  default/main     current  7         12,345  0        0.1.0

envoys
  envoy  has the newest endpoints
";
    assert_eq!(report(HEALTHY), expected);
}

#[test]
fn what_is_wrong_is_said() {
    let text = report(
        r#"{"config": {"valid": false, "inForce": true, "problems": ["a.yaml:3: spec: \u001b[31mbad"], "loads": 2},
        "backends": {"default/main": {"epoch": 2, "filtersConnected": 1,
            "prefixIndex": {"chunkBytes": 512, "wantedChunkBytes": 256}}},
        "workerSets": {"default/tiny": {"prefixMode": "routed", "routedBecause": "the tokenizer cannot be used",
            "promptFidelity": false, "tokenizerProblem": "no tokenizer.json in /models", "workers": {
                "a": {"state": "unknown", "metricsProblem": "connection refused",
                    "events": {"lastProblem": "no replay"}}}}},
        "filters": [{"backend": "default/main", "proxy": "p", "epoch": 1, "rejections": 3,
            "lastRejection": "a template does not compile"}, {"backend": "default/main"}],
        "envoys": [{"node": "e", "sent": "2", "refused": "bad address"}, {"node": "f", "sent": "2"}]}"#,
    );
    for expected in [
        "configuration invalid; the last good one stays in force, loaded 2 times",
        "a.yaml:3: spec: \\u{1b}[31mbad",
        "(coarser than the 256 asked for, to stay within)",
        "routed: the tokenizer cannot be used",
        "the filter's text differs from the engine's",
        "no tokenizer.json in /models",
        "a metrics: connection refused",
        "a events: no replay",
        "not connected",
        "defaults",
        "none yet",
        "refused: a template does not compile",
        "e  refused its endpoints: bad address",
        "f  has not taken the newest endpoints yet",
    ] {
        assert!(text.contains(expected), "{expected:?} is missing in:\n{text}");
    }
    let queued = text.lines().find(|line| line.contains("unknown")).unwrap();
    assert_eq!(queued.split_whitespace().filter(|cell| *cell == "?").count(), 3, "{queued}");
}

#[test]
fn an_empty_answer_is_no_error() {
    let text = report("{}");
    assert!(text.starts_with("configuration none in force"), "{text}");
    assert!(text.contains("none connected"), "{text}");
}

/// Answers one request, and gives the address.
fn serve(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 1024];
        let length = stream.read(&mut request).unwrap();
        assert!(request[..length].starts_with(b"GET /status HTTP/1.1\r\n"));
        stream.write_all(answer.as_bytes()).unwrap();
    });
    address
}

fn run_at(admin: String, json: bool) -> Result<String, String> {
    let output = run(&Args { admin, json });
    output.map(|output| output.text).map_err(|error| format!("{error:#}"))
}

#[test]
fn the_control_service_is_asked() {
    const ANSWER: &str = "HTTP/1.1 200 OK\r\ncontent-length: 27\r\n\r\n{\"config\": {\"valid\": true}}";
    let text = run_at(serve(ANSWER), false).unwrap();
    assert!(text.starts_with("configuration valid"), "{text}");
    let text = run_at(format!("http://{}/", serve(ANSWER)), true).unwrap();
    assert_eq!(text, "{\n  \"config\": {\n    \"valid\": true\n  }\n}\n");
}

#[test]
fn no_answer_and_foreign_answers_say_what_to_do() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let error = run_at(closed.clone(), false).unwrap_err();
    let expected = format!("no answer from http://{closed}/status; is kinference-control running");
    assert!(error.starts_with(&expected), "{error}");

    let error = run_at(serve("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"), false).unwrap_err();
    assert!(error.contains("is not the status of a kinference-control"), "{error}");

    let error = run_at(serve("HTTP/1.1 503 X\r\ncontent-length: 8\r\n\r\nstopping"), false).unwrap_err();
    assert!(error.contains("503") && error.contains("stopping"), "{error}");

    let error = run_at("not an address".into(), false).unwrap_err();
    assert!(error.contains("write HOST:PORT"), "{error}");
}
