//! The service over loopback gRPC, with the generated client.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kinference_protocol::v1::control_message::Message;
use kinference_protocol::v1::snapshot_service_client::SnapshotServiceClient;
use kinference_protocol::v1::{self, filter_message};
use prost::Message as _;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Code, Streaming};

use super::{Channel, Directory, Limits, SnapshotServer, Timing};
use crate::metrics::Metrics;
use crate::state::{Full, Input};

/// More than any step of a test takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(30);

struct Control {
    address: SocketAddr,
    channel: Arc<Channel>,
    directory: watch::Sender<Directory>,
    inputs: mpsc::Receiver<Input>,
    shutdown: CancellationToken,
    metrics: Arc<Metrics>,
}

async fn control(limits: Limits, timing: Timing) -> Control {
    let channel = Arc::new(Channel::new(limits));
    let channels = [("default/main".to_owned(), channel.clone())].into();
    let (directory, seen) = watch::channel(Directory { waiting: None, channels });
    let (sender, inputs) = mpsc::channel(1024);
    let shutdown = CancellationToken::new();
    let metrics = Arc::new(Metrics::default());
    let server = SnapshotServer::new(seen, sender, metrics.clone(), shutdown.clone(), timing);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let incoming = TcpListenerStream::new(listener);
    let stop = shutdown.clone().cancelled_owned();
    tokio::spawn(Server::builder().add_service(server).serve_with_incoming_shutdown(incoming, stop));
    Control { address, channel, directory, inputs, shutdown, metrics }
}

impl Control {
    async fn input(&mut self) -> Input {
        tokio::time::timeout(DEADLINE, self.inputs.recv()).await.expect("no input came").unwrap()
    }
}

fn encode(message: Message) -> Bytes {
    Bytes::from(v1::ControlMessage { message: Some(message) }.encode_to_vec())
}

/// A workers section with a name of some length, so that messages can be made large.
fn sections(name: String) -> Option<v1::Sections> {
    let worker = v1::Worker { name, ..Default::default() };
    Some(v1::Sections {
        workers: Some(v1::Workers { upsert: vec![worker], ..Default::default() }),
        ..Default::default()
    })
}

fn delta(sequence: u64, bytes: usize) -> Bytes {
    encode(Message::Delta(v1::Delta { epoch: 7, sequence, sections: sections("x".repeat(bytes)) }))
}

fn full(sequence: u64, parts: u32) -> Full {
    let part = |part| {
        let sections = sections(format!("part {part}"));
        encode(Message::Snapshot(v1::SnapshotPart { epoch: 7, sequence, part, last: part + 1 == parts, sections }))
    };
    Full { epoch: 7, sequence, parts: (0..parts).map(part).collect() }
}

struct Filter {
    say: mpsc::Sender<v1::FilterMessage>,
    hear: Streaming<v1::ControlMessage>,
}

fn hello(backend: &str, epoch: u64, sequence: u64) -> v1::FilterMessage {
    let hello = v1::Hello { gateway_backend: backend.into(), epoch, sequence, ..Default::default() };
    v1::FilterMessage { message: Some(filter_message::Message::Hello(hello)) }
}

async fn connect(address: SocketAddr, first: v1::FilterMessage) -> Result<Filter, tonic::Status> {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
    let mut client = SnapshotServiceClient::new(endpoint.connect().await.unwrap());
    let (say, outgoing) = mpsc::channel(16);
    say.send(first).await.unwrap();
    let hear = client.stream(ReceiverStream::new(outgoing)).await?.into_inner();
    Ok(Filter { say, hear })
}

impl Filter {
    async fn next(&mut self) -> Option<Message> {
        let message = tokio::time::timeout(DEADLINE, self.hear.message()).await.expect("no message came");
        message.unwrap().map(|message| message.message.unwrap())
    }

    /// A short form of the next message other than a heartbeat.
    async fn short(&mut self) -> String {
        loop {
            match self.next().await {
                Some(Message::Snapshot(part)) => {
                    return format!("full {} {}{}", part.sequence, part.part, if part.last { " last" } else { "" });
                }
                Some(Message::Delta(delta)) => return format!("delta {}", delta.sequence),
                Some(Message::Heartbeat(_)) => {}
                None => return "end".into(),
            }
        }
    }

    async fn reject(&self, sequence: u64, resync: bool) {
        let rejected = v1::Rejected { epoch: 7, sequence, reason: "test".into(), resync };
        let message = v1::FilterMessage { message: Some(filter_message::Message::Rejected(rejected)) };
        self.say.send(message).await.unwrap();
    }
}

