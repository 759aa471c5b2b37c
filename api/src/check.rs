//! What the types alone cannot say: references, ranges, exactly-one-of, duplicates.
//!
//! The same checks serve files and clusters; they know nothing of lines.

use std::collections::BTreeSet;
use std::fmt::Display;

use crate::kinds::{LabelOperator, LabelSelector, NameReference};
use crate::limits;
use crate::policy_test::PolicyTest;
use crate::problem::Finding;
use crate::resources::is_resource_name;
use crate::units::{Period, Size};
use crate::{FieldPath, Kind, ObjectKey, Origin, Resource, Resources, Severity};

mod backend;
mod bound;
mod cover;
mod extent;
mod order;
mod policy;
mod policy_test;
mod pool;
mod provider;
mod rule;
mod worker_set;
mod world;

use world::World;

/// Everything that is wrong with the resources, each by itself and together; empty when they are fine.
pub fn check(resources: &Resources) -> Vec<Finding> {
    let mut findings = each(resources);
    findings.extend(together(resources));
    findings
}

/// What is wrong with each resource by itself, and with its references.
pub fn each(resources: &Resources) -> Vec<Finding> {
    let mut findings = Vec::new();
    for set in resources.worker_sets.values() {
        let to = &mut Reporter::new(Kind::InferenceWorkerSet, set, &mut findings);
        worker_set::check(set, to);
        extent::check(Kind::InferenceWorkerSet, set, to);
    }
    for pool in resources.pools.values() {
        let to = &mut Reporter::new(Kind::InferencePool, pool, &mut findings);
        pool::check(pool, resources, to);
        extent::check(Kind::InferencePool, pool, to);
    }
    for provider in resources.providers.values() {
        let to = &mut Reporter::new(Kind::InferenceProvider, provider, &mut findings);
        provider::check(provider, to);
        extent::check(Kind::InferenceProvider, provider, to);
    }
    for backend in resources.backends.values() {
        let to = &mut Reporter::new(Kind::GatewayBackend, backend, &mut findings);
        backend::check(backend, resources, to);
        extent::check(Kind::GatewayBackend, backend, to);
    }
    for policy in resources.policies.values() {
        let to = &mut Reporter::new(Kind::InferencePolicy, policy, &mut findings);
        policy::check(policy, resources, to);
        extent::check(Kind::InferencePolicy, policy, to);
    }
    findings
}

/// What is wrong with the resources together: rules that never match or never count, fallbacks that are never used, and
/// tests of what is not there. Only sensible when all resources are known.
pub fn together(resources: &Resources) -> Vec<Finding> {
    let mut findings = Vec::new();
    let worlds: Vec<World<'_>> = resources.backends.values().map(|backend| World::new(resources, backend)).collect();
    for backend in &worlds {
        world::check_backend(backend, &mut Reporter::new(Kind::GatewayBackend, backend.backend, &mut findings));
    }
    for policy in resources.policies.values() {
        let of_policy: Vec<&World<'_>> = worlds.iter().filter(|world| world.has_policy(policy)).collect();
        let to = &mut Reporter::new(Kind::InferencePolicy, policy, &mut findings);
        if of_policy.is_empty() {
            let remedy = format!("namespace {} has none", policy.key.namespace);
            to.warn(&FieldPath::root().key("spec"), "the policy is for no gateway backend", remedy);
            continue;
        }
        world::check_policy(policy, resources, &of_policy, to);
        order::check(policy, &of_policy, to);
    }
    for test in &resources.policy_tests {
        policy_test::check(test, &worlds, &mut Reporter::of_test(test, &mut findings));
    }
    findings
}

/// Collects the findings of one resource.
struct Reporter<'a> {
    /// None for a policy test.
    kind: Option<Kind>,
    key: &'a ObjectKey,
    origin: &'a Origin,
    findings: &'a mut Vec<Finding>,
}

impl<'a> Reporter<'a> {
    fn new<S>(kind: Kind, resource: &'a Resource<S>, findings: &'a mut Vec<Finding>) -> Self {
        Reporter { kind: Some(kind), key: &resource.key, origin: &resource.origin, findings }
    }

    fn of_test(test: &'a PolicyTest, findings: &'a mut Vec<Finding>) -> Self {
        Reporter { kind: None, key: &test.key, origin: &test.origin, findings }
    }

    /// Reports an error.
    fn report(&mut self, path: &FieldPath, message: impl Into<String>, remedy: impl Into<String>) {
        self.find(Severity::Error, path, message.into(), remedy.into());
    }

    /// Reports what can be used and most likely does not do what was meant.
    fn warn(&mut self, path: &FieldPath, message: impl Into<String>, remedy: impl Into<String>) {
        self.find(Severity::Warning, path, message.into(), remedy.into());
    }

    /// Warns of what the schema has, and the gateway does not do yet: `what` with its verb, and what happens instead.
    fn not_in_force(&mut self, path: &FieldPath, what: &str, effect: &str) {
        self.warn(path, format!("{what} not in force yet"), effect);
    }

    fn find(&mut self, severity: Severity, path: &FieldPath, message: String, remedy: String) {
        self.findings.push(Finding {
            origin: self.origin.clone(),
            kind: self.kind,
            key: self.key.clone(),
            path: path.clone(),
            severity,
            message,
            remedy,
            missing: None,
        });
    }

    /// True when something was reported of this field of the resource.
    fn has_told(&self, path: &FieldPath) -> bool {
        self.findings.iter().any(|finding| {
            finding.path == *path
                && finding.kind == self.kind
                && finding.key == *self.key
                && finding.origin == *self.origin
        })
    }

