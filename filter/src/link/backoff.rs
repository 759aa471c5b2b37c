//! Pauses between attempts to reach the control service.

/// First pause, in milliseconds.
const FIRST_MS: u64 = 100;
/// Longest pause.
const LONGEST_MS: u64 = 5_000;

/// Pauses that double, each somewhere between a half and the whole of its length, so that the VMs that lost a control
/// service together do not come back together.
#[derive(Debug)]
pub(super) struct Backoff {
    pause: u64,
    random: u64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Backoff {
    pub(super) fn new(seed: u64) -> Self {
        Self { pause: FIRST_MS, random: seed }
    }

    /// The next pause, in milliseconds.
    pub(super) fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let half = self.pause / 2;
        let pause = half + (self.random >> 33) % (half + 1);
        self.pause = (self.pause * 2).min(LONGEST_MS);
        pause
    }

    /// The service answered: start again with the shortest.
    pub(super) fn reset(&mut self) {
        self.pause = FIRST_MS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_differ_between_vms() {
        let (mut a, mut b) = (Backoff::new(1), Backoff::new(2));
        let pauses: Vec<u64> = (0..12).map(|_| a.next()).collect();
        assert!((FIRST_MS / 2..=FIRST_MS).contains(&pauses[0]), "{pauses:?}");
        assert!(pauses[6..].iter().all(|pause| (LONGEST_MS / 2..=LONGEST_MS).contains(pause)), "{pauses:?}");
        assert_ne!(pauses, (0..12).map(|_| b.next()).collect::<Vec<_>>());
        a.reset();
        assert!(a.next() <= FIRST_MS);
    }
}
