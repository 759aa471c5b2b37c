//! Five patterns and the state of a pool, each with what it does and what it leaves alone.

use std::time::Duration;

use kinference_bench::stack::until;
use kinference_e2e::{alone, prompt};
use serde_json::json;

use super::world::{BIG, DEADLINE, SMALL, World};

const ALIAS: &str = "
  - name: one-stable-name
    when: {models: [standard-model]}
    candidates: {models: [qwen-3.6-27b]}
";
const CHEAPER: &str = "
  - name: simple-to-cheaper
    when: {models: [glm-5.3], tags: {all: [complexity-low]}}
    candidates: {models: [glm-5.3, qwen-3.6-27b]}
    minimize: PredictedTTFT
";
const BURST: &str = "
  - name: burst-to-cloud
    when: {models: [glm-5.3]}
    require: {workers: [{signal: QueuedRequests, max: '2', over: 2s, aggregate: Max}]}
    fallback: [{providers: [bedrock]}, {providers: [databricks]}]
";
const PII: &str = "
  - name: pii-stays-local
    when: {tags: {any: [pii-detected]}}
    require: {locality: Local}
    onEmpty: {action: Reject, status: 503, message: No local worker may take this prompt.}
";
const TEMPTING: &str = "
  - name: everything-may-leave
    fallback: [{providers: [databricks]}, {providers: [bedrock]}]
    onEmpty: {action: Continue}
";
const BATCH: &str = "
  - name: batch-on-idle-gpus
    when: {tags: {any: [batch]}}
    require: {workers: [{signal: KvCacheUsage, below: '0.7'}]}
    onEmpty: {action: Reject, status: 429, retryAfter: 30s}
";
const BUSY: &str = "
  - name: keep-the-demo-fast
    when: {tenants: [batch-team], pools: [{name: big-gpus, signal: KvCacheUsage, atLeast: '0.8', over: 1s, aggregate: Average}]}
    reject: {status: 429, retryAfter: 60s, message: The GPU pool is busy; batch work waits.}
";

#[test]
fn an_alias_is_another_name_of_what_is_served() {
    alone(60, async {
        let world = World::with(&[ALIAS]).await;
        let outcome = world.ask("standard-model", &[]).await;
        // The engine knows only its own name: it would answer 404 to the alias.
        assert_eq!((outcome.place(), outcome.model.as_str()), ("small", SMALL));
        assert_eq!(outcome.rule, "house/one-stable-name");
        let models = world.stack.client().get("/v1/models").await.expect("a list").json();
        let names: Vec<_> =
            models["data"].as_array().expect("models").iter().map(|model| model["id"].clone()).collect();
        assert_eq!(names, [json!(BIG), json!(SMALL), json!("standard-model")]);

        let outcome = world.ask(BIG, &[]).await;
        assert_eq!((outcome.place(), outcome.rule.as_str()), ("big", ""));
        let unknown = world.ask("standard-modell", &[]).await;
        assert_eq!((unknown.status, unknown.error()["code"].as_str()), (404, Some("model_not_found")));
    });
}

#[test]
fn simple_requests_go_to_the_cheaper_model_unless_the_big_ones_cache_is_faster() {
    alone(120, async {
        let world = World::with(&[CHEAPER]).await;
        let simple = [("x-kinference-tags", "complexity-low")];
        let body = |model: &str, number: u64, tokens: usize| {
            let message = json!([{"role": "user", "content": prompt(number, tokens)}]);
            // An answer of one token that says so: its end is its first token.
            json!({"model": model, "messages": message, "max_tokens": 1, "ignore_eos": true, "stream": true,
                   "stream_options": {"include_usage": true}})
        };
        // How fast each is, is learned from what it did: short and long ones in turn, so that a machine that is busy for a
        // moment does not look like a price of length.
        for number in 0..30 {
            let tokens = [200, 2_000, 800, 1_400][number as usize % 4];
            let untagged = world.send(&body(BIG, number, tokens), &[]).await;
            assert_eq!((untagged.place(), untagged.rule.as_str()), ("big", ""));
            assert_eq!(world.send(&body(SMALL, 100 + number, tokens), &simple).await.place(), "small");
        }
        // Every request that still goes to the big one is a lesson too.
        let mut fresh = 200..;
        let mut next = || body(BIG, fresh.next().expect("a number"), 2_000);
        let learned = until("what was learned", DEADLINE, async || {
            let outcome = world.send(&next(), &simple).await;
            if outcome.place() == "small" { Ok(()) } else { Err(format!("{outcome:?}")) }
        });
        learned.await.unwrap_or_else(|error| panic!("{error}"));
        for _ in 0..8 {
            let outcome = world.send(&next(), &simple).await;
            let predicted = outcome.answer.header("x-kinference-predicted-ttft-ms");
            assert_eq!(outcome.place(), "small", "it is four times as fast; predicted {predicted:?}");
            assert_eq!((outcome.model.as_str(), outcome.rule.as_str()), (SMALL, "house/simple-to-cheaper"));
        }
        // Of this prompt the big model's workers hold all, which beats computing it on a faster one.
        let long = body(BIG, 7, 10_000);
        let home = world.send(&long, &[]).await;
        assert_eq!(home.place(), "big");
        let cached = world.send(&long, &simple).await;
        assert_eq!(cached.destination, home.destination, "{cached:?}");
    });
}

