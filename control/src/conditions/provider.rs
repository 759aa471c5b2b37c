//! `InferenceProvider`.

use kinference_api::ObjectKey;

use super::finding::{Finding, Said, finding, in_spite_of, kept_out, no, unknown, yes};
use super::reasons::{self, types};
use crate::state::{Outcome, ProviderStatus, Status};

pub(super) fn assess(status: &Status, key: &ObjectKey, outcome: &Outcome) -> Vec<Finding> {
    let provider = status.providers.get(&key.to_string());
    let no_use = || unknown(reasons::NOT_USED, "credentials are read once a GatewayBackend lists this provider");
    vec![
        finding(types::READY, kept_out(outcome).unwrap_or_else(|| in_spite_of(outcome, ready(provider)))),
        finding(types::CREDENTIALS_RESOLVED, provider.map_or_else(no_use, credentials)),
    ]
}

fn ready(provider: Option<&ProviderStatus>) -> Said {
    let Some(provider) = provider else {
        return no(reasons::NOT_USED, "no GatewayBackend lists this provider; add it to spec.providers of one");
    };
    if provider.ready {
        return yes(reasons::OFFERED, format!("rules may send requests for {} to it", provider.models.join(", ")));
    }
    let why = provider.reason.as_deref().unwrap_or("it is not ready");
    let reason =
        if provider.credentials_problem.is_some() { reasons::CREDENTIALS_MISSING } else { reasons::NOT_USABLE };
    no(reason, format!("no request is sent to it: {why}"))
}

fn credentials(provider: &ProviderStatus) -> Said {
    match &provider.credentials_problem {
        Some(why) => no(reasons::CREDENTIALS_MISSING, why.clone()),
        None if provider.has_credentials => yes(reasons::RESOLVED, "the Secret has what is needed"),
        None => yes(reasons::NOT_NEEDED, "the provider states no credentials"),
    }
}
