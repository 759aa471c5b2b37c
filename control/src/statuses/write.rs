//! One status to the API server.

use kube::api::{DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use super::{FIELD_MANAGER, REQUEST, within};
use crate::conditions::merge::patch;
use crate::conditions::pace::Write;
use crate::source::kubernetes::api_resource;

/// What became of a write.
#[derive(Debug)]
pub(super) enum Written {
    /// It is in the API server.
    Taken,
    /// The resource changed since it was looked at.
    Conflict,
    /// There is no such resource any more.
    Gone,
    /// The API server did not take it, and why.
    Refused(String),
    /// The API server did not answer, or cannot take it now, and why.
    Unanswered(String),
}

impl Written {
    /// As metrics name it.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Taken => "ok",
            Self::Conflict => "conflict",
            Self::Gone => "gone",
            Self::Refused(_) | Self::Unanswered(_) => "error",
        }
    }
}

pub(super) async fn write(client: &Client, write: &Write) -> Written {
    let (kind, key) = &write.resource;
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &key.namespace, &api_resource(*kind));
    // With its version, so that what was made for another one is refused.
    let body = json!({
        "metadata": {"resourceVersion": write.before.resource_version},
        "status": patch(&write.before.status, &write.after),
    });
    let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
    match within(REQUEST, api.patch_status(&key.name, &parameters, &Patch::Merge(body))).await {
        Ok(_) => Written::Taken,
        Err(kube::Error::Api(status)) if status.code == 409 => Written::Conflict,
        Err(kube::Error::Api(status)) if status.code == 404 => Written::Gone,
        // Too many requests, or none that it can serve: no fault of the request.
        Err(kube::Error::Api(status)) if status.code == 429 || status.code >= 500 => {
            Written::Unanswered(format!("{} ({})", status.message, status.code))
        }
        Err(kube::Error::Api(status)) => Written::Refused(status.message),
        Err(error) => Written::Unanswered(error.to_string()),
    }
}