#[test]
fn bursts_go_to_the_cloud_and_come_back() {
    alone(90, async {
        let world = World::with(&[BURST]).await;
        let idle = world.ask(BIG, &[]).await;
        assert_eq!(idle.place(), "big");
        world.assert_nothing_left();

        let occupied = world.occupy(6, 20).await;
        let out = world.until("a burst", BIG, &[], |outcome| outcome.destination == "bedrock").await;
        assert_eq!((out.status, out.model.as_str(), out.rule.as_str()), (200, BIG, "house/burst-to-cloud"));
        let seen = world.bedrock.take_seen();
        assert_eq!(seen.last().expect("a request").body["model"], "bedrock/glm");
        // The other model has no such rule, and its workers are idle.
        assert_eq!(world.ask(SMALL, &[]).await.place(), "small");

        let body = json!({
            "model": BIG, "stream": true, "messages": [{"role": "user", "content": "hi"}],
        });
        let streamed = world.send(&body, &[]).await;
        assert_eq!((streamed.status, streamed.destination.as_str()), (200, "bedrock"));
        let text = streamed.answer.text();
        assert_eq!(text.matches("\"content\":\"bedrock\"").count(), 5, "{text}");
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");

        world.bedrock.set_status(429);
        let second = world.ask(BIG, &[]).await;
        assert_eq!((second.status, second.destination.as_str()), (200, "databricks"), "{second:?}");
        let streamed = world.send(&body, &[]).await;
        assert_eq!((streamed.status, streamed.destination.as_str()), (200, "databricks"));
        assert_eq!(streamed.answer.text().matches("\"content\":\"databricks\"").count(), 5);

        drop(occupied);
        world.until("local workers again", BIG, &[], |outcome| outcome.destination.contains("/big/")).await;
    });
}

#[test]
fn personal_data_stays_local_in_every_order_of_the_rules() {
    alone(120, async {
        let rules = [PII, BURST, TEMPTING];
        let world = World::with(&rules).await;
        let pii = [("x-kinference-tags", "chat, pii-detected")];
        assert_eq!(world.ask(BIG, &pii).await.place(), "big", "an idle local worker takes it");
        let _occupied = world.occupy(6, 20).await;
        world.until("a burst", BIG, &[], |outcome| outcome.status == 200 && !outcome.destination.contains('/')).await;
        for provider in [&world.bedrock, &world.databricks] {
            provider.take_seen();
        }
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let ordered = order.map(|index| rules[index]);
            world.set_rules(&ordered).await;
            let out = world.ask(BIG, &[]).await;
            assert_eq!(out.status, 200, "{out:?}");
            assert!(["bedrock", "databricks"].contains(&out.destination.as_str()), "{out:?}");
            let left = world.bedrock.take_seen().len() + world.databricks.take_seen().len();
            assert_eq!(left, 1);

            // Of the two onEmpty the first holds: a rejection, or a place in a local worker's queue. Neither leaves.
            let place = |rule| order.iter().position(|index| *index == rule);
            let rejects = place(0) < place(2);
            match world.ask_within(Duration::from_millis(1500), BIG, &pii).await {
                Some(kept) => {
                    assert!(rejects, "{order:?}: {kept:?}");
                    assert_eq!(kept.status, 503, "{order:?}: {kept:?}");
                    assert_eq!(kept.error()["message"], "No local worker may take this prompt.");
                }
                None => assert!(!rejects, "{order:?}: the request hangs"),
            }
            world.assert_nothing_left();
        }
    });
}

#[test]
fn batch_work_runs_on_idle_gpus_only() {
    alone(90, async {
        let world = World::with(&[BATCH]).await;
        let batch = [("x-kinference-tags", "batch")];
        assert_eq!(world.ask(BIG, &batch).await.place(), "big");
        let occupied = world.occupy(2, 14_000).await;
        let waits = world.until("a full cache", BIG, &batch, |outcome| outcome.status != 200).await;
        assert_eq!((waits.status, waits.answer.header("retry-after")), (429, Some("30")));
        assert_eq!(waits.error()["code"], "rate_limit_exceeded");
        // The other model's workers are idle.
        assert_eq!(world.ask(SMALL, &batch).await.place(), "small");
        drop(occupied);
        world.until("an idle worker", BIG, &batch, |outcome| outcome.status == 200).await;
    });
}

#[test]
fn a_busy_pool_turns_the_batch_team_away_and_nobody_else() {
    alone(90, async {
        let world = World::with(&[BUSY]).await;
        let (batch, demo) = ([("x-tenant", "batch-team")], [("x-tenant", "research")]);
        assert_eq!(world.ask(SMALL, &batch).await.place(), "small");
        let occupied = world.occupy(2, 14_000).await;
        let waits = world.until("a busy pool", SMALL, &batch, |outcome| outcome.status != 200).await;
        assert_eq!((waits.status, waits.answer.header("retry-after")), (429, Some("60")));
        assert_eq!(waits.error()["message"], "The GPU pool is busy; batch work waits.");
        assert_eq!(world.ask(SMALL, &demo).await.place(), "small");
        drop(occupied);
        world.until("a pool with room", SMALL, &batch, |outcome| outcome.status == 200).await;
    });
}
