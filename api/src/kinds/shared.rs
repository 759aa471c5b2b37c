//! Types that several kinds use.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules;
use crate::limits;

/// A reference by name to a resource of the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NameReference {
    /// Name of the resource, in the namespace of the one that refers to it.
    #[schemars(length(min = 1, max = limits::RESOURCE_NAME), regex(pattern = rules::RESOURCE_NAME))]
    pub name: String,
}

/// A reference to one key of a Secret of the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyReference {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = limits::RESOURCE_NAME), regex(pattern = rules::RESOURCE_NAME))]
    pub name: String,
    /// Key within the Secret's data.
    #[schemars(length(min = 1, max = limits::RESOURCE_NAME))]
    pub key: String,
}

/// Selects by labels. Everything that is stated must hold; a selector that states nothing selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelSelector {
    /// Labels that must be present with exactly these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend(
        "maxProperties" = limits::SELECTOR_TERMS,
        "additionalProperties" = {"type": "string", "maxLength": limits::SHORT_NAME}
    ))]
    pub match_labels: BTreeMap<String, String>,
    /// Further conditions on labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::SELECTOR_TERMS))]
    pub match_expressions: Vec<LabelExpression>,
}

/// One condition of a label selector.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::rule(
        "!(self.operator in ['In', 'NotIn']) || has(self.values) && size(self.values) > 0",
        "In and NotIn need values",
    ),
    validation = rules::rule(
        "self.operator in ['In', 'NotIn'] || !has(self.values) || size(self.values) == 0",
        "Exists and DoesNotExist take no values (remove them)",
    )
)]
pub struct LabelExpression {
    /// The label's key.
    #[schemars(length(min = 1, max = limits::LABEL_KEY))]
    pub key: String,
    /// How the label's value relates to `values`.
    pub operator: LabelOperator,
    /// Values to compare with; for `In` and `NotIn` at least one, for `Exists` and `DoesNotExist` none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::SELECTOR_TERMS), inner(length(max = limits::SHORT_NAME)))]
    pub values: Vec<String>,
}

/// How a label's value relates to the values of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LabelOperator {
    /// The label is present with one of the values.
    In,
    /// The label is absent, or has none of the values.
    NotIn,
    /// The label is present.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

impl LabelSelector {
    /// True when labels satisfy every condition of the selector.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|e| e.matches(labels))
    }

    /// True when the selector states no condition.
    pub fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }
}

impl LabelExpression {
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        match self.operator {
            LabelOperator::In => value.is_some_and(|v| self.values.contains(v)),
            LabelOperator::NotIn => value.is_none_or(|v| !self.values.contains(v)),
            LabelOperator::Exists => value.is_some(),
            LabelOperator::DoesNotExist => value.is_none(),
        }
    }
}

/// How many workers there are, and how many of them can take requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkerCounts {
    /// Workers that are listed or selected; each data-parallel rank counts as one.
    pub total: u32,
    /// Workers that answer and take requests.
    pub ready: u32,
}

/// One observation of a resource's state, as Kubernetes resources commonly carry them.
pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
    }

    fn expression(operator: LabelOperator, values: &[&str]) -> LabelSelector {
        LabelSelector {
            match_expressions: vec![LabelExpression {
                key: "tier".into(),
                operator,
                values: values.iter().map(|v| v.to_string()).collect(),
            }],
            ..Default::default()
        }
    }

    #[test]
    fn selectors_follow_the_rules_of_kubernetes() {
        let cheap = labels(&[("tier", "cheap"), ("zone", "a")]);
        let none = labels(&[]);
        let by_label = |value: &str| LabelSelector { match_labels: labels(&[("tier", value)]), ..Default::default() };
        assert!(by_label("cheap").matches(&cheap));
        assert!(!by_label("dear").matches(&cheap));
        assert!(!by_label("cheap").matches(&none));
        assert!(LabelSelector::default().matches(&none));
        for (operator, values, with, without) in [
            (LabelOperator::In, &["cheap", "x"][..], true, false),
            (LabelOperator::In, &["x"][..], false, false),
            (LabelOperator::NotIn, &["cheap"][..], false, true),
            (LabelOperator::NotIn, &["x"][..], true, true),
            (LabelOperator::Exists, &[][..], true, false),
            (LabelOperator::DoesNotExist, &[][..], false, true),
        ] {
            let selector = expression(operator, values);
            assert_eq!(selector.matches(&cheap), with, "{operator:?} {values:?} with the label");
            assert_eq!(selector.matches(&none), without, "{operator:?} {values:?} without the label");
        }
    }
}
