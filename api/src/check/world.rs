//! Policies against what their gateway backends have.

use std::collections::{BTreeMap, BTreeSet};

use kinference_routing::policy::glob;

use super::Reporter;
use crate::compile::policies_of;
use crate::kinds::{
    FallbackTier, GatewayBackendSpec, InferencePolicySpec, InferenceWorkerSetSpec, Locality, Requirements, Rule, When,
};
use crate::source::suggest;
use crate::{FieldPath, ObjectKey, Resource, Resources};

/// The tenant of requests without one, where that is allowed.
const ANONYMOUS: &str = "anonymous";

/// A rule of a gateway backend.
pub(super) struct Placed<'r> {
    pub(super) policy: &'r ObjectKey,
    /// Its place within the policy.
    pub(super) index: usize,
    pub(super) rule: &'r Rule,
}

impl Placed<'_> {
    pub(super) fn name(&self) -> String {
        format!("{}/{}", self.policy.name, self.rule.name)
    }
}

/// What a gateway backend has.
pub(super) struct World<'r> {
    pub(super) backend: &'r Resource<GatewayBackendSpec>,
    /// Its rules, in their order.
    pub(super) rules: Vec<Placed<'r>>,
    /// Its worker sets, by name.
    pub(super) sets: BTreeMap<&'r str, &'r Resource<InferenceWorkerSetSpec>>,
    /// Names of the worker sets of its pools.
    pools: BTreeMap<&'r str, BTreeSet<&'r str>>,
    /// Models that its providers offer.
    pub(super) providers: BTreeMap<&'r str, BTreeSet<&'r str>>,
    policies: BTreeSet<&'r ObjectKey>,
}

impl<'r> World<'r> {
    pub(super) fn new(resources: &'r Resources, backend: &'r Resource<GatewayBackendSpec>) -> Self {
        let policies = policies_of(resources, &backend.key);
        let rules = policies.iter().flat_map(|policy| {
            let rules = policy.spec.rules.iter().enumerate();
            rules.map(|(index, rule)| Placed { policy: &policy.key, index, rule })
        });
        let mut world = World {
            backend,
            rules: rules.collect(),
            sets: BTreeMap::new(),
            pools: BTreeMap::new(),
            providers: BTreeMap::new(),
            policies: policies.iter().map(|policy| &policy.key).collect(),
        };
        for reference in &backend.spec.pools {
            let members = resources.worker_sets_of_pool(&backend.key.sibling(&reference.name));
            world.pools.insert(&reference.name, members.iter().map(|set| set.key.name.as_str()).collect());
            world.sets.extend(members.into_iter().map(|set| (set.key.name.as_str(), set)));
        }
        for reference in &backend.spec.providers {
            let provider = resources.providers.get(&backend.key.sibling(&reference.name));
            let models = provider.into_iter().flat_map(|provider| &provider.spec.models);
            world.providers.insert(&reference.name, models.map(|model| model.name.as_str()).collect());
        }
        world
    }

    pub(super) fn has_policy(&self, policy: &Resource<InferencePolicySpec>) -> bool {
        self.policies.contains(&policy.key)
    }

    /// The worker sets that serve a model.
    fn serving(&self, model: &str) -> impl Iterator<Item = &'r str> {
        let sets = self.sets.iter().filter(move |(_, set)| set.spec.model.name == model);
        sets.map(|(name, _)| *name)
    }

    fn models(&self) -> impl Iterator<Item = &'r str> {
        self.sets.values().map(|set| set.spec.model.name.as_str())
    }

    /// Names, in conditions of rules that state candidates, which stand for other models.
    fn aliases(&self) -> impl Iterator<Item = &'r str> {
        let stating = self.rules.iter().filter(|placed| placed.rule.candidates.is_some());
        let named = stating.filter_map(|placed| placed.rule.when.as_ref()?.models.as_ref()).flatten();
        named.map(String::as_str).filter(|name| !name.contains('*'))
    }

    /// All that a request may ask for.
    fn names(&self) -> impl Iterator<Item = &'r str> {
        self.models().chain(self.aliases()).chain(self.providers.values().flatten().copied())
    }

    /// Some request can have the tag.
    fn gives_tag(&self, tag: &str) -> bool {
        let tags = self.backend.spec.tags.as_ref();
        tags.is_some_and(|tags| tags.header.is_some() || tags.classifiers.iter().any(|c| c.tag == tag))
    }

    fn identifies(&self) -> bool {
        self.backend.spec.tenancy.as_ref().is_some_and(|tenancy| !tenancy.identify.is_empty())
    }
}

