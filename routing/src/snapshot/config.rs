//! The configuration section, compiled: templates parsed, models indexed.

use std::collections::BTreeMap;
use std::sync::Arc;

use kinference_protocol::v1;

use super::ApplyError;
use crate::policy::Rules;
use crate::template::ChatTemplate;

/// Configuration in force.
#[derive(Debug)]
pub struct Config {
    /// The gateway backend that is served.
    pub backend: v1::Backend,
    /// Worker sets by id.
    pub sets: BTreeMap<u32, WorkerSet>,
    /// Who serves a model, by the name that clients ask for.
    pub models: BTreeMap<String, Vec<Target>>,
    /// The rules, and what they refer to.
    pub rules: Rules,
}

/// A worker set that serves a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Id of the worker set.
    pub set: u32,
    /// The model is a LoRA adapter of the set.
    pub adapter: bool,
}

/// A worker set with its template compiled.
#[derive(Debug, Clone)]
pub struct WorkerSet {
    /// As configured.
    pub wire: v1::WorkerSet,
    /// Its chat template.
    pub template: Option<Arc<ChatTemplate>>,
}

impl WorkerSet {
    /// Average bytes a token; at least 0.1.
    #[must_use]
    pub fn bytes_per_token(&self) -> f32 {
        if self.wire.bytes_per_token.is_finite() { self.wire.bytes_per_token.max(0.1) } else { 4.0 }
    }

    /// Tokens of a KV-cache block; at least 1.
    #[must_use]
    pub fn block_tokens(&self) -> u32 {
        self.wire.block_tokens.max(1)
    }
}

/// Smallest and largest grid.
const CHUNK_BYTES: std::ops::RangeInclusive<u32> = 16..=1 << 20;

impl Config {
    /// Compiles a configuration.
    ///
    /// # Errors
    /// When a template does not compile, or a reference or figure is out of range.
    pub fn compile(wire: &v1::Config) -> Result<Self, ApplyError> {
        let backend = wire.backend.clone().ok_or(ApplyError::Missing("config.backend"))?;
        if !backend.chunk_bytes.is_power_of_two() || !CHUNK_BYTES.contains(&backend.chunk_bytes) {
            return Err(ApplyError::Figure {
                field: "config.backend.chunk_bytes",
                value: u64::from(backend.chunk_bytes),
            });
        }
        let templates = wire.templates.iter().enumerate().map(|(number, template)| {
            ChatTemplate::compile(&template.source, &template.special_tokens)
                .map(Arc::new)
                .map_err(|error| ApplyError::Template { number, error })
        });
        let templates = templates.collect::<Result<Vec<_>, _>>()?;
        let mut sets = BTreeMap::new();
        let mut models: BTreeMap<String, Vec<Target>> = BTreeMap::new();
        for set in &wire.worker_sets {
            let template = match set.template {
                None => None,
                Some(index) => Some(
                    templates
                        .get(index as usize)
                        .cloned()
                        .ok_or(ApplyError::Figure { field: "config.worker_sets.template", value: u64::from(index) })?,
                ),
            };
            models.entry(set.model.clone()).or_default().push(Target { set: set.id, adapter: false });
            for adapter in &set.adapters {
                models.entry(adapter.clone()).or_default().push(Target { set: set.id, adapter: true });
            }
            if sets.insert(set.id, WorkerSet { wire: set.clone(), template }).is_some() {
                return Err(ApplyError::Figure { field: "config.worker_sets.id (twice)", value: u64::from(set.id) });
            }
        }
        Ok(Self { backend, sets, models, rules: Rules::compile(wire)? })
    }
}
