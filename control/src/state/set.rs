//! One worker set: its specification, its tokenizer, and what is learned of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use kinference_api::compile::{TokenizerSource, WorkerSetAssets, WorkerSetSpec, WorkersSpec};
use kinference_protocol::v1::{self, PrefixMode};
use kinference_routing::template::ChatTemplate;
use kinference_routing::ttft::Learner;

use super::Model;
use super::fidelity::{Checked, Verdict, together};
use crate::tokenizer::{TokenBytes, Tokenizer};

/// A measured figure is told anew when it differs from the one told by more than this share.
const TOLERANCE: f32 = 0.03;

/// Why a set does not use its workers' events, as status and log say it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Mode {
    /// Events say what workers hold.
    Events,
    /// Prefixes are learned from where requests were sent; why.
    Routed(String),
}

#[derive(Debug)]
pub(super) struct Set {
    pub(super) id: u32,
    pub(super) spec: WorkerSetSpec,
    pub(super) model: Model,
    /// The template that filters get, or why they get none.
    pub(super) template: Result<Option<v1::Template>, String>,
    /// Changes with all that a check compares.
    pub(super) generation: u64,
    /// What the set's engine processes said together.
    pub(super) verdict: Option<Verdict>,
    block_tokens: Option<u32>,
    bytes_per_token: Option<f32>,
    /// Learns what its workers have in common.
    pub(super) learner: Learner,
}

impl Set {
    pub(super) fn new(id: u32, spec: WorkerSetSpec, model: Model) -> Self {
        let template = template(&spec, &model);
        Self {
            id,
            spec,
            model,
            template,
            generation: 0,
            verdict: None,
            block_tokens: None,
            bytes_per_token: None,
            learner: Learner::default(),
        }
    }

    /// Takes a new specification. True when what checks compare changed.
    pub(super) fn update(&mut self, mut spec: WorkerSetSpec, model: Model) -> bool {
        spec.id = self.id;
        let same_model = match (&self.model, &model) {
            (Ok(before), Ok(now)) => Arc::ptr_eq(before, now),
            (Err(before), Err(now)) => before == now,
            _ => false,
        };
        let template = template(&spec, &model);
        let same = same_model && template == self.template && spec.model == self.spec.model;
        (self.spec, self.model, self.template) = (spec, model, template);
        if !same {
            self.generation += 1;
            self.verdict = None;
        }
        !same
    }

    pub(super) fn tokenizer(&self) -> Option<&Arc<Tokenizer>> {
        self.model.as_ref().ok()
    }

    /// The bytes of tokens, where events can be used.
    pub(super) fn tokens(&self) -> Option<Arc<TokenBytes>> {
        self.tokenizer()?.tokens.as_ref().ok().cloned()
    }

    /// Whether the set could use events at all.
    pub(super) fn events_possible(&self) -> bool {
        let tokens = self.model.as_ref().is_ok_and(|tokenizer| tokenizer.tokens.is_ok());
        self.spec.kv_topic.is_some() && tokens && self.template.is_ok()
    }

    /// The same, with what is in the way.
    pub(super) fn can_use_events(&self) -> Result<&Arc<Tokenizer>, String> {
        if self.spec.kv_topic.is_none() {
            return Err("the worker set has no kvEvents".into());
        }
        let tokenizer = self.model.as_ref().map_err(String::clone)?;
        tokenizer.tokens.as_ref().map_err(ToString::to_string)?;
        self.template.as_ref().map_err(String::clone)?;
        Ok(tokenizer)
    }

    pub(super) fn mode(&self) -> Mode {
        if let Err(why) = self.can_use_events() {
            return Mode::Routed(why);
        }
        match &self.verdict {
            Some(Verdict::Equal(_)) => Mode::Events,
            Some(Verdict::Different(why)) => {
                Mode::Routed(format!("the filter's prompt text is not the engine's: {why}"))
            }
            Some(Verdict::NoAnswer(why)) => {
                Mode::Routed(format!("no worker could be asked yet whether the prompt text is equal: {why}"))
            }
            None => Mode::Routed("no worker was asked yet whether the prompt text is equal".into()),
        }
    }

