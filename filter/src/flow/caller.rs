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

impl Identity {
    /// Reads the identity from the headers that the configuration names, and removes them. `None` when the request must
    /// have a tenant and has none.
    pub(super) fn of(host: &dyn Exchange, snapshot: Option<&Snapshot>) -> Option<Self> {
        let tenancy = snapshot.map(|snapshot| &snapshot.config.rules.tenancy);
        let read = |name: &str| {
            let value = host.request_header(name).filter(|value| value.len() <= LONGEST)?;
            Some(String::from_utf8(value).ok()?.trim().to_owned())
        };
        let named = |name: &str| if name.is_empty() { None } else { read(name) };
        let tenant = tenancy.and_then(|tenancy| named(&tenancy.tenant_header)).filter(|tenant| !tenant.is_empty());
        let tags = tenancy.and_then(|tenancy| named(&tenancy.tags_header)).unwrap_or_default();
        for name in OWN_HEADERS {
            host.remove_request_header(name);
        }
        for name in tenancy.iter().flat_map(|tenancy| [&tenancy.tenant_header, &tenancy.tags_header]) {
            if !name.is_empty() {
                host.remove_request_header(name);
            }
        }
        match tenant {
            Some(tenant) => Some(Self { tenant, tags }),
            None if tenancy.is_some_and(|tenancy| tenancy.deny_unidentified) => None,
            None => Some(Self { tenant: ANONYMOUS.to_owned(), tags }),
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
