//! The Lease in the API server: reads and writes it as the [`Election`] says.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::PostParams;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::election::{Action, Election, LEASE_MS, Seen};
use super::{FIELD_MANAGER, REQUEST, Trouble, within};
use crate::clock::Clock;

/// What became of a turn.
enum Turn {
    /// The lease is ours.
    Won,
    /// It is another's.
    Lost,
}

/// Until when this replica may write, on its own clock; 0 for not at all.
pub(super) type LeadsUntil = watch::Sender<u64>;

/// Takes part in the election until shutdown, and gives the lease up then.
pub(super) async fn run(
    api: Api<Lease>,
    name: &str,
    mut election: Election,
    clock: Clock,
    leads_until: LeadsUntil,
    shutdown: CancellationToken,
) {
    let mut trouble = Trouble::default();
    loop {
        let now = clock.now_ms();
        let turn = turn(&api, name, &mut election, clock).await;
        match &turn {
            Ok(Turn::Won) => {
                trouble.over();
                election.won(now);
            }
            Ok(Turn::Lost) => {
                trouble.over();
                election.lost();
            }
            Err(kube::Error::Api(status)) if status.code == 403 => trouble.is(&format!(
                "the Lease {name} cannot be kept: {}; without it no statuses are written (the service account needs \
                 get, create and update on leases.coordination.k8s.io)",
                status.message
            )),
            Err(error) => trouble.is(&format!("the Lease {name} cannot be kept: {error}; no statuses are written")),
        }
        leads_until.send_replace(election.until());
        let pause = Duration::from_millis(election.pause_ms(turn.is_err(), clock.now_ms()));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = shutdown.cancelled() => break,
        }
    }
    if election.leads(clock.now_ms()) {
        leads_until.send_replace(0);
        if let Err(error) = give_up(&api, name, election.identity()).await {
            tracing::debug!("the Lease {name} is left to run out: {error}");
        }
    }
}

async fn turn(api: &Api<Lease>, name: &str, election: &mut Election, clock: Clock) -> Result<Turn, kube::Error> {
    let lease = within(REQUEST, api.get_opt(name)).await?;
    let seen = lease.as_ref().map(seen);
    let written = match election.read(seen.as_ref(), clock.now_ms()) {
        Action::Wait => return Ok(Turn::Lost),
        Action::Create => {
            let metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(taken(None, election.identity())) };
            within(REQUEST, api.create(&parameters(), &lease)).await
        }
        Action::Take | Action::Renew => {
            let mut lease = lease.unwrap_or_default();
            lease.spec = Some(taken(lease.spec.as_ref(), election.identity()));
            within(REQUEST, api.replace(name, &parameters(), &lease)).await
        }
    };
    match written {
        Ok(_) => Ok(Turn::Won),
        // Another replica was faster.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(Turn::Lost),
        Err(error) => Err(error),
    }
}

async fn give_up(api: &Api<Lease>, name: &str, identity: &str) -> Result<(), kube::Error> {
    let Some(mut lease) = within(REQUEST, api.get_opt(name)).await? else { return Ok(()) };
    if let Some(spec) = lease.spec.as_mut().filter(|spec| spec.holder_identity.as_deref() == Some(identity)) {
        spec.holder_identity = Some(String::new());
        spec.renew_time = Some(MicroTime(Timestamp::now()));
        within(REQUEST, api.replace(name, &parameters(), &lease)).await?;
    }
    Ok(())
}

fn parameters() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() }
}

fn seen(lease: &Lease) -> Seen {
    let spec = lease.spec.as_ref();
    let seconds = spec.and_then(|spec| spec.lease_duration_seconds).and_then(|seconds| u64::try_from(seconds).ok());
    Seen {
        resource_version: lease.metadata.resource_version.clone().unwrap_or_default(),
        holder: spec.and_then(|spec| spec.holder_identity.clone()).unwrap_or_default(),
        duration_ms: seconds.map_or(LEASE_MS, |seconds| seconds * 1000),
    }
}

/// The lease as it is when this replica holds it.
fn taken(before: Option<&LeaseSpec>, identity: &str) -> LeaseSpec {
    let now = MicroTime(Timestamp::now());
    let same = before.is_some_and(|before| before.holder_identity.as_deref() == Some(identity));
    let transitions = before.and_then(|before| before.lease_transitions).unwrap_or_default();
    LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: i32::try_from(LEASE_MS / 1000).ok(),
        lease_transitions: Some(if same || before.is_none() { transitions } else { transitions + 1 }),
        acquire_time: before.filter(|_| same).and_then(|before| before.acquire_time.clone()).or(Some(now.clone())),
        renew_time: Some(now),
        ..LeaseSpec::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_says_who_since_when_and_how_often_it_changed_hands() {
        let first = taken(None, "a");
        assert_eq!((first.holder_identity.as_deref(), first.lease_transitions), (Some("a"), Some(0)));
        let renewed = taken(Some(&first), "a");
        assert_eq!((&renewed.acquire_time, renewed.lease_transitions), (&first.acquire_time, Some(0)));
        let other = taken(Some(&renewed), "b");
        assert_eq!((other.holder_identity.as_deref(), other.lease_transitions), (Some("b"), Some(1)));
        let metadata = ObjectMeta { resource_version: Some("7".into()), ..ObjectMeta::default() };
        let read = seen(&Lease { metadata, spec: Some(other) });
        assert_eq!(read, Seen { resource_version: "7".into(), holder: "b".into(), duration_ms: LEASE_MS });
    }
}
