use std::collections::HashMap;

use super::*;
use crate::load::{Arrival, Endpoint, Shape, Summary};
use crate::sim::{Config, Fault, Fleet};

async fn fleet() -> Fleet {
    Fleet::start(Config { workers: 1, time_scale: 0.0, ..Config::ephemeral() }).await.unwrap()
}

fn options(pace: Pace) -> Options {
    Options { model: "tiny".into(), pace, exact_answers: true, timeout: Duration::from_secs(20) }
}

async fn go(client: &Client, shape: Shape, pace: Pace) -> Run {
    let workload = Workload { shape, answer_tokens: 20, seed: 1 };
    run(client, &workload, &options(pace), Progress::silent()).await.unwrap()
}

#[tokio::test]
async fn conversations_carry_the_answers_they_got() {
    let fleet = fleet().await;
    let client = Client::of(fleet.workers()[0].http);
    assert_eq!(first_model(&client).await.unwrap(), "tiny");
    let shape = Shape::Multiturn { conversations: 4, turns: 3, opening_tokens: 200, question_tokens: 20 };
    let run = go(&client, shape, Pace::Closed { concurrency: 2 }).await;
    assert_eq!(run.records.len(), 12);
    let prompts: HashMap<_, _> =
        run.records.iter().map(|record| ((record.session, record.turn), record.usage.unwrap().prompt_tokens)).collect();
    for record in &run.records {
        assert_eq!(record.failure, None);
        assert_eq!((record.chunks, record.answer_tokens()), (20, 20));
        if record.turn > 0 {
            let before = prompts[&(record.session, record.turn - 1)];
            // Nothing but whole blocks of what was sent and answered before can be cached, and all of them are.
            assert_eq!(record.usage.unwrap().cached_tokens(), Some((before + 19) / 16 * 16));
            assert!(prompts[&(record.session, record.turn)] > before + 20 + 20);
        }
    }
    fleet.stop().await;
}

#[tokio::test]
async fn an_open_loop_keeps_its_schedule() {
    let fleet = fleet().await;
    let client = Client::of(fleet.workers()[0].http);
    let shape = Shape::SharedPrefix { groups: 4, requests_per_group: 5, prefix_tokens: 100, question_tokens: 10 };
    let run = go(&client, shape, Pace::Open { rate: 100.0, arrival: Arrival::Constant }).await;
    let mut sent: Vec<_> = run.records.iter().map(|record| record.sent).collect();
    sent.sort_unstable();
    assert_eq!(sent.len(), 20);
    assert!(*sent.last().unwrap() >= Duration::from_millis(190), "{sent:?}");
    let summary = Summary::of(&run, Duration::from_secs(1));
    assert_eq!((summary.errors, summary.answer_tokens_per_s > 0.0), (0, true));
    assert!(summary.cached_ratio.unwrap() > 0.5, "{summary:?}");
    // One word is about one token; the template and the marks that make prompts unique take the rest.
    assert!((110..150).contains(&(summary.prompt_tokens / 20)), "{summary:?}");
    fleet.stop().await;
}

#[tokio::test]
async fn failures_are_recorded_and_end_their_conversation() {
    let fleet = fleet().await;
    let client = Client::of(fleet.workers()[0].http);
    let shape = Shape::Multiturn { conversations: 2, turns: 3, opening_tokens: 20, question_tokens: 5 };
    let workload = Workload { shape, answer_tokens: 5, seed: 1 };
    let wrong = Options { model: "other".into(), ..options(Pace::Closed { concurrency: 1 }) };
    let run_with = async |options: &Options| {
        let run = run(&client, &workload, options, Progress::silent()).await.unwrap();
        Summary::of(&run, Duration::from_secs(1)).errors_by_kind.into_iter().collect::<Vec<_>>()
    };
    let skipped = ("not sent after a failed turn".to_owned(), 4);
    assert_eq!(run_with(&wrong).await, [("HTTP 404".to_owned(), 2), skipped.clone()]);

    fleet.fault(0, Fault::Hang).await.unwrap();
    let hasty = Options { timeout: Duration::from_millis(50), ..options(Pace::Closed { concurrency: 1 }) };
    assert_eq!(run_with(&hasty).await, [skipped.clone(), ("timeout".to_owned(), 2)]);

    fleet.fault(0, Fault::Die).await.unwrap();
    let errors = run_with(&hasty).await;
    assert!(errors.iter().any(|(kind, count)| kind.starts_with("no answer (") && *count == 2), "{errors:?}");
    fleet.stop().await;

    let url = Endpoint::parse("http://127.0.0.1:1").unwrap();
    assert!(first_model(&Client::new(url, Vec::new())).await.unwrap_err().to_string().contains("127.0.0.1:1"));
}
