//! What a status becomes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Assessed, Finding};

/// A status of any of the kinds, as it stands in the API server or is to stand there.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceStatus {
    /// The generation that it is said of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The conditions.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// All other fields.
    #[serde(flatten)]
    pub figures: Map<String, Value>,
}

/// The status by what is to be said now. A condition's time is that of the last change of its `status`, so one that says
/// the same in other words keeps the old one. Conditions of unknown types are not kept: the status is ours alone.
#[must_use]
pub fn merge(before: &ResourceStatus, assessed: &Assessed, now: &Time) -> ResourceStatus {
    let condition = |finding: &Finding| {
        let same =
            |condition: &&Condition| condition.type_ == finding.kind && condition.status == finding.status.as_str();
        let since = before.conditions.iter().find(same).map(|condition| condition.last_transition_time.clone());
        Condition {
            type_: finding.kind.to_owned(),
            status: finding.status.as_str().to_owned(),
            reason: finding.reason.to_owned(),
            message: finding.message.clone(),
            observed_generation: assessed.observed_generation,
            last_transition_time: since.unwrap_or_else(|| now.clone()),
        }
    };
    ResourceStatus {
        observed_generation: assessed.observed_generation,
        conditions: assessed.conditions.iter().map(condition).collect(),
        figures: assessed.figures.clone(),
    }
}

/// How much two statuses differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Difference {
    /// Not at all.
    Nothing,
    /// In figures or words only.
    Figures,
    /// In what is so, in why, or in the generation that it is said of.
    Conditions,
}

/// How much they differ.
#[must_use]
pub fn difference(before: &ResourceStatus, after: &ResourceStatus) -> Difference {
    let gist = |status: &ResourceStatus| -> Vec<(String, String, String, Option<i64>)> {
        let conditions = status.conditions.iter();
        conditions.map(|c| (c.type_.clone(), c.status.clone(), c.reason.clone(), c.observed_generation)).collect()
    };
    if before == after {
        Difference::Nothing
    } else if before.observed_generation == after.observed_generation && gist(before) == gist(after) {
        Difference::Figures
    } else {
        Difference::Conditions
    }
}

/// The JSON merge patch that makes one of the other: what is gone is taken away by name.
#[must_use]
pub fn patch(before: &ResourceStatus, after: &ResourceStatus) -> Value {
    let mut patch = match serde_json::to_value(after) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    take_away(&before.figures, &mut patch);
    Value::Object(patch)
}

/// Names what is in `before` and not in `after`, at every depth: a merge patch leaves alone what it does not name.
fn take_away(before: &Map<String, Value>, after: &mut Map<String, Value>) {
    for (name, value) in before {
        match (value, after.get_mut(name)) {
            (Value::Object(before), Some(Value::Object(after))) => take_away(before, after),
            (_, Some(_)) => {}
            (_, None) => drop(after.insert(name.clone(), Value::Null)),
        }
    }
}

#[cfg(test)]
mod tests;
