//! Providers outside: what they get, who answers when they fail, and what stays hidden.

use kinference_bench::load::Client;
use kinference_bench::sim::Fault;
use kinference_e2e::alone;
use serde_json::json;

use super::world::{BIG, SMALL, World};

/// Everything of the big model with the tag goes out.
const OUT: &str = "
  - name: out
    when: {tags: {any: [out]}}
    require: {locality: External}
    fallback: [{providers: [bedrock]}, {providers: [databricks]}]
";
/// Out when no worker of the model is healthy, and to another model at the end.
const OUT_AND_HOME: &str = "
  - name: out-and-home
    when: {tags: {any: [out]}}
    fallback: [{providers: [bedrock]}, {models: [qwen-3.6-27b]}]
";
const TAGGED: [(&str, &str); 1] = [("x-kinference-tags", "out")];

#[test]
fn a_provider_gets_a_request_of_its_own_over_tls_and_nothing_else() {
    alone(60, async {
        let world = World::with(&[OUT]).await;
        let headers = [
            TAGGED[0],
            ("authorization", "Bearer the-clients-own"),
            ("cookie", "session=1"),
            ("x-tenant", "research"),
            ("x-gateway-destination-endpoint", "127.0.0.1:1"),
            ("x-kinference-attempt", "1"),
        ];
        let body =
            json!({"model": BIG, "messages": [{"role": "user", "content": "hi"}], "seed": 9_007_199_254_740_993_u64});
        let outcome = world.send(&body, &headers).await;
        assert_eq!((outcome.place(), outcome.model.as_str()), ("bedrock", BIG));
        assert_eq!(outcome.answer.json()["choices"][0]["message"]["content"], "bedrock");
        world.bedrock.set_status(503);
        let outcome = world.send(&body, &headers).await;
        assert_eq!((outcome.place(), outcome.model.as_str()), ("databricks", BIG));

        let plain = &world.bedrock.take_seen()[0];
        assert_eq!(
            (plain.path.as_str(), plain.header("host")),
            ("/openai/v1/chat/completions", &*world.bedrock.address.to_string())
        );
        let secure = &world.databricks.take_seen()[0];
        assert_eq!(secure.path, "/v1/chat/completions");
        assert_eq!(secure.server_name.as_deref(), Some("localhost"));
        for (name, seen) in [("bedrock", plain), ("databricks", secure)] {
            let mut expected = body.clone();
            expected["model"] = json!(format!("{name}/glm"));
            assert_eq!(seen.body, expected);
            assert_eq!(seen.header("authorization"), format!("Bearer key-of-{name}"));
            let mut names: Vec<&str> = seen.headers.keys().map(|name| name.as_str()).collect();
            names.sort_unstable();
            assert_eq!(names, ["authorization", "content-length", "content-type", "host"], "{name}");
        }
    });
}

