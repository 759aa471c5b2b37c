//! Checks of `GatewayBackend`.

use super::{Reporter, rule};
use crate::kinds::{GatewayBackendSpec, Tags, Tenancy, Unidentified};
use crate::{FieldPath, Kind, Resource, Resources, limits};

pub(super) fn check(backend: &Resource<GatewayBackendSpec>, resources: &Resources, to: &mut Reporter<'_>) {
    let spec = &backend.spec;
    if spec.pools.is_empty() && spec.providers.is_empty() {
        let path = FieldPath::root().key("spec");
        to.report(&path, "serves nothing", "name at least one pool or provider");
    }
    to.references(&FieldPath::spec("pools"), &spec.pools, Kind::InferencePool, &resources.pools);
    let providers = FieldPath::spec("providers");
    to.references(&providers, &spec.providers, Kind::InferenceProvider, &resources.providers);
    if let Some(tenancy) = &spec.tenancy {
        check_tenancy(tenancy, to);
    }
    if let Some(tags) = &spec.tags {
        check_tags(tags, to);
    }
    let index = FieldPath::spec("prefixIndex");
    let chunk = spec.prefix_index.chunk_bytes;
    if !chunk.is_power_of_two() || !(limits::CHUNK_BYTES.0..=limits::CHUNK_BYTES.1).contains(&chunk) {
        let message = format!("{chunk} is no power of two from 16 to 65536");
        to.report(&index.key("chunkBytes"), message, "256 suits most");
    }
    let (least, most) = limits::INDEX_BYTES;
    to.size_within(&index.key("maxBytes"), spec.prefix_index.max_bytes, least, most);
    let (least, most) = limits::REQUEST_BODY;
    let path = FieldPath::spec("requestBodyLimit");
    to.size_within(&path, spec.request_body_limit, least, most);
    let (least, most) = limits::STALE_AFTER;
    to.period_within(&FieldPath::spec("staleAfter"), spec.stale_after, least, most);
}

fn check_tenancy(tenancy: &Tenancy, to: &mut Reporter<'_>) {
    let place = FieldPath::spec("tenancy");
    let mut by_header = false;
    for (index, identity) in tenancy.identify.iter().enumerate() {
        let place = place.key("identify").index(index);
        to.exactly_one(
            &place,
            &[
                ("apiKey", identity.api_key.is_some()),
                ("jwt", identity.jwt.is_some()),
                ("header", identity.header.is_some()),
            ],
        );
        if let Some(api_key) = &identity.api_key {
            to.selector(&place.key("apiKey").key("secretSelector"), &api_key.secret_selector);
            to.not_in_force(&place.key("apiKey"), "identification by API key is", "it identifies nobody");
        }
        if let Some(jwt) = &identity.jwt {
            to.header_name(&place.key("jwt").key("payloadHeader"), &jwt.payload_header);
            to.not_empty(&place.key("jwt").key("claim"), &jwt.claim);
            to.not_in_force(&place.key("jwt"), "identification by JWT is", "it identifies nobody");
        }
        if let Some(header) = &identity.header {
            to.header_name(&place.key("header").key("name"), &header.name);
            if std::mem::replace(&mut by_header, true) {
                to.not_in_force(&place.key("header"), "a second header is", "only the first one identifies");
            }
        }
    }
    if !by_header && tenancy.unidentified == Unidentified::Deny {
        let remedy = "identify tenants by a header that the gateway's front sets, or write unidentified: Allow";
        to.warn(&place, "no request can be identified, so every one gets 401", remedy);
    }
    let place = place.key("tenants");
    to.names(&place, Some("name"), tenancy.tenants.iter().map(|tenant| tenant.name.as_str()));
    for (index, tenant) in tenancy.tenants.iter().enumerate() {
        let limits = tenant.limits.unwrap_or_default();
        let place = place.index(index);
        to.priority(&place.key("priority"), tenant.priority);
        if tenant.priority != 0 {
            to.not_in_force(&place.key("priority"), "a tenant's priority is", "all tenants have the same");
        }
        if tenant.limits.is_some() {
            to.not_in_force(&place.key("limits"), "a tenant's limits are", "nothing is limited");
        }
        for (index, glob) in tenant.models.iter().enumerate() {
            rule::check_glob(&place.key("models").index(index), glob, to);
        }
        let place = place.key("limits");
        for (field, limit) in [
            ("tokensPerMinute", limits.tokens_per_minute),
            ("requestsPerMinute", limits.requests_per_minute),
            ("concurrentRequests", limits.concurrent_requests),
        ] {
            if limit == Some(0) {
                let remedy = "to keep a tenant out, give it `models: []`";
                to.report(&place.key(field), "a limit of 0 lets nothing through", remedy);
            }
        }
    }
}

fn check_tags(tags: &Tags, to: &mut Reporter<'_>) {
    let place = FieldPath::spec("tags");
    if let Some(header) = &tags.header {
        to.header_name(&place.key("header"), header);
    }
    for (index, classifier) in tags.classifiers.iter().enumerate() {
        let place = place.key("classifiers").index(index);
        to.not_empty(&place.key("tag"), &classifier.tag);
        let effect = format!("the tag `{}` comes only from the tags header", classifier.tag);
        to.not_in_force(&place, "a classifier is", &effect);
        to.exactly_one(
            &place,
            &[
                ("pii", classifier.pii.is_some()),
                ("complexity", classifier.complexity.is_some()),
                ("http", classifier.http.is_some()),
            ],
        );
        if classifier.pii.as_ref().is_some_and(|pii| pii.kinds.is_empty()) {
            to.report(&place.key("pii").key("kinds"), "looks for nothing", "list at least one kind");
        }
        if let Some(http) = &classifier.http {
            to.url(&place.key("http").key("url"), &http.url);
            to.not_zero(&place.key("http").key("timeout"), http.timeout);
        }
    }
}
