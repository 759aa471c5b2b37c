//! Whether filters may be told credentials.
//!
//! Decided for the listener, not for each stream: a message is encoded once and sent to all of them.

use std::fmt;
use std::net::IpAddr;

use serde::Serialize;

/// How the gRPC port is guarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// Not at all.
    PlainText,
    /// Encrypted, but whoever comes is served.
    ServerTls,
    /// Encrypted, and whoever comes shows a certificate of the configured authority.
    MutualTls,
}

/// Who can read what is sent to filters, and so whether credentials may be among it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Confidentiality {
    /// Only holders of a certificate of the configured authority.
    MutualTls,
    /// Only processes of this machine.
    Loopback,
    /// Whoever reaches the port: it is encrypted, but authenticates nobody.
    ServerTlsOnly,
    /// Whoever reaches the port, and whoever is on the way.
    PlainText,
}

impl Confidentiality {
    /// That of a port bound to this address.
    pub fn of(bound_to: IpAddr, guard: Guard) -> Self {
        match guard {
            Guard::MutualTls => Self::MutualTls,
            // An address such as ::ffff:127.0.0.1 is loopback too.
            Guard::PlainText | Guard::ServerTls if bound_to.to_canonical().is_loopback() => Self::Loopback,
            Guard::ServerTls => Self::ServerTlsOnly,
            Guard::PlainText => Self::PlainText,
        }
    }

    /// Why credentials may not be sent, and what to do; `None` when they may.
    pub fn refusal(self) -> Option<&'static str> {
        match self {
            Self::MutualTls | Self::Loopback => None,
            Self::ServerTlsOnly => Some(
                "filters are not authenticated, so credentials are not sent to them; require their certificates with --tls-client-ca",
            ),
            Self::PlainText => Some(
                "filters are served in plain text, so credentials are not sent to them; set up mutual TLS with --tls-cert, --tls-key and --tls-client-ca, or listen on loopback",
            ),
        }
    }
}

impl fmt::Display for Confidentiality {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::MutualTls => "mutual TLS",
            Self::Loopback => "loopback",
            Self::ServerTlsOnly => "TLS without client certificates",
            Self::PlainText => "plain text",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_go_to_authenticated_or_local_filters_only() {
        let of = |address: &str, guard| Confidentiality::of(address.parse().unwrap(), guard);
        for (address, guard, expected, allowed) in [
            ("0.0.0.0", Guard::MutualTls, Confidentiality::MutualTls, true),
            ("127.0.0.1", Guard::MutualTls, Confidentiality::MutualTls, true),
            ("127.0.0.9", Guard::PlainText, Confidentiality::Loopback, true),
            ("::1", Guard::ServerTls, Confidentiality::Loopback, true),
            ("::ffff:127.0.0.1", Guard::PlainText, Confidentiality::Loopback, true),
            ("0.0.0.0", Guard::ServerTls, Confidentiality::ServerTlsOnly, false),
            ("::", Guard::PlainText, Confidentiality::PlainText, false),
            ("10.0.0.4", Guard::PlainText, Confidentiality::PlainText, false),
        ] {
            let decided = of(address, guard);
            assert_eq!(decided, expected, "{address} {guard:?}");
            assert_eq!(decided.refusal().is_none(), allowed, "{address} {guard:?}");
        }
    }
}
