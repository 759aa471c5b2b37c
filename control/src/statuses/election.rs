//! Which replica writes statuses: a Lease that one holds at a time. Pure: what was read and the time go in, what to do
//! comes out. Times are milliseconds on this process's own clock, so clocks that differ do no harm: a lease is over when
//! it was not seen to change for its duration.

/// How long a lease that is not renewed keeps others away.
pub const LEASE_MS: u64 = 15_000;
/// After this long without a renewal the holder stops writing, well before anybody else may begin.
const DEADLINE_MS: u64 = 10_000;
/// How often the holder renews.
const RENEW_MS: u64 = 5_000;
/// How often the lease is looked at otherwise, and after a failure.
const RETRY_MS: u64 = 2_000;

/// A lease as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Changes with every write.
    pub resource_version: String,
    /// Who holds it; empty for nobody.
    pub holder: String,
    /// How long it lasts without a renewal.
    pub duration_ms: u64,
}

/// What to do with the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// There is none: make one.
    Create,
    /// Nobody holds it any more: take it, if it is still as it was read.
    Take,
    /// It is ours: say that we are there, if it is still as it was read.
    Renew,
    /// Another replica holds it.
    Wait,
}

/// One replica's part in the election.
#[derive(Debug)]
pub struct Election {
    identity: String,
    /// The version that was read last, and when it was first read.
    seen: Option<(String, u64)>,
    /// The lease is ours until then at least.
    ours_until: u64,
}

impl Election {
    /// A replica by this name, which no other has.
    #[must_use]
    pub fn new(identity: String) -> Self {
        Self { identity, seen: None, ours_until: 0 }
    }

    /// This replica's name.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Takes what was read; `None` when there is no lease.
    pub fn read(&mut self, lease: Option<&Seen>, now: u64) -> Action {
        let Some(lease) = lease else {
            self.seen = None;
            self.ours_until = 0;
            return Action::Create;
        };
        let since = match &self.seen {
            Some((version, since)) if *version == lease.resource_version => *since,
            _ => now,
        };
        self.seen = Some((lease.resource_version.clone(), since));
        if lease.holder == self.identity {
            return Action::Renew;
        }
        self.ours_until = 0;
        if lease.holder.is_empty() || now >= since + lease.duration_ms { Action::Take } else { Action::Wait }
    }

    /// The lease was written: it is ours from when that was asked for.
    pub fn won(&mut self, asked_at: u64) {
        self.ours_until = asked_at + DEADLINE_MS;
    }

    /// Another replica was faster.
    pub fn lost(&mut self) {
        self.ours_until = 0;
    }

    /// The lease is ours until then at least; 0 for not at all.
    #[must_use]
    pub fn until(&self) -> u64 {
        self.ours_until
    }

    /// Whether this replica may write.
    #[must_use]
    pub fn leads(&self, now: u64) -> bool {
        now < self.ours_until
    }

    /// How long to wait before the lease is looked at again. `failed` says that the API server could not be asked.
    #[must_use]
    pub fn pause_ms(&self, failed: bool, now: u64) -> u64 {
        if self.leads(now) && !failed { RENEW_MS } else { RETRY_MS }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The lease as the API server keeps it.
    #[derive(Debug, Default)]
    struct Stored {
        version: u64,
        holder: Option<String>,
    }

    impl Stored {
        fn seen(&self) -> Option<Seen> {
            let holder = self.holder.clone()?;
            Some(Seen { resource_version: self.version.to_string(), holder, duration_ms: LEASE_MS })
        }

        /// One replica reads and writes. `late` is how long the write takes; the lease may change meanwhile.
        fn turn(&mut self, election: &mut Election, now: u64) -> Action {
            let action = election.read(self.seen().as_ref(), now);
            if action != Action::Wait {
                self.version += 1;
                self.holder = Some(election.identity().to_owned());
                election.won(now);
            }
            action
        }
    }

    #[test]
    fn the_first_leads_and_the_other_waits_until_it_is_silent() {
        let (mut a, mut b) = (Election::new("a".into()), Election::new("b".into()));
        let mut lease = Stored::default();
        assert_eq!(lease.turn(&mut a, 0), Action::Create);
        assert_eq!(lease.turn(&mut b, 10), Action::Wait);
        assert!(a.leads(10) && !b.leads(10));
        assert_eq!(lease.turn(&mut a, 5_000), Action::Renew);
        assert_eq!(lease.turn(&mut b, 6_000), Action::Wait);
        assert_eq!(lease.turn(&mut b, 20_999), Action::Wait, "15 s after the change was seen");
        assert!(!a.leads(15_000), "it stopped long before");
        assert_eq!(lease.turn(&mut b, 21_000), Action::Take);
        assert_eq!(lease.turn(&mut a, 21_001), Action::Wait);
        assert!(b.leads(21_001) && !a.leads(21_001));
    }

    #[test]
    fn a_lease_that_was_given_up_is_taken_at_once() {
        let mut b = Election::new("b".into());
        let mut lease = Stored { version: 4, holder: Some("a".into()) };
        assert_eq!(lease.turn(&mut b, 0), Action::Wait);
        lease = Stored { version: 5, holder: Some(String::new()) };
        assert_eq!(lease.turn(&mut b, 2_000), Action::Take);
    }

    #[test]
    fn a_holder_that_cannot_renew_stops_and_looks_often() {
        let mut a = Election::new("a".into());
        a.won(100);
        assert_eq!((a.pause_ms(false, 200), a.pause_ms(true, 200)), (RENEW_MS, RETRY_MS));
        assert!(a.leads(100 + DEADLINE_MS - 1));
        assert!(!a.leads(100 + DEADLINE_MS));
        a.won(20_000);
        a.lost();
        assert!(!a.leads(20_000));
        a.won(30_000);
        a.read(None, 30_001);
        assert!(!a.leads(30_001), "the lease was deleted");
    }

    proptest! {
        /// Replicas that are away at times, with clocks of their own: never two that lead.
        #[test]
        fn never_two_lead(course in prop::collection::vec((0..3usize, 0..6_000u64, any::<bool>()), 1..200)) {
            let offsets = [0u64, 1_000_000, 77_777];
            let mut replicas = ["a", "b", "c"].map(|name| Election::new(name.into()));
            let mut lease = Stored::default();
            let mut now = 1_000;
            for (who, pause, reachable) in course {
                now += pause;
                if reachable {
                    lease.turn(&mut replicas[who], now + offsets[who]);
                }
                let leading = replicas.iter().zip(offsets).filter(|(replica, offset)| replica.leads(now + offset));
                prop_assert!(leading.count() <= 1);
            }
        }
    }
}
