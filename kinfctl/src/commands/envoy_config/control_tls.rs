//! TLS from Envoy to the control service.
//!
//! Envoy reads certificates anew only when they come by its secret discovery; so the files are named in secrets, which are
//! files of their own beside the configuration.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{Authority, absolute, quoted, template};

const CA_SECRET: &str = "kinference-control-ca.yaml";
const CERTIFICATE_SECRET: &str = "kinference-control-certificate.yaml";

#[derive(Clone, Debug, clap::Args)]
pub(super) struct ControlTls {
    /// The authority of the control service's certificate, in PEM form: the connection is encrypted. Files are read anew
    /// when they are replaced by renaming, or by the symbolic link of a mounted Secret.
    #[arg(long, value_name = "FILE", requires = "control_secrets")]
    control_ca: Option<PathBuf>,
    /// What Envoy shows to the control service, in PEM form: mutual TLS.
    #[arg(long, value_name = "FILE", requires_all = ["control_key", "control_ca"])]
    control_cert: Option<PathBuf>,
    /// Its private key.
    #[arg(long, value_name = "FILE", requires = "control_cert")]
    control_key: Option<PathBuf>,
    /// The name in the control service's certificate. Default: the host of --control.
    #[arg(long, value_name = "NAME", requires = "control_ca")]
    control_server_name: Option<String>,
    /// Folder for the two files that name the certificates to Envoy; they are written, and Envoy must find them there.
    #[arg(long, value_name = "DIR", requires = "control_ca")]
    control_secrets: Option<PathBuf>,
}

/// What TLS adds to the configuration.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Rendered {
    /// The control cluster's transport socket; empty without TLS.
    pub(super) transport_socket: String,
    /// Files that must be there for it, with their content.
    pub(super) files: Vec<(PathBuf, String)>,
}

impl Rendered {
    /// Writes the files. Each is renamed into its place, as an Envoy may be watching.
    pub(super) fn write(&self) -> Result<()> {
        for (path, content) in &self.files {
            let written = path.with_extension("yaml.new");
            let cannot = || format!("--control-secrets: {} cannot be written", path.display());
            std::fs::write(&written, content).with_context(cannot)?;
            std::fs::rename(&written, path).with_context(cannot)?;
        }
        Ok(())
    }
}

impl ControlTls {
    /// The part of the configuration for a control service at this address.
    pub(super) fn render(&self, control: &Authority) -> Result<Rendered> {
        let (Some(ca), Some(secrets)) = (&self.control_ca, &self.control_secrets) else {
            return Ok(Rendered::default());
        };
        let name = self.control_server_name.as_ref().unwrap_or(&control.host);
        if name.trim().is_empty() {
            bail!("--control-server-name is empty; give the name in the control service's certificate");
        }
        let is_ip = name.parse::<std::net::IpAddr>().is_ok();
        let ca_secret = secrets.join(CA_SECRET);
        let content = template::fill(
            include_str!("secret_ca.yaml"),
            &[
                ("CA", quoted(&absolute("--control-ca", ca)?)),
                ("FOLDER", quoted(&folder("--control-ca", ca)?)),
                ("SAN_TYPE", if is_ip { "IP_ADDRESS" } else { "DNS" }.to_string()),
                ("SERVER_NAME", quoted(name)),
            ],
        )?;
        let mut files = vec![(ca_secret.clone(), content)];

        let mut certificate = String::new();
        if let (Some(cert), Some(key)) = (&self.control_cert, &self.control_key) {
            let path = secrets.join(CERTIFICATE_SECRET);
            let content = template::fill(
                include_str!("secret_certificate.yaml"),
                &[
                    ("CERTIFICATE", quoted(&absolute("--control-cert", cert)?)),
                    ("KEY", quoted(&absolute("--control-key", key)?)),
                    ("FOLDER", quoted(&folder("--control-cert", cert)?)),
                ],
            )?;
            let secret = quoted(&absolute("--control-secrets", &path)?);
            certificate = template::fill(include_str!("control_certificate.yaml"), &[("CERTIFICATE_SECRET", secret)])?;
            files.push((path, content));
        }
        let transport_socket = template::fill(
            include_str!("control_tls.yaml"),
            &[
                // An IP address is no server name.
                ("SERVER_NAME", quoted(if is_ip { "" } else { name })),
                ("CERTIFICATE", certificate),
                ("CA_SECRET", quoted(&absolute("--control-secrets", &ca_secret)?)),
            ],
        )?;
        Ok(Rendered { transport_socket, files })
    }
}

