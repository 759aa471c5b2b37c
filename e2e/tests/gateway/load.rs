//! Load on one prefix.

use std::time::Duration;

use kinference_bench::load::{Options, Pace, Progress, Shape, Summary, Workload, run};
use kinference_bench::sim::Config;
use kinference_bench::stack::Balancing;

use crate::common::{alone, stack_with, workers};

/// Affinity that does not yield to load would send everything to one of four workers.
#[test]
fn one_hot_prefix_is_served_as_fast_as_by_round_robin() {
    alone(90, async {
        let shape = Shape::SharedPrefix { groups: 1, requests_per_group: 600, prefix_tokens: 2000, question_tokens: 100 };
        let workload = Workload { shape, answer_tokens: 30, seed: 1 };
        // Few sequences at once, so that four workers are needed: one alone would take four times as long.
        let sim = || Config { max_num_seqs: 8, ..workers(4) };
        let measure = async |balancing| {
            let stack = stack_with(sim(), balancing).await;
            let options = Options {
                model: stack.model().to_owned(),
                pace: Pace::Closed { concurrency: 64 },
                exact_answers: true,
                timeout: Duration::from_secs(40),
            };
            let run = run(&stack.client(), &workload, &options, Progress::silent()).await.expect("a run");
            let summary = Summary::of(&run, Duration::from_secs(1));
            assert_eq!(summary.errors, 0, "{:?}", summary.errors_by_kind);
            summary
        };
        let round_robin = measure(Balancing::RoundRobin).await;
        let ours = measure(Balancing::Kinference).await;
        eprintln!("requests/s: round robin {:.1}, kinference {:.1}", round_robin.requests_per_s, ours.requests_per_s);
        // A twentieth is what two runs of the same arm differ by.
        assert!(
            ours.requests_per_s >= 0.95 * round_robin.requests_per_s,
            "{:.1} requests/s, round robin {:.1}; {:?}",
            ours.requests_per_s,
            round_robin.requests_per_s,
            ours.destinations
        );
    });
}
