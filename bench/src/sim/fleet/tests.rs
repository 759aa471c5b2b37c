//! Whole fleets in this process: life, death, faults and events.

use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use hyper::Method;
use serde_json::{Value, json};
use tokio::time::timeout;
use zeromq::prelude::*;
use zeromq::{DealerSocket, SubSocket, ZmqMessage};

use super::super::events::tests::decode;
use super::super::events::{Event, Stored};
use super::super::testing::{DEADLINE, Http, captured_config, chat, fleet, until};
use super::*;

const CHAT: &str = "/v1/chat/completions";
/// Long enough to make a block of 32.
const PROMPT: &str = "Tell me what a block of the cache is, and why a prefix of a prompt can be shared by requests.";

struct Subscriber {
    socket: SubSocket,
}

impl Subscriber {
    /// Connects to worker 0, and returns once messages come through, with the number of the next one.
    async fn new(http: &Http, fleet: &Fleet) -> (Self, u64) {
        let worker = fleet.workers()[0];
        let mut socket = SubSocket::new();
        socket.connect(&format!("tcp://{}", worker.kv)).await.unwrap();
        socket.subscribe("kv@").await.unwrap();
        let mut subscriber = Self { socket };
        for attempt in 0..1000 {
            http.post(worker.http, CHAT, &chat(&format!("{attempt} {PROMPT}"), 1)).await;
            if let Ok(message) = timeout(Duration::from_millis(20), subscriber.socket.recv()).await {
                let (mut sequence, _) = split(&message.unwrap());
                let next = fleet.stats().await[0].stats.event_batches;
                while sequence + 1 < next {
                    sequence = subscriber.next().await.0;
                }
                return (subscriber, next);
            }
        }
        panic!("no event came through");
    }

    async fn next(&mut self) -> (u64, Vec<Event>) {
        split(&timeout(DEADLINE, self.socket.recv()).await.expect("an event").unwrap())
    }
}

fn split(message: &ZmqMessage) -> (u64, Vec<Event>) {
    assert_eq!(message.len(), 3);
    assert_eq!(message.get(0).unwrap().as_ref(), b"kv@127.0.0.1@tiny");
    (sequence(message.get(1).unwrap()), decode(message.get(2).unwrap()).1)
}

fn sequence(frame: &[u8]) -> u64 {
    u64::from_be_bytes(frame.try_into().unwrap())
}

fn stored(events: &[Event]) -> &Stored {
    events
        .iter()
        .find_map(|event| if let Event::Stored(stored) = event { Some(stored) } else { None })
        .expect("something stored")
}

/// Sequence numbers that a replay gives.
async fn replay(worker: &Addresses, from: u64) -> Vec<u64> {
    let mut dealer = DealerSocket::new();
    dealer.connect(&format!("tcp://{}", worker.replay)).await.unwrap();
    let mut request = ZmqMessage::from(Vec::new());
    request.push_back(from.to_be_bytes().to_vec().into());
    dealer.send(request).await.unwrap();
    let mut sequences = Vec::new();
    loop {
        let answer = timeout(DEADLINE, dealer.recv()).await.expect("a replay").unwrap().into_vec();
        let [empty, topic, number, payload] = answer.as_slice() else { panic!("{} frames", answer.len()) };
        assert!(empty.is_empty());
        if sequence(number) == u64::MAX {
            assert!(topic.is_empty() && payload.is_empty());
            return sequences;
        }
        assert_eq!(topic.as_ref(), b"kv@127.0.0.1@tiny");
        sequences.push(sequence(number));
    }
}

#[tokio::test]
async fn events_come_live_and_by_replay() {
    let fleet = fleet(captured_config()).await;
    let (http, worker) = (Http::new(), fleet.workers()[0]);
    let (mut subscriber, next) = Subscriber::new(&http, &fleet).await;

    let reply = http
        .post(worker.http, "/tokenize", &json!({"messages": chat(PROMPT, 1)["messages"], "model": "tiny"}))
        .await
        .json();
    let tokens: Vec<u32> = serde_json::from_value(reply["tokens"].clone()).unwrap();
    let mut body = chat(PROMPT, 1);
    body["cache_salt"] = json!("mine");
    http.post(worker.http, CHAT, &body).await;
    let (number, events) = subscriber.next().await;
    assert_eq!(number, next);
    let event = stored(&events);
    assert_eq!(event.tokens, tokens[..event.tokens.len()]);
    assert_eq!((event.parent, event.salt.as_deref(), event.block_size), (None, Some("mine"), 32));

    // A hit sends nothing, unless a full report is asked for.
    http.post(worker.http, CHAT, &body).await;
    body["vllm_xargs"] = json!({"kv_cache_report_mode": "full"});
    http.post(worker.http, CHAT, &body).await;
    let (number, again) = subscriber.next().await;
    assert_eq!((number, stored(&again)), (next + 1, event));

    assert_eq!(http.post(worker.http, "/reset_prefix_cache", &Value::Null).await.json(), json!({"success": true}));
    http.post(worker.http, CHAT, &body).await;
    let (number, events) = subscriber.next().await;
    assert_eq!((number, &events[0]), (next + 2, &Event::Cleared));

    assert_eq!(replay(&worker, next).await, [next, next + 1, next + 2]);
    assert_eq!(replay(&worker, next + 10).await, [0u64; 0]);
    fleet.stop().await;
}

