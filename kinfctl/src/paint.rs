//! Colours, where there is someone to see them.

use std::io::IsTerminal;

/// Colours text, or leaves it as it is: when the output is no terminal, when `NO_COLOR` is set, or when the terminal is
/// dumb.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    on: bool,
}

impl Paint {
    pub(crate) fn for_stdout() -> Paint {
        Paint::if_terminal(std::io::stdout().is_terminal())
    }

    pub(crate) fn for_stderr() -> Paint {
        Paint::if_terminal(std::io::stderr().is_terminal())
    }

    /// Leaves text as it is.
    #[cfg(test)]
    pub(crate) fn off() -> Paint {
        Paint { on: false }
    }

    fn if_terminal(is_terminal: bool) -> Paint {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Paint { on: is_terminal && !refused && !dumb }
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.on { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_string() }
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.wrap("31", text)
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.wrap("32", text)
    }

    pub(crate) fn yellow(self, text: &str) -> String {
        self.wrap("33", text)
    }
}
