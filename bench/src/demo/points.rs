//! The load points, and why each is what it is.
//!
//! **The engines.** An 8-billion-parameter model in bf16 on an A100 with 40 GB: reading 16 GB of weights at 1.55 TB/s makes a
//! step take 10.3 ms, plus 2 ms for launch and sampling; 16 GFLOP a token at half of 312 TFLOP/s make 103 µs for each prompt
//! token; a running request adds 170 µs to a step for reading 2,000 tokens of its KV cache. 40 GB x 0.92 less weights and
//! 2.8 GB of activations leave 18 GB of KV cache: 137,000 tokens at 131 KB each. Engine time runs four times as fast as the
//! clock ([`TIME_SCALE`]), because filling such caches, which every arm starts with, takes half a minute of engine time; all
//! figures are as measured, so the router's own delays and its lag behind the engines weigh four times as much as they would.
//!
//! **The loads.** As in the published comparisons, the distinct prefixes are more than one worker's cache holds and less than the
//! fleet's: a router that sends a prefix everywhere computes it again and again, one that knows where it is does not. The load is
//! the same for both arms, an open loop, and past what the fleet sustains with random balancing, whose queues then grow as long as
//! it lasts (control: well below, for both arms). Every request counts, those that meet empty caches at the start too. What is
//! said of rates below is in engine time.

use std::time::Duration;

use crate::load::{Arrival, Pace, Shape, Workload};
use crate::sim::Config;

/// Engine seconds last this many seconds of the clock.
pub(super) const TIME_SCALE: f64 = 0.25;

/// A load, put to every arm.
#[derive(Debug, Clone, Copy)]
pub struct Point {
    /// The requests.
    pub workload: Workload,
    /// When they come.
    pub pace: Pace,
    /// Time to first token up to which a request counts as good: one second of engine time.
    pub ttft_limit: Duration,
}

impl Point {
    /// The workload's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.workload.shape.name()
    }

    /// The load in one line.
    #[must_use]
    pub fn describe(&self) -> String {
        let what = match self.workload.shape {
            Shape::Control { requests, prompt_tokens } => format!("{requests} prompts of {prompt_tokens} tokens"),
            Shape::SharedPrefix { groups, requests_per_group, prefix_tokens, question_tokens } => format!(
                "{groups} groups of {requests_per_group} requests, {prefix_tokens} tokens in common and {question_tokens} of their own"
            ),
            Shape::Multiturn { conversations, turns, opening_tokens, question_tokens } => format!(
                "{conversations} conversations of {turns} turns, {opening_tokens} tokens to begin with and {question_tokens} more each turn"
            ),
        };
        let rate = match self.pace {
            Pace::Open { rate, .. } => format!("{rate} started per second"),
            Pace::Closed { concurrency } => format!("{concurrency} at a time"),
        };
        format!("{what}, answers of {} tokens, {rate}", self.workload.answer_tokens)
    }
}

/// The simulated workers.
#[must_use]
pub fn engine(workers: usize) -> Config {
    Config {
        workers,
        num_blocks: 137_000 / 16,
        step_base_us: 12_300.0,
        prefill_token_us: 103.0,
        seq_us: 170.0,
        time_scale: TIME_SCALE,
        ..Config::ephemeral()
    }
}

/// The three load points for a fleet of this size. Rates and counts grow with it, so that the load per worker stays the same.
#[must_use]
pub fn points(workers: usize, seed: u64) -> [Point; 3] {
    let fleet = workers as f64 / 3.0;
    let count = |three: usize| ((three as f64 * fleet).round() as usize).max(1);
    let point = |shape, answer_tokens, rate: f64| Point {
        workload: Workload { shape, answer_tokens, seed },
        pace: Pace::Open { rate: rate * fleet / TIME_SCALE, arrival: Arrival::Poisson },
        ttft_limit: Duration::from_secs(1).mul_f64(TIME_SCALE),
    };
    [
        // A prompt takes 0.21 s of prefill and its answer a share of 128 steps: 7.5 a second keep three workers busy for somewhat
        // more than half of the time. Chance alone then makes some wait while another worker idles, which is all there is to win.
        point(Shape::Control { requests: count(400), prompt_tokens: 2000 }, 128, 7.5),
        // 50 prefixes of 6,000 tokens are 300,000 tokens: 2.2 caches of 137,000, of the fleet's three. With random balancing a
        // request finds its prefix in about 4 of 10 cases, and the fleet sustains 5.6 requests a second (measured at any higher
        // rate); 7 are a quarter more. Where every prefix stays on its worker, a hit takes 10 ms of prefill, and 7 a second are
        // light once each prefix has been computed, which takes 10 s of the fleet.
        point(
            Shape::SharedPrefix {
                groups: count(50),
                requests_per_group: 12,
                prefix_tokens: 6000,
                question_tokens: 100,
            },
            128,
            7.0,
        ),
        // 80 conversations that end at 4,900 tokens are 390,000 tokens: 2.8 caches, just within the fleet's. With random balancing
        // two of three turns meet a worker that did not see the last one, and the fleet sustains 6 turns a second (measured at any
        // higher rate). 3 conversations a second are 18 turns where answers come promptly; where they do not, the next turn
        // waits, so that at most 80 requests queue up. Answers are short, as in chats over a long document.
        point(
            Shape::Multiturn { conversations: count(80), turns: 6, opening_tokens: 4000, question_tokens: 100 },
            64,
            3.0,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_exceed_one_cache_and_fit_the_fleet() {
        for workers in [2, 3, 6] {
            let config = engine(workers);
            config.validate().unwrap();
            let cache = config.num_blocks * config.block_size;
            for point in points(workers, 1) {
                point.workload.validate().unwrap();
                let distinct = match point.workload.shape {
                    Shape::Control { .. } => continue,
                    Shape::SharedPrefix { groups, prefix_tokens, .. } => groups * prefix_tokens,
                    Shape::Multiturn { conversations, turns, opening_tokens, question_tokens } => {
                        conversations
                            * (opening_tokens + (turns - 1) * question_tokens + turns * point.workload.answer_tokens)
                    }
                };
                assert!(distinct > cache && distinct < workers * cache, "{}: {distinct} of {cache}", point.describe());
            }
        }
    }
}
