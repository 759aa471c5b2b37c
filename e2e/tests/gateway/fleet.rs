//! Workers that die, never answer, or come back empty.

use std::time::{Duration, Instant};

use kinference_bench::load::{Arrival, Client, Options, Pace, Progress, Record, Shape, Summary, Workload, run};
use kinference_bench::sim::{Config, Fault};
use kinference_bench::stack::{Stack, until};

use crate::common::{alone, ask, chat, figures, indexes_agree, prompt, send, stack, worker_of, workers};

/// The number of the worker that dies or never answers.
const VICTIM: usize = 1;

#[test]
fn a_killed_worker_costs_only_the_streams_it_had_begun() {
    alone(60, async {
        let stack = stack(workers(3)).await;
        let workload =
            Workload { shape: Shape::Control { requests: 240, prompt_tokens: 100 }, answer_tokens: 150, seed: 1 };
        let options = Options {
            model: stack.model().to_owned(),
            pace: Pace::Open { rate: 40.0, arrival: Arrival::Poisson },
            exact_answers: true,
            timeout: Duration::from_secs(20),
        };
        let start = Instant::now();
        let (ran, killed) = tokio::join!(
            async { run(&stack.client(), &workload, &options, Progress::silent()).await.expect("a run") },
            async {
                let busy = until("streams on every worker", Duration::from_secs(20), async || {
                    let running = figures(&stack, "running").await;
                    if running.iter().all(|count| *count >= 3) { Ok(()) } else { Err(format!("{running:?}")) }
                });
                busy.await.expect("load");
                stack.fault(VICTIM, &Fault::Die).await.expect("a death");
                start.elapsed()
            }
        );
        let dead = |record: &Record| record.destination.as_deref().is_some_and(|name| worker_of(name) == VICTIM);
        let failed: Vec<_> = ran.records.iter().filter(|record| record.failure.is_some()).collect();
        for record in &failed {
            // The headers had come: the worker had begun to answer.
            assert!(dead(record) && record.sent < killed, "failed without need: {record:?}, killed at {killed:?}");
        }
        assert!(!failed.is_empty(), "the worker died without a stream");
        let late: Vec<_> =
            ran.records.iter().filter(|record| dead(record) && record.sent > killed + Duration::from_secs(1)).collect();
        assert!(late.is_empty(), "sent to the dead worker more than a second later: {late:?}");
        let after = ran.records.iter().filter(|record| record.sent > killed).count();
        assert!(after > 60, "only {after} requests came after the death");

        // It comes back, and is used again once there is more to do than one worker would take.
        stack.fault(VICTIM, &Fault::Revive).await.expect("a revival");
        let burst = Options { pace: Pace::Closed { concurrency: 24 }, ..options };
        let mut seed = 100;
        let used = until("requests at the worker that came back", Duration::from_secs(15), async || {
            seed += 1;
            let shape = Shape::Control { requests: 48, prompt_tokens: 100 };
            let workload = Workload { shape, answer_tokens: 10, seed };
            let run =
                run(&stack.client(), &workload, &burst, Progress::silent()).await.map_err(|error| error.to_string())?;
            let summary = Summary::of(&run, Duration::from_secs(1));
            assert_eq!(summary.errors, 0, "{:?}", summary.errors_by_kind);
            if run.records.iter().any(dead) { Ok(()) } else { Err(format!("{:?}", summary.destinations)) }
        });
        used.await.expect("the worker is used again");
    });
}

#[test]
fn a_listed_worker_that_never_answers_harms_nobody() {
    alone(60, async {
        let stack = stack(Config { refuse: vec![VICTIM], ..workers(3) }).await;
        let workload =
            Workload { shape: Shape::Control { requests: 150, prompt_tokens: 100 }, answer_tokens: 10, seed: 1 };
        let options = Options {
            model: stack.model().to_owned(),
            pace: Pace::Closed { concurrency: 20 },
            exact_answers: true,
            timeout: Duration::from_secs(20),
        };
        let run = run(&stack.client(), &workload, &options, Progress::silent()).await.expect("a run");
        let summary = Summary::of(&run, Duration::from_secs(1));
        assert_eq!(summary.errors, 0, "{:?}", summary.errors_by_kind);
        assert!(summary.destinations.keys().all(|name| worker_of(name) != VICTIM), "{:?}", summary.destinations);
        let attempts = connections(&stack, VICTIM).await;
        // Each of the two threads may try once.
        assert!(attempts <= 2, "{attempts} connections were tried");
    });
}

#[test]
fn a_worker_that_comes_back_empty_is_not_believed_to_hold_anything() {
    alone(60, async {
        let stack = stack(workers(1)).await;
        let client = stack.client();
        let documents: Vec<_> = (0..5).map(|number| prompt(number, 1000)).collect();
        for document in &documents {
            ask(&stack, &client, document).await;
        }
        for document in &documents {
            let reply = ask(&stack, &client, document).await;
            assert!(reply.cached > 900, "{reply:?}");
            reply.assert_predicted();
        }
        let restarts = async |stack: &Stack| {
            let status = stack.status().await.expect("a status");
            status["workerSets"]["default/simulated"]["workers"]["w0"]["events"]["restarts"]
                .as_u64()
                .unwrap_or_default()
        };
        let before = restarts(&stack).await;
        stack.fault(0, &Fault::Restart).await.expect("a restart");

        // Its first event, of a request that goes past the gateway.
        let direct = Client::of(stack.workers()[0].http);
        send(&direct, &chat(stack.model(), &prompt(100, 200), 4)).await.expect("an answer");
        let noticed = until("the control service's notice of the restart", Duration::from_secs(5), async || {
            let now = restarts(&stack).await;
            if now > before { Ok(()) } else { Err(format!("{now} restarts")) }
        });
        noticed.await.expect("a notice");
        indexes_agree(&stack, 1).await;
        for document in &documents {
            let reply = ask(&stack, &client, document).await;
            assert_eq!(reply.cached, 0, "the simulator did not lose its cache: {reply:?}");
            assert!(reply.predicted <= 16, "a stale prefix is claimed: {reply:?}");
        }
    });
}

/// Connections that Envoy opened or tried to open to a worker.
async fn connections(stack: &Stack, worker: usize) -> u64 {
    let clusters = stack.envoy_admin().get("/clusters").await.expect("clusters").text();
    let address = stack.workers()[worker].http;
    let line = format!("kinference_workers::{address}::cx_total::");
    let count = clusters.lines().find_map(|text| text.strip_prefix(&line)?.parse().ok());
    count.unwrap_or_else(|| panic!("{address} is not in\n{clusters}"))
}