pub(super) fn check_backend(world: &World<'_>, to: &mut Reporter<'_>) {
    let tenants = world.backend.spec.tenancy.iter().flat_map(|tenancy| &tenancy.tenants);
    for (index, tenant) in tenants.enumerate() {
        let place = FieldPath::spec("tenancy").key("tenants").index(index).key("models");
        for (index, pattern) in tenant.models.iter().enumerate() {
            if world.names().next().is_some() && !world.names().any(|name| glob::matches(pattern, name)) {
                let message = format!("no model and no alias matches `{pattern}`");
                to.warn(&place.index(index), message, remedy(pattern, world.names()));
            }
        }
    }
}

/// A policy, and the backends that it is for; there is one at least.
struct Checker<'c, 'r, 't> {
    resources: &'r Resources,
    worlds: &'c [&'c World<'r>],
    to: &'c mut Reporter<'t>,
}

pub(super) fn check_policy<'r>(
    policy: &Resource<InferencePolicySpec>,
    resources: &'r Resources,
    worlds: &[&World<'r>],
    to: &mut Reporter<'_>,
) {
    for (index, rule) in policy.spec.rules.iter().enumerate() {
        let place = FieldPath::spec("rules").index(index);
        let mut checker = Checker { resources, worlds, to };
        if let Some(when) = &rule.when {
            checker.when(rule, when, &place.key("when"));
        }
        checker.candidates(rule, &place.key("candidates").key("models"));
        if let Some(require) = &rule.require {
            checker.require(rule, require, &place.key("require"));
        }
        for (number, tier) in rule.fallback.iter().enumerate() {
            let place = place.key("fallback").index(number);
            checker.tier(rule, tier, &place);
        }
    }
}

