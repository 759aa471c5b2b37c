//! The machine: what it is, and how much of it others used.

use std::time::Instant;

/// A span of time on the machine.
#[derive(Debug)]
pub(super) struct Watch {
    start: Instant,
    busy: f64,
    own: f64,
}

impl Watch {
    /// Begins.
    pub(super) fn start() -> Self {
        Self { start: Instant::now(), busy: busy(), own: own() }
    }

    /// Cores that others kept busy since the start, on average. Processes that this one started and that still run count as others.
    pub(super) fn others(&self) -> f64 {
        let used = (busy() - self.busy) - (own() - self.own);
        (used / self.start.elapsed().as_secs_f64()).max(0.0)
    }
}

/// Name and cores.
pub(super) fn name() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, model)| model.trim().to_owned());
    format!("{cores} cores, {model}")
}

/// Linux counts in hundredths of a second there, on every platform (USER_HZ).
const TICKS: f64 = 100.0;

/// Processor seconds that all processes have used.
fn busy() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    // cpu user nice system idle iowait irq softirq ...
    let fields: Vec<f64> = stat
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .filter_map(|field| field.parse().ok())
        .collect();
    let used = |at: &usize| !matches!(at, 3 | 4);
    fields.iter().take(7).enumerate().filter(|(at, _)| used(at)).map(|(_, ticks)| ticks).sum::<f64>() / TICKS
}

/// Processor seconds of this process and of those that it started and that have ended.
fn own() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    // User and system time, own and of ended children, are fields 14 to 17; those up to the name are cut off.
    fields.skip(11).take(4).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / TICKS
}

/// The priority that this process, and all that it starts, runs with: 0 is the usual one, -20 the highest.
#[must_use]
pub fn niceness() -> i32 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Field 19; those up to the name are cut off.
    let field = stat.rsplit(')').next().unwrap_or_default().split_whitespace().nth(16);
    field.and_then(|field| field.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_work_is_not_that_of_others() {
        if !cfg!(target_os = "linux") {
            return;
        }
        let (busy_before, own_before) = (busy(), own());
        let start = Instant::now();
        while start.elapsed().as_millis() < 200 {
            std::hint::black_box(crate::load::words(&mut crate::load::Random::new(1, 1), 1000));
        }
        let used = own() - own_before;
        assert!(used > 0.03, "{used}");
        // The two are read at different moments and count in hundredths.
        assert!(busy() - busy_before >= used - 0.05);
        assert!(!name().is_empty());
        assert!((-20..20).contains(&niceness()));
    }
}