    pub(super) fn uses_events(&self) -> bool {
        self.mode() == Mode::Events
    }

    /// Takes what these processes, all that the set has now, say together. What is known stays while none of them was
    /// asked: the set's workers may all be others than before.
    pub(super) fn judge<'a>(&mut self, processes: impl Iterator<Item = &'a Checked>) {
        if let Some(verdict) = together(processes) {
            self.verdict = Some(verdict);
        }
    }

    /// Takes the engine's block size. True when it is news.
    pub(super) fn learn_block(&mut self, tokens: u32) -> bool {
        self.block_tokens.replace(tokens.max(1)) != Some(tokens.max(1))
    }

    /// Takes the measured average length of a token. True when it is news; a small change is not worth telling.
    pub(super) fn learn_bytes_per_token(&mut self, measured: f32) -> bool {
        let told = self.bytes_per_token.unwrap_or(0.0);
        let news = measured.is_finite() && (measured - told).abs() > told * TOLERANCE;
        if news {
            self.bytes_per_token = Some(measured);
        }
        news
    }

    /// The measured average length of a token, as filters were told; none before there was a measurement.
    pub(super) fn measured_bytes_per_token(&self) -> Option<f32> {
        self.bytes_per_token
    }

    /// What the engine was seen to do, else what the tokenizer's files say.
    fn normalization(&self) -> v1::Normalization {
        match (&self.verdict, self.tokenizer()) {
            (Some(Verdict::Equal(seen)), _) => *seen,
            (_, Some(tokenizer)) => tokenizer.normalization,
            (_, None) => v1::Normalization::None,
        }
    }

    /// What goes into the snapshot's configuration.
    pub(super) fn assets(&self) -> WorkerSetAssets {
        let defaults = WorkerSetAssets::default();
        let tokenizer = self.tokenizer();
        WorkerSetAssets {
            template: self.template.clone().unwrap_or_default(),
            normalization: self.normalization(),
            completion_prefix: tokenizer.map(|tokenizer| tokenizer.completion_prefix.clone()).unwrap_or_default(),
            prefix_mode: if self.uses_events() { PrefixMode::Events } else { PrefixMode::Routed },
            bytes_per_token: self.bytes_per_token.unwrap_or(defaults.bytes_per_token),
            block_tokens: self.block_tokens.unwrap_or(defaults.block_tokens),
            ..defaults
        }
    }

    /// What the user should know although the configuration is valid.
    pub(super) fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if let Err(why) = &self.model {
            remarks.push(why.clone());
        }
        if let (WorkersSpec::Selector { .. }, TokenizerSource::Folder(_)) = (&self.spec.workers, &self.spec.tokenizer) {
            remarks.push("workers.selector selects Pods, which only Kubernetes can tell; list workers.static".into());
        }
        remarks
    }
}

/// The template that filters can use: the inline one, or the tokenizer's. One that does not compile would make every
/// filter refuse the whole snapshot, so it is left out.
fn template(spec: &WorkerSetSpec, model: &Model) -> Result<Option<v1::Template>, String> {
    let own = model.as_ref().ok().and_then(|tokenizer| tokenizer.template());
    let template = match &spec.chat_template {
        Some(source) => {
            let special_tokens = model.as_ref().map(|tokenizer| tokenizer.special_tokens.clone()).unwrap_or_default();
            Some(v1::Template { source: source.clone(), special_tokens: special_tokens.into_iter().collect() })
        }
        None => own,
    };
    if let Some(template) = &template {
        let tokens: BTreeMap<_, _> = template.special_tokens.clone().into_iter().collect();
        ChatTemplate::compile(&template.source, &tokens).map_err(|error| error.to_string())?;
    }
    Ok(template)
}
