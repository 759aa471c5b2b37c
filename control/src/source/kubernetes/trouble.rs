//! What is in the way of a watch, and what to do about it.

use std::error::Error as _;
use std::fmt::Write;
use std::time::Duration;

use kube::core::Status;
use kube::runtime::watcher;

/// The kind of trouble that goes by itself.
pub(super) const UNREACHABLE: &str = "unreachable";

/// The kind of trouble that is solved by installing the CRDs.
pub(super) const MISSING: &str = "missing";

/// What a watch ran into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble {
    /// For metrics: "unreachable", "forbidden", "missing", "expired" or "other".
    pub(super) kind: &'static str,
    /// What is wrong and what to do.
    pub(super) text: String,
    /// The API server understands and says no (403, 404). Anything else may be another answer the next time.
    pub(super) is_refusal: bool,
}

/// What is watched, for messages.
#[derive(Debug, Clone)]
pub(super) struct Subject {
    /// As roles name it: "inferencepools.kinference.dev".
    pub(super) resource: String,
    /// Where: "in namespace team", "Secret team/bedrock".
    pub(super) place: String,
    /// True for the five kinds.
    pub(super) is_own: bool,
}

impl Trouble {
    pub(super) fn of_watch(error: &watcher::Error, subject: &Subject) -> Self {
        match error {
            watcher::Error::InitialListFailed(error) => Self::of_call(error, "list", subject),
            watcher::Error::WatchStartFailed(error) | watcher::Error::WatchFailed(error) => {
                Self::of_call(error, "watch", subject)
            }
            watcher::Error::WatchError(status) => Self::of_status(status, "watch", subject),
            watcher::Error::NoResourceVersion => Self::passing("other", format!("{}: {error}", subject.resource)),
        }
    }

    fn passing(kind: &'static str, text: String) -> Self {
        Self { kind, text, is_refusal: false }
    }

    fn of_call(error: &kube::Error, verb: &str, subject: &Subject) -> Self {
        match error {
            kube::Error::Api(status) => Self::of_status(status, verb, subject),
            error => Self::unreachable(error),
        }
    }

    /// The API server does not answer, or not as one.
    pub(super) fn unreachable(error: &kube::Error) -> Self {
        let mut text = format!("the API server cannot be reached: {error}");
        let mut source = error.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            if !text.contains(&cause_text) {
                // Writing to a string cannot fail.
                let _ = write!(text, ": {cause_text}");
            }
            source = cause.source();
        }
        text.push_str("; check its address, the network and the credentials; it is tried again until it answers");
        Self::passing(UNREACHABLE, text)
    }

    /// The API server takes connections and does not answer.
    pub(super) fn silent(time: Duration) -> Self {
        let text = format!("the API server did not answer within {time:?}; it is tried again until it does");
        Self::passing(UNREACHABLE, text)
    }

    /// The API server does not know these of the five kinds.
    pub(super) fn missing(resources: &[String]) -> Self {
        let resources = resources.join(", ");
        let text = format!(
            "the API server does not know {resources}: install the CRDs, `kinfctl crds | kubectl apply --server-side -f -`"
        );
        Self { kind: MISSING, text, is_refusal: true }
    }

    fn of_status(status: &Status, verb: &str, subject: &Subject) -> Self {
        let Subject { resource, place, is_own } = subject;
        if status.code == 401 {
            let text =
                "the API server does not know who we are (401); check the service account's token or the kubeconfig";
            return Self::passing("forbidden", text.into());
        }
        if status.code == 403 {
            let text = format!(
                "not allowed to {verb} {resource} ({place}): grant the service account get, list and watch on it: {}",
                status.message
            );
            return Self { kind: "forbidden", text, is_refusal: true };
        }
        if status.code == 404 && *is_own {
            return Self::missing(std::slice::from_ref(resource));
        }
        let kind = if status.code == 410 { "expired" } else { "other" };
        let text = format!("cannot {verb} {resource} ({place}): {} ({})", status.message, status.code);
        Self { kind, text, is_refusal: status.code == 404 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: u16, message: &str) -> watcher::Error {
        let status = Status { code, message: message.into(), ..Status::default() };
        watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status)))
    }

    fn subject(is_own: bool) -> Subject {
        Subject { resource: "inferencepools.kinference.dev".into(), place: "all namespaces".into(), is_own }
    }

    #[test]
    fn what_to_do_is_said() {
        let told = Trouble::of_watch(&status(403, "User \"x\" cannot list"), &subject(true));
        assert_eq!(told.kind, "forbidden");
        for part in ["list inferencepools.kinference.dev", "get, list and watch", "User \"x\" cannot list"] {
            assert!(told.text.contains(part), "{}", told.text);
        }
        assert!(told.is_refusal && !Trouble::of_watch(&status(500, "etcd"), &subject(false)).is_refusal);
        let told = Trouble::of_watch(&status(404, "not found"), &subject(true));
        assert!(told.kind == "missing" && told.text.contains("kinfctl crds"), "{}", told.text);
        assert_eq!(Trouble::of_watch(&status(404, "not found"), &subject(false)).kind, "other");
        assert_eq!(Trouble::of_watch(&status(410, "too old"), &subject(true)).kind, "expired");
        let refused = kube::Error::Service(std::io::Error::other("connection refused").into());
        let told = Trouble::of_watch(&watcher::Error::WatchStartFailed(refused), &subject(true));
        assert!(told.kind == "unreachable" && told.text.contains("connection refused"), "{}", told.text);
    }
}