/// The folder of a file, which Envoy watches.
fn folder(flag: &str, file: &Path) -> Result<String> {
    let file = absolute(flag, file)?;
    match Path::new(&file).parent().and_then(Path::to_str) {
        Some(folder) => Ok(folder.to_string()),
        None => bail!("{flag} {file}: is not a file"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn parsed(yaml: &str) -> Value {
        serde_yaml_ng::from_str(yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}"))
    }

    fn mutual(server_name: Option<&str>) -> ControlTls {
        ControlTls {
            control_ca: Some("/certs/ca.crt".into()),
            control_cert: Some("/certs/tls.crt".into()),
            control_key: Some("/certs/tls.key".into()),
            control_server_name: server_name.map(str::to_owned),
            control_secrets: Some("/etc/envoy".into()),
        }
    }

    #[test]
    fn certificates_are_named_in_secrets_that_envoy_watches() {
        let rendered = mutual(None).render(&"control.kinference:18100".parse().unwrap()).unwrap();
        let socket = &parsed(&rendered.transport_socket)["transport_socket"]["typed_config"];
        assert_eq!(socket["sni"], "control.kinference");
        let common = &socket["common_tls_context"];
        let (ca, pair) =
            (&common["validation_context_sds_secret_config"], &common["tls_certificate_sds_secret_configs"][0]);
        let path = "/sds_config/path_config_source/path";
        assert_eq!(ca.pointer(path).unwrap(), "/etc/envoy/kinference-control-ca.yaml");
        assert_eq!(pair.pointer(path).unwrap(), "/etc/envoy/kinference-control-certificate.yaml");

        let [(_, ca_file), (_, pair_file)] = rendered.files.as_slice() else { panic!("{rendered:?}") };
        let secret = &parsed(ca_file)["resources"][0];
        assert_eq!(secret["name"], ca["name"]);
        assert_eq!(secret["validation_context"]["trusted_ca"]["filename"], "/certs/ca.crt");
        let name = &secret["validation_context"]["match_typed_subject_alt_names"][0];
        assert_eq!((&name["san_type"], &name["matcher"]["exact"]), (&"DNS".into(), &"control.kinference".into()));
        let secret = &parsed(pair_file)["resources"][0];
        assert_eq!(secret["name"], pair["name"]);
        assert_eq!(secret["tls_certificate"]["private_key"]["filename"], "/certs/tls.key");
        assert_eq!(secret["tls_certificate"]["watched_directory"]["path"], "/certs");
    }

    #[test]
    fn an_address_is_looked_for_in_the_certificate_but_is_no_server_name() {
        let address = "127.0.0.1:18100".parse().unwrap();
        let rendered = mutual(None).render(&address).unwrap();
        assert_eq!(parsed(&rendered.transport_socket)["transport_socket"]["typed_config"]["sni"], "");
        assert!(rendered.files[0].1.contains("san_type: IP_ADDRESS, matcher: {exact: \"127.0.0.1\"}"));
        let named = mutual(Some("control")).render(&address).unwrap();
        assert_eq!(parsed(&named.transport_socket)["transport_socket"]["typed_config"]["sni"], "control");
    }

    #[test]
    fn without_a_certificate_the_server_alone_shows_one() {
        let server = ControlTls { control_cert: None, control_key: None, ..mutual(None) };
        let rendered = server.render(&"control:1".parse().unwrap()).unwrap();
        assert_eq!(rendered.files.len(), 1);
        assert!(!rendered.transport_socket.contains("tls_certificate_sds"), "{}", rendered.transport_socket);
        let none = ControlTls { control_ca: None, control_secrets: None, ..server };
        assert_eq!(none.render(&"control:1".parse().unwrap()).unwrap(), Rendered::default());
    }
}
