//! The control service dies.

use std::time::Duration;

use kinference_bench::load::{Arrival, Client, Options, Pace, Progress, Shape, Summary, Workload, run};
use kinference_bench::stack::{Stack, until};

use crate::common::{alone, ask, figures, indexes_agree, prompt, stack, workers};

/// How long the filter believes a prefix it sent without the engine's word, with a margin.
const BELIEF: Duration = Duration::from_millis(3_500);

#[test]
fn the_control_service_can_be_killed_under_load() {
    alone(90, async {
        let mut stack = stack(workers(3)).await;
        let client = stack.client();
        let documents: Vec<_> = (0..6).map(|number| prompt(number, 1200)).collect();
        let mut epoch = 0;
        for document in &documents {
            epoch = ask(&stack, &client, document).await.epoch;
        }
        let asked = std::time::Instant::now();

        // 8 s of load: the service is killed after a quarter of the requests and comes back after half of them.
        let shape = Shape::SharedPrefix { groups: 10, requests_per_group: 40, prefix_tokens: 800, question_tokens: 50 };
        let workload = Workload { shape, answer_tokens: 40, seed: 1 };
        let options = Options {
            model: stack.model().to_owned(),
            pace: Pace::Open { rate: 50.0, arrival: Arrival::Poisson },
            exact_answers: true,
            timeout: Duration::from_secs(20),
        };
        let (run, ()) = tokio::join!(run(&client, &workload, &options, Progress::silent()), async {
            requests_reach(&stack, 100).await;
            stack.kill_control();
            requests_reach(&stack, 200).await;
            stack.restart_control().await.expect("the control service starts again");
        });
        let run = run.expect("a run");
        let summary = Summary::of(&run, Duration::from_secs(1));
        assert_eq!(summary.errors, 0, "{:?}", summary.errors_by_kind);
        assert_eq!(summary.requests, 400);

        // Everything that was cached before is known again, and only from the engines' replay: the beliefs are over.
        stack.settle().await.expect("a settled stack");
        // 1,200 words of a document and 800 of a group take 256 bytes a chunk.
        indexes_agree(&stack, 6 * 20 + 10 * 14).await;
        assert!(asked.elapsed() > BELIEF, "the load was too short for this test");
        let status = stack.status().await.expect("a status");
        let workers = &status["workerSets"]["default/simulated"]["workers"];
        let mut replies = Vec::new();
        for document in &documents {
            replies.push(ask(&stack, &client, document).await);
        }
        for reply in &replies {
            assert!(reply.cached > 1100 && reply.epoch != epoch, "{replies:#?}\n{workers:#}");
            reply.assert_predicted();
        }
    });
}

#[test]
fn a_gateway_without_control_service_serves_on_what_it_knows() {
    alone(60, async {
        let mut stack = stack(workers(3)).await;
        let client: Client = stack.client();
        let document = prompt(1, 1200);
        let home = ask(&stack, &client, &document).await.destination;
        indexes_agree(&stack, 20).await;
        stack.kill_control();
        for _ in 0..20 {
            let reply = ask(&stack, &client, &document).await;
            assert_eq!(reply.destination, home);
            reply.assert_predicted();
        }
    });
}

async fn requests_reach(stack: &Stack, count: u64) {
    let reached = until("requests at the workers", Duration::from_secs(30), async || {
        let seen: u64 = figures(stack, "requests").await.iter().sum();
        if seen >= count { Ok(()) } else { Err(format!("{seen} requests")) }
    });
    reached.await.expect("load");
}
