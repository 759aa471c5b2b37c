//! Time to first token: the model that predicts it, and how its coefficients are learned.
//!
//! `TTFT = base + ms_per_token * (queued prefill tokens + uncached tokens) + ms_per_running * running requests`
//!
//! An engine with continuous batching works through prompt tokens at a nearly constant rate, first come first served;
//! each running request adds its share to every step. The coefficients are learned for each worker set from observed first
//! tokens by recursive least squares with exponential forgetting (Haykin, Adaptive Filter Theory, chapter 10), and each
//! worker's pace beside them.

use kinference_protocol::v1;

/// Coefficients of one worker. None is negative.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatencyModel {
    /// Milliseconds that a request takes on an idle worker with everything cached.
    pub base_ms: f32,
    /// Milliseconds for each prompt token that must be computed, of this request or queued before it.
    pub ms_per_token: f32,
    /// Milliseconds for each request that is running.
    pub ms_per_running: f32,
    /// Observations behind the coefficients; 0 for the defaults.
    pub samples: u32,
}

impl Default for LatencyModel {
    /// A model of some 8 billion parameters on one data-centre GPU: 20 ms to the first token of a cached prompt, 10,000
    /// prompt tokens a second, and half a millisecond for each running request.
    fn default() -> Self {
        Self { base_ms: 20.0, ms_per_token: 0.1, ms_per_running: 0.5, samples: 0 }
    }
}

impl LatencyModel {
    /// Predicted time to first token in milliseconds.
    #[must_use]
    pub fn predict(&self, queued_tokens: f32, uncached_tokens: f32, running: f32) -> f32 {
        self.base_ms + self.ms_per_token * (queued_tokens + uncached_tokens) + self.ms_per_running * running
    }
}

impl From<&v1::LatencyModel> for LatencyModel {
    /// Coefficients from the wire; what is not a sensible number becomes its default.
    fn from(wire: &v1::LatencyModel) -> Self {
        let default = Self::default();
        let sane = |value: f32, default: f32| if value.is_finite() && value >= 0.0 { value } else { default };
        Self {
            base_ms: sane(wire.base_ms, default.base_ms),
            ms_per_token: sane(wire.ms_per_token, default.ms_per_token),
            ms_per_running: sane(wire.ms_per_running, default.ms_per_running),
            samples: wire.samples,
        }
    }
}

impl From<LatencyModel> for v1::LatencyModel {
    fn from(model: LatencyModel) -> Self {
        Self {
            base_ms: model.base_ms,
            ms_per_token: model.ms_per_token,
            ms_per_running: model.ms_per_running,
            samples: model.samples,
        }
    }
}

/// What was known when a request was sent, and how long its first token took.
#[derive(Debug, Clone, Copy)]
pub struct Observation {
    /// Prefill tokens queued on the worker before this request.
    pub queued_tokens: f32,
    /// Prompt tokens of this request that had to be computed.
    pub uncached_tokens: f32,
    /// Requests running on the worker.
    pub running: f32,
    /// Observed time to first token in milliseconds.
    pub ttft_ms: f32,
}

/// Weight of what was learned before at each new observation: about the last 200 observations count.
const FORGETTING: f64 = 0.995;
/// Below this many observations the defaults stay in force.
const WARM_UP: u32 = 16;
/// An observation this many times larger than its prediction says that something else held the request up; it counts no
/// more than this.
const OUTLIER: f64 = 4.0;
/// Scales that bring the features to about one, for the sake of the arithmetic.
const SCALE: [f64; 3] = [1.0, 1000.0, 10.0];
/// What is not known of the weights before anything was seen, relative to the noise of one observation; also the most that
/// is ever taken to be unknown, since forgetting would let it grow without end along directions that are not observed.
const UNKNOWN: [f64; 3] = [16.0, 64.0, 4.0];
/// The least that each weight may be: a token that costs nothing would make a loaded worker look as good as an idle one.
const LEAST: [f64; 3] = [0.0, 1e-4 * SCALE[1], 0.0];
/// Below this many tokens a request says nothing of what a token costs.
const TELLING_TOKENS: f64 = 256.0;

/// Learns the coefficients of a worker set.
#[derive(Debug, Clone)]
pub struct Learner {
    weights: [f64; 3],
    covariance: [[f64; 3]; 3],
    samples: u32,
}