impl<'r> Checker<'_, 'r, '_> {
    fn any(&self, holds: impl Fn(&World<'r>) -> bool) -> bool {
        self.worlds.iter().any(|world| holds(world))
    }

    fn served(&self, model: &str) -> bool {
        self.any(|world| world.serving(model).next().is_some())
    }

    fn pool(&mut self, path: &FieldPath, name: &str) {
        if self.resources.pools.contains_key(&self.to.key.sibling(name)) {
            self.belongs(path, name, "pools", |world| world.pools.contains_key(name));
        }
    }

    fn provider(&mut self, path: &FieldPath, name: &str) {
        if self.resources.providers.contains_key(&self.to.key.sibling(name)) {
            self.belongs(path, name, "providers", |world| world.providers.contains_key(name));
        }
    }

    /// Reports something that exists and that not every backend has: an error when none has it.
    fn belongs(&mut self, path: &FieldPath, name: &str, field: &str, has: impl Fn(&World<'r>) -> bool) {
        let lacking: Vec<&str> =
            self.worlds.iter().filter(|world| !has(world)).map(|world| world.backend.key.name.as_str()).collect();
        let message = format!("GatewayBackend {} does not have `{name}`", lacking.join(" and "));
        let remedy = format!("add it to its spec.{field}");
        if lacking.len() == self.worlds.len() {
            self.to.report(path, message, remedy);
        } else if !lacking.is_empty() {
            self.to.warn(path, message, remedy);
        }
    }

    fn when(&mut self, rule: &Rule, when: &When, place: &FieldPath) {
        let names = || self.worlds.iter().flat_map(|world| world.names());
        for (index, pattern) in when.models.iter().flatten().enumerate() {
            let path = place.key("models").index(index);
            // With candidates, the name is made up here.
            if rule.candidates.is_none() && !names().any(|name| glob::matches(pattern, name)) {
                let remedy = remedy(pattern, names());
                self.to.warn(&path, format!("no model and no alias matches `{pattern}`"), remedy);
            }
        }
        self.hidden(rule, when, &place.key("models"));
        if let Some(tenants) = &when.tenants {
            self.tenants(tenants, &place.key("tenants"));
        }
        let tags = when.tags.clone().unwrap_or_default();
        let unheard = |tag: &String| !self.any(|world| world.gives_tag(tag));
        let all = tags.all.iter().enumerate().filter(|(_, tag)| unheard(tag)).map(|(index, tag)| ("all", index, tag));
        let any = tags.any.iter().enumerate().filter(|(_, tag)| unheard(tag)).map(|(index, tag)| ("any", index, tag));
        for (field, index, tag) in all.chain(any).collect::<Vec<_>>() {
            let message = format!("no request ever has the tag `{tag}`");
            let remedy = "state spec.tags of the gateway backend: a header of the gateway's front, or a classifier";
            self.to.warn(&place.key("tags").key(field).index(index), message, remedy);
        }
        for (index, condition) in when.pools.iter().flatten().enumerate() {
            let path = place.key("pools").index(index).key("name");
            self.pool(&path, &condition.name);
        }
    }

    /// Aliases that hide a real model: whoever asks for it by its name never gets it.
    fn hidden(&mut self, rule: &Rule, when: &When, place: &FieldPath) {
        let Some(candidates) = &rule.candidates else { return };
        if when.tenants.is_some() || when.tags.is_some() || when.pools.is_some() {
            return;
        }
        for (index, pattern) in when.models.iter().flatten().enumerate() {
            let sets = self.worlds.iter().flat_map(|world| &world.sets);
            let hidden = sets
                .map(|(name, set)| (name, &set.spec.model.name))
                .find(|(_, model)| glob::matches(pattern, model) && !candidates.models.contains(model));
            if let Some((set, model)) = hidden {
                let message = format!("hides the model `{model}` of worker set `{set}`");
                let remedy = "add it to the candidates, or choose a name that no model has";
                self.to.warn(&place.index(index), message, remedy);
            }
        }
    }

    fn tenants(&mut self, tenants: &[String], place: &FieldPath) {
        if !self.any(World::identifies) && !glob::any(tenants, ANONYMOUS) {
            let message = "the rule can never match: no request has a tenant";
            self.to.warn(place, message, "state spec.tenancy.identify of the gateway backend");
            return;
        }
        let listed = self.worlds.iter().flat_map(|world| &world.backend.spec.tenancy);
        let listed = listed.flat_map(|tenancy| &tenancy.tenants).map(|tenant| tenant.name.as_str());
        let listed: BTreeSet<&str> = listed.chain([ANONYMOUS]).collect();
        for (index, name) in tenants.iter().enumerate() {
            if name.contains('*') || listed.contains(name.as_str()) {
                continue;
            }
            let remedy = remedy(name, listed.iter().copied());
            if remedy.starts_with("did you mean") {
                self.to.warn(&place.index(index), format!("no tenant `{name}` is listed"), remedy);
            }
        }
    }

    fn candidates(&mut self, rule: &Rule, place: &FieldPath) {
        let Some(candidates) = &rule.candidates else { return };
        for (index, model) in candidates.models.iter().enumerate() {
            let path = place.index(index);
            if model.is_empty() || self.served(model) {
                continue;
            }
            let offers = |world: &World<'r>, provider: &String| {
                world.providers.get(provider.as_str()).is_some_and(|models| models.contains(model.as_str()))
            };
            let mut providers = rule.fallback.iter().flat_map(|tier| &tier.providers);
            if providers.any(|provider| self.any(|world| offers(world, provider))) {
                continue;
            }
            if self.any(|world| world.aliases().any(|alias| alias == model)) {
                let message = format!("`{model}` is an alias, and candidates are not expanded again");
                self.to.report(&path, message, "name the models that it stands for");
            } else if self.any(|world| world.providers.values().any(|models| models.contains(model.as_str()))) {
                let message = format!("candidates are workers, and only providers offer `{model}`");
                self.to.warn(&path, message, "add a fallback to one of them");
            } else {
                let known = self.worlds.iter().flat_map(|world| world.models());
                self.to.warn(&path, format!("nobody serves `{model}`"), remedy(model, known));
            }
        }
    }

    fn require(&mut self, rule: &Rule, require: &Requirements, place: &FieldPath) {
        for (index, name) in require.providers.iter().flatten().enumerate() {
            let path = place.key("providers").index(index);
            self.provider(&path, name);
        }
        for (index, name) in require.pools.iter().flatten().enumerate() {
            let path = place.key("pools").index(index);
            self.pool(&path, name);
        }
        let falls_back = |world: &World<'r>| {
            let tiers = world.rules.iter().flat_map(|placed| &placed.rule.fallback);
            tiers.flat_map(|tier| &tier.providers).any(|name| world.providers.contains_key(name.as_str()))
        };
        if require.locality == Some(Locality::External) && !self.any(falls_back) {
            let message = "nothing can satisfy this: candidates are workers, and no rule falls back to a provider";
            self.to.warn(&place.key("locality"), message, "add a fallback with providers");
        }
        let asked = asked(rule);
        let served = asked.iter().any(|model| self.served(model));
        if served && !asked.iter().any(|model| self.served_in_pools(model, require)) {
            let message = format!("no worker of {} is in these pools", asked.join(" or "));
            self.to.warn(&place.key("pools"), message, "name a pool that serves it");
        }
    }

