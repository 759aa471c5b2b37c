//! Providers: which filters may use, and with what.

use super::*;
use crate::credential::{Credential, Secret};
use crate::push::{Confidentiality, Guard};

const CLOUD: &str = "default/cloud";

fn provider(name: &str, api: &str, credentials: &str) -> String {
    format!(
        "---
apiVersion: kinference.dev/v1alpha1
kind: InferenceProvider
metadata: {{name: {name}}}
spec: {{api: {api}, endpoint: 'https://{name}.example', models: [{{name: m}}]{credentials}}}
"
    )
}

fn with_provider(api: &str, credentials: &str) -> Plan {
    let backend = backend("main", "qwen", ", providers: [{name: cloud}]");
    plan(&(set("qwen", "a", "") + &backend + &provider("cloud", api, credentials)))
}

fn credential(token: &str) -> Result<Credential, String> {
    Ok(Credential { token: Secret::new(token.into()) })
}

/// What a filter is told of the provider, and what its status says.
fn told(world: &World) -> (bool, String, Option<String>) {
    let wire = &world.snapshot().config.rules.providers[0];
    let status = &world.fleet.status(world.now).providers[CLOUD];
    assert_eq!(status.ready, wire.ready);
    (wire.ready, wire.authorization.clone(), status.reason.clone())
}

const SECRET: &str = ", credentials: {secretRef: {name: cloud-key}}";

#[test]
fn a_provider_without_credentials_is_ready() {
    let mut world = World::new();
    world.input(Input::Config(Ok(with_provider("OpenAI", ""))));
    world.tick();
    assert_eq!(told(&world), (true, String::new(), None));
    let listener = "kinference_provider_default_cloud".to_owned();
    assert_eq!(world.fleet.endpoints().unwrap()[BACKEND].providers, [listener].into());
}

#[test]
fn filters_are_told_credentials_as_they_change_and_nobody_else_is() {
    let mut world = World::new();
    world.input(Input::Config(Ok(with_provider("OpenAI", SECRET))));
    world.tick();
    let (ready, _, reason) = told(&world);
    assert!(!ready);
    assert!(reason.unwrap().contains("Secret default/cloud-key"));
    for token in ["sk-old", "sk-new"] {
        let mut plan = with_provider("OpenAI", SECRET);
        plan.credentials.insert(key(CLOUD), credential(token));
        world.input(Input::Config(Ok(plan)));
        world.tick();
        assert_eq!(told(&world), (true, format!("Bearer {token}"), None));
    }
    let status = serde_json::to_string(&world.fleet.status(world.now)).unwrap();
    assert!(!status.contains("sk-new") && !world.fleet.metrics.text().contains("sk-new"));
    assert!(!format!("{:?}", world.fleet).contains("sk-new"), "credentials must not be printed");
    assert!(world.fleet.metrics.text().contains(r#"kinference_provider_ready{provider="default/cloud"} 1"#));

    let mut plan = with_provider("OpenAI", SECRET);
    plan.credentials.insert(key(CLOUD), Err("Secret default/cloud-key has no key `token`".into()));
    world.input(Input::Config(Ok(plan)));
    world.tick();
    let (ready, authorization, reason) = told(&world);
    assert_eq!((ready, authorization.as_str()), (false, ""));
    assert_eq!(reason.as_deref(), Some("Secret default/cloud-key has no key `token`"));
}

#[test]
fn credentials_do_not_travel_where_anybody_can_read_them() {
    let outside = [10, 0, 0, 1].into();
    for (guard, sent) in [(Guard::PlainText, false), (Guard::ServerTls, false), (Guard::MutualTls, true)] {
        let mut world = World::new();
        world.fleet.confidentiality = Confidentiality::of(outside, guard);
        let mut plan = with_provider("OpenAI", SECRET);
        plan.credentials.insert(key(CLOUD), credential("sk-1"));
        world.input(Input::Config(Ok(plan)));
        world.tick();
        let (ready, authorization, reason) = told(&world);
        assert_eq!((ready, authorization.is_empty(), reason.is_none()), (sent, !sent, sent), "{guard:?}");
        // What needs no credentials is not touched by that.
        world.input(Input::Config(Ok(with_provider("OpenAI", ""))));
        world.tick();
        assert!(told(&world).0);
    }
}

#[test]
fn an_api_that_is_not_spoken_is_not_used() {
    let mut world = World::new();
    world.input(Input::Config(Ok(with_provider("Anthropic", ""))));
    world.tick();
    assert!(told(&world).2.unwrap().contains("not spoken"));
}

#[test]
fn what_providers_did_is_counted_for_those_of_the_configuration_only() {
    let mut world = World::new();
    world.input(Input::Config(Ok(with_provider("OpenAI", ""))));
    world.tick();
    world.connect(1);
    let finished = |provider: &str, status| v1::Report {
        provider: provider.into(),
        event: Some(v1::report::Event::Finished(v1::Finished {
            status,
            prompt_tokens: Some(100),
            completion_tokens: Some(7),
            ..Default::default()
        })),
        ..Default::default()
    };
    let reports = vec![finished("cloud", 200), finished("cloud", 429), finished("made-up", 200)];
    world.input(Input::Reports { stream: 1, reports: v1::Reports { reports, dropped: 0 } });
    let text = world.fleet.metrics.text();
    for line in [
        r#"kinference_provider_requests_total{provider="default/cloud",kind="2xx"} 1"#,
        r#"kinference_provider_requests_total{provider="default/cloud",kind="4xx"} 1"#,
        r#"kinference_provider_tokens_total{provider="default/cloud",kind="completion"} 14"#,
    ] {
        assert!(text.contains(line), "{line} is missing:\n{text}");
    }
    assert!(!text.contains("made-up"));
}
