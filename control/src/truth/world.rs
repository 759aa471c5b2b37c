//! One worker as the control service and a filter see it while a run is played.

use std::path::Path;

use kinference_protocol::v1;
use kinference_routing::decide::{Ask, Caller, Prompted, decide};
use kinference_routing::ledger::Ledger;
use kinference_routing::openai::{self, Endpoint, Usage};
use kinference_routing::prompt;
use kinference_routing::snapshot::Replica;
use v1::control_message::Message;

use super::capture::{Capture, Exchange, Published};
use super::{Compared, Line, TruthError};
use crate::events::Decoder;
use crate::events::sequencer::{Action, Sequencer};
use crate::index::{Change, PrefixStore};
use crate::tokenizer::Tokenizer;

const WORKER: u32 = 0;
const SET: u32 = 1;
const DOMAIN: &str = "truth/run";
/// Milliseconds on a clock that does not matter: nothing here depends on it.
const NOW_MS: u64 = 0;
const EPOCH: u64 = 1;
const BUDGET: u64 = 64 << 20;

pub(super) struct World<'a> {
    capture: &'a Capture,
    tokenizer: Tokenizer,
    line: Line,
    /// Frames that were published so far.
    published: usize,
    sequencer: Sequencer,
    decoder: Decoder,
    store: PrefixStore,
    replica: Replica,
    sequence: u64,
}

impl<'a> World<'a> {
    pub(super) fn new(model: &Path, capture: &'a Capture, chunk_bytes: u32, line: Line) -> Result<Self, TruthError> {
        let tokenizer = Tokenizer::load(model)?;
        let tokens = tokenizer.tokens.clone().map_err(|unsupported| TruthError::Unplayable(unsupported.to_string()))?;
        let mut store = PrefixStore::new(chunk_bytes, BUDGET);
        store.add_domain(SET, DOMAIN, Some(tokens), 0);
        store.add_worker(WORKER, SET).map_err(unplayable)?;
        let mut world = Self {
            capture,
            tokenizer,
            line,
            published: 0,
            sequencer: Sequencer::new(true),
            decoder: Decoder::new(0, Some(capture.block_tokens)),
            store,
            replica: Replica::default(),
            sequence: 0,
        };
        world.run(|sequencer, actions| {
            sequencer.connected(actions);
            sequencer.replay_ended(actions);
        })?;
        world.push_full()?;
        Ok(world)
    }

    /// Takes in the frames that the engine published up to a time, and tells the filter.
    pub(super) fn frames_until(&mut self, time: f64) -> Result<(), TruthError> {
        let frames: &'a [Published] = &self.capture.frames;
        let first = self.published;
        let new = frames.iter().skip(first).take_while(|published| published.at <= time).count();
        self.published += new;
        match self.line {
            Line::Live => {
                for published in &frames[first..first + new] {
                    self.run(|sequencer, actions| sequencer.live(published.frame.clone(), actions))?;
                }
            }
            // A quiet line is checked; the engine's replay buffer has it all.
            Line::Replay => self.run(Sequencer::check)?,
        }
        self.push_changes()
    }

    fn run(&mut self, step: impl FnOnce(&mut Sequencer, &mut Vec<Action>)) -> Result<(), TruthError> {
        let mut actions = Vec::new();
        step(&mut self.sequencer, &mut actions);
        let mut replay_from = None;
        for action in actions {
            match action {
                Action::Apply(frame) => {
                    let batch = self.decoder.decode(&frame.payload).map_err(unplayable)?;
                    for event in &batch.events {
                        self.store.apply(WORKER, event).map_err(unplayable)?;
                    }
                }
                Action::Reset(reason) => return Err(unplayable(reason)),
                Action::Replay { from, .. } => replay_from = Some(from),
                Action::Current | Action::Incomplete | Action::Reconnect => {}
            }
        }
        // The first question, before the run, is answered by the caller: nothing was published then.
        match replay_from.filter(|_| self.sequencer.is_replaying()) {
            Some(from) => self.replay(from),
            None => Ok(()),
        }
    }

    fn replay(&mut self, from: u64) -> Result<(), TruthError> {
        let newest = self.published.checked_sub(1).and_then(|last| self.capture.frames.get(last));
        let newest = newest.map(|published| published.frame.sequence);
        let buffer = &self.capture.replay;
        self.run(|sequencer, actions| {
            let frames = buffer.iter().map(|published| &published.frame);
            for frame in frames.filter(|frame| frame.sequence >= from && Some(frame.sequence) <= newest) {
                sequencer.replayed(frame.clone(), actions);
            }
            sequencer.replay_ended(actions);
        })
    }

