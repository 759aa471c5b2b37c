//! The scheduler of one worker: continuous batching with chunked prefill over a paged cache, as vLLM V1 does it.
//! A pure state machine: no clock, no I/O. Times are arguments, counted from the engine's start.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::cache::{BlockId, BlockPool, block_hash};
use super::config::Config;
use super::events::{Event, Lora, Stored};
use super::metrics::{Gauges, Metrics};
use super::progress::{Finish, Progress};

/// A request as the engine takes it: its answer is known beforehand and comes out one token a step.
#[derive(Debug, Clone)]
pub(super) struct NewRequest {
    /// Unique among the engine's requests.
    pub(super) id: u64,
    /// Prompt tokens; at least one.
    pub(super) prompt: Arc<[u32]>,
    /// Answer tokens; at least one. Prompt and answer together fit the cache.
    pub(super) answer: Arc<[u32]>,
    /// How the request ends after its last answer token.
    pub(super) finish: Finish,
    /// Adapter in use.
    pub(super) lora: Option<Lora>,
    /// Salt that separates this request's cache entries from others'.
    pub(super) salt: Option<String>,
    /// Session to name in events.
    pub(super) session: Option<String>,
    /// Whether hit blocks are announced again, from the root.
    pub(super) report_hits: bool,
    /// Where to tell how far the request has come.
    pub(super) progress: Arc<Progress>,
}

/// What a step has to do, which decides how long it takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct StepLoad {
    /// Prompt tokens to compute.
    pub(super) prefill_tokens: usize,
    /// Requests that take part.
    pub(super) sequences: usize,
}

#[derive(Debug)]
struct Request {
    new: NewRequest,
    arrival: Duration,
    scheduled_at: Option<Duration>,
    first_token_at: Option<Duration>,
    last_token_at: Duration,
    /// Answer tokens so far.
    produced: usize,
    /// Tokens whose keys and values are in the cache, those of the step under way included.
    computed: usize,
    /// Prompt tokens found in the cache when first scheduled.
    cached: Option<usize>,
    blocks: Vec<BlockId>,
    /// Hashes of the full blocks of prompt and answer so far.
    hashes: Vec<u64>,
    /// Leading blocks that are stored under their hash.
    stored: usize,
    /// Whether the step under way computes some of it.
    in_step: bool,
}

/// One worker's engine.
#[derive(Debug)]
pub(super) struct Engine {
    block_size: usize,
    token_budget: usize,
    max_running: usize,
    /// Parent of every first block, different at each start.
    root: u64,
    pool: BlockPool,
    waiting: VecDeque<Request>,
    running: Vec<Request>,
    metrics: Metrics,
}

impl Engine {
    /// An idle engine with an empty cache. `root` seeds all block hashes.
    pub(super) fn new(config: &Config, root: u64) -> Self {
        Self {
            block_size: config.block_size,
            token_budget: config.max_num_batched_tokens,
            max_running: config.max_num_seqs,
            root,
            pool: BlockPool::new(config.num_blocks),
            waiting: VecDeque::new(),
            running: Vec::new(),
            metrics: Metrics::default(),
        }
    }

    /// Queues a request.
    pub(super) fn submit(&mut self, new: NewRequest, now: Duration) {
        self.metrics.received += 1;
        let mut request = Request {
            new,
            arrival: now,
            scheduled_at: None,
            first_token_at: None,
            last_token_at: now,
            produced: 0,
            computed: 0,
            cached: None,
            blocks: Vec::new(),
            hashes: Vec::new(),
            stored: 0,
            in_step: false,
        };
        request.extend_hashes(self.root, self.block_size);
        self.waiting.push_back(request);
    }

    /// Ends a request whose client went away and frees its blocks. Unknown or finished requests are ignored.
    pub(super) fn abort(&mut self, id: u64) {
        let request = if let Some(at) = self.running.iter().position(|request| request.new.id == id) {
            self.running.remove(at)
        } else if let Some(at) = self.waiting.iter().position(|request| request.new.id == id) {
            let Some(request) = self.waiting.remove(at) else { return };
            request
        } else {
            return;
        };
        self.pool.release(&request.blocks);
        self.metrics.count_finish(Finish::Abort);
        request.new.progress.advance(request.produced, Some(Finish::Abort));
    }

