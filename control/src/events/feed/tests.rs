//! Against sockets, with a publisher in this process.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use super::*;
use crate::events::Stored;
use crate::events::testing::{batch, encode};

const PATIENCE: Duration = Duration::from_secs(20);

type Buffer = Arc<Mutex<Vec<(u64, Bytes)>>>;

/// What an engine's process does on its two sockets.
struct Engine {
    publisher: PubSocket,
    events: String,
    replay: String,
    buffer: Buffer,
    router: JoinHandle<()>,
    next: u64,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.router.abort();
    }
}

fn message(parts: &[&[u8]]) -> ZmqMessage {
    let parts: Vec<Bytes> = parts.iter().map(|part| Bytes::copy_from_slice(part)).collect();
    ZmqMessage::try_from(parts).unwrap()
}

async fn serve_replay(mut router: RouterSocket, buffer: Buffer) {
    while let Ok(request) = router.recv().await {
        let parts = request.into_vec();
        let from = u64::from_be_bytes(parts[2].as_ref().try_into().unwrap());
        let frames: Vec<_> = buffer.lock().unwrap().iter().filter(|(sequence, _)| *sequence >= from).cloned().collect();
        for (sequence, payload) in frames {
            let reply = message(&[&parts[0], b"", b"kv", &sequence.to_be_bytes(), &payload]);
            if router.send(reply).await.is_err() {
                break;
            }
        }
        let _ = router.send(message(&[&parts[0], b"", b"", &[0xFF; 8], b""])).await;
    }
}

impl Engine {
    /// Binds to these addresses; port 0 for any.
    async fn start(events: &str, replay: &str) -> Self {
        let mut publisher = PubSocket::new();
        let events = publisher.bind(events).await.unwrap().to_string();
        let mut router = RouterSocket::new();
        let replay = router.bind(replay).await.unwrap().to_string();
        let buffer = Buffer::default();
        let router = tokio::spawn(serve_replay(router, buffer.clone()));
        Self { publisher, events, replay, buffer, router, next: 0 }
    }

    async fn fresh() -> Self {
        Self::start("tcp://127.0.0.1:0", "tcp://127.0.0.1:0").await
    }

    /// Publishes a batch that stores one block; the block's hash is the number of the batch.
    async fn publish(&mut self) {
        let payload = self.lose().1;
        let sequence = (self.next - 1).to_be_bytes();
        self.publisher.send(message(&[b"kv", &sequence, &payload])).await.unwrap();
    }

    /// The same, but it only gets to the replay buffer.
    fn lose(&mut self) -> (u64, Bytes) {
        let stored =
            Stored { hashes: vec![self.next], token_ids: vec![1], block_size: 1, mappable: 1, ..Stored::default() };
        // The time makes batches of different processes differ.
        let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        let payload = Bytes::from(batch(time, vec![encode(&KvEvent::Stored(stored))], 0));
        let frame = (self.next, payload);
        self.buffer.lock().unwrap().push(frame.clone());
        self.next += 1;
        frame
    }
}

/// A feed, and what it said.
struct Listener {
    messages: mpsc::Receiver<FeedMessage>,
    _feed: Feed,
    /// Blocks stored since the last reset.
    held: Vec<u64>,
    resets: Vec<ResetReason>,
    health: Vec<Health>,
}

fn config(publisher: Publisher, replay: Option<String>) -> FeedConfig {
    FeedConfig {
        worker_id: 9,
        rank: 0,
        block_size: None,
        publisher,
        replay,
        topic: "kv".into(),
        timing: Timing { backoff: Duration::from_millis(100), ..Timing::default() },
    }
}

impl Listener {
    fn start(config: FeedConfig) -> Self {
        let (sender, messages) = mpsc::channel(64);
        let feed = Feed::start(config, sender);
        Self { messages, _feed: feed, held: Vec::new(), resets: Vec::new(), health: Vec::new() }
    }

