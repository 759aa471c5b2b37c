//! When sessions start.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::LoadError;
use super::text::Random;

/// How the sessions of an open loop arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[derive(clap::ValueEnum)]
pub enum Arrival {
    /// Each at a time of its own, whatever the others do.
    Poisson,
    /// At equal distances.
    Constant,
}

/// What decides when a session starts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pace {
    /// Sessions arrive at a rate, no matter how far the earlier ones are.
    Open {
        /// Sessions a second; above 0.
        rate: f64,
        /// How they are spread.
        arrival: Arrival,
    },
    /// A fixed number of sessions runs at any time; the next starts when one ends.
    Closed {
        /// Sessions at once; at least 1.
        concurrency: usize,
    },
}

impl Pace {
    /// Checks the figures.
    ///
    /// # Errors
    /// [`LoadError::Setting`] names what is out of range.
    pub fn validate(&self) -> Result<(), LoadError> {
        match *self {
            Self::Open { rate, .. } if !(rate > 0.0 && rate <= 1e6) => {
                Err(LoadError::Setting(format!("the rate is {rate}; it must be above 0 and at most 1e6")))
            }
            Self::Closed { concurrency } if !(1..=100_000).contains(&concurrency) => {
                Err(LoadError::Setting(format!("the concurrency is {concurrency}; it must be 1 to 100000")))
            }
            _ => Ok(()),
        }
    }

    /// Start times of `count` sessions, from the start of the run; `None` in a closed loop.
    #[must_use]
    pub fn schedule(&self, count: usize, seed: u64) -> Option<Vec<Duration>> {
        let Self::Open { rate, arrival } = *self else { return None };
        let mut random = Random::new(seed, 0x7061_6365);
        let mut at = 0.0;
        let mut next = || {
            let now = at;
            at += match arrival {
                Arrival::Poisson => random.exponential() / rate,
                Arrival::Constant => 1.0 / rate,
            };
            Duration::from_secs_f64(now)
        };
        Some((0..count).map(|_| next()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_have_the_rate_asked_for() {
        for arrival in [Arrival::Poisson, Arrival::Constant] {
            let schedule = Pace::Open { rate: 50.0, arrival }.schedule(10_000, 1).unwrap();
            let seconds = schedule.last().unwrap().as_secs_f64();
            assert!((190.0..210.0).contains(&seconds), "{arrival:?}: {seconds}");
            assert!(schedule.is_sorted());
        }
        let poisson = Pace::Open { rate: 50.0, arrival: Arrival::Poisson };
        assert_eq!(poisson.schedule(10, 1), poisson.schedule(10, 1));
        assert_ne!(poisson.schedule(10, 1), poisson.schedule(10, 2));
        assert_eq!(Pace::Closed { concurrency: 3 }.schedule(10, 1), None);
    }

    #[test]
    fn bad_figures_are_refused() {
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Pace::Open { rate, arrival: Arrival::Poisson }.validate().is_err(), "{rate}");
        }
        assert!(Pace::Closed { concurrency: 0 }.validate().is_err());
    }
}