    /// Chooses what the next step computes; `None` when there is nothing to do. Blocks that it fills can be hit from here on.
    /// [`Engine::end_step`] follows when the step's time is over.
    pub(super) fn begin_step(&mut self, now: Duration) -> Option<StepLoad> {
        let mut budget = self.token_budget;
        let mut load = StepLoad::default();
        let preemptions = self.metrics.preemptions;

        let mut at = 0;
        while at < self.running.len() && budget > 0 {
            let tokens = self.running[at].missing().min(budget);
            if self.make_room(at, tokens) {
                budget -= tokens;
                self.compute(at, tokens, &mut load);
                at += 1;
            }
        }
        // As in vLLM: whoever just lost its blocks must not lose its turn to a newcomer as well.
        while self.metrics.preemptions == preemptions && budget > 0 && self.running.len() < self.max_running {
            let Some(tokens) = self.admit(budget, now) else { break };
            budget -= tokens;
            self.compute(self.running.len() - 1, tokens, &mut load);
        }
        if load.sequences == 0 {
            return None;
        }
        self.metrics.steps += 1;
        Some(load)
    }

    /// Ends the step: requests whose tokens are all computed get their next answer token, those at their end leave.
    /// Returns the cache events since the last step, to be published as one batch.
    pub(super) fn end_step(&mut self, now: Duration) -> Vec<Event> {
        let (root, block_size) = (self.root, self.block_size);
        let mut finished = false;
        let before = self.metrics.prompt_tokens + self.metrics.generation_tokens;
        for request in &mut self.running {
            if std::mem::take(&mut request.in_step) && request.missing() == 0 {
                request.produced += 1;
                request.extend_hashes(root, block_size);
                let finish = (request.produced == request.new.answer.len()).then_some(request.new.finish);
                finished |= finish.is_some();
                self.metrics.count_token(request, now);
                if let Some(finish) = finish {
                    self.metrics.count_request(request, finish, now);
                }
                request.new.progress.advance(request.produced, finish);
            }
        }
        self.metrics.step_tokens.observe((self.metrics.prompt_tokens + self.metrics.generation_tokens - before) as f64);
        if finished {
            let pool = &mut self.pool;
            self.running.retain(|request| {
                let done = request.produced == request.new.answer.len();
                if done {
                    pool.release(&request.blocks);
                }
                !done
            });
        }
        self.pool.take_events()
    }

    /// Empties the prefix cache; false, and nothing done, while requests run.
    pub(super) fn reset_cache(&mut self) -> bool {
        self.pool.reset()
    }

    /// Counters since the start.
    pub(super) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The present load.
    pub(super) fn gauges(&self) -> Gauges {
        Gauges { running: self.running.len(), waiting: self.waiting.len(), cache_usage: self.pool.usage() }
    }

    /// Makes sure that running request `at` has blocks for `tokens` more, putting the latest arrivals back in the queue
    /// if it must. False when the request itself had to go.
    fn make_room(&mut self, at: usize, tokens: usize) -> bool {
        loop {
            let request = &self.running[at];
            let needed = (request.computed + tokens).div_ceil(self.block_size).saturating_sub(request.blocks.len());
            if needed <= self.pool.free_blocks() {
                self.pool.allocate(needed, &mut self.running[at].blocks);
                return true;
            }
            let Some(mut last) = self.running.pop() else { return false };
            self.pool.release(&last.blocks);
            last.blocks.clear();
            (last.computed, last.stored, last.in_step) = (0, 0, false);
            self.metrics.preemptions += 1;
            self.waiting.push_front(last);
            if at == self.running.len() {
                return false;
            }
        }
    }

    /// Moves the first waiting request to the running ones if there is room for all of it, and returns how many tokens
    /// of it fit the budget.
    fn admit(&mut self, budget: usize, now: Duration) -> Option<usize> {
        let first = self.waiting.front()?;
        // The last token must be computed, to have something to sample from.
        let most_hits = (first.length() - 1) / self.block_size;
        let hits: Vec<BlockId> =
            first.hashes.iter().take(most_hits).map_while(|hash| self.pool.lookup(*hash)).collect();
        let idle = hits.iter().filter(|id| self.pool.is_free(**id)).count();
        let needed = first.length().div_ceil(self.block_size) - hits.len();
        if needed + idle > self.pool.free_blocks() {
            return None;
        }

        let mut request = self.waiting.pop_front()?;
        request.computed = hits.len() * self.block_size;
        request.stored = hits.len();
        if !hits.is_empty() && request.new.report_hits {
            self.pool.push_event(Event::Stored(request.stored_event(0, hits.len(), self.block_size)));
        }
        for id in &hits {
            self.pool.touch(*id);
        }
        request.blocks = hits;
        request.scheduled_at.get_or_insert(now);
        if request.cached.is_none() {
            request.cached = Some(request.computed);
            request.new.progress.set_cached(request.computed);
            self.metrics.cache_queries += request.length() as u64;
            self.metrics.cache_hits += request.computed as u64;
        }
        let tokens = request.missing().min(budget);
        let blocks = (request.computed + tokens).div_ceil(self.block_size) - request.blocks.len();
        self.pool.allocate(blocks, &mut request.blocks);
        self.running.push(request);
        Some(tokens)
    }