#[tokio::test]
async fn a_stream_gets_the_full_snapshot_then_deltas_and_hands_on_what_the_filter_says() {
    let mut control = control(Limits::default(), Timing::default()).await;
    control.channel.start_epoch(7, 1);
    let mut filter = connect(control.address, hello("main", 0, 0)).await.unwrap();
    let Input::StreamOpened { stream, backend, .. } = control.input().await else { panic!() };
    assert_eq!(backend, "default/main");
    while !control.channel.full_wanted() {
        tokio::task::yield_now().await;
    }
    control.channel.put_full(full(1, 2));
    assert_eq!(filter.short().await, "full 1 0");
    assert_eq!(filter.short().await, "full 1 1 last");
    control.channel.publish(delta(2, 10), false);
    assert_eq!(filter.short().await, "delta 2");

    let reports = v1::Reports { reports: vec![v1::Report { request: 5, ..Default::default() }], dropped: 0 };
    let message = v1::FilterMessage { message: Some(filter_message::Message::Reports(reports.clone())) };
    filter.say.send(message).await.unwrap();
    let Input::Reports { stream: of, reports: heard } = control.input().await else { panic!() };
    assert_eq!((of, heard), (stream, reports));
    drop(filter);
    assert!(matches!(control.input().await, Input::StreamClosed { stream: of } if of == stream));
}

#[tokio::test]
async fn a_silent_stream_gets_heartbeats() {
    let timing = Timing { heartbeat: Duration::from_millis(30), ..Timing::default() };
    let control = control(Limits::default(), timing).await;
    control.channel.start_epoch(7, 1);
    control.channel.put_full(full(1, 1));
    let mut filter = connect(control.address, hello("main", 0, 0)).await.unwrap();
    assert_eq!(filter.short().await, "full 1 0 last");
    for _ in 0..3 {
        assert_eq!(filter.next().await, Some(Message::Heartbeat(v1::Heartbeat { epoch: 7, sequence: 1 })));
    }
}

#[tokio::test]
async fn a_filter_that_comes_back_continues_and_one_with_a_gap_gets_everything() {
    let control = control(Limits::default(), Timing::default()).await;
    control.channel.start_epoch(7, 1);
    control.channel.publish(delta(2, 10), false);
    control.channel.publish(delta(3, 10), false);
    control.channel.put_full(full(3, 1));
    let mut filter = connect(control.address, hello("main", 7, 2)).await.unwrap();
    assert_eq!(filter.short().await, "delta 3");
    filter.reject(3, true).await;
    assert_eq!(filter.short().await, "full 3 0 last");
    // It complains again about something from before.
    filter.reject(2, true).await;
    control.channel.publish(delta(4, 10), false);
    assert_eq!(filter.short().await, "delta 4");
    assert_eq!(control.metrics.full_snapshots_sent.get(), 1);
}

