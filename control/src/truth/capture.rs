//! Reads a captured run.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use kinference_routing::openai::{Endpoint, Usage, UsageScanner};
use serde_json::Value;

use super::TruthError;
use crate::events::sequencer::Frame;
use crate::events::{Decoder, KvEvent};

/// A request and its answer.
pub(super) struct Exchange {
    pub(super) name: String,
    pub(super) body: Vec<u8>,
    /// When the answer was complete, in seconds since 1970.
    pub(super) answered_at: f64,
    path: String,
    status: u64,
    answer: String,
}

impl Exchange {
    /// The endpoint, and the usage that the engine reported with cached tokens.
    pub(super) fn measured(&self) -> Option<(Endpoint, Usage)> {
        let endpoint = Endpoint::of_path(&self.path).filter(|_| self.status == 200)?;
        let mut scanner = UsageScanner::default();
        scanner.push(self.answer.as_bytes());
        let usage = scanner.found().filter(|usage| usage.cached_tokens.is_some())?;
        Some((endpoint, usage))
    }

    pub(super) fn empties_cache(&self) -> bool {
        self.path == "/reset_prefix_cache" && self.status == 200
    }
}

/// A frame, and when the engine published it.
#[derive(Clone)]
pub(super) struct Published {
    pub(super) frame: Frame,
    pub(super) at: f64,
}

/// A run.
pub(super) struct Capture {
    pub(super) exchanges: Vec<Exchange>,
    /// In order.
    pub(super) frames: Vec<Published>,
    /// What the engine's replay buffer holds in the end.
    pub(super) replay: Vec<Published>,
    pub(super) block_tokens: u32,
}

impl Capture {
    pub(super) fn read(folder: &Path) -> Result<Self, TruthError> {
        let exchanges = lines(&folder.join("http.jsonl"), exchange)?;
        let mut block_tokens = 0;
        let mut frames = Vec::new();
        for (frame, batch) in lines(&folder.join("kv_frames.jsonl"), frame)?.into_iter().flatten() {
            if block_tokens == 0 {
                block_tokens = batch.events.iter().find_map(size).unwrap_or(0);
            }
            frames.push(Published { frame, at: batch.engine_time });
        }
        if block_tokens == 0 {
            return Err(TruthError::Unplayable("no block was stored in it".into()));
        }
        // The capture asked for frames from some number on; those before it are as they were published.
        let mut replay: BTreeMap<u64, Published> =
            frames.iter().map(|published| (published.frame.sequence, published.clone())).collect();
        for (frame, batch) in lines(&folder.join("replay.jsonl"), frame)?.into_iter().flatten() {
            replay.insert(frame.sequence, Published { frame, at: batch.engine_time });
        }
        Ok(Self { exchanges, frames, replay: replay.into_values().collect(), block_tokens })
    }
}

fn size(event: &KvEvent) -> Option<u32> {
    match event {
        KvEvent::Stored(stored) if stored.mappable > 0 => Some(stored.block_size),
        _ => None,
    }
}

fn lines<T>(path: &Path, read: impl Fn(&Value) -> Result<T, String>) -> Result<Vec<T>, TruthError> {
    let text = std::fs::read_to_string(path).map_err(|source| TruthError::Read { path: path.to_owned(), source })?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let read = lines.map(|(number, line)| {
        let value: Result<Value, String> = serde_json::from_str(line).map_err(|error| error.to_string());
        value.and_then(|value| read(&value)).map_err(|message| TruthError::Line {
            path: path.to_owned(),
            line: number + 1,
            message,
        })
    });
    read.collect()
}

fn exchange(line: &Value) -> Result<Exchange, String> {
    let text = |key: &str| line.get(key).and_then(Value::as_str).map(ToOwned::to_owned);
    Ok(Exchange {
        name: text("name").unwrap_or_default(),
        path: text("path").ok_or("no path")?,
        answered_at: line.get("t").and_then(Value::as_f64).ok_or("no time t")?,
        status: line.get("status").and_then(Value::as_u64).unwrap_or(0),
        // Bodies are objects, answers the text as it came; either may be the other way around.
        body: plain(&line["req"]).into_bytes(),
        answer: plain(&line["resp"]),
    })
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// The frame of a captured message, and what it says; `None` for the end of a replay.
fn frame(line: &Value) -> Result<Option<(Frame, crate::events::Batch)>, String> {
    let parts = line.get("frames_hex").and_then(Value::as_array).ok_or("no frames_hex")?;
    let [.., sequence, payload] = parts.as_slice() else { return Err("fewer than two frames".into()) };
    let sequence = unhex(sequence)?.try_into().map(u64::from_be_bytes).map_err(|_| "a sequence that is not 8 bytes")?;
    if sequence == u64::MAX {
        return Ok(None);
    }
    let payload = Bytes::from(unhex(payload)?);
    let batch = Decoder::new(0, None).decode(&payload).map_err(|error| error.to_string())?;
    Ok(Some((Frame { sequence, payload }, batch)))
}

fn unhex(part: &Value) -> Result<Vec<u8>, String> {
    let text = part.as_str().unwrap_or("").as_bytes();
    let digit = |byte: u8| char::from(byte).to_digit(16).ok_or_else(|| "not hexadecimal".to_owned());
    text.chunks(2)
        .map(|pair| {
            let [high, low] = pair else { return Err("half a byte".into()) };
            Ok((digit(*high)? * 16 + digit(*low)?) as u8)
        })
        .collect()
}
