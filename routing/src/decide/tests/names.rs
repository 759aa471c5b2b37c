//! Names: aliases, models that only providers offer, and what tenants may use.

use super::policies::{Fleet, models, on, providers, rule, tagged};
use super::*;

fn tenant(name: &str, globs: &[&str]) -> v1::Tenant {
    v1::Tenant { name: name.into(), models: globs.iter().map(|glob| (*glob).to_owned()).collect() }
}

fn with_tenants(tenants: Vec<v1::Tenant>, rules: Vec<v1::Rule>) -> Fleet {
    Fleet { tenancy: v1::Tenancy { tenants, ..v1::Tenancy::default() }, ..Fleet::with(rules) }
}

/// The model that answers, or the status.
fn outcome(fleet: &Fleet, tenant: &str, model: &str, tags: &[&str]) -> String {
    match fleet.decide(tenant, model, tags).result {
        Ok(choice) => choice.first.model,
        Err(rejection) => rejection.status().to_string(),
    }
}

#[test]
fn an_alias_goes_to_the_models_that_it_names() {
    let alias =
        v1::Rule { when: models(&["standard"]), candidates: vec!["small".into(), "big".into()], ..rule("alias") };
    let mut fleet = Fleet::with(vec![alias]);
    fleet.unready = vec![0, 1];
    assert_eq!(fleet.place("standard", &[]), "small on small");
    fleet.unready = vec![64, 65];
    assert_eq!(fleet.place("standard", &[]), "big on big");
    assert_eq!(fleet.place("unheard-of", &[]), "404");
}

#[test]
fn models_that_only_providers_offer_are_listed_where_a_rule_leads_there() {
    let mut fleet =
        Fleet::with(vec![v1::Rule { when: models(&["hu*"]), fallback: providers(&["one"]), ..rule("out") }]);
    fleet.offers = vec!["huge".into(), "other".into()];
    let replica = fleet.replica();
    assert_eq!(replica.current().unwrap().models_of("t"), ["big", "huge", "small"]);
    assert_eq!(on(&fleet.decide("t", "huge", &[]).result.unwrap().first), "one-huge on one");
    fleet.rules.clear();
    assert_eq!(fleet.replica().current().unwrap().models_of("t"), ["big", "small"]);
}

#[test]
fn tenants_use_only_their_models_whatever_rules_offer() {
    let offer = v1::Rule {
        when: models(&["big"]),
        candidates: vec!["big".into(), "small".into()],
        fallback: providers(&["one"]),
        ..rule("offer")
    };
    let alias = v1::Rule { when: models(&["standard"]), candidates: vec!["big".into()], ..rule("alias") };
    let mut fleet = with_tenants(vec![tenant("interns", &["small"]), tenant("web", &["standard"])], vec![offer, alias]);
    let status = |fleet: &Fleet, tenant: &str, model: &str| {
        fleet.decide(tenant, model, &[]).result.map_err(|rejection| rejection.status())
    };
    assert_eq!(status(&fleet, "interns", "big").unwrap().first.model, "small");
    assert_eq!(status(&fleet, "interns", "standard").unwrap_err(), 403);
    assert_eq!(status(&fleet, "web", "standard").unwrap().first.model, "big");
    assert_eq!(status(&fleet, "web", "big").unwrap_err(), 403);
    fleet.unready = vec![64, 65];
    assert_eq!(status(&fleet, "interns", "big").unwrap_err(), 503);
    assert!(status(&fleet, "anybody", "big").is_ok());
}

#[test]
fn a_made_up_name_is_no_alias_and_opens_nothing() {
    let batch = v1::Rule { when: tagged("batch"), candidates: vec!["small".into(), "big".into()], ..rule("batch") };
    let fleet = with_tenants(vec![tenant("interns", &["small*"])], vec![batch]);
    assert_eq!(outcome(&fleet, "interns", "small", &["batch"]), "small");
    assert_eq!(outcome(&fleet, "interns", "small-zzz", &["batch"]), "404");
    assert_eq!(outcome(&fleet, "anybody", "smal", &["batch"]), "404", "a misspelt name is told, whatever rules state");
    // A glob leads from names that nobody serves, but brings no tenant to a model that it may not use.
    let globbed = v1::Rule { when: models(&["small*"]), candidates: vec!["big".into()], ..rule("globbed") };
    let fleet = with_tenants(vec![tenant("interns", &["small*"])], vec![globbed]);
    assert_eq!(outcome(&fleet, "anybody", "small-zzz", &[]), "big");
    assert_eq!(outcome(&fleet, "interns", "small-zzz", &[]), "403");
}

#[test]
fn an_alias_brings_what_its_own_rule_states_and_nothing_of_others() {
    let alias = |fallback: &[&str]| v1::Rule {
        when: models(&["standard"]),
        candidates: vec!["small".into()],
        fallback: vec![v1::Tier { models: fallback.iter().map(|m| (*m).to_owned()).collect(), providers: vec![] }],
        ..rule("alias")
    };
    let elsewhere = v1::Rule {
        fallback: vec![v1::Tier { models: vec!["big".into()], providers: vec!["one".into()] }],
        ..rule("elsewhere")
    };
    let fleet = |rules| Fleet { unready: vec![64, 65], ..with_tenants(vec![tenant("web", &["standard"])], rules) };
    assert_eq!(outcome(&fleet(vec![alias(&[]), elsewhere.clone()]), "web", "standard", &[]), "503");
    assert_eq!(outcome(&fleet(vec![alias(&[]), elsewhere]), "anybody", "standard", &[]), "big");
    assert_eq!(outcome(&fleet(vec![alias(&["big"])]), "web", "standard", &[]), "big");
}

#[test]
fn a_tenant_sees_the_aliases_of_models_that_it_may_use() {
    let alias = v1::Rule { when: models(&["standard", "st*"]), candidates: vec!["big".into()], ..rule("alias") };
    let tenants = vec![tenant("bigs", &["big"]), tenant("smalls", &["small"]), tenant("named", &["standard"])];
    let fleet = with_tenants(tenants, vec![alias]);
    let replica = fleet.replica();
    let listed = |tenant: &str| replica.current().unwrap().models_of(tenant).join(" ");
    assert_eq!(listed("bigs"), "big standard");
    assert_eq!(listed("smalls"), "small");
    assert_eq!(listed("named"), "standard");
    assert_eq!(listed("anybody"), "big small standard");
    for tenant in ["bigs", "smalls", "named"] {
        let listed = listed(tenant);
        for model in ["big", "small", "standard"] {
            let answered = outcome(&fleet, tenant, model, &[]).parse::<u16>().is_err();
            assert_eq!(listed.split(' ').any(|name| name == model), answered, "{tenant} and {model}");
        }
    }
}

#[test]
fn every_model_of_a_provider_is_a_place() {
    let both = v1::Rule {
        when: models(&["huge"]),
        candidates: vec!["huge".into(), "mini".into()],
        fallback: providers(&["one"]),
        ..rule("both")
    };
    let mut fleet = with_tenants(vec![tenant("interns", &["mini"])], vec![both]);
    fleet.offers = vec!["huge".into(), "mini".into()];
    assert_eq!(outcome(&fleet, "interns", "huge", &[]), "mini");
    assert_eq!(outcome(&fleet, "anybody", "huge", &[]), "huge");
    fleet.rules[0].candidates.reverse();
    assert_eq!(outcome(&fleet, "anybody", "huge", &[]), "mini", "among equals the first that is stated");
}
