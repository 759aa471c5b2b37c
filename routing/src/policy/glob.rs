//! Globs of tenants and models: `*` stands for any run of characters, everything else for itself.

/// Whether `text` matches `glob`. Takes at most time proportional to the product of the lengths, without recursion.
#[must_use]
pub fn matches(glob: &str, text: &str) -> bool {
    let mut pieces = glob.split('*');
    let Some(first) = pieces.next() else { return text.is_empty() };
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut pieces: Vec<&str> = pieces.collect();
    let Some(last) = pieces.pop() else { return rest.is_empty() };
    for piece in pieces {
        match rest.find(piece) {
            Some(at) => rest = rest.get(at + piece.len()..).unwrap_or_default(),
            None => return false,
        }
    }
    rest.len() >= last.len() && rest.ends_with(last)
}

/// Whether any of the globs matches.
#[must_use]
pub fn any(globs: &[String], text: &str) -> bool {
    globs.iter().any(|glob| matches(glob, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_any_run() {
        for (glob, text) in [
            ("*", ""),
            ("*", "x"),
            ("a*", "a"),
            ("a*c", "abc"),
            ("*b*", "abc"),
            ("a*b*c", "a1b2c"),
            ("ab", "ab"),
            ("a**b", "ab"),
        ] {
            assert!(matches(glob, text), "{glob} {text}");
        }
        for (glob, text) in
            [("", "x"), ("a", "b"), ("a*", "b"), ("ab*ba", "aba"), ("*b", "abc"), ("a*b*c", "acb"), ("A", "a")]
        {
            assert!(!matches(glob, text), "{glob} {text}");
        }
    }
}