#[test]
fn when_a_provider_fails_the_next_place_answers_and_the_last_word_is_passed_on() {
    alone(90, async {
        let world = World::with(&[OUT]).await;
        for status in [401, 402, 403, 404, 408, 410, 429, 500, 501, 502, 503, 520, 524, 529] {
            // One that fails again and again is not asked any more.
            world.bedrock.set_status(200);
            assert_eq!(world.ask(BIG, &TAGGED).await.place(), "bedrock", "before {status}");
            world.bedrock.set_status(status);
            let outcome = world.ask(BIG, &TAGGED).await;
            assert_eq!(outcome.place(), "databricks", "after {status}");
        }
        // A client's own fault is nobody else's to repeat.
        world.bedrock.set_status(400);
        let outcome = world.ask(BIG, &TAGGED).await;
        assert_eq!((outcome.status, outcome.error()["message"].as_str()), (400, Some("bedrock says no")));
        assert_eq!(outcome.answer.header("x-secret-of-provider"), None);

        world.bedrock.set_status(503);
        world.databricks.set_status(429);
        let outcome = world.ask(BIG, &TAGGED).await;
        assert_eq!((outcome.status, outcome.error()["message"].as_str()), (429, Some("databricks says no")));
        assert_eq!(outcome.answer.header("retry-after"), Some("7"));
        world.databricks.set_status(401);
        let outcome = world.ask(BIG, &TAGGED).await;
        assert_eq!((outcome.status, outcome.error()["code"].as_str()), (502, Some("provider_failed")));

        world.set_rules(&[OUT_AND_HOME]).await;
        for worker in 0..2 {
            world.big.fault(worker, Fault::Die).await.expect("a death");
        }
        let home = world.until("the last tier", BIG, &TAGGED, |outcome| outcome.status == 200).await;
        assert_eq!(
            (home.place(), home.model.as_str()),
            ("small", SMALL),
            "the tier after the provider is a local model"
        );
        let stats = world.stack.control_admin().get("/metrics").await.expect("metrics").text();
        assert!(
            stats.contains(r#"kinference_provider_requests_total{provider="default/bedrock",kind="connect_failure"}"#)
        );
    });
}

#[test]
fn a_provider_that_keeps_failing_is_left_alone_until_it_is_well() {
    alone(90, async {
        let world = World::with(&[OUT]).await;
        world.bedrock.set_status(503);
        for _ in 0..60 {
            assert_eq!(world.ask(BIG, &TAGGED).await.place(), "databricks");
        }
        // Each of the proxy's threads finds out by itself, by three failures every few seconds.
        let asked = world.bedrock.take_seen().len();
        assert!((3..=30).contains(&asked), "asked {asked} times");
        world.bedrock.set_status(200);
        world.until("the provider again", BIG, &TAGGED, |outcome| outcome.place() == "bedrock").await;
    });
}

#[test]
fn keys_are_rotated_without_a_restart_and_seen_nowhere() {
    alone(60, async {
        let world = World::with(&[OUT]).await;
        assert_eq!(world.ask(BIG, &TAGGED).await.place(), "bedrock");
        assert_eq!(world.bedrock.take_seen()[0].header("authorization"), "Bearer key-of-bedrock");
        world.set_key("bedrock", "a-rotated-key");
        world
            .until("the rotated key", BIG, &TAGGED, |_| {
                world.bedrock.take_seen().iter().any(|seen| seen.header("authorization") == "Bearer a-rotated-key")
            })
            .await;
        let control: &Client = world.stack.control_admin();
        let envoy = world.stack.envoy_admin();
        let mut shown = String::new();
        for (client, path) in [
            (control, "/status"),
            (control, "/metrics"),
            (envoy, "/config_dump?include_eds"),
            (envoy, "/clusters?format=json"),
            (envoy, "/stats"),
        ] {
            shown += &client.get(path).await.expect("a page").text();
        }
        for entry in std::fs::read_dir(world.stack.folder()).expect("a folder") {
            let path = entry.expect("an entry").path();
            shown += &std::fs::read_to_string(&path).unwrap_or_default();
        }
        assert!(shown.contains("kinference_provider_default_bedrock"));
        for secret in ["a-rotated-key", "key-of-bedrock", "key-of-databricks", "Who is there?"] {
            assert!(!shown.contains(secret), "{secret} is shown");
        }
    });
}

#[test]
fn a_request_that_no_place_is_left_for_goes_to_no_other_worker() {
    alone(60, async {
        let rule = "
  - name: on-the-big-gpus
    require: {pools: [big-gpus]}
    candidates: {models: [glm-5.3, qwen-3.6-27b]}
";
        let world = World::with(&[rule]).await;
        assert_eq!(world.ask(BIG, &[]).await.place(), "big");
        for worker in 0..2 {
            world.big.fault(worker, Fault::Die).await.expect("a death");
        }
        let before = json!(world.small.stats().await);
        let started = |stats: &serde_json::Value| {
            stats
                .as_array()
                .expect("workers")
                .iter()
                .map(|worker| worker["requests"].as_u64().expect("a figure"))
                .sum::<u64>()
        };
        for _ in 0..20 {
            let outcome = world.ask(BIG, &[]).await;
            assert_eq!(outcome.status, 503, "{outcome:?}");
            assert!(outcome.error()["message"].is_string(), "{outcome:?}");
        }
        assert_eq!(
            started(&json!(world.small.stats().await)),
            started(&before),
            "a rule forbids the small model's workers"
        );
        assert_eq!(world.ask(SMALL, &[]).await.status, 503);
    });
}
