//! A gateway backend as it is at this moment: what its filters were told, from a running control service.

use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use kinference_api::ObjectKey;
use kinference_protocol::dump;
use kinference_routing::decide::Prompted;
use kinference_routing::openai::{Endpoint, parse};
use kinference_routing::snapshot::{Replica, Snapshot};

use crate::http;
use crate::outcome::Outcome;
use crate::scene::{outcome, tenant};

/// A snapshot that was taken just now.
pub(crate) struct Live {
    replica: Replica,
}

/// A request for a live fleet. Its text stays in this process.
pub(crate) struct Prompt<'a> {
    /// The requested model.
    pub(crate) model: &'a str,
    /// Where it would be sent, and its body; none when only its size is known.
    pub(crate) body: Option<(Endpoint, &'a [u8])>,
    /// Tokens of the prompt, where there is no body.
    pub(crate) tokens: u32,
}

impl Live {
    /// Asks the control service at an admin address. No backend stands for the only one.
    pub(crate) fn fetch(admin: &str, backend: Option<&ObjectKey>) -> Result<Live> {
        let path = match backend {
            Some(key) => format!("snapshot/{}/{}", key.namespace, key.name),
            None => "snapshot".to_string(),
        };
        let answer = http::get(admin, &path)?;
        let foreign = || format!("what {admin} answers is not a snapshot of a kinference-control");
        let messages = dump::split(answer).with_context(foreign)?;
        let mut replica = Replica::default();
        for message in messages {
            replica.apply(message).with_context(|| format!("a filter would refuse the snapshot of {admin}"))?;
        }
        if replica.current().is_none() {
            bail!(foreign());
        }
        Ok(Live { replica })
    }

    /// What the filters hold.
    pub(crate) fn snapshot(&self) -> Option<&Snapshot> {
        self.replica.current()
    }

    /// What becomes of a request of this tenant; "" for none.
    pub(crate) fn play(&self, prompt: &Prompt<'_>, of: &str, tags: &[String]) -> Result<Outcome> {
        let Some(snapshot) = self.snapshot() else { return Ok(Outcome::unidentified()) };
        let Some(tenant) = tenant(snapshot.config.rules.tenancy.deny_unidentified, of) else {
            return Ok(Outcome::unidentified());
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let Some((endpoint, body)) = prompt.body else {
            let nothing = Default::default();
            let prompted = Prompted::Figures { model: prompt.model, prompt_tokens: prompt.tokens, cached: &nothing };
            return Ok(outcome(snapshot, prompted, tenant, tags, now));
        };
        let mut request = parse(endpoint, body)?;
        request.model.name = prompt.model.into();
        Ok(outcome(snapshot, Prompted::Request { request: &request, body }, tenant, tags, now))
    }
}