impl Default for Learner {
    fn default() -> Self {
        let start = LatencyModel::default();
        let mut covariance = [[0.0; 3]; 3];
        for (i, (row, unknown)) in covariance.iter_mut().zip(UNKNOWN).enumerate() {
            for (j, cell) in row.iter_mut().enumerate() {
                *cell = if i == j { unknown } else { 0.0 };
            }
        }
        let [base, token, running] = SCALE;
        Self {
            weights: [
                f64::from(start.base_ms) * base,
                f64::from(start.ms_per_token) * token,
                f64::from(start.ms_per_running) * running,
            ],
            covariance,
            samples: 0,
        }
    }
}

impl Learner {
    /// Learns from one request. Observations that are not numbers are ignored.
    pub fn observe(&mut self, seen: Observation) {
        let features = [
            1.0 / SCALE[0],
            f64::from(seen.queued_tokens + seen.uncached_tokens) / SCALE[1],
            f64::from(seen.running) / SCALE[2],
        ];
        let ttft = f64::from(seen.ttft_ms);
        if !ttft.is_finite() || ttft < 0.0 || features.iter().any(|f| !f.is_finite() || *f < 0.0) {
            return;
        }
        let predicted = dot(&self.weights, &features);
        let features = match features {
            [one, tokens, running] if tokens * SCALE[1] < TELLING_TOKENS => [one, 0.0, running],
            telling => telling,
        };
        let target = if self.samples < WARM_UP { ttft } else { ttft.min(OUTLIER * predicted.max(1.0)) };
        let product: [f64; 3] = self.covariance.map(|row| dot(&row, &features));
        let denominator = FORGETTING + dot(&features, &product);
        let error = target - predicted;
        for (weight, p) in self.weights.iter_mut().zip(&product) {
            *weight += p / denominator * error;
        }
        for (row, p) in self.covariance.iter_mut().zip(&product) {
            for (cell, q) in row.iter_mut().zip(&product) {
                *cell = (*cell - p * q / denominator) / FORGETTING;
            }
        }
        self.bound_covariance();
        self.samples = self.samples.saturating_add(1);
    }

    /// Takes no more to be unknown than at the start, direction by direction.
    fn bound_covariance(&mut self) {
        let shrink: Vec<f64> = self
            .covariance
            .iter()
            .enumerate()
            .zip(UNKNOWN)
            .map(|((i, row), unknown)| {
                let variance = row.get(i).copied().unwrap_or_default();
                if variance > unknown { (unknown / variance).sqrt() } else { 1.0 }
            })
            .collect();
        for (row, by_row) in self.covariance.iter_mut().zip(&shrink) {
            for (cell, by_column) in row.iter_mut().zip(&shrink) {
                *cell *= by_row * by_column;
            }
        }
    }

    /// The coefficients, none negative; the defaults until there are enough observations.
    #[must_use]
    pub fn model(&self) -> LatencyModel {
        if self.samples < WARM_UP {
            return LatencyModel::default();
        }
        let [base, token, running] = self.bounded();
        LatencyModel {
            base_ms: (base / SCALE[0]) as f32,
            ms_per_token: (token / SCALE[1]) as f32,
            ms_per_running: (running / SCALE[2]) as f32,
            samples: self.samples,
        }
    }

    /// The weights that fit best among those that are not below [`LEAST`].
    ///
    /// A weight at its bound moves the others with it, as far as the covariance says they go together; each bound is kept by
    /// those after it. To cut off each weight alone would leave a model that is wrong for every request: attention makes long
    /// prompts dearer per token, so the line through them often has a base below zero.
    fn bounded(&self) -> [f64; 3] {
        let (mut weights, mut covariance) = (self.weights, self.covariance);
        for _ in 0..weights.len() {
            let below = |(&weight, least): (&f64, f64)| if weight.is_finite() { weight - least } else { f64::MIN };
            let distances = weights.iter().zip(LEAST).map(below).enumerate();
            let Some((worst, distance)) = distances.min_by(|a, b| a.1.total_cmp(&b.1)) else { break };
            if distance >= 0.0 {
                break;
            }
            let Some(row) = covariance.get(worst).copied() else { break };
            let variance = row.get(worst).copied().unwrap_or_default();
            if variance > 0.0 {
                for (weight, shared) in weights.iter_mut().zip(&row) {
                    *weight -= shared / variance * distance;
                }
                for (cells, shared) in covariance.iter_mut().zip(&row) {
                    for (cell, other) in cells.iter_mut().zip(&row) {
                        *cell -= shared * other / variance;
                    }
                }
            }
            if let Some((weight, least)) = weights.get_mut(worst).zip(LEAST.get(worst)) {
                *weight = *least;
            }
        }
        std::array::from_fn(|i| {
            let least = LEAST.get(i).copied().unwrap_or_default();
            weights.get(i).copied().filter(|weight| weight.is_finite()).map_or(least, |weight| weight.max(least))
        })
    }
}

