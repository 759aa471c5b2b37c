//! The plugin's configuration: a small JSON object in the proxy's own configuration.

use serde::Deserialize;
use thiserror::Error;

/// What the proxy's configuration tells the filter. Everything else comes with the snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PluginConfig {
    /// The gateway backend to serve: "namespace/name", or a name in the control service's default namespace.
    pub gateway_backend: String,
    /// The proxy's cluster that leads to the control service (HTTP/2).
    pub control_cluster: String,
    /// What to do with requests before the first snapshot.
    #[serde(default)]
    pub failure_mode: FailureMode,
    /// The providers that the proxy has internal listeners for: the listeners' names. Others are not used.
    #[serde(default)]
    pub providers: Vec<String>,
}

/// What to do with a request when nothing can be decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum FailureMode {
    /// Send it on; the proxy picks any worker.
    #[default]
    Open,
    /// Answer 503.
    Closed,
}

/// Why a plugin configuration is refused.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// There is none.
    #[error("the plugin configuration is empty; set {{\"gatewayBackend\": \"NAME\", \"controlCluster\": \"CLUSTER\"}}")]
    Empty,
    /// It is not what is expected.
    #[error("the plugin configuration is not valid: {0}")]
    Json(#[from] serde_json::Error),
    /// A field has no value.
    #[error("the plugin configuration's {0} is empty")]
    NoValue(&'static str),
    /// The proxy would take the name for something else.
    #[error(
        "controlCluster {0:?}: the proxy would read this name as a serialized GrpcService instead of a cluster's name; \
         rename the cluster, for example to kinference_control"
    )]
    ClusterName(String),
}

/// What a place in the proxy's configuration is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// The gateway, where clients come in.
    Gateway(PluginConfig),
    /// An internal listener that leads to a provider.
    Provider(ProviderConfig),
}

/// The configuration of the filter in a provider's listener.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ProviderConfig {
    /// Name of the listener, as the snapshot has it.
    pub provider: String,
}

impl Role {
    /// Reads a configuration.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn parse(json: &[u8]) -> Result<Self, ConfigError> {
        if json.trim_ascii().is_empty() {
            return Err(ConfigError::Empty);
        }
        let fields: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(json)?;
        if fields.contains_key("provider") {
            let config: ProviderConfig = serde_json::from_slice(json)?;
            let named = !config.provider.trim().is_empty();
            return if named { Ok(Self::Provider(config)) } else { Err(ConfigError::NoValue("provider")) };
        }
        let config: PluginConfig = serde_json::from_slice(json)?;
        if config.gateway_backend.trim().is_empty() {
            return Err(ConfigError::NoValue("gatewayBackend"));
        }
        if config.control_cluster.is_empty() {
            return Err(ConfigError::NoValue("controlCluster"));
        }
        if is_wire_format(config.control_cluster.as_bytes()) {
            return Err(ConfigError::ClusterName(config.control_cluster));
        }
        Ok(Self::Gateway(config))
    }
}

/// Bytes that parse as some protobuf message. Envoy first tries to parse the cluster's name as a `GrpcService`, whose
/// parser skips fields that it does not know, so any such name may be taken for one; some versions abort on what they
/// then find in it.
fn is_wire_format(mut bytes: &[u8]) -> bool {
    let mut groups: Vec<u64> = Vec::new();
    while !bytes.is_empty() {
        let Some(tag) = varint(&mut bytes) else { return false };
        let field = tag >> 3;
        if field == 0 {
            return false;
        }
        let skipped = match tag & 7 {
            0 => varint(&mut bytes).is_some(),
            1 => skip(&mut bytes, 8),
            2 => varint(&mut bytes).is_some_and(|length| skip(&mut bytes, length)),
            3 => {
                groups.push(field);
                true
            }
            4 => groups.pop() == Some(field),
            5 => skip(&mut bytes, 4),
            _ => false,
        };
        if !skipped {
            return false;
        }
    }
    groups.is_empty()
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn skip(bytes: &mut &[u8], length: u64) -> bool {
    match usize::try_from(length).ok().and_then(|length| bytes.get(length..)) {
        Some(rest) => {
            *bytes = rest;
            true
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(json: &str) -> String {
        Role::parse(json.as_bytes()).unwrap_err().to_string()
    }

    fn gateway(json: &str) -> PluginConfig {
        let Role::Gateway(config) = Role::parse(json.as_bytes()).unwrap() else { panic!("{json}") };
        config
    }

    #[test]
    fn a_configuration_is_read() {
        assert_eq!(
            gateway(r#"{"gatewayBackend":"ns/main","controlCluster":"kinference_control"}"#),
            PluginConfig {
                gateway_backend: "ns/main".into(),
                control_cluster: "kinference_control".into(),
                failure_mode: FailureMode::Open,
                providers: Vec::new(),
            }
        );
        let all = r#"{"gatewayBackend":"main","controlCluster":"kinference_control","failureMode":"Closed","providers":["p"]}"#;
        let all = gateway(all);
        assert_eq!((all.failure_mode, all.providers), (FailureMode::Closed, vec!["p".to_owned()]));
        let provider = Role::parse(br#"{"provider":"kinference_provider_a_b"}"#).unwrap();
        assert_eq!(provider, Role::Provider(ProviderConfig { provider: "kinference_provider_a_b".into() }));
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert!(error("  ").contains("empty"));
        assert!(error("{").contains("EOF"));
        assert!(error(r#"{"provider":""}"#).contains("provider is empty"));
        assert!(error(r#"{"provider":"a","gatewayBackend":"b"}"#).contains("unknown field `gatewayBackend`"));
        assert!(error(r#"{"gatewayBackend":"a"}"#).contains("controlCluster"));
        assert!(
            error(r#"{"gatewayBackend":" ","controlCluster":"kinference_control"}"#)
                .contains("gatewayBackend is empty")
        );
        assert!(error(r#"{"gatewayBackend":"a","controlCluster":""}"#).contains("controlCluster is empty"));
        assert!(
            error(r#"{"gatewayBackend":"a","controlCluster":"c_c","debug":true}"#).contains("unknown field `debug`")
        );
        assert!(
            error(r#"{"gatewayBackend":"a","controlCluster":"c_c","failureMode":"open"}"#)
                .contains("unknown variant `open`")
        );
        assert!(error(r#"{"gatewayBackend":"a","controlCluster":"inference"}"#).contains("GrpcService"));
    }

    #[test]
    fn names_that_parse_as_messages_are_known() {
        // Field 13 with eight bytes of fixed64; field 12 with four bytes; a group that opens and closes; a string.
        for name in ["inference", "inferencemabcd", "eabcd", "cd", "b\x03abc"] {
            assert!(is_wire_format(name.as_bytes()), "{name}");
        }
        for name in
            ["kinference_control", "control", "kinference-control", "outbound|18100||control.ns.svc.cluster.local"]
        {
            assert!(!is_wire_format(name.as_bytes()), "{name}");
        }
    }
}
