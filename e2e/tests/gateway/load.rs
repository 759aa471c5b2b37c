//! Load on one prefix.

use std::time::Duration;

use kinference_bench::load::{Options, Pace, Progress, Shape, Summary, Workload, run};
use kinference_bench::sim::Config;
use kinference_bench::stack::Balancing;

use crate::common::{alone, stack_with, workers};

/// Affinity that does not yield to load would send everything to one of four workers.
#[test]
fn one_hot_prefix_is_served_as_fast_as_by_round_robin() {
    alone(150, async {
        let shape =
            Shape::SharedPrefix { groups: 1, requests_per_group: 600, prefix_tokens: 2000, question_tokens: 100 };
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
            eprintln!("{balancing:?}: {:.1} requests/s, {:?}", summary.requests_per_s, summary.destinations);
            summary.requests_per_s
        };
        // In turn, and the better run of each counts: other processes on the machine slow one or the other. A twentieth is
        // what two runs of the same arm differ by.
        let (mut round_robin, mut ours) = (0.0f64, 0.0f64);
        for round in 0..5 {
            round_robin = round_robin.max(measure(Balancing::RoundRobin).await);
            ours = ours.max(measure(Balancing::Kinference).await);
            if round > 0 && ours >= 0.95 * round_robin {
                break;
            }
        }
        eprintln!("requests/s: round robin {round_robin:.1}, kinference {ours:.1}");
        assert!(ours >= 0.95 * round_robin, "{ours:.1} requests/s, round robin {round_robin:.1}");
    });
}
