//! The providers of a gateway backend, and how a proxy reaches them.

use kinference_protocol::v1;

use super::ProviderSpec;
use crate::kinds::{GatewayBackendSpec, InferenceProviderSpec, ProviderApi, ProviderModel};
use crate::units::Period;
use crate::{ObjectKey, Resource, Resources};

/// Where a provider is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// Name or IP address, IPv6 without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Over TLS.
    pub tls: bool,
    /// Host, and the port where it is not the scheme's own, as requests name them.
    pub authority: String,
    /// Path before `/chat/completions` and the like, with a leading slash and none at its end; or empty.
    pub base_path: String,
}

/// Why an endpoint is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem} ({remedy})")]
pub struct EndpointError {
    /// What is wrong.
    pub problem: String,
    /// What to do.
    pub remedy: &'static str,
}

impl Upstream {
    /// True when requests do not leave the machine.
    pub fn is_loopback(&self) -> bool {
        let ip = self.host.parse::<std::net::IpAddr>();
        self.host == "localhost" || ip.is_ok_and(|ip| ip.to_canonical().is_loopback())
    }
}

/// The name of the proxy's internal listener and of its cluster that lead to a provider.
pub fn provider_cluster(provider: &ObjectKey) -> String {
    format!("kinference_provider_{}_{}", provider.namespace, provider.name)
}

/// Where a provider's endpoint is. An endpoint without a path stands for the API's usual one.
///
/// # Errors
/// What is wrong with the URL.
pub fn upstream(provider: &InferenceProviderSpec) -> Result<Upstream, EndpointError> {
    let url = &provider.endpoint;
    let bad = |what: &str, remedy| EndpointError { problem: format!("`{url}` {what}"), remedy };
    if let Some(bad_byte) = url.bytes().find(|byte| !byte.is_ascii_graphic() || b"\"\\<>^`{|}".contains(byte)) {
        let what = format!("has {:?}, which no URL has", char::from(bad_byte));
        return Err(EndpointError { problem: format!("{url:?} {what}"), remedy: "encode it or leave it out" });
    }
    let no_url = || bad("is not a URL", "start with https:// or http:// and a host");
    let (tls, rest) = match url.split_once("://") {
        Some(("https", rest)) => (true, rest),
        Some(("http", rest)) => (false, rest),
        _ => return Err(no_url()),
    };
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if authority.contains('@') {
        return Err(bad("has a user name", "credentials belong in a Secret"));
    }
    if path.contains(['?', '#']) {
        return Err(bad("has a query", "it would be lost: write the path alone"));
    }
    let (host, port) = match authority.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(Some((host, port))) => (host, port.strip_prefix(':')),
        Some(None) => return Err(no_url()),
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let is_label = |label: &str| {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        !label.is_empty() && label.len() <= 63 && label.bytes().all(inner) && !label.starts_with('-')
    };
    let is_ip = host.parse::<std::net::IpAddr>().is_ok();
    if !is_ip && !host.strip_suffix('.').unwrap_or(host).split('.').all(is_label) {
        return Err(no_url());
    }
    if path.split('/').any(|part| part == "." || part == "..") {
        return Err(bad("has `.` or `..` in its path", "write the path that is meant"));
    }
    let usual = if tls { 443 } else { 80 };
    let port = match port {
        None => usual,
        Some(port) => port
            .parse()
            .ok()
            .filter(|port| *port != 0)
            .ok_or_else(|| bad("has no valid port", "write 1 to 65535, or none"))?,
    };
    let path = path.trim_matches('/');
    let base_path = match provider.api {
        ProviderApi::OpenAI if path.is_empty() => "/v1".to_string(),
        ProviderApi::Databricks if path.is_empty() => "/serving-endpoints".to_string(),
        // Its OpenAI-compatible one, which takes API keys.
        ProviderApi::Bedrock if path.is_empty() => "/openai/v1".to_string(),
        ProviderApi::Anthropic if path.is_empty() => String::new(),
        _ => format!("/{path}"),
    };
    let bracketed = if host.contains(':') { format!("[{host}]") } else { host.to_string() };
    let authority = if port == usual { bracketed } else { format!("{bracketed}:{port}") };
    Ok(Upstream { host: host.to_string(), port, tls, authority, base_path })
}

