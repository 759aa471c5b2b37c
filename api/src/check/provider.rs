//! Checks of `InferenceProvider`.

use super::Reporter;
use crate::compile::upstream;
use crate::kinds::{InferenceProviderSpec, ProviderApi};
use crate::{FieldPath, Resource};

pub(super) fn check(provider: &Resource<InferenceProviderSpec>, to: &mut Reporter<'_>) {
    let spec = &provider.spec;
    let endpoint = FieldPath::spec("endpoint");
    match upstream(spec) {
        Err(error) => to.report(&endpoint, error.problem, error.remedy),
        Ok(upstream) if spec.credentials.is_some() && !upstream.tls && !upstream.is_loopback() => {
            to.report(&endpoint, "credentials would go over the network in plain text", "use https://");
        }
        Ok(_) => {}
    }
    if spec.api == ProviderApi::Anthropic {
        let message = "Anthropic's API is not spoken yet: the provider is passed over";
        to.warn(&FieldPath::spec("api"), message, "`OpenAI` fits every endpoint that speaks OpenAI's API");
    }
    let is_bedrock = spec.api == ProviderApi::Bedrock;
    if is_bedrock && spec.region.as_deref().unwrap_or_default().is_empty() {
        to.report(&FieldPath::spec("region"), "missing", "Bedrock needs a region");
    }
    if let Some(credentials) = &spec.credentials {
        let path = FieldPath::spec("credentials").key("secretRef").key("name");
        to.resource_name(&path, &credentials.secret_ref.name);
    }
    let models = FieldPath::spec("models");
    if spec.models.is_empty() {
        to.report(&models, "the provider offers no model", "list at least one");
    }
    to.names(&models, Some("name"), spec.models.iter().map(|model| model.name.as_str()));
    for (index, model) in spec.models.iter().enumerate() {
        if let Some(name) = &model.upstream_name {
            to.not_empty(&models.index(index).key("upstreamName"), name);
        }
        if model.price_per_million_tokens.as_ref().is_some_and(|prices| prices.cached_input.is_some()) {
            let path = models.index(index).key("pricePerMillionTokens").key("cachedInput");
            to.not_in_force(&path, "a price of cached tokens is", "all prompt tokens count at the price of `input`");
        }
        if let Some(expected) = model.expected_ttft {
            to.not_zero(&models.index(index).key("expectedTTFT"), expected);
        }
    }
    to.not_zero(&FieldPath::spec("requestTimeout"), spec.request_timeout);
}
