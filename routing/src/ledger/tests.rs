use kinference_protocol::v1;
use proptest::prelude::*;

use super::*;

fn worker(load: Option<v1::Load>) -> Worker {
    Worker::from(&v1::Worker { id: 1, load, ..v1::Worker::default() })
}

fn load(queued: f32, running: f32, pending: u32, in_flight: u32) -> Option<v1::Load> {
    Some(v1::Load {
        known: true,
        queued_requests: queued,
        running_requests: running,
        kv_cache_usage: 0.5,
        pending_prefill_tokens: pending,
        in_flight,
        ..v1::Load::default()
    })
}

#[test]
fn what_is_in_flight_counts_at_once_and_until_it_ends() {
    let mut ledger = Ledger::default();
    let idle = worker(load(0.0, 0.0, 0, 0));
    let mut ticket = ledger.sent(1, 1000);
    assert_eq!(ledger.standing(&idle), Standing { queued_tokens: 1000.0, running: 1.0 });
    ledger.first_token(&mut ticket);
    assert_eq!(ledger.standing(&idle), Standing { queued_tokens: 0.0, running: 1.0 });
    ledger.finished(ticket);
    assert_eq!(ledger.standing(&idle), Standing { queued_tokens: 0.0, running: 0.0 });
}

#[test]
fn a_first_token_that_nobody_sees_is_taken_to_have_come() {
    let mut ledger = Ledger::default();
    let idle = worker(load(0.0, 0.0, 0, 0));
    let mut whole = ledger.sent(1, 1000);
    ledger.expect_unseen(&mut whole, 500, 7);
    let mut early = ledger.sent(1, 300);
    ledger.expect_unseen(&mut early, 600, 8);
    assert_eq!(ledger.prefilled(499), []);
    assert_eq!(ledger.standing(&idle).queued_tokens, 1300.0);
    ledger.finished(early);
    assert_eq!(ledger.standing(&idle), Standing { queued_tokens: 1000.0, running: 1.0 });
    assert_eq!(ledger.prefilled(700), [(7, 1)]);
    assert_eq!(ledger.standing(&idle), Standing { queued_tokens: 0.0, running: 1.0 });
    ledger.finished(whole);
    assert_eq!(ledger.own().count(), 0);
}

#[test]
fn other_proxies_count_by_their_share_and_this_one_exactly() {
    let mut ledger = Ledger::default();
    let _ticket = ledger.sent(1, 1000);
    let alone = worker(load(0.0, 2.0, 1500, 2));
    assert_eq!(ledger.standing(&alone), Standing { queued_tokens: 1000.0, running: 1.0 });
    let mut shared = load(0.0, 2.0, 1500, 2);
    shared.as_mut().unwrap().proxies = 3;
    let standing = ledger.standing(&worker(shared));
    assert!((standing.queued_tokens - 2000.0).abs() < 0.5 && (standing.running - 2.333).abs() < 0.01, "{standing:?}");
}

#[test]
fn peers_and_strangers_count_too() {
    let mut ledger = Ledger::default();
    ledger.set_peers(BTreeMap::from([(1, InFlight { pending_tokens: 300, requests: 2 })]));
    assert_eq!(ledger.standing(&worker(load(9.0, 9.0, 0, 0))), Standing { queued_tokens: 300.0, running: 2.0 });
    assert_eq!(ledger.standing(&worker(None)), Standing { queued_tokens: 300.0, running: 2.0 });
    // Five requests are at the engine that no filter sent, and four of them wait.
    let mut strange = load(4.0, 3.0, 0, 0);
    strange.as_mut().unwrap().strangers = 5.0;
    let standing = ledger.standing(&worker(strange));
    assert_eq!(standing, Standing { queued_tokens: 300.0 + 4.0 * UNKNOWN_REQUEST_TOKENS, running: 7.0 });
}

#[test]
fn a_later_worker_with_the_same_id_starts_from_nothing() {
    let mut ledger = Ledger::default();
    let old = ledger.sent(1, 1000);
    ledger.tidy(|_| false, 0);
    let _new = ledger.sent(1, 50);
    ledger.finished(old);
    assert_eq!(ledger.standing(&worker(load(0.0, 0.0, 0, 0))), Standing { queued_tokens: 50.0, running: 1.0 });
}

#[test]
fn a_worker_that_failed_to_connect_is_avoided_for_a_while() {
    let mut ledger = Ledger::default();
    ledger.prefix_sent(1, &[7], 10_000);
    ledger.suspect(1, 100);
    assert!(ledger.is_suspect(1, 200) && !ledger.is_suspect(2, 200));
    assert_eq!(ledger.recent().workers(0, 7, 200), 0);
    assert!(!ledger.is_suspect(1, 100 + SUSPECT_MS));
    ledger.suspect(1, 100);
    ledger.cleared(1);
    assert!(!ledger.is_suspect(1, 200));
}

proptest! {
    /// Whatever order requests come and go in, nothing goes below zero and nothing is left at the end.
    #[test]
    fn counters_return_to_zero(ops in prop::collection::vec((0u8..4, 0usize..8, 0u32..5000), 0..200)) {
        let mut ledger = Ledger::default();
        let mut open: Vec<Ticket> = Vec::new();
        for (op, at, tokens) in ops {
            match op {
                0 | 1 => open.push(ledger.sent(1, tokens)),
                2 => { if let Some(ticket) = open.get_mut(at) { ledger.first_token(ticket); } }
                _ => { if at < open.len() { let ticket = open.swap_remove(at); ledger.finished(ticket); } }
            }
            let pending: u32 = open.iter().map(|ticket| ticket.pending).sum();
            prop_assert_eq!(ledger.own.get(&1).map_or(0, |account| account.now.pending_tokens), pending);
            prop_assert_eq!(ledger.own.get(&1).map_or(0, |account| account.now.requests as usize), open.len());
        }
        for ticket in open { ledger.finished(ticket); }
        prop_assert_eq!(ledger.own().count(), 0);
    }
}
