//! The engine's own figures in an answer: `usage`, in a JSON body or in the last events of a stream.

use serde::Deserialize;

/// What an answer says of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Prompt tokens that came from the prefix cache, when the engine tells.
    pub cached_tokens: Option<u32>,
    /// Tokens of the answer.
    pub completion_tokens: u32,
}

#[derive(Deserialize)]
struct Wire {
    prompt_tokens: Option<u32>,
    completion_tokens: Option<u32>,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u32>,
}

/// Longest usage object that is looked at, and so the most that is kept between two pieces of a body.
const LONGEST: usize = 2048;
const KEY: &[u8] = b"\"usage\"";

/// Finds the last usage object of a body that arrives piece by piece, keeping only its tail.
#[derive(Debug, Default)]
pub struct UsageScanner {
    tail: Vec<u8>,
    found: Option<Usage>,
}

impl UsageScanner {
    /// Looks at the next piece of the body.
    pub fn push(&mut self, piece: &[u8]) {
        // Only the end of a large piece can matter, since the last usage object counts.
        let piece = piece.get(piece.len().saturating_sub(2 * LONGEST)..).unwrap_or(piece);
        self.tail.extend_from_slice(piece);
        if let Some(usage) = last_usage(&self.tail) {
            self.found = Some(usage);
        }
        let excess = self.tail.len().saturating_sub(LONGEST);
        self.tail.drain(..excess);
    }

    /// The last usage object seen so far.
    #[must_use]
    pub fn found(&self) -> Option<Usage> {
        self.found
    }
}

fn last_usage(bytes: &[u8]) -> Option<Usage> {
    let mut end = bytes.len();
    while let Some(at) = bytes.get(..end)?.windows(KEY.len()).rposition(|window| window == KEY) {
        if let Some(usage) = bytes.get(at + KEY.len()..).and_then(object) {
            return Some(usage);
        }
        end = at;
    }
    None
}

/// The usage object after the key, when it is whole and not null.
fn object(after_key: &[u8]) -> Option<Usage> {
    let after_colon = after_key.trim_ascii_start().strip_prefix(b":")?;
    let mut values = serde_json::Deserializer::from_slice(after_colon).into_iter::<Wire>();
    let wire = values.next()?.ok()?;
    Some(Usage {
        prompt_tokens: wire.prompt_tokens?,
        cached_tokens: wire.prompt_tokens_details.and_then(|details| details.cached_tokens),
        completion_tokens: wire.completion_tokens.unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &[u8] = br#"{"choices":[{"message":{"content":"\"usage\":{}"}}],"usage":{"prompt_tokens":326,"total_tokens":334,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":320,"multimodal_tokens":null}},"metrics":null}"#;

    #[test]
    fn usage_is_found_whole_or_in_pieces() {
        let expected = Some(Usage { prompt_tokens: 326, cached_tokens: Some(320), completion_tokens: 8 });
        for size in [1, 7, 50, JSON.len()] {
            let mut scanner = UsageScanner::default();
            JSON.chunks(size).for_each(|piece| scanner.push(piece));
            assert_eq!(scanner.found(), expected, "pieces of {size}");
        }
    }

    #[test]
    fn the_last_usage_of_a_stream_counts() {
        let mut scanner = UsageScanner::default();
        scanner.push(b"data: {\"choices\":[{}],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":1,\"completion_tokens_details\":null}}\n\n");
        scanner.push(b"data: {\"choices\":[{}],\"usage\":null}\n\n");
        scanner.push(b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":2,\"prompt_tokens_details\":null}}\n\ndata: [DONE]\n\n");
        assert_eq!(scanner.found(), Some(Usage { prompt_tokens: 10, cached_tokens: None, completion_tokens: 2 }));
    }

    #[test]
    fn no_usage_and_nonsense_give_nothing_and_take_little_memory() {
        let mut scanner = UsageScanner::default();
        scanner.push(b"data: {\"usage\":null}\n\n");
        scanner.push(b"{\"usage\":{\"prompt_tokens\":\"x\"}}");
        for _ in 0..1000 {
            scanner.push(&[b'"'; 10_000]);
        }
        assert_eq!(scanner.found(), None);
        assert!(scanner.tail.capacity() <= 16 * LONGEST);
    }
}
