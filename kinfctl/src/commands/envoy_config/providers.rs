//! The way to providers: for each an internal listener, where the filter makes of a request what the provider takes, and
//! a cluster.

use std::path::PathBuf;

use anyhow::Result;
use kinference_api::compile::{self, Upstream};
use kinference_api::{ObjectKey, source};

use super::{quoted, template};

/// A provider, and where it is.
pub(super) struct Provider {
    /// Of its listener and its cluster.
    pub(super) name: String,
    upstream: Upstream,
}

/// The providers of a gateway backend, from files.
pub(super) fn from_files(paths: &[PathBuf], backend: &ObjectKey) -> Result<Vec<Provider>> {
    if paths.is_empty() {
        return Ok(Vec::new());
    }
    let resources = source::load(paths)?;
    let fleet = compile::fleet(&resources, backend)?;
    let provider = |spec: &compile::ProviderSpec| {
        let resource = resources.providers.get(&spec.key)?;
        let upstream = compile::upstream(&resource.spec).ok()?;
        Some(Provider { name: spec.wire.cluster.clone(), upstream })
    };
    Ok(fleet.providers.iter().filter_map(provider).collect())
}

/// The listeners; `filter` is the filter's part with this configuration.
pub(super) fn listeners(
    providers: &[Provider],
    buffer: u64,
    filter: impl Fn(&serde_json::Value) -> Result<String>,
) -> Result<String> {
    let mut listeners = String::new();
    for Provider { name, .. } in providers {
        listeners += &template::fill(
            include_str!("provider_listener.yaml"),
            &[
                ("NAME", quoted(name)),
                ("BUFFER_LIMIT", buffer.to_string()),
                ("LOCAL_REPLY", include_str!("local_reply.yaml").to_string()),
                ("FILTER", filter(&serde_json::json!({ "provider": name }))?),
            ],
        )?;
    }
    Ok(listeners)
}

/// The clusters. Certificates are checked against the authorities in the file `ca`.
pub(super) fn clusters(providers: &[Provider], ca: &str) -> Result<String> {
    let mut clusters = String::new();
    for Provider { name, upstream } in providers {
        let is_ip = upstream.host.parse::<std::net::IpAddr>().is_ok();
        let tls = if upstream.tls {
            // An address is no server name, and stands in certificates as an address.
            let (server_name, kind) =
                if is_ip { (String::new(), "IP_ADDRESS") } else { (format!("sni: {}", quoted(&upstream.host)), "DNS") };
            template::fill(
                include_str!("provider_tls.yaml"),
                &[
                    ("SERVER_NAME", server_name),
                    ("CA", quoted(ca)),
                    ("NAME_KIND", kind.to_string()),
                    ("HOST", quoted(&upstream.host)),
                ],
            )?
        } else {
            String::new()
        };
        let protocol =
            if upstream.tls { "auto_config: {}" } else { "explicit_http_config: {http_protocol_options: {}}" };
        clusters += &template::fill(
            include_str!("provider_cluster.yaml"),
            &[
                ("NAME", quoted(name)),
                ("DISCOVERY", if is_ip { "STATIC" } else { "LOGICAL_DNS" }.to_string()),
                ("HOST", quoted(&upstream.host)),
                ("PORT", upstream.port.to_string()),
                ("TLS", tls),
                ("PROTOCOL", protocol.to_string()),
            ],
        )?;
    }
    Ok(clusters)
}
