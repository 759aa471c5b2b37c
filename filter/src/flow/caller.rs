//! Who sends a request, and which tags it has: by headers that a trusted front sets, and that go no further.

use kinference_routing::decide::Caller;
use kinference_routing::snapshot::Snapshot;

use crate::host::Exchange;

/// Headers by which a client could pass itself off as somebody: removed whatever the configuration.
const OWN_HEADERS: [&str; 2] = ["x-kinference-tenant", "x-kinference-tags"];
/// The tenant of a request that names none, where that is allowed.
const ANONYMOUS: &str = "anonymous";
/// Most bytes of a tenant's name or a list of tags.
const LONGEST: usize = 4096;

/// The tenant and the tags of a request.
#[derive(Debug, Default)]
pub(super) struct Identity {
    tenant: String,
    tags: String,
}

/// Why a request has no identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unknown {
    /// It must have a tenant, and has none.
    Nobody,
    /// What its headers say cannot be read, or contradicts itself. To take that for nothing would take it for a request
    /// that rules do not bind.
    Unreadable,
}

impl Identity {
    /// Reads the identity from the headers that the configuration names, and removes them. To be called when the decision
    /// is made, so that identity and rules are of one configuration.
    pub(super) fn of(host: &dyn Exchange, snapshot: Option<&Snapshot>) -> Result<Self, Unknown> {
        let tenancy = snapshot.map(|snapshot| &snapshot.config.rules.tenancy);
        let named =
            tenancy.map(|tenancy| [&tenancy.tenant_header, &tenancy.tags_header].map(|name| name.to_ascii_lowercase()));
        let named = named.unwrap_or_default();
        let names: Vec<&str> = named.iter().map(String::as_str).filter(|name| !name.is_empty()).collect();
        let lines = if names.is_empty() { Vec::new() } else { host.request_header_lines(&names) };
        strip(host);
        for name in names {
            host.remove_request_header(name);
        }
        let [tenants, tags] = &named;
        let (mut tenants, tags) = (texts(&lines, tenants)?, texts(&lines, tags)?.join(","));
        tenants.retain(|tenant| !tenant.is_empty());
        tenants.dedup();
        match (tenants.pop(), tenants.is_empty()) {
            (Some(tenant), true) => Ok(Self { tenant, tags }),
            (Some(_), false) => Err(Unknown::Unreadable),
            (None, _) if tenancy.is_some_and(|tenancy| tenancy.deny_unidentified) => Err(Unknown::Nobody),
            (None, _) => Ok(Self { tenant: ANONYMOUS.to_owned(), tags }),
        }
    }

    pub(super) fn tenant(&self) -> &str {
        &self.tenant
    }

    /// Tags, separated by commas in the header.
    pub(super) fn tags(&self) -> Vec<&str> {
        self.tags.split(',').map(str::trim).filter(|tag| !tag.is_empty()).collect()
    }

    pub(super) fn caller<'a>(&'a self, tags: &'a [&'a str]) -> Caller<'a> {
        Caller { tenant: &self.tenant, tags }
    }
}

/// Removes what would say who asks, from a request that nothing is known of.
pub(super) fn strip(host: &dyn Exchange) {
    for name in OWN_HEADERS {
        host.remove_request_header(name);
    }
}

/// All lines of a header: a front may add its own to those that a client sent.
fn texts(lines: &[(&str, Vec<u8>)], name: &str) -> Result<Vec<String>, Unknown> {
    let lines = || lines.iter().filter(|(of, _)| *of == name).map(|(_, line)| line);
    if lines().map(Vec::len).sum::<usize>() > LONGEST {
        return Err(Unknown::Unreadable);
    }
    let text = |line| std::str::from_utf8(line).map(|line| line.trim().to_owned()).map_err(|_| Unknown::Unreadable);
    lines().map(|line| text(line)).collect()
}
