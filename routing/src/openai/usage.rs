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

/// Finds the last usage object of a body that arrives piece by piece, keeping only its tail. A piece costs a look at its
/// own bytes.
#[derive(Debug, Default)]
pub struct UsageScanner {
    tail: Vec<u8>,
    /// Where in the tail a usage object began that has not ended yet.
    cut_off: Option<usize>,
    found: Option<Usage>,
}

impl UsageScanner {
    /// Bytes of the body before the next piece are left out.
    pub fn skip(&mut self) {
        self.tail.clear();
        self.cut_off = None;
    }

    /// Looks at the next piece of the body.
    pub fn push(&mut self, piece: &[u8]) {
        // A key may lie across two pieces.
        let seam = self.tail.len().saturating_sub(KEY.len() - 1);
        let from = self.cut_off.take().unwrap_or(seam);
        self.tail.extend_from_slice(piece);
        self.look(from);
        let excess = self.tail.len().saturating_sub(LONGEST);
        if excess > LONGEST {
            self.tail.drain(..excess);
            self.tail.shrink_to(2 * LONGEST);
            self.cut_off = self.cut_off.and_then(|at| at.checked_sub(excess));
        }
    }

    /// Looks for usage objects from the end back to `from`.
    fn look(&mut self, from: usize) {
        let mut end = self.tail.len();
        while let Some(at) = self.tail.get(from..end).and_then(last_key).map(|at| from + at) {
            match self.tail.get(at + KEY.len()..).map(object) {
                Some(Object::Whole(usage)) => {
                    self.found = Some(usage);
                    break;
                }
                Some(Object::CutOff) if self.cut_off.is_none() => self.cut_off = Some(at),
                _ => {}
            }
            end = at;
        }
    }

    /// The last usage object seen so far.
    #[must_use]
    pub fn found(&self) -> Option<Usage> {
        self.found
    }
}

fn last_key(bytes: &[u8]) -> Option<usize> {
    bytes.windows(KEY.len()).rposition(|window| window.first() == KEY.first() && window == KEY)
}

/// What follows a key.
enum Object {
    Whole(Usage),
    /// It may become an object with the next piece.
    CutOff,
    /// Null, or something else.
    Other,
}

fn object(after_key: &[u8]) -> Object {
    let after_key = after_key.trim_ascii_start();
    let Some(value) = after_key.strip_prefix(b":") else {
        return if after_key.is_empty() { Object::CutOff } else { Object::Other };
    };
    let mut values = serde_json::Deserializer::from_slice(value).into_iter::<Wire>();
    match values.next() {
        None => Object::CutOff,
        Some(Err(error)) if error.is_eof() => Object::CutOff,
        Some(Ok(Wire { prompt_tokens: Some(prompt_tokens), completion_tokens, prompt_tokens_details })) => {
            Object::Whole(Usage {
                prompt_tokens,
                cached_tokens: prompt_tokens_details.and_then(|details| details.cached_tokens),
                completion_tokens: completion_tokens.unwrap_or(0),
            })
        }
        Some(_) => Object::Other,
    }
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
    fn much_may_follow_the_usage_and_what_is_left_out_joins_nothing() {
        let expected = Some(Usage { prompt_tokens: 9, cached_tokens: None, completion_tokens: 1 });
        let ids = "1,".repeat(20_000);
        let body =
            format!("{{\"usage\":{{\"prompt_tokens\":9,\"completion_tokens\":1}},\"prompt_token_ids\":[{ids}2]}}");
        for size in [body.len(), 1000] {
            let mut scanner = UsageScanner::default();
            body.as_bytes().chunks(size).for_each(|piece| scanner.push(piece));
            assert_eq!(scanner.found(), expected);
            assert!(scanner.tail.capacity() <= 4 * LONGEST, "{}", scanner.tail.capacity());
        }
        let mut scanner = UsageScanner::default();
        scanner.push(b"{\"usage\":{\"prompt_tokens\":");
        scanner.skip();
        scanner.push(b"9}}");
        assert_eq!(scanner.found(), None);
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