    /// Reports a reference to a resource that does not exist.
    fn missing<'k>(&mut self, path: &FieldPath, kind: Kind, name: &str, known: impl Iterator<Item = &'k ObjectKey>) {
        if !is_resource_name(name) {
            return self.resource_name(path, name);
        }
        let namespace = &self.key.namespace;
        let siblings = known.filter(|key| key.namespace == *namespace).map(|key| key.name.as_str());
        let siblings: Vec<&str> = siblings.collect();
        let remedy = if siblings.is_empty() {
            format!("namespace {namespace} has none")
        } else {
            format!("namespace {namespace} has {}", siblings.join(", "))
        };
        self.report(path, format!("there is no {kind} `{name}`"), remedy);
        if let Some(finding) = self.findings.last_mut() {
            finding.missing = Some((kind, self.key.sibling(name)));
        }
    }

    /// Checks that exactly one of several fields is given.
    fn exactly_one(&mut self, place: &FieldPath, fields: &[(&str, bool)]) {
        let given: Vec<&str> = fields.iter().filter(|(_, is_given)| *is_given).map(|(name, _)| *name).collect();
        let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
        let remedy = format!("give exactly one of {}", names.join(", "));
        match given.as_slice() {
            [_] => {}
            [] => self.report(place, format!("none of {} is given", names.join(", ")), remedy),
            several => self.report(place, format!("{} are given together", several.join(" and ")), remedy),
        }
    }

    /// Checks that a value is within bounds.
    fn within<T: PartialOrd + Display>(&mut self, path: &FieldPath, value: T, least: T, most: T) {
        if value < least || value > most {
            self.report(path, format!("{value} is out of range"), format!("{least} to {most}"));
        }
    }

    fn period_within(&mut self, path: &FieldPath, value: Period, least: Period, most: Period) {
        self.within(path, value, least, most);
    }

    fn size_within(&mut self, path: &FieldPath, value: Size, least: Size, most: Size) {
        self.within(path, value, least, most);
    }

    /// Checks that a period is more than nothing.
    fn not_zero(&mut self, path: &FieldPath, value: Period) {
        if value.as_millis() == 0 {
            self.report(path, "zero", "give a duration of at least 1ms");
        }
    }

    fn port(&mut self, path: &FieldPath, port: u16) {
        if port == 0 {
            self.report(path, "0 is no port", "1 to 65535");
        }
    }

    /// Checks that text is there.
    fn not_empty(&mut self, path: &FieldPath, text: &str) {
        if text.trim().is_empty() {
            self.report(path, "empty", "");
        }
    }

    /// Checks the name of a resource that is looked up in a cluster.
    fn resource_name(&mut self, path: &FieldPath, name: &str) {
        if !is_resource_name(name) {
            let message = format!("`{name}` is not a resource's name");
            self.report(path, message, "lower-case letters, digits, `-` and `.`, at most 253");
        }
    }

    /// Checks a priority.
    fn priority(&mut self, path: &FieldPath, priority: i32) {
        self.within(path, priority, -limits::PRIORITY, limits::PRIORITY);
    }

    /// Checks that every name of a list is there and unlike the others.
    fn names<'n>(&mut self, place: &FieldPath, field: Option<&str>, names: impl Iterator<Item = &'n str>) {
        let mut seen = BTreeSet::new();
        for (index, name) in names.enumerate() {
            let element = place.index(index);
            let path = field.map_or(element.clone(), |field| element.key(field));
            self.not_empty(&path, name);
            if !seen.insert(name) {
                self.report(&path, format!("`{name}` is there twice"), "");
            }
        }
    }

    /// Checks references to resources of a kind.
    fn references<S>(
        &mut self,
        place: &FieldPath,
        references: &[NameReference],
        kind: Kind,
        known: &std::collections::BTreeMap<ObjectKey, Resource<S>>,
    ) {
        self.names(place, Some("name"), references.iter().map(|r| r.name.as_str()));
        for (index, reference) in references.iter().enumerate() {
            if !reference.name.is_empty() && !known.contains_key(&self.key.sibling(&reference.name)) {
                self.missing(&place.index(index).key("name"), kind, &reference.name, known.keys());
            }
        }
    }

    /// Checks the expressions of a label selector.
    fn selector(&mut self, place: &FieldPath, selector: &LabelSelector) {
        for (index, expression) in selector.match_expressions.iter().enumerate() {
            let path = place.key("matchExpressions").index(index);
            self.not_empty(&path.key("key"), &expression.key);
            let wants_values = matches!(expression.operator, LabelOperator::In | LabelOperator::NotIn);
            if wants_values && expression.values.is_empty() {
                self.report(&path, "In and NotIn need values", "");
            } else if !wants_values && !expression.values.is_empty() {
                self.report(&path.key("values"), "Exists and DoesNotExist take no values", "remove them");
            }
        }
    }

    fn url(&mut self, path: &FieldPath, url: &str) {
        let rest = url.strip_prefix("https://").or(url.strip_prefix("http://"));
        let host = rest.map(|rest| rest.split('/').next().unwrap_or_default());
        let is_plain = url.bytes().all(|b| b.is_ascii_graphic());
        if !is_plain || host.is_none_or(str::is_empty) {
            self.report(path, format!("`{url}` is not a URL"), "start with https:// or http:// and a host");
        }
    }

    fn header_name(&mut self, path: &FieldPath, name: &str) {
        let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        if name.is_empty() || !name.bytes().all(is_token) {
            self.report(path, format!("`{name}` is not a header's name"), "letters, digits and `-`");
        }
    }
}
