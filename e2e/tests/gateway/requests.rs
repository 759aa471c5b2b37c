//! Requests as such: headers that lie, large bodies, many at once, and threads that agree.

use std::collections::BTreeSet;
use std::time::Duration;

use kinference_bench::load::{Client, Method, Options, Pace, Progress, Shape, Summary, Workload, run};
use kinference_bench::sim::Config;
use kinference_bench::stack::until;

use crate::common::{
    Reply, alone, ask, chat, figures, indexes_agree, instant_workers, prompt, send, stack, worker_of, workers,
};

#[test]
fn a_destination_header_from_a_client_is_ignored() {
    alone(60, async {
        let stack = stack(instant_workers(2)).await;
        let client = stack.client();
        let text = prompt(1, 1000);
        let home = worker_of(&ask(&stack, &client, &text).await.destination);
        let other = 1 - home;
        let before = figures(&stack, "requests").await;
        let body = chat(stack.model(), &text, 4).to_string();
        let lies = [
            stack.workers()[other].http.to_string(),
            "127.0.0.1:1".to_owned(),
            "[::1]:80,nonsense".to_owned(),
            String::new(),
        ];
        for lie in &lies {
            for name in ["x-gateway-destination-endpoint", "X-Gateway-Destination-Endpoint"] {
                let headers = [("content-type", "application/json"), (name, lie.as_str())];
                let answer = client.send(Method::POST, "/v1/chat/completions", &headers, body.clone()).await;
                let reply = Reply::of(&answer.expect("an answer"));
                assert_eq!(worker_of(&reply.destination), home, "{lie:?} led elsewhere");
                assert!(reply.cached > 900, "{reply:?}");
            }
        }
        let after = figures(&stack, "requests").await;
        assert_eq!(after[other], before[other], "a request went where the client's header pointed");
        assert_eq!(after[home], before[home] + 2 * lies.len() as u64);
    });
}

#[test]
fn a_body_of_eight_mebibytes_is_routed_by_its_prefix() {
    alone(90, async {
        let sim = Config { num_blocks: 300_000, max_model_len: Some(4_000_000), ..instant_workers(2) };
        let stack = stack(sim).await;
        let client = stack.client();
        // Words take 5.5 bytes on average; cut to the limit less the rest of the body.
        let mut text = prompt(1, 1_700_000);
        text.truncate((8 << 20) - 4096);
        let body = chat(stack.model(), &text, 4).to_string();
        assert!((8 << 20) - 8192 < body.len() && body.len() <= 8 << 20, "{}", body.len());
        let first = Reply::of(&client.post("/v1/chat/completions", body.clone()).await.expect("an answer"));
        assert_eq!(first.cached, 0);
        // Until the engine's events have arrived, the filter believes what it sent, and estimates how many tokens that is.
        let soon = Reply::of(&client.post("/v1/chat/completions", body.clone()).await.expect("an answer"));
        assert_eq!(soon.destination, first.destination);
        assert!(soon.cached + 16 >= soon.prompt - 1, "{soon:?}");
        // After that it knows.
        indexes_agree(&stack, 30_000).await;
        let later = Reply::of(&client.post("/v1/chat/completions", body).await.expect("an answer"));
        assert_eq!(later.destination, first.destination);
        later.assert_predicted();
    });
}

#[test]
fn a_hundred_streams_run_at_once() {
    alone(60, async {
        let stack = stack(workers(3)).await;
        let workload =
            Workload { shape: Shape::Control { requests: 100, prompt_tokens: 100 }, answer_tokens: 400, seed: 3 };
        let options = Options {
            model: stack.model().to_owned(),
            pace: Pace::Closed { concurrency: 100 },
            exact_answers: true,
            timeout: Duration::from_secs(40),
        };
        let run = run(&stack.client(), &workload, &options, Progress::silent()).await.expect("a run");
        let summary = Summary::of(&run, Duration::from_secs(5));
        assert_eq!(summary.errors, 0, "{:?}", summary.errors_by_kind);
        let last_first = run.records.iter().filter_map(|record| Some(record.sent + record.first?)).max();
        let first_end = run.records.iter().map(|record| record.sent + record.end).min();
        assert!(last_first < first_end, "they did not overlap: {last_first:?}, {first_end:?}");
        assert!(run.records.iter().all(|record| record.answer_tokens() == 400), "an answer is not whole");
        let spread = summary.destinations.values().copied().collect::<Vec<_>>();
        assert!(spread.len() == 3 && spread.iter().all(|count| (20..50).contains(count)), "{spread:?}");
    });
}

#[test]
fn the_threads_of_the_proxy_agree_on_the_snapshot() {
    alone(60, async {
        let stack = stack(instant_workers(2)).await;
        let mut epochs = BTreeSet::new();
        let mut clients = Vec::new();
        for number in 0..16 {
            // A client of its own has a connection of its own, and Envoy spreads connections over its threads.
            let client = stack.client();
            epochs.insert(ask(&stack, &client, &prompt(number, 50)).await.epoch);
            clients.push(client);
        }
        assert_eq!(epochs.len(), 1, "{epochs:?}");
        let backend = stack.status().await.expect("a status")["backends"]["default/main"]["epoch"].clone();
        assert_eq!(epochs.first().copied(), backend.as_u64());
        let threads = stack.envoy_stats("downstream_cx_active").await.expect("statistics");
        let busy = threads
            .iter()
            .filter(|(name, count)| name.contains(".worker_") && !name.contains("admin") && **count > 0)
            .count();
        assert_eq!(busy, 2, "only one thread was asked: {threads:?}");

        // What one thread sent, both find where it is.
        let text = prompt(99, 1500);
        let home = ask(&stack, &clients[0], &text).await.destination;
        indexes_agree(&stack, 20).await;
        for client in &clients {
            let reply = ask(&stack, client, &text).await;
            assert_eq!(reply.destination, home);
            reply.assert_predicted();
        }
    });
}

#[test]
fn the_client_learns_what_answered_and_a_model_list() {
    alone(60, async {
        let stack = stack(instant_workers(1)).await;
        let client: Client = stack.client();
        let answer = send(&client, &chat(stack.model(), "hello", 4)).await.expect("an answer");
        assert_eq!(answer.header("x-kinference-model"), Some(stack.model()));
        let models = until("the list of models", Duration::from_secs(5), async || {
            let answer = client.get("/v1/models").await.map_err(|error| error.to_string())?;
            if answer.status.is_success() { Ok(answer.json()) } else { Err(answer.text()) }
        });
        assert_eq!(models.await.expect("a list")["data"][0]["id"], stack.model());
    });
}
