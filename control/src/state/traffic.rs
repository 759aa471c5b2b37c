//! What all filters together have in flight, from their reports.
//!
//! Totals are kept by the serial number of a worker's life, not by its id: what is left of a worker that went away can
//! neither reach the next one with its id nor make a count negative.

use std::collections::{HashMap, VecDeque};

use kinference_routing::ttft::Observation;

/// Requests of one stream that are kept; more are not counted.
const MAX_REQUESTS: usize = 1 << 16;
/// A request without an end counts no longer than this: its last report was lost.
const LIFE_MS: u64 = 600_000;
/// The same once a filter said that it dropped reports.
const DOUBTFUL_LIFE_MS: u64 = 30_000;
/// How long after a first byte it is known that the answer is a stream.
const STREAMING_AFTER_MS: u64 = 250;
/// A whole answer arrives within this time of its first byte; its first byte is no first token.
const WHOLE_ANSWER_MS: u32 = 2;

/// A request as it was sent.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sent {
    pub(super) worker: u32,
    pub(super) serial: u64,
    pub(super) cached_tokens: u32,
    pub(super) uncached_tokens: u32,
    pub(super) queued_tokens: u32,
    pub(super) running: u32,
    pub(super) predicted_ttft_ms: f32,
}

#[derive(Debug)]
struct Entry {
    sent: Sent,
    prefilling: bool,
    first_after_ms: Option<u32>,
    expires: u64,
}

/// What a worker has to do for all filters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Totals {
    /// Uncached prompt tokens without a first token yet.
    pub(super) pending_prefill: u64,
    /// Requests without an end yet.
    pub(super) in_flight: u32,
}

/// A first token that is good to learn from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct FirstToken {
    pub(super) worker: u32,
    pub(super) serial: u64,
    pub(super) after_ms: u32,
    pub(super) predicted_ms: f32,
    queued_tokens: u32,
    uncached_tokens: u32,
    running: u32,
}

impl FirstToken {
    fn of(sent: &Sent, after_ms: u32) -> Self {
        Self {
            worker: sent.worker,
            serial: sent.serial,
            after_ms,
            predicted_ms: sent.predicted_ttft_ms,
            queued_tokens: sent.queued_tokens,
            uncached_tokens: sent.uncached_tokens,
            running: sent.running,
        }
    }

    pub(super) fn observation(&self) -> Observation {
        Observation {
            queued_tokens: self.queued_tokens as f32,
            uncached_tokens: self.uncached_tokens as f32,
            running: self.running as f32,
            ttft_ms: self.after_ms as f32,
        }
    }
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ended {
    pub(super) sent: Sent,
    /// Its first token, when the end shows that it was one.
    pub(super) first_token: Option<FirstToken>,
}

/// The requests of all streams.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    streams: HashMap<u64, HashMap<u64, Entry>>,
    totals: HashMap<u64, Totals>,
    /// First bytes that may yet turn out to be of whole answers: stream, request, when.
    undecided: VecDeque<(u64, u64, u64)>,
}

impl Traffic {
    /// The totals of a worker's life.
    pub(super) fn totals(&self, serial: u64) -> Totals {
        self.totals.get(&serial).copied().unwrap_or_default()
    }

    pub(super) fn started(&mut self, stream: u64, request: u64, sent: Sent, now: u64) {
        let requests = self.streams.entry(stream).or_default();
        if requests.len() >= MAX_REQUESTS {
            return;
        }
        let totals = self.totals.entry(sent.serial).or_default();
        totals.pending_prefill += u64::from(sent.uncached_tokens);
        totals.in_flight += 1;
        let entry = Entry { sent, prefilling: true, first_after_ms: None, expires: now + LIFE_MS };
        if let Some(old) = requests.insert(request, entry) {
            release(&mut self.totals, &old);
        }
    }

