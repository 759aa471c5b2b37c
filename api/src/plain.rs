//! Text that people wrote, fit to be shown.

use std::borrow::Cow;

/// The text with everything escaped that a terminal would obey and a reader would not see: control characters, line
/// ends too, and marks that turn the direction of text around. `\u{1b}` is written as these six characters.
pub fn plain(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_hidden(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

fn is_hidden(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn what_is_not_seen_is_written_out() {
        assert_eq!(plain("größer \"a\" \\ 7 €"), "größer \"a\" \\ 7 €");
        assert_eq!(plain("a\u{1b}[31mb\r\n\u{9b}2J\u{202e}c\u{0}"), "a\\u{1b}[31mb\\r\\n\\u{9b}2J\\u{202e}c\\u{0}");
    }
}
