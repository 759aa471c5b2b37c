//! What the other VMs of the same proxy have in flight.
//!
//! Each worker thread of a proxy has a VM of its own, and requests of one burst meet different VMs within the same
//! millisecond, long before the control service can tell one of the other. So they share their figures through the
//! proxy: each VM writes a value of its own, and one value lists the VMs.

use std::collections::BTreeMap;

use kinference_routing::ledger::{InFlight, Ledger};
use xxhash_rust::xxh3::xxh3_64;

use crate::host::Host;

/// Lists the VMs: eight bytes each.
const REGISTRY: &str = "kinference.vms";
/// Most VMs that are listed.
const MOST_VMS: usize = 256;
/// Figures older than this are of a VM that is gone or hangs.
const VALID_MS: u64 = 3_000;
/// Figures are written again after this long, so that they stay valid.
const RENEW_MS: u64 = 1_000;
/// A VM that wrote nothing for this long leaves the list.
const GONE_MS: u64 = 60_000;
/// An idle VM writes this often, to stay in the list.
const ALIVE_MS: u64 = 20_000;
/// Least time between two readings or two writings, since both cost a copy for each VM.
const PACE_MS: u64 = 1;
/// Time between two looks at the list.
const LIST_MS: u64 = 1_000;
/// Where the first VM of a process leaves the process's number.
const PROCESS: &str = "kinference.process";
/// Attempts to add oneself to the list while others do the same.
const ATTEMPTS: u64 = 16;

/// The view of one VM. Times are of the wall clock, which all VMs share, in milliseconds.
#[derive(Debug, Default)]
pub struct Peers {
    id: u64,
    others: Vec<u64>,
    listed_ms: u64,
    read_ms: u64,
    written_ms: u64,
    wrote_something: bool,
    changed: bool,
}

impl Peers {
    /// Joins the other VMs of the proxy. `proxy` is the proxy's name; the VM's number is made of it, the time, and what
    /// numbers are taken.
    pub fn join(&mut self, host: &dyn Host, proxy: &[u8]) {
        let now = host.now();
        for attempt in 0..ATTEMPTS {
            let mut seed = proxy.to_vec();
            seed.extend_from_slice(&now.as_nanos().to_le_bytes());
            seed.extend_from_slice(&attempt.to_le_bytes());
            let id = xxh3_64(&seed).max(1);
            let (list, version) = host.shared(REGISTRY).unwrap_or_default();
            let mut ids = ids(&list);
            if ids.contains(&id) {
                continue;
            }
            let now_ms = millis(now);
            ids.retain(|id| written(host, *id).is_some_and(|at| now_ms.saturating_sub(at) < GONE_MS));
            ids.truncate(MOST_VMS - 1);
            ids.push(id);
            self.id = id;
            self.write(host, now_ms, &BTreeMap::new());
            let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            // Version 0 writes in any case; it can only meet the very first VMs, which look again below.
            if host.share(REGISTRY, &bytes, version) {
                break;
            }
        }
        self.list(host, millis(now));
    }

    /// The number of the proxy's process, the same for all its VMs and different for any other. Whoever finds none makes one
    /// up; when several do at once the last one stands, so it is read some time after [`join`](Self::join).
    pub fn process(&self, host: &dyn Host) -> u64 {
        let known = host.shared(PROCESS).and_then(|(bytes, _)| Some(u64::from_le_bytes(*bytes.first_chunk::<8>()?)));
        known.unwrap_or_else(|| {
            host.share(PROCESS, &self.id.to_le_bytes(), 0);
            self.id
        })
    }

    /// This VM's number.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Notes that this VM's figures changed.
    pub fn touch(&mut self) {
        self.changed = true;
    }

    /// Before a decision: reads what the others have in flight.
    pub fn read(&mut self, host: &dyn Host, ledger: &mut Ledger) {
        if self.others.is_empty() {
            return;
        }
        let now_ms = millis(host.now());
        if now_ms.abs_diff(self.read_ms) < PACE_MS {
            return;
        }
        self.read_ms = now_ms;
        let mut sum: BTreeMap<u32, InFlight> = BTreeMap::new();
        for other in &self.others {
            let Some((bytes, _)) = host.shared(&key(*other)) else { continue };
            let Some((at, figures)) = bytes.split_first_chunk::<8>() else { continue };
            if now_ms.abs_diff(u64::from_le_bytes(*at)) > VALID_MS {
                continue;
            }
            for (worker, figures) in decode(figures) {
                let total = sum.entry(worker).or_default();
                total.pending_tokens = total.pending_tokens.saturating_add(figures.pending_tokens);
                total.requests = total.requests.saturating_add(figures.requests);
            }
        }
        ledger.set_peers(sum);
    }

    /// After a decision: writes what this VM has in flight, unless it did so just now.
    pub fn publish(&mut self, host: &dyn Host, ledger: &Ledger) {
        if self.others.is_empty() {
            return;
        }
        let now_ms = millis(host.now());
        if self.changed && now_ms.abs_diff(self.written_ms) >= PACE_MS {
            self.write(host, now_ms, &ledger.own().collect());
        }
    }

    /// On a tick: writes what is due, and looks for new VMs.
    pub fn tick(&mut self, host: &dyn Host, ledger: &Ledger) {
        let now_ms = millis(host.now());
        if now_ms.abs_diff(self.listed_ms) >= LIST_MS {
            self.list(host, now_ms);
        }
        let renew = if self.wrote_something { RENEW_MS } else { ALIVE_MS };
        if self.changed || now_ms.abs_diff(self.written_ms) >= renew {
            self.write(host, now_ms, &ledger.own().collect());
        }
    }

    fn list(&mut self, host: &dyn Host, now_ms: u64) {
        self.listed_ms = now_ms;
        let (list, version) = host.shared(REGISTRY).unwrap_or_default();
        let mut ids = ids(&list);
        if !ids.contains(&self.id) && ids.len() < MOST_VMS {
            // Another VM started at the same moment and wrote the list first, or took this one for gone.
            ids.push(self.id);
            let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            host.share(REGISTRY, &bytes, version);
        }
        ids.retain(|id| *id != self.id);
        self.others = ids;
    }

    fn write(&mut self, host: &dyn Host, now_ms: u64, own: &BTreeMap<u32, InFlight>) {
        let mut bytes = now_ms.to_le_bytes().to_vec();
        for (worker, figures) in own {
            for number in [*worker, figures.pending_tokens, figures.requests] {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
        }
        host.share(&key(self.id), &bytes, 0);
        self.written_ms = now_ms;
        self.changed = false;
        self.wrote_something = !own.is_empty();
    }
}

fn key(id: u64) -> String {
    format!("kinference.load.{id:016x}")
}

fn millis(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn ids(list: &[u8]) -> Vec<u64> {
    list.as_chunks::<8>().0.iter().take(MOST_VMS).map(|bytes| u64::from_le_bytes(*bytes)).collect()
}

fn written(host: &dyn Host, id: u64) -> Option<u64> {
    let (bytes, _) = host.shared(&key(id))?;
    bytes.first_chunk::<8>().map(|at| u64::from_le_bytes(*at))
}

fn decode(figures: &[u8]) -> impl Iterator<Item = (u32, InFlight)> + '_ {
    figures.as_chunks::<12>().0.iter().map(|bytes| {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = *bytes;
        let in_flight =
            InFlight { pending_tokens: u32::from_le_bytes([e, f, g, h]), requests: u32::from_le_bytes([i, j, k, l]) };
        (u32::from_le_bytes([a, b, c, d]), in_flight)
    })
}