#[tokio::test]
async fn lost_and_reordered_batches() {
    let fleet = fleet(captured_config()).await;
    let (http, worker) = (Http::new(), fleet.workers()[0]);
    let (mut subscriber, next) = Subscriber::new(&http, &fleet).await;
    let send = async |name: &str| {
        http.post(worker.http, CHAT, &chat(&format!("{name} {PROMPT}"), 1)).await;
    };
    fleet.fault(0, Fault::DropEvents { count: 1, from_replay: false }).await.unwrap();
    send("a").await;
    send("b").await;
    assert_eq!(subscriber.next().await.0, next + 1);
    assert_eq!(replay(&worker, next).await, [next, next + 1]);

    let on_worker = http.post(worker.http, "/sim/fault", &json!({"kind": "reorder_events"})).await;
    assert_eq!(on_worker.status, 200);
    send("c").await;
    send("d").await;
    assert_eq!((subscriber.next().await.0, subscriber.next().await.0), (next + 3, next + 2));
    fleet.stop().await;
}

#[tokio::test]
async fn a_dead_worker_refuses_and_comes_back_empty() {
    let fleet = fleet(Config { workers: 2, step_base_us: 20_000.0, time_scale: 1.0, ..captured_config() }).await;
    let (http, control) = (Http::new(), fleet.control().unwrap());
    let [first, second] = [fleet.workers()[0], fleet.workers()[1]];
    let hash_of_prompt = async || {
        let (mut subscriber, next) = Subscriber::new(&http, &fleet).await;
        http.post(first.http, CHAT, &chat(PROMPT, 1)).await;
        let (number, events) = subscriber.next().await;
        assert_eq!(number, next);
        stored(&events).hashes[0]
    };
    let before = hash_of_prompt().await;

    let mut body = chat(PROMPT, 200);
    body["stream"] = json!(true);
    let mut stream = http.open(Method::POST, first.http, CHAT, &[], body.to_string()).await.unwrap().into_body();
    stream.frame().await.unwrap().unwrap();
    let die = http.post(control, "/fault", &json!({"worker": 0, "kind": "die"})).await;
    assert_eq!(die.status, 200, "{}", die.body);
    let rest = timeout(DEADLINE, async {
        let mut rest = String::new();
        while let Some(Ok(frame)) = stream.frame().await {
            rest.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
        }
        rest
    });
    assert!(!rest.await.expect("the stream goes on").contains("[DONE]"));
    for addr in [first.http, first.kv, first.replay] {
        assert!(tokio::net::TcpStream::connect(addr).await.is_err());
    }
    assert_eq!(http.get(second.http, "/health").await.status, 200);
    assert_eq!(http.post(control, "/fault", &json!({"worker": 0, "kind": "hang"})).await.status, 409);
    assert_eq!(http.post(control, "/fault", &json!({"worker": 7, "kind": "die"})).await.status, 404);
    assert_eq!(http.post(control, "/fault", &json!({"worker": 0, "kind": "?"})).await.status, 400);

    assert_eq!(http.post(control, "/fault", &json!({"worker": 0, "kind": "revive"})).await.status, 200);
    assert_eq!(replay(&first, 0).await, [0u64; 0]);
    let fresh = http.post(first.http, CHAT, &chat(PROMPT, 1)).await.json();
    assert_eq!(fresh["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(replay(&first, 0).await, [0]);
    fleet.fault(0, Fault::Restart).await.unwrap();
    assert_ne!(hash_of_prompt().await, before);
    fleet.stop().await;
    assert!(tokio::net::TcpStream::connect(second.http).await.is_err());
}

#[tokio::test]
async fn a_worker_can_end_itself() {
    let fleet = fleet(captured_config()).await;
    let (http, worker) = (Http::new(), fleet.workers()[0].http);
    http.post(worker, CHAT, &chat("hi", 1)).await;
    assert_eq!(http.post(worker, "/sim/fault", &json!({"kind": "restart"})).await.status, 202);
    until("the worker is new", async || fleet.stats().await[0].stats.requests == 0).await;
    assert_eq!(http.post(worker, "/sim/fault", &json!({"kind": "die"})).await.status, 202);
    until("the worker is dead", async || fleet.stats().await[0].state == "dead").await;
    assert_eq!(http.post(fleet.control().unwrap(), "/sim/fault", &json!({"kind": "die"})).await.status, 404);
    fleet.stop().await;
}

#[tokio::test]
async fn refusing_workers_stay_away_through_a_reset() {
    let fleet = fleet(Config { workers: 2, refuse: vec![1], ..captured_config() }).await;
    let (http, control) = (Http::new(), fleet.control().unwrap());
    let states = async || {
        let stats = http.get(control, "/stats").await.json();
        stats["workers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|worker| worker["state"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(states().await, ["running", "refusing"]);
    http.post(fleet.workers()[0].http, CHAT, &chat(PROMPT, 3)).await;
    let stats = http.get(control, "/stats").await.json();
    assert_eq!((&stats["workers"][0]["requests"], &stats["workers"][0]["generation_tokens"]), (&json!(1), &json!(3)));

    fleet.fault(0, Fault::Die).await.unwrap();
    assert_eq!(states().await, ["dead", "refusing"]);
    assert_eq!(fleet.stats().await[0].stats.requests, 1);
    assert_eq!(http.post(control, "/reset", &Value::Null).await.status, 200);
    assert_eq!(states().await, ["running", "refusing"]);
    assert_eq!(fleet.stats().await[0].stats, Stats::default());
    fleet.fault(1, Fault::Revive).await.unwrap();
    assert_eq!(http.get(fleet.workers()[1].http, "/health").await.status, 200);
    fleet.stop().await;
}

#[tokio::test]
async fn a_hanging_worker_accepts_and_answers_later() {
    let fleet = fleet(captured_config()).await;
    let (http, worker) = (Http::new(), fleet.workers()[0].http);
    fleet.fault(0, Fault::Hang).await.unwrap();
    assert_eq!(fleet.stats().await[0].state, "hanging");
    tokio::net::TcpStream::connect(worker).await.unwrap();
    let waiting = tokio::spawn({
        let http = http.clone();
        async move { http.post(worker, CHAT, &chat("hi", 3)).await.status }
    });
    assert!(
        timeout(Duration::from_millis(100), http.open(Method::GET, worker, "/health", &[], String::new()))
            .await
            .is_err()
    );
    assert!(!waiting.is_finished());
    // The switch itself works while all else hangs.
    http.post(worker, "/sim/fault", &json!({"kind": "resume"})).await;
    assert_eq!(waiting.await.unwrap(), 200);
    fleet.stop().await;
}

#[tokio::test]
async fn a_client_that_goes_away_frees_its_blocks() {
    let fleet = fleet(Config { step_base_us: 50_000.0, time_scale: 1.0, ..captured_config() }).await;
    let worker = fleet.workers()[0].http;
    for stream in [true, false] {
        // A client of its own each time, so that dropping it closes the connection.
        let http = Http::new();
        let mut body = chat(PROMPT, 400);
        body["stream"] = json!(stream);
        let request = tokio::spawn(async move {
            let mut body = http.open(Method::POST, worker, CHAT, &[], body.to_string()).await.unwrap().into_body();
            while body.frame().await.is_some() {}
        });
        until("it runs", async || fleet.stats().await[0].stats.running == 1).await;
        request.abort();
        until("it is aborted", async || fleet.stats().await[0].stats.running == 0).await;
    }
    let stats = &fleet.stats().await[0].stats;
    assert_eq!((stats.aborted, stats.finished, stats.kv_cache_usage), (2, 0, 0.0));
    fleet.stop().await;
}

#[tokio::test]
async fn steps_take_the_time_that_the_load_asks_for() {
    let config =
        Config { step_base_us: 5500.0, prefill_token_us: 0.0, seq_us: 0.0, time_scale: 1.0, ..captured_config() };
    let fleet = fleet(config).await;
    let (http, worker) = (Http::new(), fleet.workers()[0].http);
    http.post(worker, CHAT, &chat("hi", 1)).await;
    // 100 steps of 5.5 ms: rounding each up to the timer's millisecond would take 600. A busy machine may need a second try.
    let mut times = Vec::new();
    for _ in 0..10 {
        let start = Instant::now();
        http.post(worker, CHAT, &chat("hi", 100)).await;
        times.push(start.elapsed());
        if times.last() < Some(&Duration::from_millis(590)) {
            break;
        }
    }
    assert!(times.iter().all(|time| *time >= Duration::from_millis(549)), "{times:?}");
    assert!(times.last() < Some(&Duration::from_millis(590)), "{times:?}");
    fleet.stop().await;
}
