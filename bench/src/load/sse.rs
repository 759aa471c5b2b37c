//! Reads a streamed chat completion with as little work as the figures allow: single chunks are parsed only until the first
//! content has come (and throughout when the text is wanted); after that they are counted, and the last ones are parsed.

use std::time::Instant;

use serde::Deserialize;

use super::record::{Failure, Usage};

/// A line longer than this is no chunk of any server; it would only fill memory.
const LONGEST_LINE: usize = 16 << 20;

/// What has been read of a stream so far.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// An incomplete line.
    rest: Vec<u8>,
    /// The latest event that may carry usage.
    latest: Vec<u8>,
    want_text: bool,
    text: String,
    first: Option<Instant>,
    last: Option<Instant>,
    chunks: u64,
    done: bool,
    failure: Option<Failure>,
}

/// A stream that came to its end.
#[derive(Debug, PartialEq)]
pub(super) struct Stream {
    /// Usage, when the server sent it.
    pub(super) usage: Option<Usage>,
    /// The answer, when it was wanted.
    pub(super) text: String,
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    delta: Delta,
}

#[derive(Default, Deserialize)]
struct Delta {
    #[serde(default)]
    content: Option<String>,
    #[serde(default, alias = "reasoning_content")]
    reasoning: Option<String>,
}

impl Reader {
    /// A reader that keeps the answer's text when `want_text`.
    pub(super) fn new(want_text: bool) -> Self {
        Self { want_text, ..Self::default() }
    }

    /// When the first content came.
    pub(super) fn first(&self) -> Option<Instant> {
        self.first
    }

    /// When the last content came.
    pub(super) fn last(&self) -> Option<Instant> {
        self.last
    }

    /// Chunks with content so far.
    pub(super) fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Takes what arrived at `now`.
    pub(super) fn push(&mut self, mut data: &[u8], now: Instant) {
        while let Some(end) = data.iter().position(|byte| *byte == b'\n') {
            if self.rest.is_empty() {
                self.line(&data[..end], now);
            } else {
                let mut line = std::mem::take(&mut self.rest);
                line.extend_from_slice(&data[..end]);
                self.line(&line, now);
                line.clear();
                self.rest = line;
            }
            data = &data[end + 1..];
        }
        if self.rest.len() + data.len() > LONGEST_LINE {
            self.failure.get_or_insert(Failure::Malformed);
            return;
        }
        self.rest.extend_from_slice(data);
    }

    fn line(&mut self, line: &[u8], now: Instant) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Some(event) = line.strip_prefix(b"data:") else { return };
        let event = event.trim_ascii_start();
        if event == b"[DONE]" {
            self.done = true;
            return;
        }
        if event.starts_with(br#"{"error""#) {
            self.failure.get_or_insert(Failure::Stream);
            return;
        }
        self.latest.clear();
        self.latest.extend_from_slice(event);
        if self.content(event) {
            self.first.get_or_insert(now);
            self.last = Some(now);
            self.chunks += 1;
        }
    }

    /// Whether an event carries content.
    fn content(&mut self, event: &[u8]) -> bool {
        if self.first.is_some() && !self.want_text {
            return !contains(event, br#""choices":[]"#);
        }
        let Ok(chunk) = serde_json::from_slice::<Chunk>(event) else {
            self.failure.get_or_insert(Failure::Malformed);
            return false;
        };
        let mut content = false;
        for delta in chunk.choices.into_iter().map(|choice| choice.delta) {
            content |= [&delta.content, &delta.reasoning].into_iter().flatten().any(|text| !text.is_empty());
            if let (true, Some(text)) = (self.want_text, &delta.content) {
                self.text.push_str(text);
            }
        }
        content
    }

    /// The stream is over.
    pub(super) fn finish(mut self) -> Result<Stream, Failure> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        if !self.done {
            return Err(Failure::CutOff);
        }
        if self.first.is_none() {
            return Err(Failure::Empty);
        }
        let latest: Chunk = serde_json::from_slice(&self.latest).map_err(|_| Failure::Malformed)?;
        Ok(Stream { usage: latest.usage, text: self.text })
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLE: &str =
        r#"data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#;
    const USAGE: &str = r#"data: {"choices":[],"usage":{"prompt_tokens":20,"total_tokens":22,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":16}}}"#;

    fn content(text: &str) -> String {
        format!(r#"data: {{"choices":[{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":null}}]}}"#)
    }

    fn stream(lines: &[&str]) -> String {
        lines.iter().map(|line| format!("{line}\n\n")).collect()
    }

    /// Reads the stream in pieces of every size: the same must come out. Gives the number of chunks too.
    fn read(text: &str, want_text: bool) -> Result<(u64, Stream), Failure> {
        let now = Instant::now();
        let read = |size: usize| {
            let mut reader = Reader::new(want_text);
            text.as_bytes().chunks(size).for_each(|piece| reader.push(piece, now));
            let chunks = reader.chunks();
            reader.finish().map(|stream| (chunks, stream))
        };
        let whole = read(text.len().max(1));
        for size in 1..40 {
            assert_eq!(read(size), whole, "in pieces of {size}");
        }
        whole
    }

    #[test]
    fn content_is_counted_and_usage_read() {
        let (a, b) = (content("one"), content(" two"));
        let text = stream(&[ROLE, &a, ": a comment", &b, USAGE, "data: [DONE]"]);
        for want_text in [false, true] {
            let (chunks, stream) = read(&text, want_text).unwrap();
            assert_eq!(chunks, 2);
            assert_eq!(stream.text, if want_text { "one two" } else { "" });
            let usage = stream.usage.unwrap();
            assert_eq!((usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens()), (20, 2, Some(16)));
        }
        assert_eq!(read(&text.replace('\n', "\r\n"), true).unwrap().0, 2);
    }

    #[test]
    fn the_role_alone_is_no_first_token() {
        let early = Instant::now();
        let late = early + std::time::Duration::from_millis(5);
        let mut reader = Reader::new(false);
        reader.push(stream(&[ROLE]).as_bytes(), early);
        assert_eq!(reader.first(), None);
        reader.push(stream(&[&content("x"), "data: [DONE]"]).as_bytes(), late);
        assert_eq!((reader.first(), reader.last()), (Some(late), Some(late)));
        assert_eq!(reader.finish().unwrap().usage, None);
    }

    #[test]
    fn reasoning_is_content() {
        let thought = r#"data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}"#;
        assert_eq!(read(&stream(&[ROLE, thought, "data: [DONE]"]), false).unwrap().0, 1);
    }

    #[test]
    fn failures_are_told_apart() {
        let a = content("one");
        for (lines, failure) in [
            (vec![ROLE, &a], Failure::CutOff),
            (vec![ROLE, USAGE, "data: [DONE]"], Failure::Empty),
            (vec![ROLE, &a, r#"data: {"error":{"message":"no"}}"#, "data: [DONE]"], Failure::Stream),
            (vec!["data: what", "data: [DONE]"], Failure::Malformed),
            (vec!["<html>"], Failure::CutOff),
        ] {
            assert_eq!(read(&stream(&lines), false), Err(failure));
        }
    }
}