/// How much slower or faster one worker is than its set. Equal workers must look equal, or requests would pile onto the one
/// that chance favoured: only a difference that lasts and matters counts.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Moving average of the logarithm of observed over predicted time.
    log_ratio: f64,
    samples: u32,
}

/// Weight of the newest observation in a worker's pace.
const PACE_WEIGHT: f64 = 1.0 / 128.0;
/// Logarithm of the smallest difference that counts: a fifth.
const PACE_MATTERS: f64 = 0.182;
/// Logarithm of the largest: a factor of four.
const PACE_MOST: f64 = 1.386;

impl Default for Pace {
    fn default() -> Self {
        Self { log_ratio: 0.0, samples: 0 }
    }
}

impl Pace {
    /// Learns from one request, against what its set's model predicts.
    pub fn observe(&mut self, seen: Observation, set: &LatencyModel) {
        let predicted = set.predict(seen.queued_tokens, seen.uncached_tokens, seen.running);
        let ratio = f64::from(seen.ttft_ms.max(1.0)) / f64::from(predicted.max(1.0));
        if ratio.is_finite() {
            self.log_ratio += (ratio.ln().clamp(-PACE_MOST, PACE_MOST) - self.log_ratio) * PACE_WEIGHT;
            self.samples = self.samples.saturating_add(1);
        }
    }

    /// The set's model at this worker's pace.
    #[must_use]
    pub fn of(&self, set: LatencyModel) -> LatencyModel {
        let factor = if self.log_ratio.abs() < PACE_MATTERS { 1.0 } else { self.log_ratio.exp() as f32 };
        LatencyModel {
            base_ms: set.base_ms * factor,
            ms_per_token: set.ms_per_token * factor,
            ms_per_running: set.ms_per_running * factor,
            samples: self.samples,
        }
    }
}

