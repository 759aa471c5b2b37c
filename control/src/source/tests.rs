use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::state::{Input, Standing};
use crate::testing::{self, Folder};

const DEADLINE: Duration = Duration::from_secs(30);

fn config(workers: usize) -> String {
    testing::config(&testing::workers(workers))
}

struct Watched {
    inputs: mpsc::Receiver<Input>,
    shutdown: CancellationToken,
}

impl Watched {
    fn start(folder: &Path) -> Self {
        let (sender, inputs) = mpsc::channel(16);
        let shutdown = CancellationToken::new();
        tokio::spawn(watch::run(
            Loader::new(folder.to_owned(), Some(folder.join(".secrets"))),
            sender,
            shutdown.clone(),
        ));
        Self { inputs, shutdown }
    }

    async fn next(&mut self) -> Result<Plan, Faults> {
        match tokio::time::timeout(DEADLINE, self.inputs.recv()).await.expect("no change was noticed").unwrap() {
            Input::Config(result) => result,
            other => panic!("{other:?}"),
        }
    }

    async fn workers(&mut self) -> usize {
        let plan = self.next().await.unwrap_or_else(|problems| panic!("{problems:?}"));
        let kinference_api::compile::WorkersSpec::Static(list) = &plan.fleets[0].worker_sets[0].workers else {
            panic!()
        };
        list.len()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

#[tokio::test]
async fn edits_are_noticed_and_bad_ones_say_what_is_wrong() {
    let folder = Folder::new();
    folder.write("all.yaml", &config(1));
    let mut watched = Watched::start(&folder.0);
    let plan = watched.next().await.unwrap();
    assert!(plan.models.values().all(Result::is_ok));
    folder.write("all.yaml", &config(1).replace("kind: InferencePool", "kind: InferencePoool"));
    let problems = watched.next().await.unwrap_err().problems;
    assert!(problems.iter().any(|problem| problem.contains("all.yaml:10")), "{problems:?}");
    folder.write("all.yaml", &config(2));
    assert_eq!(watched.workers().await, 2);
    // As editors do it: a new file is renamed over the old one.
    folder.write(".all.yaml.new", &config(3));
    std::fs::rename(folder.0.join(".all.yaml.new"), folder.0.join("all.yaml")).unwrap();
    assert_eq!(watched.workers().await, 3);
    std::fs::remove_file(folder.0.join("all.yaml")).unwrap();
    let problems = watched.next().await.unwrap_err().problems;
    assert!(problems[0].contains("no files were found here"), "{problems:?}");
}

#[tokio::test]
async fn a_mounted_config_map_is_followed_through_its_links() {
    let folder = Folder::new();
    for (version, workers) in [("..v1", 1), ("..v2", 2)] {
        std::fs::create_dir(folder.0.join(version)).unwrap();
        folder.write(&format!("{version}/all.yaml"), &config(workers));
    }
    let link = |from: &str, to: &str| std::os::unix::fs::symlink(from, folder.0.join(to)).unwrap();
    link("..v1", "..data");
    link("..data/all.yaml", "all.yaml");
    let mut watched = Watched::start(&folder.0);
    assert_eq!(watched.workers().await, 1);
    link("..v2", "..data_tmp");
    std::fs::rename(folder.0.join("..data_tmp"), folder.0.join("..data")).unwrap();
    assert_eq!(watched.workers().await, 2);
}

#[tokio::test]
async fn a_folder_that_appears_later_is_found() {
    let folder = Folder::new();
    let inner = folder.0.join("later");
    let mut watched = Watched::start(&inner);
    assert!(watched.next().await.is_err());
    std::fs::create_dir(&inner).unwrap();
    folder.write("later/all.yaml", &config(1));
    // It may be seen while it is still empty.
    while watched.next().await.is_err() {}
}

#[test]
fn a_tokenizer_is_read_once_and_again_when_its_files_change() {
    let folder = Folder::new();
    folder.write("all.yaml", &config(1).replace("path: /", "path: .model/"));
    let mut loader = Loader::new(folder.0.clone(), None);
    let plan = loader.load().unwrap();
    assert!(plan.models.values().next().unwrap().as_ref().unwrap_err().contains("no such file"));
    assert!(!loader.changed());
    let target = plan.fleets[0].worker_sets[0].tokenizer.clone();
    let kinference_api::compile::TokenizerSource::Folder(target) = target else { panic!() };
    std::fs::create_dir_all(&target).unwrap();
    let model = testing::model();
    std::fs::copy(model.join("tokenizer.json"), target.join("tokenizer.json")).unwrap();
    assert!(loader.changed());
    let first = loader.load().unwrap().models.into_values().next().unwrap().unwrap();
    let again = loader.load().unwrap().models.into_values().next().unwrap().unwrap();
    assert!(std::sync::Arc::ptr_eq(&first, &again));
    assert!(!loader.changed());
}

fn policy(name: &str, rule: &str) -> String {
    format!(
        "---
apiVersion: kinference.dev/v1alpha1
kind: InferencePolicy
metadata: {{name: {name}}}
spec:
  rules:
  - {{name: only, {rule}}}
"
    )
}

#[test]
fn every_policy_is_told_its_own_problems() {
    let folder = Folder::new();
    folder.write("all.yaml", &config(1));
    let local = "require: {locality: Local}";
    folder.write("house.yaml", &(policy("one", local) + &policy("two", local)));
    folder.write("other.yaml", &policy("other", local));
    let mut loader = Loader::new(folder.0.clone(), None);
    let plan = loader.load().unwrap();
    let key = |name: &str| kinference_api::ObjectKey::new("default", name);
    assert_eq!(plan.policies.keys().cloned().collect::<Vec<_>>(), [key("one"), key("other"), key("two")]);
    for plan in plan.policies.values() {
        assert_eq!(plan.backends, [key("main")]);
    }
    // The same mistake in two policies of one file, and a policy that cannot be read at all.
    let missing = "fallback: [{providers: [nowhere]}]";
    folder.write("house.yaml", &(policy("one", missing) + &policy("two", missing)));
    folder.write("other.yaml", &policy("other", "require: [not, a, map]"));
    let faults = loader.load().unwrap_err();
    let of = |name: &str| faults.outcomes[&(Kind::InferencePolicy, key(name))].problems.join("|");
    assert!(of("one").contains("house.yaml:7:") && of("one").contains("nowhere"), "{}", of("one"));
    assert!(of("two").contains("house.yaml:14:") && !of("two").contains(":7:"), "{}", of("two"));
    assert!(of("other").contains("other.yaml:7"), "{}", of("other"));
    assert_eq!(faults.problems.len(), 3, "{faults:?}");
    // A write that failed, as on a full disk: the policies that were in the file are not gone, they are wrong.
    folder.write("house.yaml", "");
    let faults = loader.load().unwrap_err();
    let of = |name: &str| faults.outcomes[&(Kind::InferencePolicy, key(name))].problems.join("|");
    assert!(of("one").contains("house.yaml:1: the file holds no resource"), "{faults:?}");
    assert!(of("two").contains("house.yaml:1: the file holds no resource"), "{faults:?}");
    // Mended, but in a way that most likely is not meant.
    folder.write("house.yaml", &policy("one", "when: {models: [no-such-model]}, require: {locality: Local}"));
    folder.write("other.yaml", &policy("other", local));
    let plan = loader.load().unwrap();
    assert_eq!(plan.policies.len(), 2);
    assert!(plan.policies[&key("other")].warnings.is_empty(), "{plan:?}");
    assert_eq!(plan.warnings, plan.policies[&key("one")].warnings);
    assert!(plan.warnings.iter().any(|warning| warning.contains("house.yaml:7")), "{:?}", plan.warnings);
}

/// With a provider that needs a Secret.
fn with_provider() -> String {
    let provider = "---
apiVersion: kinference.dev/v1alpha1
kind: InferenceProvider
metadata: {name: cloud}
spec:
  api: OpenAI
  endpoint: https://cloud.example
  credentials: {secretRef: {name: cloud-key}}
  models: [{name: m}]
";
    let listing =
        config(1).replace("spec: {pools: [{name: gpu}]}", "spec: {pools: [{name: gpu}], providers: [{name: cloud}]}");
    assert_ne!(listing, config(1));
    listing + provider
}

fn cloud(plan: &Plan) -> Result<crate::credential::Credential, String> {
    plan.credentials[&"default/cloud".parse().unwrap()].clone()
}

#[test]
fn secrets_and_tokenizers_are_followed_while_a_file_is_wrong() {
    let folder = Folder::new();
    folder.write("all.yaml", &with_provider().replace("path: /", "path: .model/"));
    std::fs::create_dir_all(folder.0.join(".secrets/cloud-key")).unwrap();
    folder.write(".secrets/cloud-key/token", "sk-1");
    let mut loader = Loader::new(folder.0.clone(), Some(folder.0.join(".secrets")));
    let plan = loader.load().unwrap();
    assert_eq!(cloud(&plan).unwrap().token.expose(), "sk-1");
    folder.write("wrong.yaml", &policy("wrong", "fallback: [{providers: [nowhere]}]"));
    let faults = loader.load().unwrap_err();
    assert!(!loader.changed());
    // The key is changed, and the tokenizer appears.
    folder.write(".secrets/cloud-key/token", "sk-2");
    let kinference_api::compile::TokenizerSource::Folder(target) = &plan.fleets[0].worker_sets[0].tokenizer else {
        panic!()
    };
    std::fs::create_dir_all(target).unwrap();
    let model = testing::model();
    std::fs::copy(model.join("tokenizer.json"), target.join("tokenizer.json")).unwrap();
    assert!(loader.changed());
    let plan = loader.load().unwrap();
    assert_eq!(cloud(&plan).unwrap().token.expose(), "sk-2");
    assert!(plan.models.values().all(Result::is_ok));
    assert_eq!(plan.faults.problems, faults.problems, "it is still wrong");
    let standing = |kind, name: &str| {
        let id = (kind, kinference_api::ObjectKey::new("default", name));
        plan.faults.outcomes[&id].standing
    };
    assert_eq!(standing(Kind::InferencePolicy, "wrong"), Standing::NotInForce);
    assert_eq!(standing(Kind::GatewayBackend, "main"), Standing::InForce);
    assert!(!loader.changed(), "it is read once");
    // Mended.
    std::fs::remove_file(folder.0.join("wrong.yaml")).unwrap();
    let plan = loader.load().unwrap();
    assert!(plan.faults.problems.is_empty() && cloud(&plan).unwrap().token.expose() == "sk-2");
}

#[tokio::test]
async fn secrets_are_read_where_they_are_mounted_and_followed() {
    let folder = Folder::new();
    folder.write("all.yaml", &with_provider());
    let mut watched = Watched::start(&folder.0);
    let of = cloud;
    let missing = of(&watched.next().await.unwrap()).unwrap_err();
    assert!(missing.contains("Secret default/cloud-key: there is no folder"), "{missing}");
    for (place, token) in [("cloud-key", "sk-1"), ("cloud-key", "sk-2"), ("default/cloud-key", "sk-3")] {
        let place = format!(".secrets/{place}");
        std::fs::create_dir_all(folder.0.join(&place)).unwrap();
        folder.write(&format!("{place}/token"), token);
        // A folder and its file are two changes.
        let found = loop {
            if let Ok(found) = of(&watched.next().await.unwrap()) {
                break found;
            }
        };
        assert_eq!(found.token.expose(), token);
    }
    let mut loader = Loader::new(folder.0.clone(), None);
    let unknown = of(&loader.load().unwrap()).unwrap_err();
    assert!(unknown.contains("--secrets"), "{unknown}");
}
