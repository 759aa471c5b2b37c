//! What the control service says: configurations, workers, prefixes, loads.

use std::collections::BTreeMap;

use kinference_protocol::v1::{self, control_message::Message};
use kinference_routing::prefix::{Chunks, PAGE_WORKERS, namespace_seed};

/// Model of the first worker set.
pub const MODEL: &str = "tiny";
/// Bytes of a chunk.
pub const CHUNK_BYTES: u32 = 256;
/// Bytes of a token, on average.
pub const TOKEN_BYTES: u32 = 4;
const DOMAIN: &str = "default/tiny";
/// A template in the form of ChatML.
const TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
                        {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// The state of a fleet, from which messages are made. Public fields may be changed before.
#[derive(Debug, Clone)]
pub struct Fleet {
    /// Configuration.
    pub config: v1::Config,
    /// Workers; a worker's id is its place unless a test says otherwise.
    pub workers: Vec<v1::Worker>,
    /// Who holds what: tokens and workers of a chunk, by page and hash.
    pub chunks: BTreeMap<(u32, u64), (u64, u32)>,
    /// Epoch of the messages.
    pub epoch: u64,
    /// Sequence of the last message.
    pub sequence: u64,
}

impl Fleet {
    /// A fleet of workers `w0`, `w1`, … that serve [`MODEL`], idle and empty.
    #[must_use]
    pub fn new(workers: u32) -> Self {
        let backend = v1::Backend {
            name: "default/main".into(),
            request_body_limit: 8 << 20,
            debug_headers: true,
            failure_mode: v1::FailureMode::Open.into(),
            stale_after_ms: 10_000,
            index_max_bytes: 64 << 20,
            chunk_bytes: CHUNK_BYTES,
        };
        let set = v1::WorkerSet {
            id: 1,
            name: "default/tiny".into(),
            model: MODEL.into(),
            adapters: vec!["tiny-sql".into()],
            prefix_mode: v1::PrefixMode::Events.into(),
            prefix_domain: DOMAIN.into(),
            template: Some(0),
            bytes_per_token: TOKEN_BYTES as f32,
            block_tokens: 16,
            routed_ttl_ms: 60_000,
            ..v1::WorkerSet::default()
        };
        let template = v1::Template { source: TEMPLATE.into(), ..v1::Template::default() };
        let config = v1::Config {
            backend: Some(backend),
            worker_sets: vec![set],
            templates: vec![template],
            ..v1::Config::default()
        };
        let workers = (0..workers).map(|id| worker(id, 1)).collect();
        Self { config, workers, chunks: BTreeMap::new(), epoch: 7, sequence: 0 }
    }

    /// The backend's part of the configuration.
    pub fn backend(&mut self) -> &mut v1::Backend {
        self.config.backend.get_or_insert_default()
    }

    /// The first worker set's.
    pub fn set(&mut self) -> &mut v1::WorkerSet {
        &mut self.config.worker_sets[0]
    }

    /// Addresses of all workers.
    #[must_use]
    pub fn hosts(&self) -> Vec<String> {
        self.workers.iter().map(|worker| worker.address.clone()).collect()
    }

    /// The text that the engine sees of a chat of one user message.
    #[must_use]
    pub fn chat_text(text: &str) -> String {
        format!("<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")
    }

    /// From now on `worker` holds the whole chunks of an engine's prompt text.
    pub fn cache(&mut self, worker: u32, text: &str) {
        let mut chunks = Chunks::new(text.as_bytes(), CHUNK_BYTES, namespace_seed(DOMAIN, "", ""));
        for hash in chunks.all() {
            let held = self.chunks.entry((worker / PAGE_WORKERS, *hash)).or_insert((0, CHUNK_BYTES / TOKEN_BYTES));
            held.0 |= 1 << (worker % PAGE_WORKERS);
        }
    }

    fn prefix(&self) -> v1::Prefix {
        let mut pages: BTreeMap<u32, v1::PrefixPage> = BTreeMap::new();
        for ((page, hash), (workers, tokens)) in &self.chunks {
            let page =
                pages.entry(*page).or_insert_with(|| v1::PrefixPage { page: *page, ..v1::PrefixPage::default() });
            page.hashes.push(*hash);
            page.workers.push(*workers);
            page.tokens.push(*tokens);
        }
        v1::Prefix { clears: Vec::new(), pages: pages.into_values().collect() }
    }

    fn sections(&self) -> v1::Sections {
        let workers = v1::Workers { upsert: self.workers.clone(), removed: Vec::new(), ..v1::Workers::default() };
        v1::Sections { config: Some(self.config.clone()), workers: Some(workers), prefix: Some(self.prefix()) }
    }

    /// A full snapshot, in one part.
    #[must_use]
    pub fn full(&self) -> v1::ControlMessage {
        part(self.epoch, self.sequence, 0, true, self.sections())
    }

    /// A full snapshot in three parts: configuration, workers, prefixes.
    #[must_use]
    pub fn full_in_parts(&self) -> Vec<v1::ControlMessage> {
        let v1::Sections { config, workers, prefix } = self.sections();
        let sections = [
            v1::Sections { config, ..v1::Sections::default() },
            v1::Sections { workers, ..v1::Sections::default() },
            v1::Sections { prefix, ..v1::Sections::default() },
        ];
        let parts = (0..).zip(sections);
        parts.map(|(number, sections)| part(self.epoch, self.sequence, number, number == 2, sections)).collect()
    }

    /// The next delta, with these sections.
    pub fn delta(&mut self, sections: v1::Sections) -> v1::ControlMessage {
        self.sequence += 1;
        let delta = v1::Delta { epoch: self.epoch, sequence: self.sequence, sections: Some(sections) };
        v1::ControlMessage { message: Some(Message::Delta(delta)) }
    }

    /// The next delta, with the present state of these workers.
    pub fn workers_delta(&mut self, workers: &[u32]) -> v1::ControlMessage {
        let upsert = self.workers.iter().filter(|worker| workers.contains(&worker.id)).cloned().collect();
        let workers = v1::Workers { upsert, removed: Vec::new(), ..v1::Workers::default() };
        self.delta(v1::Sections { workers: Some(workers), ..v1::Sections::default() })
    }

    /// The next delta, with all prefixes.
    pub fn prefix_delta(&mut self) -> v1::ControlMessage {
        let prefix = self.prefix();
        self.delta(v1::Sections { prefix: Some(prefix), ..v1::Sections::default() })
    }

    /// A heartbeat of the present sequence.
    #[must_use]
    pub fn heartbeat(&self) -> v1::ControlMessage {
        let beat = v1::Heartbeat { epoch: self.epoch, sequence: self.sequence };
        v1::ControlMessage { message: Some(Message::Heartbeat(beat)) }
    }
}

/// A worker `w<id>` of a set: ready, idle, its load known.
#[must_use]
pub fn worker(id: u32, worker_set: u32) -> v1::Worker {
    v1::Worker {
        id,
        worker_set,
        name: format!("w{id}"),
        address: format!("10.0.{}.{}:8000", id / 250, id % 250 + 1),
        state: v1::WorkerState::Ready.into(),
        load: Some(v1::Load { known: true, ..v1::Load::default() }),
        latency: Some(v1::LatencyModel { base_ms: 20.0, ms_per_token: 0.1, ms_per_running: 0.5, samples: 100 }),
        ..v1::Worker::default()
    }
}

/// A part of a snapshot.
#[must_use]
pub fn part(epoch: u64, sequence: u64, part: u32, last: bool, sections: v1::Sections) -> v1::ControlMessage {
    let part = v1::SnapshotPart { epoch, sequence, part, last, sections: Some(sections) };
    v1::ControlMessage { message: Some(Message::Snapshot(part)) }
}
