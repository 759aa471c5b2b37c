//! Applying messages: whole or not at all (S2), deltas only on what they build on (S1).

use std::collections::{BTreeMap, BTreeSet};

use kinference_protocol::v1;
use kinference_protocol::v1::control_message::Message;
use thiserror::Error;

use super::{Config, Snapshot, Worker};
use crate::prefix::{IndexError, PAGE_WORKERS, PrefixIndex};
use crate::template::TemplateError;

/// Why a message was not applied. What was in force stays in force.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ApplyError {
    /// A delta or heartbeat that is not of the state held.
    #[error("holding epoch {epoch} sequence {sequence}, received epoch {got_epoch} sequence {got_sequence}")]
    Gap {
        /// Epoch held; 0 for nothing.
        epoch: u64,
        /// Sequence held.
        sequence: u64,
        /// Epoch received.
        got_epoch: u64,
        /// Sequence received.
        got_sequence: u64,
    },
    /// A part of a snapshot that is not the next one.
    #[error("snapshot part {got} of epoch {epoch} came out of order")]
    Part {
        /// Epoch of the part.
        epoch: u64,
        /// Its number.
        got: u32,
    },
    /// Something that must be there is not.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A figure out of its range, or that refers to nothing.
    #[error("{field} = {value} is out of range")]
    Figure {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A template that does not compile.
    #[error("config.templates[{number}]: {error}")]
    Template {
        /// Its index.
        number: usize,
        /// What is wrong with it.
        error: TemplateError,
    },
    /// A prefix section that does not fit.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// A delta that changes what only a full snapshot may.
    #[error("a delta may not change {0}")]
    Frozen(&'static str),
    /// A message without content.
    #[error("the message is empty")]
    Empty,
}

impl ApplyError {
    /// A full snapshot would heal it; otherwise the same content would fail again.
    #[must_use]
    pub fn wants_resync(&self) -> bool {
        match self {
            Self::Gap { .. } | Self::Part { .. } | Self::Frozen(_) | Self::Empty => true,
            Self::Index(error) => !matches!(error, IndexError::Budget { .. }),
            Self::Missing(_) | Self::Figure { .. } | Self::Template { .. } => false,
        }
    }
}

/// What a message did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// A full snapshot took force.
    Full,
    /// A delta took force.
    Delta(Changes),
    /// A part of a snapshot was put aside until the last one comes.
    Part,
    /// A heartbeat: what is held is current.
    Current,
}

/// What a delta changed that local knowledge hangs on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Workers that are gone, or hold nothing any more.
    pub emptied: Vec<u32>,
}

/// The snapshot in force, and the one that is arriving.
#[derive(Debug, Default)]
pub struct Replica {
    current: Option<Snapshot>,
    arriving: Option<Arriving>,
    /// Clusters of the providers that can be reached from here; absent: all.
    reach: Option<BTreeSet<String>>,
}

#[derive(Debug)]
struct Arriving {
    snapshot: Snapshot,
    next_part: u32,
}

impl Replica {
    /// One that takes providers for ready only where their cluster is among these.
    #[must_use]
    pub fn reaching(clusters: impl IntoIterator<Item = String>) -> Self {
        Self { reach: Some(clusters.into_iter().collect()), ..Self::default() }
    }

    /// The snapshot in force.
    #[must_use]
    pub fn current(&self) -> Option<&Snapshot> {
        self.current.as_ref()
    }

    /// Names of the providers in force that cannot be reached from here.
    pub fn unreachable(&self) -> impl Iterator<Item = &str> {
        let providers = self.current.iter().flat_map(|snapshot| &snapshot.config.rules.providers);
        let reached = |cluster: &String| self.reach.as_ref().is_none_or(|reach| reach.contains(cluster));
        providers.filter(move |provider| !reached(&provider.cluster)).map(|provider| provider.name.as_str())
    }

    /// Epoch and sequence in force; zeros for none.
    #[must_use]
    pub fn position(&self) -> (u64, u64) {
        self.current.as_ref().map_or((0, 0), |snapshot| (snapshot.epoch, snapshot.sequence))
    }

    /// A new stream starts: parts of the old one will not be followed up.
    pub fn reconnected(&mut self) {
        self.arriving = None;
    }

    /// Applies a message.
    ///
    /// # Errors
    /// When it does not apply; nothing has changed then.
    pub fn apply(&mut self, message: v1::ControlMessage) -> Result<Outcome, ApplyError> {
        match message.message.ok_or(ApplyError::Empty)? {
            Message::Snapshot(part) => {
                let result = self.part(&part);
                if result.is_err() {
                    self.arriving = None;
                }
                result
            }
            Message::Delta(delta) => self.delta(&delta),
            Message::Heartbeat(beat) => {
                self.expect(beat.epoch, beat.sequence, 0)?;
                Ok(Outcome::Current)
            }
        }
    }

    fn expect(&self, epoch: u64, sequence: u64, step: u64) -> Result<(), ApplyError> {
        let (held_epoch, held) = self.position();
        if self.current.is_some() && held_epoch == epoch && held.checked_add(step) == Some(sequence) {
            return Ok(());
        }
        Err(ApplyError::Gap { epoch: held_epoch, sequence: held, got_epoch: epoch, got_sequence: sequence })
    }

