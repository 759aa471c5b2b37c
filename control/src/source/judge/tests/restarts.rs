//! What a process that starts knows of last good policies.

use kinference_api::kinds::InferencePolicySpec;
use kinference_api::source::read_spec;
use kinference_api::{Origin, Resource};
use serde_json::json;

use super::*;

/// What the next process has of it is what the statuses say, as JSON.
fn told(faults: &Faults) -> BTreeMap<ObjectKey, Resource<InferencePolicySpec>> {
    let told = faults.outcomes.iter().filter_map(|((_, key), outcome)| {
        let spec = serde_json::to_value(outcome.last_good.as_deref()?).unwrap();
        let spec = read_spec(&json!({"spec": spec})).unwrap();
        Some((key.clone(), Resource { key: key.clone(), labels: BTreeMap::new(), spec, origin: Origin::Cluster }))
    });
    told.collect()
}

#[test]
fn last_good_policies_survive_a_restart() {
    let base = [set("qwen", "8000"), backend("main", "qwen")].concat();
    let mut keeper = Keeper::default();
    let good = [policy("house", "", &[LOCAL]), policy("batch", "", &[BATCH])].concat();
    keeper.judge(read(&[base.clone(), good.clone()], 1)).unwrap();
    let edited = |house: &str| read(&[base.clone(), policy("house", "", &[house]), policy("batch", "", &[LOCAL])], 2);
    let before_restart = keeper.judge(edited(WRONG)).unwrap();
    let before = rules(&before_restart, "main");
    assert_eq!(before, ["batch/batch", "house/local"]);
    let told = || told(&before_restart.faults);
    assert_eq!(told().keys().collect::<Vec<_>>(), [&key("batch"), &key("house")]);
    let mut next = Keeper::recalling(told());
    let plan = next.judge(edited(WRONG)).unwrap();
    assert_eq!(rules(&plan, "main"), before);
    let house = outcome(&plan, Kind::InferencePolicy, "house");
    assert_eq!(house.standing, Standing::LastGood);
    assert!(house.last_good.is_some(), "the next process but one has it too");
    // Also where the wrong one cannot be read at all, and whatever else is wrong for the first time.
    let unread = read(&[base.clone(), policy("batch", "", &[LOCAL]), policy("new", "", &[WRONG])], 3);
    let unread = with_unreadable(unread, Kind::InferencePolicy, "house");
    assert_eq!(rules(&Keeper::recalling(told()).judge(unread).unwrap(), "main"), before);
    // Mended meanwhile: what stands there counts. And then it is forgotten.
    let mut next = Keeper::recalling(told());
    let plan = next.judge(edited(BATCH)).unwrap();
    assert_eq!(rules(&plan, "main"), ["batch/local", "house/batch"]);
    assert_eq!(outcome(&plan, Kind::InferencePolicy, "house").last_good, None);
    assert_eq!(rules(&next.judge(edited(WRONG)).unwrap(), "main"), ["batch/local", "house/batch"]);
    // Deleted meanwhile, and a backend that the process did not know at first.
    let mut next = Keeper::recalling(told());
    assert!(next.judge(read(&[set("qwen", "8000")], 4)).is_err());
    let plan = next.judge(read(&[base.clone(), policy("batch", "", &[WRONG])], 4)).unwrap();
    assert_eq!(rules(&plan, "main"), ["batch/batch"]);
}

/// Policies "house" (wrong) and "batch" (edited, so held), with what the process before told of both.
fn held() -> (String, Faults) {
    let base = [set("qwen", "8000"), backend("main", "qwen")].concat();
    let mut keeper = Keeper::default();
    let good = [policy("house", FOR_MAIN, &[LOCAL]), policy("batch", "", &[BATCH])];
    keeper.judge(read(&[vec![base.clone()], good.to_vec()].concat(), 1)).unwrap();
    let edited = [policy("house", FOR_MAIN, &[WRONG]), policy("batch", "", &[LOCAL])].concat();
    let plan = keeper.judge(read(&[base, edited.clone()], 2)).unwrap();
    assert_eq!(rules(&plan, "main"), ["batch/batch", "house/local"]);
    (edited, plan.faults)
}

const FOR_MAIN: &str = "gatewayBackends: [{name: main}],";

#[test]
fn what_was_told_waits_for_a_gateway_backend_that_is_out_of_force() {
    let (policies, before) = held();
    let both = [policies.clone(), backend("other", "qwen"), set("qwen", "8000")].concat();
    let mut keeper = Keeper::recalling(told(&before));
    // "main" cannot be read while "other" is fine; then it cannot be read in another process.
    let unread = with_unreadable(read(std::slice::from_ref(&both), 3), Kind::GatewayBackend, "main");
    let plan = keeper.judge(unread.clone()).unwrap();
    assert_eq!(rules(&plan, "other"), ["batch/local"]);
    assert_eq!(outcome(&plan, Kind::InferencePolicy, "house").standing, Standing::NotInForce);
    assert_eq!(told(&plan.faults), told(&before), "no status loses it");
    let mut keeper = Keeper::recalling(told(&plan.faults));
    keeper.judge(unread).unwrap();
    // Mended: its rules are what they were.
    let plan = keeper.judge(read(&[both.clone(), backend("main", "qwen")], 4)).unwrap();
    assert_eq!(rules(&plan, "main"), ["batch/batch", "house/local"]);
    assert_eq!(rules(&plan, "other"), ["batch/local"]);
    // And when the policy is mended, nothing is remembered any more.
    let mended = both.replace(WRONG, LOCAL);
    let plan = keeper.judge(read(&[mended, backend("main", "qwen")], 5)).unwrap();
    assert_eq!(rules(&plan, "main"), ["batch/local", "house/local"]);
    assert!(told(&plan.faults).is_empty());
}

#[test]
fn what_was_told_is_kept_while_there_is_no_gateway_backend_to_use_it() {
    let (policies, before) = held();
    let base = [policies, set("qwen", "8000")].concat();
    let mut keeper = Keeper::recalling(told(&before));
    let unread = with_unreadable(read(std::slice::from_ref(&base), 3), Kind::GatewayBackend, "main");
    assert_eq!(told(&keeper.judge(unread).unwrap_err()), told(&before));
    let plan = keeper.judge(read(&[base, backend("main", "qwen")], 4)).unwrap();
    assert_eq!(rules(&plan, "main"), ["batch/batch", "house/local"]);
}

#[test]
fn last_good_policies_survive_a_restart_without_the_provider_that_they_fall_back_to() {
    let base = [set("qwen", "8000"), with_cloud(&backend("main", "qwen"))].concat();
    let mut keeper = Keeper::default();
    let good = policy("house", "", &[CLOUD, LOCAL]);
    keeper.judge(read(&[base.clone(), provider("https://cloud.example"), good], 1)).unwrap();
    let wrong = read(&[base, policy("house", "", &[WRONG])], 2);
    let before = keeper.judge(wrong.clone()).unwrap();
    let plan = Keeper::recalling(told(&before.faults)).judge(wrong).unwrap();
    assert_eq!(rules(&plan, "main"), ["house/cloud", "house/local"]);
    assert_eq!(outcome(&plan, Kind::InferencePolicy, "house").standing, Standing::LastGood);
}