    fn follow(engine: &Engine) -> Self {
        Self::start(config(Publisher::Connect(engine.events.clone()), Some(engine.replay.clone())))
    }

    /// Reads messages until `done`.
    async fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let waited = timeout(PATIENCE, async {
            while !done(self) {
                let message = self.messages.recv().await.expect("the feed goes on");
                assert_eq!(message.worker_id, 9);
                match message.kind {
                    FeedKind::Events { events, skipped } => {
                        assert_eq!(skipped, Skipped::default());
                        assert!(message.engine_time > 1e9);
                        for event in events {
                            let KvEvent::Stored(stored) = event else { panic!("only stores are published") };
                            assert_eq!(message.sequence, Some(stored.hashes[0]));
                            self.held.extend(stored.hashes);
                        }
                    }
                    FeedKind::Reset { reason } => {
                        self.held.clear();
                        self.resets.push(reason);
                    }
                    FeedKind::Health(health) => self.health.push(health),
                }
            }
        });
        if waited.await.is_err() {
            panic!("no {what}: {} held, resets {:?}, health {:?}", self.held.len(), self.resets, self.health);
        }
    }

    async fn until_held(&mut self, count: u64) {
        self.until("complete state", |listener| listener.held.last() == Some(&(count - 1))).await;
        let expected: Vec<u64> = (0..count).collect();
        assert_eq!(self.held, expected);
    }

    async fn until_current(&mut self) {
        self.until("current state", |listener| listener.health.contains(&Health::Current)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn history_comes_by_replay_and_then_events_live() {
    let mut engine = Engine::fresh().await;
    for _ in 0..50 {
        engine.publish().await;
    }
    let mut listener = Listener::follow(&engine);
    listener.until_held(50).await;
    listener.until_current().await;
    for _ in 0..50 {
        engine.publish().await;
    }
    listener.until_held(100).await;
    assert_eq!(listener.health, [Health::Connected, Health::Current]);
    assert!(listener.resets.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_is_filled_by_replay() {
    let mut engine = Engine::fresh().await;
    let mut listener = Listener::follow(&engine);
    listener.until_current().await;
    engine.publish().await;
    listener.until_held(1).await;
    for _ in 0..5 {
        engine.lose();
        engine.publish().await;
    }
    listener.until_held(11).await;
    assert!(listener.resets.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_replay_a_gap_costs_what_is_known() {
    let mut engine = Engine::fresh().await;
    let mut listener = Listener::start(config(Publisher::Connect(engine.events.clone()), None));
    listener.until_current().await;
    // The subscription is on its way still; what is published before it arrives is not sent.
    while listener.held.is_empty() {
        engine.publish().await;
        let _ = timeout(Duration::from_millis(20), listener.until("first event", |l| !l.held.is_empty())).await;
    }
    engine.lose();
    engine.publish().await;
    let last = engine.next - 1;
    listener.until("the event after the gap", |listener| listener.held.last() == Some(&last)).await;
    assert_eq!(listener.held, [last]);
    assert!(matches!(listener.resets.as_slice(), [ResetReason::Gap { .. }]), "{:?}", listener.resets);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_on_the_same_ports_is_noticed_at_once() {
    let mut engine = Engine::fresh().await;
    for _ in 0..20 {
        engine.publish().await;
    }
    let mut listener = Listener::follow(&engine);
    listener.until_held(20).await;
    listener.until_current().await;
    let (events, replay) = (engine.events.clone(), engine.replay.clone());
    drop(engine);
    listener.until("loss of the connection", |l| matches!(l.health.last(), Some(Health::Disconnected { .. }))).await;
    // What was held is believed until it is known what became of the engine.
    assert_eq!(listener.held.len(), 20);
    let mut engine = rebind(&events, &replay).await;
    let back = Instant::now();
    listener.until("reset", |listener| listener.resets.contains(&ResetReason::Restarted)).await;
    assert!(back.elapsed() < Duration::from_millis(1500), "{:?}", back.elapsed());
    listener.until("current state", |listener| listener.health.last() == Some(&Health::Current)).await;
    engine.publish().await;
    engine.publish().await;
    listener.until_held(2).await;
}

/// Ports may take a moment to be free.
async fn rebind(events: &str, replay: &str) -> Engine {
    let until = Instant::now() + PATIENCE;
    loop {
        let free = |endpoint: &str| std::net::TcpListener::bind(endpoint.trim_start_matches("tcp://")).is_ok();
        if free(events) && free(replay) {
            return Engine::start(events, replay).await;
        }
        assert!(Instant::now() < until, "the ports stay in use");
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_not_there_yet_is_waited_for() {
    let engine = Engine::fresh().await;
    let (events, replay) = (engine.events.clone(), engine.replay.clone());
    drop(engine);
    let mut config = config(Publisher::Connect(events.clone()), Some(replay.clone()));
    config.timing.connect = Duration::from_millis(200);
    let mut listener = Listener::start(config);
    listener.until("failure", |l| matches!(l.health.last(), Some(Health::Disconnected { .. }))).await;
    let mut engine = rebind(&events, &replay).await;
    engine.publish().await;
    listener.until_held(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_under_load() {
    let mut engine = Engine::fresh().await;
    let mut listener = Listener::follow(&engine);
    listener.until_current().await;
    let publishing = tokio::spawn(async move {
        for _ in 0..30_000 {
            engine.publish().await;
        }
        engine
    });
    listener.until_held(30_000).await;
    drop(publishing.await.unwrap());
    assert!(listener.resets.is_empty(), "{:?}", listener.resets);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_line_is_checked_and_healed() {
    let mut engine = Engine::fresh().await;
    engine.publish().await;
    let mut config = config(Publisher::Connect(engine.events.clone()), Some(engine.replay.clone()));
    config.timing.quiet = Duration::from_millis(100);
    let mut listener = Listener::start(config);
    listener.until_held(1).await;
    engine.lose();
    listener.until_held(2).await;
    // The line itself is suspect now.
    let connects = |listener: &Listener| listener.health.iter().filter(|health| **health == Health::Connected).count();
    listener.until("new connection", |listener| connects(listener) > 1).await;
    assert!(listener.resets.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_may_connect_to_us() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = format!("tcp://{}", free.local_addr().unwrap());
    drop(free);
    let mut engine = Engine::fresh().await;
    for _ in 0..3 {
        engine.publish().await;
    }
    let mut listener = Listener::start(config(Publisher::Bind(ours.clone()), Some(engine.replay.clone())));
    timeout(PATIENCE, engine.publisher.connect(&ours)).await.unwrap().unwrap();
    listener.until_held(3).await;
    engine.publish().await;
    listener.until_held(4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_batch_costs_what_is_known_and_the_feed_goes_on() {
    let mut engine = Engine::fresh().await;
    let mut listener = Listener::follow(&engine);
    listener.until_current().await;
    engine.publish().await;
    listener.until_held(1).await;
    let bad = Bytes::from_static(b"\xc1 not an event batch");
    engine.buffer.lock().unwrap().push((engine.next, bad.clone()));
    engine.publisher.send(message(&[b"kv", &engine.next.to_be_bytes(), &bad])).await.unwrap();
    engine.next += 1;
    engine.publisher.send(message(&[b"kv"])).await.unwrap();
    engine.publish().await;
    listener.until("event after it", |listener| listener.held == [2]).await;
    assert!(matches!(listener.resets.as_slice(), [ResetReason::BadBatch(_)]));
    assert!(listener.health.contains(&Health::Strange));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_feed_ends_with_its_listener() {
    let engine = Engine::fresh().await;
    let (sender, messages) = mpsc::channel(4);
    let config = config(Publisher::Connect(engine.events.clone()), Some(engine.replay.clone()));
    let mut feed = Feed::start(config, sender);
    drop(messages);
    timeout(PATIENCE, &mut feed.task).await.expect("the feed ends").unwrap();
}
