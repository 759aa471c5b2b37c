//! Reports that wait to be sent.

use kinference_protocol::v1;
use kinference_routing::decide::Destination;

/// Most reports that wait; more are dropped and counted. Some 100 bytes each, and the tenant's name.
const CAPACITY: usize = 4096;
/// Most chunk hashes that wait, over all reports.
const HASHES: usize = 65_536;
/// Most chunk hashes of one report: the first ones, which are those that other prompts share.
const HASHES_EACH: usize = 512;

/// A bounded queue.
#[derive(Debug, Default)]
pub struct Outbox {
    batch: v1::Reports,
    hashes: usize,
}

impl Outbox {
    /// Adds a report; drops it when there is no room. True when it was kept.
    pub fn push(&mut self, request: u64, place: Option<&Destination>, event: v1::report::Event) -> bool {
        let mut report = v1::Report { request, event: Some(event), ..v1::Report::default() };
        match place {
            Some(Destination::Worker(id)) => report.worker = Some(*id),
            Some(Destination::Provider(route)) => report.provider.clone_from(&route.name),
            None => {}
        }
        if self.batch.reports.len() >= CAPACITY {
            self.batch.dropped += 1;
            return false;
        }
        if let Some(v1::report::Event::Started(started)) = &mut report.event {
            started.chunks.truncate(HASHES_EACH.min(HASHES - self.hashes));
            self.hashes += started.chunks.len();
        }
        self.batch.reports.push(report);
        true
    }

    /// Nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.batch.reports.is_empty() && self.batch.dropped == 0
    }

    /// Takes what waits, to be sent.
    pub fn take(&mut self) -> v1::Reports {
        self.hashes = 0;
        std::mem::take(&mut self.batch)
    }

    /// Counts reports that were taken and could not be sent.
    pub fn lost(&mut self, reports: u64) {
        self.batch.dropped += reports;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(chunks: usize) -> v1::report::Event {
        v1::report::Event::Started(v1::Started { chunks: vec![1; chunks], ..v1::Started::default() })
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let mut outbox = Outbox::default();
        assert!(outbox.is_empty());
        for i in 0..CAPACITY as u64 + 5 {
            assert_eq!(outbox.push(i, Some(&Destination::Worker(1)), started(0)), i < CAPACITY as u64);
        }
        let batch = outbox.take();
        assert_eq!((batch.reports.len(), batch.dropped), (CAPACITY, 5));
        assert!(outbox.is_empty());
        outbox.lost(7);
        assert_eq!(outbox.take().dropped, 7);
    }

    #[test]
    fn hashes_are_bounded() {
        let mut outbox = Outbox::default();
        for i in 0..1000 {
            outbox.push(i, Some(&Destination::Worker(1)), started(10_000));
        }
        let lengths: Vec<usize> = outbox
            .take()
            .reports
            .into_iter()
            .map(|report| match report.event {
                Some(v1::report::Event::Started(started)) => started.chunks.len(),
                _ => 0,
            })
            .collect();
        assert_eq!(lengths[0], HASHES_EACH);
        assert_eq!(lengths.iter().sum::<usize>(), HASHES);
    }
}
