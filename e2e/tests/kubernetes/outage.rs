//! The API server goes away. Skipped on a cluster that is not the test's own.

use std::time::{Duration, Instant};

use kinference_bench::load::{Arrival, Options, Pace, Progress, Shape, Summary, Workload, run};
use kinference_bench::stack::until;
use kinference_e2e::alone;

use crate::common::{FOLLOW, Fleet, must};

/// How long it is away.
const AWAY: Duration = Duration::from_secs(30);
/// Requests a second.
const RATE: f64 = 30.0;

#[test]
fn an_api_server_that_is_away_for_half_a_minute_costs_no_request() {
    alone(240, async {
        let mut fleet = Fleet::start(3, 2).await;
        let client = fleet.stack.client();
        // Load from five seconds before until ten after.
        let requests = (RATE * (AWAY.as_secs_f64() + 15.0)) as usize;
        let workload = Workload { shape: Shape::Control { requests, prompt_tokens: 100 }, answer_tokens: 20, seed: 1 };
        let options = Options {
            model: fleet.stack.model().to_owned(),
            pace: Pace::Open { rate: RATE, arrival: Arrival::Poisson },
            exact_answers: true,
            timeout: Duration::from_secs(20),
        };
        let (ran, away) = tokio::join!(run(&client, &workload, &options, Progress::silent()), async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            must(fleet.cluster.stop());
            let stopped = Instant::now();
            tokio::time::sleep(AWAY).await;
            must(fleet.cluster.resume().await);
            stopped.elapsed()
        });
        let summary = Summary::of(&must(ran), Duration::from_secs(1));
        assert_eq!(summary.errors, 0, "{:?}", summary.errors_by_kind);
        assert_eq!(summary.requests, requests);
        assert_eq!(summary.destinations.len(), 2, "{:?}", summary.destinations);
        eprintln!("the API server was away for {:.1} s: {requests} requests, 0 failed", away.as_secs_f64());

        // Changes flow again.
        let back = Instant::now();
        must(fleet.namespace.add(&fleet.workers[2], true).await);
        let mut number = 100_000;
        let used = until("answers of the new Pod", FOLLOW * 2, async || {
            number += 1;
            let answer = fleet.ask(&client, number).await;
            let destination = answer.header("x-kinference-destination").unwrap_or_default().to_owned();
            if destination.ends_with("/w2") { Ok(()) } else { Err(destination) }
        });
        must(used.await);
        eprintln!("a Pod made after that took {:.1} s to answer", back.elapsed().as_secs_f64());
        fleet.end().await;
    });
}