    /// The engine's cache was emptied from outside.
    pub(super) fn forget(&mut self) -> Result<(), TruthError> {
        self.store.clear(WORKER).map_err(unplayable)
    }

    fn config(&self) -> v1::Config {
        v1::Config {
            backend: Some(v1::Backend {
                name: "truth/run".into(),
                request_body_limit: 8 << 20,
                index_max_bytes: BUDGET,
                chunk_bytes: self.store.chunk_bytes(),
                ..v1::Backend::default()
            }),
            worker_sets: vec![v1::WorkerSet {
                id: SET,
                name: "truth/run".into(),
                model: "tiny".into(),
                prefix_mode: v1::PrefixMode::Events.into(),
                prefix_domain: DOMAIN.into(),
                template: self.tokenizer.chat_template.as_ref().map(|_| 0),
                normalization: self.tokenizer.normalization.into(),
                completion_prefix: self.tokenizer.completion_prefix.clone(),
                bytes_per_token: self.store.stats().bytes_per_token.get(&SET).copied().unwrap_or(4.0),
                block_tokens: self.capture.block_tokens,
                ..v1::WorkerSet::default()
            }],
            templates: self.tokenizer.template().into_iter().collect(),
            ..v1::Config::default()
        }
    }

    fn push_full(&mut self) -> Result<(), TruthError> {
        let worker = v1::Worker {
            id: WORKER,
            worker_set: SET,
            name: "a".into(),
            address: "127.0.0.1:8000".into(),
            state: v1::WorkerState::Ready.into(),
            ..v1::Worker::default()
        };
        let parts = self.store.full(1 << 20);
        let last = parts.len() - 1;
        for (number, prefix) in parts.into_iter().enumerate() {
            let first = number == 0;
            let sections = v1::Sections {
                config: first.then(|| self.config()),
                workers: first.then(|| v1::Workers { upsert: vec![worker.clone()], ..Default::default() }),
                prefix: Some(prefix),
            };
            self.push(Message::Snapshot(v1::SnapshotPart {
                epoch: EPOCH,
                sequence: self.sequence,
                part: number as u32,
                last: number == last,
                sections: Some(sections),
            }))?;
        }
        Ok(())
    }

    fn push_changes(&mut self) -> Result<(), TruthError> {
        let prefix = match self.store.take_delta() {
            Change::Nothing => return Ok(()),
            Change::Full => return self.push_full(),
            Change::Delta(prefix) => prefix,
        };
        self.sequence += 1;
        let sections = v1::Sections { config: Some(self.config()), workers: None, prefix: Some(prefix) };
        self.push(Message::Delta(v1::Delta { epoch: EPOCH, sequence: self.sequence, sections: Some(sections) }))
    }

    fn push(&mut self, message: Message) -> Result<(), TruthError> {
        self.replica.apply(v1::ControlMessage { message: Some(message) }).map(|_| ()).map_err(unplayable)
    }

    /// Predicts a request as a filter does, and holds it against what the engine said.
    pub(super) fn compare(
        &mut self,
        exchange: &Exchange,
        endpoint: Endpoint,
        usage: Usage,
    ) -> Result<Compared, TruthError> {
        self.push_changes()?;
        let failed = |error: String| TruthError::Unplayable(format!("request {}: {error}", exchange.name));
        let request = openai::parse(endpoint, &exchange.body).map_err(|error| failed(error.to_string()))?;
        let snapshot = self.replica.current().ok_or_else(|| failed("no snapshot".into()))?;
        let ask = Ask {
            prompted: Prompted::Request { request: &request, body: &exchange.body },
            caller: Caller::default(),
            now_ms: NOW_MS,
            unix_s: exchange.answered_at as u64,
            stale: false,
            explain: false,
        };
        let choice = decide(snapshot, &Ledger::default(), &ask).result.map_err(|error| failed(error.to_string()))?;
        let set = snapshot.config.sets.get(&SET).ok_or_else(|| failed("no worker set".into()))?;
        let text = prompt::text(&request, &exchange.body, set, ask.unix_s);
        if !text.is_exact() {
            return Err(failed("its text is not known exactly".into()));
        }
        let bytes = text.text().len().max(1) as u64;
        let chunk_tokens = (u64::from(self.store.chunk_bytes()) * u64::from(usage.prompt_tokens)).div_ceil(bytes);
        Ok(Compared {
            name: exchange.name.clone(),
            prompt_tokens: usage.prompt_tokens,
            predicted: choice.first.expected.cached_tokens,
            actual: usage.cached_tokens.unwrap_or(0),
            chunk_tokens: u32::try_from(chunk_tokens).unwrap_or(u32::MAX),
        })
    }
}

fn unplayable(error: impl std::fmt::Display) -> TruthError {
    TruthError::Unplayable(error.to_string())
}
