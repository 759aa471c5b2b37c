//! Keys of providers come from Secrets, and follow them.

use k8s_openapi::api::core::v1::Secret;
use kinference_api::kinds::InferenceProvider;
use kinference_bench::stack::until;
use kinference_e2e::{Provider, alone};

use crate::common::{FOLLOW, Fleet, ask_outside, must};
use crate::statuses::with_conditions;

impl Fleet {
    /// Waits until the provider gets a request with this key.
    async fn until_key(&self, provider: &Provider, key: &str) {
        let client = self.stack.client();
        let seen = until("a request with the key", FOLLOW, async || {
            let answer = ask_outside(&client, self.stack.model()).await;
            let keys =
                provider.take_seen().iter().map(|seen| seen.header("authorization").to_owned()).collect::<Vec<_>>();
            if answer.status == 200 && keys == [format!("Bearer {key}")] {
                Ok(())
            } else {
                Err(format!("HTTP {}, keys {keys:?}", answer.status))
            }
        });
        must(seen.await);
    }

    /// The control service's words on the provider.
    async fn provider_status(&self) -> serde_json::Value {
        must(self.stack.status().await)["providers"][self.namespace.key("bedrock")].clone()
    }
}

#[test]
fn a_changed_secret_changes_the_key_and_a_deleted_one_takes_the_provider_out() {
    alone(180, async {
        let provider = Provider::start("bedrock").await;
        let fleet = Fleet::start_with_provider(provider.address, "the-first-key").await;
        fleet.until_key(&provider, "the-first-key").await;
        assert_eq!(fleet.provider_status().await["ready"], true);

        must(fleet.namespace.put_secret("bedrock-key", &[("token", "the-second-key")]).await);
        fleet.until_key(&provider, "the-second-key").await;

        must(fleet.namespace.delete::<Secret>("bedrock-key").await);
        let client = fleet.stack.client();
        let refused = until("no place outside", FOLLOW, async || {
            let answer = ask_outside(&client, fleet.stack.model()).await;
            if answer.status == 503 { Ok(()) } else { Err(format!("HTTP {}", answer.status)) }
        });
        must(refused.await);
        let status = fleet.provider_status().await;
        assert_eq!(status["ready"], false, "{status}");
        let reason = status["reason"].as_str().unwrap_or_default();
        assert!(reason.contains(&fleet.namespace.key("bedrock-key")), "{status}");
        let missing =
            [("Ready", "False", "CredentialsMissing"), ("CredentialsResolved", "False", "CredentialsMissing")];
        with_conditions::<InferenceProvider>(&fleet.namespace, "bedrock", &missing).await;
        provider.take_seen();
        for _ in 0..5 {
            assert_eq!(ask_outside(&client, fleet.stack.model()).await.status, 503);
        }
        assert!(provider.take_seen().is_empty(), "a request left without a key");
        // Workers are as they were.
        assert_eq!(fleet.ask(&client, 1).await.status, 200);

        must(fleet.namespace.put_secret("bedrock-key", &[("token", "the-third-key")]).await);
        fleet.until_key(&provider, "the-third-key").await;
        let there = [("Ready", "True", "Offered"), ("CredentialsResolved", "True", "Resolved")];
        with_conditions::<InferenceProvider>(&fleet.namespace, "bedrock", &there).await;
        let shown = format!(
            "{}{}",
            must(fleet.stack.status().await),
            must(fleet.stack.control_admin().get("/metrics").await).text()
        );
        for key in ["the-first-key", "the-second-key", "the-third-key"] {
            assert!(!shown.contains(key), "{key} is shown");
        }
        fleet.end().await;
    });
}