#[tokio::test]
async fn a_refused_snapshot_is_sent_again_when_the_configuration_changed() {
    let control = control(Limits::default(), Timing::default()).await;
    control.channel.start_epoch(7, 1);
    control.channel.put_full(full(1, 1));
    let mut filter = connect(control.address, hello("main", 0, 0)).await.unwrap();
    assert_eq!(filter.short().await, "full 1 0 last");
    filter.reject(1, false).await;
    let mut watched = connect(control.address, hello("main", 7, 1)).await.unwrap();
    control.channel.publish(delta(2, 10), false);
    assert_eq!(watched.short().await, "delta 2");
    control.channel.publish(delta(3, 10), true);
    control.channel.put_full(full(3, 1));
    // Either the refusal arrived before delta 2 was sent, or just after.
    let mut next = filter.short().await;
    if next == "delta 2" {
        next = filter.short().await;
    }
    assert_eq!(next, "full 3 0 last");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_gets_a_full_snapshot_and_holds_nobody_up() {
    const MESSAGE: usize = 200_000;
    let control = control(Limits { deltas: 8, bytes: 64 << 20 }, Timing::default()).await;
    control.channel.start_epoch(7, 1);
    control.channel.put_full(full(1, 1));
    let mut slow = connect(control.address, hello("main", 0, 0)).await.unwrap();
    let mut fast = connect(control.address, hello("main", 0, 0)).await.unwrap();
    assert_eq!(slow.short().await, "full 1 0 last");
    assert_eq!(fast.short().await, "full 1 0 last");
    // Far more than what the connection's window and buffers take.
    for sequence in 2..=400 {
        control.channel.publish(delta(sequence, MESSAGE), false);
        assert_eq!(fast.short().await, format!("delta {sequence}"), "the fast one misses nothing");
    }
    let mut last = 1;
    let jumped = loop {
        let next = slow.short().await;
        match next.strip_prefix("delta ") {
            Some(sequence) => {
                assert_eq!(sequence.parse::<u64>().unwrap(), last + 1, "deltas follow one another");
                last += 1;
                if control.channel.full_wanted() {
                    control.channel.put_full(full(400, 2));
                }
            }
            None => break next,
        }
        while control.channel.full_wanted() {
            control.channel.put_full(full(400, 2));
        }
    };
    assert_eq!(jumped, "full 400 0");
    assert!(last < 390, "the slow one was too quick to show anything");
    assert_eq!(slow.short().await, "full 400 1 last");
    control.channel.publish(delta(401, 10), false);
    assert_eq!(slow.short().await, "delta 401");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_stream_gets_the_same_messages_from_one_encoding() {
    let control = control(Limits::default(), Timing::default()).await;
    control.channel.start_epoch(7, 1);
    control.channel.put_full(full(1, 3));
    let mut filters = Vec::new();
    for _ in 0..20 {
        filters.push(connect(control.address, hello("main", 0, 0)).await.unwrap());
    }
    for sequence in 2..=10 {
        control.channel.publish(delta(sequence, 1000 + sequence as usize), false);
    }
    let mut seen = Vec::new();
    for filter in &mut filters {
        let mut messages = Vec::new();
        while messages.len() < 12 {
            match filter.next().await {
                Some(Message::Heartbeat(_)) => {}
                message => messages.push(message.unwrap()),
            }
        }
        seen.push(messages);
    }
    let expected: Vec<Message> = full(1, 3)
        .parts
        .into_iter()
        .chain((2..=10).map(|sequence| delta(sequence, 1000 + sequence as usize)))
        .map(|message| v1::ControlMessage::decode(message).unwrap().message.unwrap())
        .collect();
    assert!(seen.iter().all(|messages| *messages == expected));
    assert_eq!(control.metrics.full_snapshots_sent.get(), 20);
}

#[tokio::test]
async fn a_backend_that_is_not_configured_is_waited_for_and_then_refused() {
    let timing = Timing { patience: Duration::from_millis(100), ..Timing::default() };
    let control = control(Limits::default(), timing).await;
    let refused = connect(control.address, hello("team/other", 0, 0)).await.err().unwrap();
    assert_eq!(refused.code(), Code::NotFound);
    assert!(refused.message().contains("team/other") && refused.message().contains("default/main"), "{refused}");
    assert_eq!(control.metrics.unknown_backend_streams.get(), 1);

    control.directory.send_modify(|directory| {
        directory.channels.clear();
        directory.waiting = Some("a.yaml:3: no such pool".into());
    });
    let refused = connect(control.address, hello("main", 0, 0)).await.err().unwrap();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("a.yaml:3"), "{refused}");

    let no_hello = v1::FilterMessage { message: None };
    assert_eq!(connect(control.address, no_hello).await.err().unwrap().code(), Code::FailedPrecondition);
}

#[tokio::test]
async fn a_backend_that_appears_in_time_is_served() {
    let control = control(Limits::default(), Timing::default()).await;
    let address = control.address;
    let waiting = tokio::spawn(async move { connect(address, hello("late", 0, 0)).await });
    let channel = Arc::new(Channel::new(Limits::default()));
    channel.start_epoch(7, 1);
    channel.put_full(full(1, 1));
    control.directory.send_modify(|directory| {
        directory.channels.insert("default/late".into(), channel);
    });
    let mut filter = waiting.await.unwrap().unwrap();
    assert_eq!(filter.short().await, "full 1 0 last");
}

#[tokio::test]
async fn shutdown_ends_streams_cleanly_and_a_removed_backend_says_why() {
    let control = control(Limits::default(), Timing::default()).await;
    control.channel.start_epoch(7, 1);
    control.channel.put_full(full(1, 1));
    let mut filter = connect(control.address, hello("main", 0, 0)).await.unwrap();
    let mut other = connect(control.address, hello("main", 0, 0)).await.unwrap();
    assert_eq!(filter.short().await, "full 1 0 last");
    control.shutdown.cancel();
    assert_eq!(filter.short().await, "end");
    assert_eq!(other.short().await, "full 1 0 last");
    assert_eq!(other.short().await, "end");

    let control = self::control(Limits::default(), Timing::default()).await;
    control.channel.start_epoch(7, 1);
    control.channel.put_full(full(1, 1));
    let mut filter = connect(control.address, hello("main", 0, 0)).await.unwrap();
    assert_eq!(filter.short().await, "full 1 0 last");
    control.channel.close();
    let ended = tokio::time::timeout(DEADLINE, filter.hear.message()).await.unwrap();
    assert_eq!(ended.unwrap_err().code(), Code::NotFound);
}