    /// The prompt of a request must have been computed by now.
    pub(super) fn prefilled(&mut self, stream: u64, request: u64) {
        let Some(entry) = self.streams.get_mut(&stream).and_then(|requests| requests.get_mut(&request)) else { return };
        if entry.prefilling {
            entry.prefilling = false;
            if let Some(totals) = self.totals.get_mut(&entry.sent.serial) {
                totals.pending_prefill = totals.pending_prefill.saturating_sub(entry.sent.uncached_tokens.into());
            }
        }
    }

    /// The first byte of an answer from `worker`, which is not always the one the request was first sent to.
    pub(super) fn first_token(&mut self, stream: u64, request: u64, worker: Option<u32>, after_ms: u32, now: u64) {
        self.prefilled(stream, request);
        let Some(entry) = self.streams.get_mut(&stream).and_then(|requests| requests.get_mut(&request)) else { return };
        if worker.is_none_or(|worker| worker == entry.sent.worker) && entry.first_after_ms.is_none() {
            entry.first_after_ms = Some(after_ms);
            self.undecided.push_back((stream, request, now));
        }
    }

    /// The end of a request that was started. `completion_tokens` is the engine's figure.
    pub(super) fn finished(
        &mut self,
        stream: u64,
        request: u64,
        after_ms: u32,
        completion_tokens: Option<u32>,
    ) -> Option<Ended> {
        let entry = self.streams.get_mut(&stream)?.remove(&request)?;
        release(&mut self.totals, &entry);
        let first_token = entry.first_after_ms.filter(|first| {
            completion_tokens.is_some_and(|tokens| tokens <= 1) || after_ms.saturating_sub(*first) > WHOLE_ANSWER_MS
        });
        let first_token = first_token.map(|after_ms| FirstToken::of(&entry.sent, after_ms));
        Some(Ended { sent: entry.sent, first_token })
    }

    /// The stream said that reports were dropped: ends may be among them.
    pub(super) fn doubt(&mut self, stream: u64, now: u64) {
        for entry in self.streams.get_mut(&stream).into_iter().flat_map(HashMap::values_mut) {
            entry.expires = entry.expires.min(now + DOUBTFUL_LIFE_MS);
        }
    }

    pub(super) fn close(&mut self, stream: u64) {
        for entry in self.streams.remove(&stream).into_iter().flat_map(HashMap::into_values) {
            release(&mut self.totals, &entry);
        }
    }

    /// First bytes that have by now shown to be first tokens.
    pub(super) fn first_tokens(&mut self, now: u64) -> Vec<FirstToken> {
        let mut seen = Vec::new();
        while let Some(&(stream, request, at)) = self.undecided.front()
            && at + STREAMING_AFTER_MS <= now
        {
            self.undecided.pop_front();
            let entry = self.streams.get_mut(&stream).and_then(|requests| requests.get_mut(&request));
            if let Some(entry) = entry
                && let Some(after_ms) = entry.first_after_ms.take()
            {
                seen.push(FirstToken::of(&entry.sent, after_ms));
            }
        }
        seen
    }

    /// Drops requests whose end must have been lost.
    pub(super) fn sweep(&mut self, now: u64) {
        let totals = &mut self.totals;
        for requests in self.streams.values_mut() {
            requests.retain(|_, entry| {
                let live = entry.expires > now;
                if !live {
                    release(totals, entry);
                }
                live
            });
        }
        totals.retain(|_, total| *total != Totals::default());
    }
}

