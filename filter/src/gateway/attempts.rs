//! Requests on their way to providers, for the second half of the filter that meets them on the way out.
//!
//! A request that goes to a provider passes the proxy's own internal listener, where the provider's side of the filter
//! makes of it what the provider takes. Both sides run in one VM. What the first side decided waits here under a token
//! that goes along in a header; a request without a token that is known here reaches no provider.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use kinference_protocol::v1;
use kinference_routing::Choice;
use kinference_routing::snapshot::Snapshot;

/// How a provider is called.
#[derive(Clone, PartialEq, Eq)]
pub struct Call {
    /// Host for the request's authority.
    pub authority: String,
    /// Path before `/chat/completions`.
    pub base_path: String,
    /// Value of the Authorization header; empty for none. Never shown.
    pub authorization: String,
    /// The name that the provider knows the model by.
    pub model: String,
    /// After this long the answer must be complete; 0 for no limit.
    pub timeout_ms: u64,
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("authority", &self.authority).field("model", &self.model).finish_non_exhaustive()
    }
}

impl Call {
    fn new(provider: &v1::Provider, model: &str) -> Self {
        Self {
            authority: provider.authority.clone(),
            base_path: provider.base_path.clone(),
            authorization: provider.authorization.clone(),
            model: model.to_owned(),
            timeout_ms: provider.request_timeout_ms,
        }
    }
}

/// The calls that are allowed, by token and the provider's cluster: those of requests that are under way.
#[derive(Debug, Default)]
pub struct Attempts {
    next: u64,
    calls: BTreeMap<u64, BTreeMap<String, Call>>,
    /// What came of calls since it was asked for last, one after the other.
    outcomes: Vec<(Rc<str>, CallOutcome)>,
}

/// What came of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallOutcome {
    /// The provider answered, whatever it said of the request.
    Answered,
    /// It cannot be reached, is overloaded or broken, or refuses the gateway; for so many milliseconds, when it says so.
    Failed {
        /// What it asks for.
        patience_ms: Option<u64>,
    },
}

/// Most outcomes that wait; they are asked for with every decision.
const OUTCOMES: usize = 256;

impl Attempts {
    /// Allows the calls of a choice, for as long as the ticket lives. `None` when it names no provider.
    pub fn allow(shared: &Rc<RefCell<Self>>, snapshot: &Snapshot, choice: &Choice) -> Option<Allowed> {
        let calls: BTreeMap<String, Call> = choice
            .stops()
            .filter_map(|stop| {
                let route = stop.provider()?;
                let provider = snapshot.config.rules.providers.iter().find(|provider| provider.name == route.name)?;
                Some((route.cluster.clone(), Call::new(provider, &route.upstream_model)))
            })
            .collect();
        if calls.is_empty() {
            return None;
        }
        let mut attempts = shared.borrow_mut();
        attempts.next += 1;
        let token = attempts.next;
        attempts.calls.insert(token, calls);
        Some(Allowed { token, attempts: Rc::clone(shared) })
    }

    /// Notes what came of a call to a provider's cluster.
    pub fn came_of(&mut self, cluster: &Rc<str>, outcome: CallOutcome) {
        if self.outcomes.len() < OUTCOMES {
            self.outcomes.push((Rc::clone(cluster), outcome));
        }
    }

    /// What came of calls since the last time.
    pub fn take_outcomes(&mut self) -> Vec<(Rc<str>, CallOutcome)> {
        std::mem::take(&mut self.outcomes)
    }

    /// The call of the request with this token to a provider's cluster, when it is allowed.
    #[must_use]
    pub fn call(&self, token: u64, cluster: &str) -> Option<&Call> {
        self.calls.get(&token)?.get(cluster)
    }
}

/// A request that may go to providers; when it is dropped, it may not any more.
#[derive(Debug)]
pub struct Allowed {
    token: u64,
    attempts: Rc<RefCell<Attempts>>,
}

impl Allowed {
    /// What goes along in the header.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }
}

impl Drop for Allowed {
    fn drop(&mut self) {
        self.attempts.borrow_mut().calls.remove(&self.token);
    }
}