    /// Puts `tokens` of running request `at` into the step and stores the blocks that they fill.
    fn compute(&mut self, at: usize, tokens: usize, load: &mut StepLoad) {
        let request = &mut self.running[at];
        load.sequences += 1;
        if request.produced == 0 || tokens > 1 {
            load.prefill_tokens += tokens;
        }
        request.in_step = true;
        request.computed += tokens;

        let full = request.computed / self.block_size;
        if full > request.stored {
            for block in request.stored..full {
                self.pool.store(request.blocks[block], request.hashes[block]);
            }
            self.pool.push_event(Event::Stored(request.stored_event(request.stored, full, self.block_size)));
            request.stored = full;
        }
    }
}

impl Request {
    /// Prompt and answer tokens so far.
    fn length(&self) -> usize {
        self.new.prompt.len() + self.produced
    }

    /// Known tokens that are not computed yet.
    fn missing(&self) -> usize {
        self.length() - self.computed
    }

    fn tokens(&self, from: usize, to: usize) -> impl Iterator<Item = u32> {
        let answered = &self.new.answer[..self.produced];
        self.new.prompt.iter().chain(answered).skip(from).take(to - from).copied()
    }

    /// Hashes the blocks that have become full. Linear in the new tokens only.
    fn extend_hashes(&mut self, root: u64, block_size: usize) {
        while (self.hashes.len() + 1) * block_size <= self.length() {
            let from = self.hashes.len() * block_size;
            let straddling: Vec<u32>;
            let tokens = match self.new.prompt.get(from..from + block_size) {
                Some(tokens) => tokens,
                None => {
                    straddling = self.tokens(from, from + block_size).collect();
                    &straddling
                }
            };
            let lora = self.new.lora.as_ref().map(|lora| lora.name.as_str());
            let hash = block_hash(root, self.hashes.last().copied(), tokens, lora, self.new.salt.as_deref());
            self.hashes.push(hash);
        }
    }

    fn stored_event(&self, from: usize, to: usize, block_size: usize) -> Stored {
        Stored {
            hashes: self.hashes[from..to].to_vec(),
            parent: from.checked_sub(1).map(|parent| self.hashes[parent]),
            tokens: self.tokens(from * block_size, to * block_size).collect(),
            block_size,
            lora: self.new.lora.clone(),
            salt: self.new.salt.clone().filter(|_| from == 0),
            session: self.new.session.clone(),
        }
    }
}

impl Metrics {
    fn count_token(&mut self, request: &mut Request, now: Duration) {
        self.generation_tokens += 1;
        if request.first_token_at.is_none() {
            request.first_token_at = Some(now);
            let cached = request.cached.unwrap_or(0);
            self.prompt_tokens += request.new.prompt.len() as u64;
            self.prompt_tokens_cached += cached as u64;
            self.first_token.observe((now - request.arrival).as_secs_f64());
            self.computed_length.observe((request.new.prompt.len() - cached) as f64);
        } else {
            self.next_token.observe((now - request.last_token_at).as_secs_f64());
        }
        request.last_token_at = now;
    }

    fn count_request(&mut self, request: &Request, finish: Finish, now: Duration) {
        self.count_finish(finish);
        let scheduled = request.scheduled_at.unwrap_or(request.arrival);
        let first = request.first_token_at.unwrap_or(now);
        self.request.observe((now - request.arrival).as_secs_f64());
        self.queue.observe((scheduled - request.arrival).as_secs_f64());
        self.prefill.observe((first - scheduled).as_secs_f64());
        self.decode.observe((now - first).as_secs_f64());
        self.inference.observe((now - scheduled).as_secs_f64());
        self.per_token.observe((now - first).as_secs_f64() / (request.produced - 1).max(1) as f64);
        self.prompt_length.observe(request.new.prompt.len() as f64);
        self.answer_length.observe(request.produced as f64);
    }
}

#[cfg(test)]
mod tests;