fn dot(a: &[f64; 3], b: &[f64; 3]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A simple generator, so that the test needs no crate and gives the same figures everywhere.
    fn noise(state: &mut u64) -> f32 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*state >> 40) as f32 / (1u64 << 24) as f32
    }

    fn train(learner: &mut Learner, truth: LatencyModel, rounds: u32, seed: u64) {
        let mut state = seed;
        for _ in 0..rounds {
            let (queued, uncached) = (noise(&mut state) * 4000.0, noise(&mut state) * 8000.0);
            let running = noise(&mut state) * 30.0;
            let ttft = truth.predict(queued, uncached, running) * (0.95 + 0.1 * noise(&mut state));
            learner.observe(Observation { queued_tokens: queued, uncached_tokens: uncached, running, ttft_ms: ttft });
        }
    }

    fn close(a: f32, b: f32, part: f32) -> bool {
        (a - b).abs() <= part * b
    }

    #[test]
    fn it_finds_the_coefficients_and_follows_a_change() {
        let mut learner = Learner::default();
        let slow = LatencyModel { base_ms: 60.0, ms_per_token: 0.4, ms_per_running: 3.0, samples: 0 };
        train(&mut learner, slow, 400, 1);
        let model = learner.model();
        assert!(close(model.ms_per_token, 0.4, 0.05), "{model:?}");
        assert!(close(model.predict(1000.0, 1000.0, 10.0), slow.predict(1000.0, 1000.0, 10.0), 0.05), "{model:?}");

        let fast = LatencyModel { base_ms: 20.0, ms_per_token: 0.05, ms_per_running: 1.0, samples: 0 };
        train(&mut learner, fast, 1500, 2);
        assert!(close(learner.model().ms_per_token, 0.05, 0.1), "{:?}", learner.model());
    }

    #[test]
    fn few_observations_change_nothing() {
        let mut learner = Learner::default();
        train(&mut learner, LatencyModel { base_ms: 900.0, ..LatencyModel::default() }, WARM_UP - 1, 3);
        assert_eq!(learner.model(), LatencyModel::default());
    }

    #[test]
    fn bad_observations_and_a_single_feature_do_no_harm() {
        let mut learner = Learner::default();
        for _ in 0..5000 {
            learner.observe(Observation { queued_tokens: 0.0, uncached_tokens: 100.0, running: 0.0, ttft_ms: 30.0 });
        }
        learner.observe(Observation { queued_tokens: f32::NAN, uncached_tokens: 0.0, running: 0.0, ttft_ms: 1.0 });
        learner.observe(Observation { queued_tokens: 0.0, uncached_tokens: 0.0, running: 0.0, ttft_ms: f32::INFINITY });
        let model = learner.model();
        assert!(close(model.predict(0.0, 100.0, 0.0), 30.0, 0.05), "{model:?}");
        assert!(model.ms_per_token > 0.0 && model.base_ms >= 0.0 && model.ms_per_running >= 0.0);
    }

    #[test]
    fn a_bound_on_one_coefficient_leaves_the_fit_a_fit() {
        // Attention: each token is dearer the more there are before it, and a straight line starts below zero.
        let truth = |tokens: f32| 5.0 + 0.05 * tokens + 8e-6 * tokens * tokens;
        let (mut learner, mut state) = (Learner::default(), 6);
        for _ in 0..400 {
            let tokens = 2000.0 + noise(&mut state) * 10_000.0;
            learner.observe(Observation {
                queued_tokens: 0.0,
                uncached_tokens: tokens,
                running: 0.0,
                ttft_ms: truth(tokens),
            });
        }
        assert!(learner.weights[0] < -50.0, "{:?}", learner.weights);
        let model = learner.model();
        assert_eq!(model.base_ms, 0.0);
        let error = |model: &LatencyModel| {
            let error = |tokens: f32| (model.predict(0.0, tokens, 0.0) - truth(tokens)).abs();
            (0..100).map(|i| error(2000.0 + i as f32 * 100.0)).sum::<f32>() / 100.0
        };
        let cut_off = LatencyModel { ms_per_token: (learner.weights[1] / SCALE[1]) as f32, ..model };
        assert!(error(&model) < 0.4 * error(&cut_off), "{} against {}", error(&model), error(&cut_off));
    }

    #[test]
    fn cached_prompts_do_not_make_tokens_look_free() {
        let truth = LatencyModel { base_ms: 30.0, ms_per_token: 0.2, ms_per_running: 1.0, samples: 0 };
        let mut learner = Learner::default();
        train(&mut learner, truth, 300, 4);
        let mut state = 5;
        for _ in 0..5000 {
            let running = noise(&mut state) * 30.0;
            let ttft_ms = truth.predict(0.0, 50.0, running) * (0.5 + noise(&mut state));
            learner.observe(Observation { queued_tokens: 0.0, uncached_tokens: 50.0, running, ttft_ms });
        }
        assert!(close(learner.model().ms_per_token, 0.2, 0.1), "{:?}", learner.model());
    }

    #[test]
    fn equal_workers_look_equal_and_a_slow_one_slow() {
        let set = LatencyModel { base_ms: 30.0, ms_per_token: 0.2, ms_per_running: 1.0, samples: 100 };
        let pace_of = |factor: f32, seed: u64| {
            let (mut pace, mut state) = (Pace::default(), seed);
            for _ in 0..600 {
                let ttft_ms = set.predict(500.0, 1000.0, 5.0) * factor * (0.6 + 0.8 * noise(&mut state));
                let (queued_tokens, uncached_tokens, running) = (500.0, 1000.0, 5.0);
                pace.observe(Observation { queued_tokens, uncached_tokens, running, ttft_ms }, &set);
            }
            pace.of(set).predict(500.0, 1000.0, 5.0) / set.predict(500.0, 1000.0, 5.0)
        };
        assert!((1..20).all(|seed| pace_of(1.0, seed) == 1.0));
        assert!(close(pace_of(2.0, 3), 2.0, 0.15), "{}", pace_of(2.0, 3));
        assert_eq!(Pace::default().of(set).predict(0.0, 10.0, 1.0), set.predict(0.0, 10.0, 1.0));
    }

    #[test]
    fn wire_coefficients_are_checked() {
        let wire = v1::LatencyModel { base_ms: f32::NAN, ms_per_token: -1.0, ms_per_running: 2.0, samples: 5 };
        let model = LatencyModel::from(&wire);
        assert_eq!((model.base_ms, model.ms_per_token, model.ms_per_running), (20.0, 0.1, 2.0));
    }
}