/// The backend's providers, none of them ready.
pub(super) fn providers(resources: &Resources, backend: &Resource<GatewayBackendSpec>) -> Vec<ProviderSpec> {
    let keys = backend.spec.providers.iter().map(|reference| backend.key.sibling(&reference.name));
    keys.filter_map(|key| resources.providers.get(&key)).filter_map(provider).collect()
}

/// `None` for an endpoint that did not pass the checks.
fn provider(resource: &Resource<InferenceProviderSpec>) -> Option<ProviderSpec> {
    let spec = &resource.spec;
    let upstream = upstream(spec).ok()?;
    let wire = v1::Provider {
        name: resource.key.name.clone(),
        cluster: provider_cluster(&resource.key),
        authority: upstream.authority,
        base_path: upstream.base_path,
        authorization: String::new(),
        models: spec.models.iter().map(model).collect(),
        request_timeout_ms: spec.request_timeout.as_millis(),
        ready: false,
    };
    let secret = spec.credentials.as_ref().map(|credentials| credentials.secret_ref.name.clone());
    Some(ProviderSpec { key: resource.key.clone(), api: spec.api, secret, wire })
}

fn model(model: &ProviderModel) -> v1::ProviderModel {
    let prices = model.price_per_million_tokens.as_ref();
    v1::ProviderModel {
        name: model.name.clone(),
        upstream_name: model.upstream_name.clone().unwrap_or_else(|| model.name.clone()),
        input_price: prices.map(|prices| prices.input.get()),
        output_price: prices.map(|prices| prices.output.get()),
        expected_ttft_ms: model.expected_ttft.map_or(0, Period::as_millis),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(api: &str, endpoint: &str) -> Result<Upstream, EndpointError> {
        let spec = serde_json::json!({"api": api, "endpoint": endpoint, "models": [{"name": "m"}]});
        upstream(&serde_json::from_value(spec).unwrap())
    }

    #[test]
    fn endpoints_become_host_port_and_path() {
        let parts = |upstream: Upstream| {
            let Upstream { host, port, tls, authority, base_path } = upstream;
            format!("{host} {port} {tls} {authority} {base_path}")
        };
        for (api, endpoint, expected) in [
            ("OpenAI", "https://api.openai.com/v1/", "api.openai.com 443 true api.openai.com /v1"),
            ("OpenAI", "https://api.openai.com", "api.openai.com 443 true api.openai.com /v1"),
            ("OpenAI", "http://127.0.0.1:8080/a/b", "127.0.0.1 8080 false 127.0.0.1:8080 /a/b"),
            ("OpenAI", "https://[fd00::8]:8443", "fd00::8 8443 true [fd00::8]:8443 /v1"),
            ("OpenAI", "http://[::1]/x", "::1 80 false [::1] /x"),
            ("Databricks", "https://a.cloud", "a.cloud 443 true a.cloud /serving-endpoints"),
            ("Bedrock", "https://b.aws", "b.aws 443 true b.aws /openai/v1"),
        ] {
            assert_eq!(parts(of(api, endpoint).unwrap()), expected);
        }
        assert!(of("OpenAI", "http://localhost:1").unwrap().is_loopback());
        assert!(of("OpenAI", "http://[::1]:1").unwrap().is_loopback());
        assert!(!of("OpenAI", "http://10.0.0.1:1").unwrap().is_loopback());
    }

    #[test]
    fn what_is_wrong_with_an_endpoint_is_said() {
        for (endpoint, problem) in [
            ("api.openai.com", "is not a URL"),
            ("https://", "is not a URL"),
            ("https://a:b", "has no valid port"),
            ("https://a:0", "has no valid port"),
            ("https://[::1", "is not a URL"),
            ("https://user:pass@a", "has a user name"),
            ("http://127.0.0.1:1/v1\r\nx-inj: 1", "which no URL has"),
            ("https://a/v1 x", "which no URL has"),
            ("https://ä/v1", "which no URL has"),
            ("https://-a-/v1", "is not a URL"),
            ("https://a..b/v1", "is not a URL"),
            ("https://a/../v1", "in its path"),
            ("https://a/v1?key=x", "has a query"),
        ] {
            let error = of("OpenAI", endpoint).unwrap_err().to_string();
            assert!(error.contains(problem), "{endpoint}: {error}");
        }
    }
}
