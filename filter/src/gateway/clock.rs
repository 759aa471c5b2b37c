//! A clock that never runs backwards, over one that may be set back.

use std::time::Duration;

/// Turns the wall clock's readings into milliseconds that never decrease. A step back of the wall clock costs nothing
/// but that step.
#[derive(Debug, Default)]
pub struct Clock {
    last: u64,
    ahead: u64,
}

impl Clock {
    /// The reading that belongs to the wall clock's.
    pub fn at(&mut self, wall: Duration) -> u64 {
        let wall = u64::try_from(wall.as_millis()).unwrap_or(u64::MAX);
        let reading = wall.saturating_add(self.ahead);
        if reading < self.last {
            self.ahead += self.last - reading;
            return self.last;
        }
        self.last = reading;
        reading
    }

    /// The last reading.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_back_does_not_stop_it() {
        let mut clock = Clock::default();
        assert_eq!(clock.at(Duration::from_secs(1000)), 1_000_000);
        assert_eq!(clock.at(Duration::from_secs(500)), 1_000_000);
        assert_eq!(clock.at(Duration::from_secs(501)), 1_001_000);
        assert_eq!(clock.last(), 1_001_000);
    }
}