    fn compile(&self, config: &v1::Config) -> Result<Config, ApplyError> {
        let mut config = Config::compile(config)?;
        if let Some(reach) = &self.reach {
            for provider in &mut config.rules.providers {
                provider.ready &= reach.contains(&provider.cluster);
            }
        }
        Ok(config)
    }

    fn part(&mut self, part: &v1::SnapshotPart) -> Result<Outcome, ApplyError> {
        let sections = part.sections.as_ref().ok_or(ApplyError::Missing("sections"))?;
        if part.part == 0 {
            let config = self.compile(sections.config.as_ref().ok_or(ApplyError::Missing("config"))?)?;
            let snapshot = Snapshot {
                epoch: part.epoch,
                sequence: part.sequence,
                config,
                workers: BTreeMap::new(),
                index: PrefixIndex::default(),
                pools: BTreeMap::new(),
            };
            self.arriving = Some(Arriving { snapshot, next_part: 0 });
        }
        let out_of_order = ApplyError::Part { epoch: part.epoch, got: part.part };
        let arriving = self.arriving.as_mut().ok_or(out_of_order.clone())?;
        let expected = (arriving.snapshot.epoch, arriving.snapshot.sequence, arriving.next_part);
        if expected != (part.epoch, part.sequence, part.part) {
            return Err(out_of_order);
        }
        arriving.next_part += 1;
        check(&arriving.snapshot, sections)?;
        apply(&mut arriving.snapshot, sections);
        if !part.last {
            return Ok(Outcome::Part);
        }
        self.current = self.arriving.take().map(|arriving| arriving.snapshot);
        Ok(Outcome::Full)
    }

    fn delta(&mut self, delta: &v1::Delta) -> Result<Outcome, ApplyError> {
        self.expect(delta.epoch, delta.sequence, 1)?;
        let sections = delta.sections.as_ref().ok_or(ApplyError::Missing("sections"))?;
        let config = sections.config.as_ref().map(|wire| self.compile(wire)).transpose()?;
        let Some(current) = self.current.as_mut() else { return Err(ApplyError::Missing("snapshot")) };
        if let Some(new) = &config {
            frozen(&current.config, new)?;
        }
        if let Some(new) = &config {
            let with_new = |worker: &Worker| new.sets.contains_key(&worker.set);
            let removed = sections.workers.as_ref().map(|workers| workers.removed.as_slice()).unwrap_or_default();
            if !current.workers.values().all(|worker| removed.contains(&worker.id) || with_new(worker)) {
                return Err(ApplyError::Frozen("the sets of workers that stay"));
            }
        }
        check_with(current, config.as_ref(), sections)?;
        if let Some(config) = config {
            current.config = config;
        }
        apply(current, sections);
        current.sequence = delta.sequence;
        Ok(Outcome::Delta(changes(sections)))
    }
}

/// The grid and the namespaces decide what every hash means, so they last as long as the epoch.
fn frozen(old: &Config, new: &Config) -> Result<(), ApplyError> {
    if old.backend.chunk_bytes != new.backend.chunk_bytes {
        return Err(ApplyError::Frozen("chunk_bytes"));
    }
    for (id, set) in &new.sets {
        if old.sets.get(id).is_some_and(|before| before.wire.prefix_domain != set.wire.prefix_domain) {
            return Err(ApplyError::Frozen("prefix_domain"));
        }
    }
    Ok(())
}

fn check(snapshot: &Snapshot, sections: &v1::Sections) -> Result<(), ApplyError> {
    check_with(snapshot, None, sections)
}

fn check_with(snapshot: &Snapshot, config: Option<&Config>, sections: &v1::Sections) -> Result<(), ApplyError> {
    let config = config.unwrap_or(&snapshot.config);
    if let Some(workers) = &sections.workers {
        for worker in &workers.upsert {
            if !config.sets.contains_key(&worker.worker_set) {
                return Err(ApplyError::Figure { field: "worker.worker_set", value: u64::from(worker.worker_set) });
            }
        }
    }
    if let Some(prefix) = &sections.prefix {
        let budget = usize::try_from(config.backend.index_max_bytes).unwrap_or(usize::MAX);
        snapshot.index.check(prefix, budget)?;
    }
    Ok(())
}

fn apply(snapshot: &mut Snapshot, sections: &v1::Sections) {
    if let Some(workers) = &sections.workers {
        for &id in &workers.removed {
            snapshot.workers.remove(&id);
            let (page, bit) = crate::prefix::place(id);
            snapshot.index.clear(page, bit);
        }
        for worker in &workers.upsert {
            snapshot.workers.insert(worker.id, Worker::from(worker));
        }
        for pool in &workers.pools {
            snapshot.pools.insert(pool.id, pool.signals.clone());
        }
    }
    if let Some(prefix) = &sections.prefix {
        snapshot.index.apply(prefix);
    }
}

fn changes(sections: &v1::Sections) -> Changes {
    let mut changes = Changes::default();
    if let Some(workers) = &sections.workers {
        changes.emptied.extend(&workers.removed);
    }
    for clear in sections.prefix.iter().flat_map(|prefix| &prefix.clears) {
        let cleared = (0..PAGE_WORKERS).filter(|bit| clear.workers >> bit & 1 == 1);
        changes.emptied.extend(cleared.filter_map(|bit| clear.page.checked_mul(PAGE_WORKERS)?.checked_add(bit)));
    }
    changes
}

#[cfg(test)]
mod tests;
