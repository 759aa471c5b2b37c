//! Providers: which can be used, and what filters are told of them.

use std::collections::BTreeMap;

use kinference_api::compile::{FleetSpec, ProviderSpec};
use kinference_api::kinds::ProviderApi;
use serde::Serialize;

use super::Fleet;
use crate::credential::Credentials;

/// A provider.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProviderStatus {
    /// Policies may send requests to it.
    pub ready: bool,
    /// Why not, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// True when it states credentials.
    pub has_credentials: bool,
    /// What is wrong with its credentials; absent when they are there, or none are needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials_problem: Option<String>,
    /// Models that it offers.
    pub models: Vec<String>,
}

impl Fleet {
    /// Fills in what filters are told of providers.
    pub(super) fn take_providers(&mut self, fleets: &mut [FleetSpec], credentials: &Credentials) {
        let mut statuses = BTreeMap::new();
        for provider in fleets.iter_mut().flat_map(|fleet| &mut fleet.providers) {
            let status = self.settle_provider(provider, credentials);
            statuses.insert(provider.key.clone(), status);
        }
        for (key, status) in &statuses {
            let before = self.providers.get(key).and_then(|before| before.reason.as_ref());
            if let Some(reason) = status.reason.as_ref().filter(|reason| before != Some(*reason)) {
                tracing::warn!(provider = %key, "not used: {reason}");
            }
            self.metrics.provider(key, status.ready);
        }
        for key in self.providers.keys().filter(|key| !statuses.contains_key(*key)) {
            self.metrics.forget_provider(key);
        }
        self.providers = statuses;
    }

    /// Tells filters what they need to use a provider; what speaks against it goes into its status.
    fn settle_provider(&self, provider: &mut ProviderSpec, credentials: &Credentials) -> ProviderStatus {
        let credential = provider.secret.as_ref().map(|secret| match credentials.get(&provider.key) {
            Some(found) => found.as_ref().map_err(String::clone),
            None => Err(format!("Secret {} was not found; create it", provider.key.sibling(secret))),
        });
        let mut status = ProviderStatus {
            has_credentials: provider.secret.is_some(),
            models: provider.wire.models.iter().map(|model| model.name.clone()).collect(),
            ..ProviderStatus::default()
        };
        let authorization = match credential {
            _ if provider.api == ProviderApi::Anthropic => Err("its API is not spoken yet".to_owned()),
            None => Ok(String::new()),
            Some(Ok(credential)) => match self.confidentiality.refusal() {
                None => Ok(credential.authorization()),
                Some(refusal) => Err(refusal.to_owned()),
            },
            Some(Err(problem)) => {
                status.credentials_problem = Some(problem.clone());
                Err(problem)
            }
        };
        status.ready = authorization.is_ok();
        provider.wire.ready = status.ready;
        match authorization {
            Ok(value) => provider.wire.authorization = value,
            Err(reason) => status.reason = Some(reason),
        }
        status
    }
}
