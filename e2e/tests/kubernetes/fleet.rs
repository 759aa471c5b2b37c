//! Filters in a real Envoy follow what changes in the cluster.

use std::collections::BTreeSet;

use kinference_api::kinds::InferencePolicy;
use kinference_bench::load::Client;
use kinference_bench::stack::{TOKENIZER, until};
use kinference_e2e::alone;

use crate::common::{FOLLOW, Fleet, answered_with, must, turned_away};

/// The Pods that answer many different prompts.
async fn answering(fleet: &Fleet, client: &Client, round: u64) -> BTreeSet<String> {
    let mut pods = BTreeSet::new();
    for number in 0..24 {
        let answer = fleet.ask(client, round * 1000 + number).await;
        assert!(answer.status.is_success(), "HTTP {}: {}", answer.status, answer.text());
        let destination = answer.header("x-kinference-destination").unwrap_or_default();
        pods.insert(destination.rsplit('/').next().unwrap_or_default().to_owned());
    }
    pods
}

/// Waits until exactly these workers answer.
async fn answered_by(fleet: &Fleet, client: &Client, round: &mut u64, expected: &[usize]) {
    let expected: BTreeSet<_> = expected.iter().map(|worker| fleet.workers[*worker].name.clone()).collect();
    let what = format!("answers of {expected:?}");
    let found = until(&what, FOLLOW, async || {
        *round += 1;
        let pods = answering(fleet, client, *round).await;
        if pods == expected { Ok(()) } else { Err(format!("answers of {pods:?}")) }
    });
    must(found.await);
}

#[test]
fn pods_that_come_turn_unready_and_go_are_followed() {
    alone(180, async {
        let fleet = Fleet::start(3, 2).await;
        let (client, mut round) = (fleet.stack.client(), 0);
        answered_by(&fleet, &client, &mut round, &[0, 1]).await;

        must(fleet.namespace.add(&fleet.workers[2], false).await);
        answered_by(&fleet, &client, &mut round, &[0, 1]).await;
        must(fleet.namespace.set_ready(&fleet.workers[2], true).await);
        answered_by(&fleet, &client, &mut round, &[0, 1, 2]).await;

        must(fleet.namespace.set_ready(&fleet.workers[0], false).await);
        answered_by(&fleet, &client, &mut round, &[1, 2]).await;

        fleet.delete(1).await;
        answered_by(&fleet, &client, &mut round, &[2]).await;

        must(fleet.namespace.set_ready(&fleet.workers[0], true).await);
        answered_by(&fleet, &client, &mut round, &[0, 2]).await;

        // Nobody is left: an answer that says so, not a failure of the proxy.
        fleet.delete(0).await;
        fleet.delete(2).await;
        let refused = until("a refusal", FOLLOW, async || {
            round += 1;
            let answer = fleet.ask(&client, round * 1000).await;
            if answer.status == 503 { Ok(answer) } else { Err(format!("HTTP {}", answer.status)) }
        });
        let refused = must(refused.await);
        assert!(refused.json()["error"]["message"].is_string(), "{}", refused.text());
        fleet.end().await;
    });
}

#[test]
fn policies_that_come_change_and_go_are_followed() {
    alone(120, async {
        let fleet = Fleet::start(1, 1).await;
        let client = fleet.stack.client();
        answered_with(&fleet, &client, 1, 200).await;
        must(fleet.namespace.apply(&turned_away(fleet.stack.model(), 429)).await);
        answered_with(&fleet, &client, 1, 429).await;
        must(fleet.namespace.apply(&turned_away(fleet.stack.model(), 403)).await);
        answered_with(&fleet, &client, 1, 403).await;
        must(fleet.namespace.apply(&turned_away("another-model", 403)).await);
        answered_with(&fleet, &client, 1, 200).await;
        must(fleet.namespace.apply(&turned_away(fleet.stack.model(), 429)).await);
        answered_with(&fleet, &client, 1, 429).await;
        must(fleet.namespace.delete::<InferencePolicy>("closed").await);
        answered_with(&fleet, &client, 1, 200).await;
        fleet.end().await;
    });
}

#[test]
fn a_tokenizer_in_a_config_map_is_followed() {
    alone(120, async {
        let fleet = Fleet::start(1, 1).await;
        let client = fleet.stack.client();
        assert_eq!(fleet.set_status().await["prefixMode"], "events");

        // The engine does not begin prompts so: its text is not known any more, and prefixes are learned from requests.
        let [(tokenizer, text), (config, settings)] = TOKENIZER;
        let mut other: serde_json::Value = must(serde_json::from_str(settings));
        let template = other["chat_template"].as_str().unwrap_or_default();
        assert!(!template.is_empty(), "the template is elsewhere: {settings}");
        other["chat_template"] = format!("Welcome. {template}").into();
        must(fleet.namespace.put_config_map("tokenizer", &[(tokenizer, text), (config, &other.to_string())]).await);
        let mode = async |expected: &str| {
            let what = format!("prefix mode {expected}");
            let seen = until(&what, FOLLOW, async || {
                let status = fleet.set_status().await;
                if status["prefixMode"] == expected { Ok(status) } else { Err(status.to_string()) }
            });
            must(seen.await)
        };
        let status = mode("routed").await;
        assert_eq!(status["promptFidelity"], false, "{status}");
        assert!(fleet.ask(&client, 1).await.status.is_success());

        must(fleet.namespace.put_config_map("tokenizer", &TOKENIZER).await);
        let status = mode("events").await;
        assert_eq!(status["promptFidelity"], true, "{status}");
        assert!(fleet.ask(&client, 2).await.status.is_success());
        fleet.end().await;
    });
}