fn release(totals: &mut HashMap<u64, Totals>, entry: &Entry) {
    let Some(totals) = totals.get_mut(&entry.sent.serial) else { return };
    totals.in_flight = totals.in_flight.saturating_sub(1);
    if entry.prefilling {
        totals.pending_prefill = totals.pending_prefill.saturating_sub(entry.sent.uncached_tokens.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(serial: u64, uncached: u32) -> Sent {
        Sent {
            worker: 3,
            serial,
            cached_tokens: 100,
            uncached_tokens: uncached,
            queued_tokens: 50,
            running: 2,
            predicted_ttft_ms: 80.0,
        }
    }

    fn totals(pending_prefill: u64, in_flight: u32) -> Totals {
        Totals { pending_prefill, in_flight }
    }

    #[test]
    fn prefill_ends_with_the_first_token_and_the_request_with_its_end() {
        let mut traffic = Traffic::default();
        traffic.started(1, 1, sent(7, 500), 0);
        traffic.started(2, 1, sent(7, 300), 0);
        assert_eq!(traffic.totals(7), totals(800, 2));
        traffic.first_token(1, 1, Some(3), 90, 10);
        traffic.first_token(1, 1, Some(3), 95, 10);
        assert_eq!(traffic.totals(7), totals(300, 2));
        let ended = traffic.finished(1, 1, 400, Some(20)).unwrap();
        assert_eq!(ended.first_token.unwrap().after_ms, 90);
        assert_eq!(traffic.totals(7), totals(300, 1));
        assert_eq!(traffic.finished(1, 1, 400, None), None);
        assert_eq!(traffic.totals(7), totals(300, 1));
    }

    #[test]
    fn a_stream_that_ends_takes_its_requests_with_it() {
        let mut traffic = Traffic::default();
        traffic.started(1, 1, sent(7, 500), 0);
        traffic.started(2, 1, sent(7, 300), 0);
        traffic.close(1);
        traffic.close(1);
        assert_eq!(traffic.totals(7), totals(300, 1));
        assert_eq!(traffic.finished(1, 1, 5, None), None);
        assert_eq!(traffic.totals(7), totals(300, 1));
    }

    #[test]
    fn a_worker_that_comes_back_starts_from_zero() {
        let mut traffic = Traffic::default();
        traffic.started(1, 1, sent(7, 500), 0);
        assert_eq!(traffic.totals(8), Totals::default());
        traffic.finished(1, 1, 5, None);
        assert_eq!((traffic.totals(7), traffic.totals(8)), (Totals::default(), Totals::default()));
    }

    #[test]
    fn a_request_id_that_is_used_twice_counts_once() {
        let mut traffic = Traffic::default();
        traffic.started(1, 1, sent(7, 500), 0);
        traffic.started(1, 1, sent(8, 200), 0);
        assert_eq!((traffic.totals(7), traffic.totals(8)), (Totals::default(), totals(200, 1)));
    }

    #[test]
    fn lost_ends_do_not_count_for_ever() {
        let mut traffic = Traffic::default();
        traffic.started(1, 1, sent(7, 500), 0);
        traffic.sweep(LIFE_MS - 1);
        assert_eq!(traffic.totals(7), totals(500, 1));
        traffic.doubt(1, 1000);
        traffic.sweep(1000 + DOUBTFUL_LIFE_MS);
        assert_eq!(traffic.totals(7), Totals::default());
    }

    #[test]
    fn whole_answers_and_answers_of_other_workers_teach_nothing() {
        let mut traffic = Traffic::default();
        traffic.started(1, 1, sent(7, 500), 0);
        traffic.first_token(1, 1, Some(3), 400, 10);
        assert_eq!(traffic.finished(1, 1, 401, Some(50)).unwrap().first_token, None);

        traffic.started(1, 2, sent(7, 500), 0);
        traffic.first_token(1, 2, Some(4), 90, 20);
        assert_eq!(traffic.totals(7), totals(0, 1));
        assert_eq!(traffic.finished(1, 2, 900, Some(50)).unwrap().first_token, None);

        traffic.started(1, 3, sent(7, 500), 0);
        traffic.first_token(1, 3, Some(3), 90, 30);
        assert!(traffic.first_tokens(30 + STREAMING_AFTER_MS - 1).is_empty());
        let seen = traffic.first_tokens(30 + STREAMING_AFTER_MS);
        assert_eq!(seen.len(), 1);
        assert_eq!((seen[0].after_ms, seen[0].observation().uncached_tokens), (90, 500.0));
        assert_eq!(traffic.finished(1, 3, 900, Some(50)).unwrap().first_token, None, "learned once");
    }
}
