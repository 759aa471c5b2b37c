//! The spec of a resource as an API server holds it.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::message::translate;
use crate::FieldPath;

/// Why a resource cannot be read. Displays as `path: message (remedy)`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}{}", if .remedy.is_empty() { String::new() } else { format!(" ({})", .remedy) })]
pub struct SpecError {
    /// The field.
    pub path: FieldPath,
    /// What is wrong with it.
    pub message: String,
    /// What to do about it; may be empty.
    pub remedy: String,
}

#[derive(Deserialize)]
struct Body<S> {
    spec: S,
}

/// Takes the spec out of a resource. Unknown fields pass: the API server prunes them, and one that serves a newer
/// version of the kind may have more.
///
/// # Errors
/// The first field that is not as it must be, which an API server lets by when it was stored under another schema.
pub fn read_spec<S: DeserializeOwned>(resource: &Value) -> Result<S, SpecError> {
    let body: Result<Body<S>, _> = serde_path_to_error::deserialize(resource);
    body.map(|body| body.spec).map_err(|error| {
        let told = translate(FieldPath::from(error.path()), &error.inner().to_string());
        SpecError { path: told.path, message: told.message, remedy: told.remedy }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::{GatewayBackendSpec, InferenceWorkerSetSpec};

    #[test]
    fn what_is_wrong_is_told_as_for_files() {
        let backend = json!({"spec": {"failureMode": "Ajar", "unknown": 1}, "status": {}});
        let error = read_spec::<GatewayBackendSpec>(&backend).unwrap_err();
        assert_eq!(error.to_string(), "spec.failureMode: unknown value `Ajar` (write Open or Closed)");
        let error = read_spec::<InferenceWorkerSetSpec>(&json!({"spec": {"workers": {}}})).unwrap_err();
        assert_eq!(error.to_string(), "spec.model: missing (the field is required)");
        let error = read_spec::<InferenceWorkerSetSpec>(&json!({})).unwrap_err();
        assert_eq!(error.to_string(), "spec: missing (the field is required)");
        let spec: GatewayBackendSpec = read_spec(&json!({"spec": {"unknown": 1}})).unwrap();
        assert!(spec.pools.is_empty());
    }
}