    fn served_in_pools(&self, model: &str, require: &Requirements) -> bool {
        let Some(pools) = &require.pools else { return self.served(model) };
        self.any(|world| {
            let members = || pools.iter().filter_map(|name| world.pools.get(name.as_str()));
            world.serving(model).any(|set| members().any(|sets| sets.contains(set)))
        })
    }

    fn tier(&mut self, rule: &Rule, tier: &FallbackTier, place: &FieldPath) {
        let asked = asked(rule);
        for (index, name) in tier.providers.iter().enumerate() {
            let path = place.key("providers").index(index);
            self.provider(&path, name);
            let models: BTreeSet<&str> =
                self.worlds.iter().filter_map(|world| world.providers.get(name.as_str())).flatten().copied().collect();
            let wanted = || asked.iter().chain(&tier.models);
            if !asked.is_empty() && !models.is_empty() && !wanted().any(|model| models.contains(model.as_str())) {
                let wanted: Vec<&str> = wanted().map(String::as_str).collect();
                let offered: Vec<&str> = models.into_iter().collect();
                let message = format!("`{name}` does not offer {}", wanted.join(" or "));
                let remedy = format!("it offers {}; name one in the tier's models", offered.join(", "));
                self.to.warn(&path, message, remedy);
            }
        }
        for (index, model) in tier.models.iter().enumerate() {
            let path = place.key("models").index(index);
            let offered = tier.providers.iter().any(|name| {
                self.any(|world| world.providers.get(name.as_str()).is_some_and(|m| m.contains(model.as_str())))
            });
            if !self.served(model) && !offered {
                let known = self.worlds.iter().flat_map(|world| world.models());
                self.to.warn(&path, format!("nobody serves `{model}`"), remedy(model, known));
            } else if let Some(require) = &rule.require
                && self.served(model)
                && !self.served_in_pools(model, require)
            {
                let message = format!("can never be used: no worker of {model} is in the rule's require.pools");
                self.to.warn(&path, message, "add a pool that serves it");
            }
        }
    }
}

/// Models that a request of the rule may be answered with, as far as the rule says.
fn asked(rule: &Rule) -> Vec<String> {
    let stated = rule.candidates.as_ref().map(|candidates| candidates.models.clone());
    let matched = || rule.when.as_ref().and_then(|when| when.models.clone());
    let models = stated.or_else(matched).unwrap_or_default();
    if models.iter().any(|model| model.contains('*')) { Vec::new() } else { models }
}

/// A remedy for a name that nothing has.
fn remedy<'n>(unknown: &str, known: impl Iterator<Item = &'n str>) -> String {
    let known: BTreeSet<&str> = known.collect();
    suggest::remedy(unknown, &known.into_iter().map(String::from).collect::<Vec<_>>())
}
