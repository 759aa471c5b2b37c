//! Whether the filter's prompt text equals the engine's (invariant P4): which worker to ask when, and what follows.
//!
//! Every engine process is asked once, and again when it comes back after it was away: it may run another version or
//! template now. A set is in event mode while at least one process agreed and none disagreed. A process that is removed takes
//! its word with it; when none is left that was asked, what was found holds until the first new one answers.

use std::net::SocketAddr;
use std::sync::Arc;

use kinference_api::ObjectKey;
use kinference_protocol::v1::{self, Normalization};

use crate::tokenizer::Tokenizer;

/// How soon a process that did not answer is asked again.
const RETRY_MS: u64 = 2_000;
/// How soon a process that disagreed is asked again.
const RECHECK_MS: u64 = 60_000;
/// An answer that does not come within this time will not come.
const LOST_MS: u64 = 60_000;

/// What to compare, and with whom.
#[derive(Debug, Clone)]
pub struct Check {
    /// The worker set.
    pub set: ObjectKey,
    /// The engine process.
    pub address: SocketAddr,
    /// Changes with what is compared; an answer to an older one is void.
    pub generation: u64,
    /// The model to ask for.
    pub model: String,
    /// The chat template that filters have; absent: only completion prompts are compared.
    pub template: Option<v1::Template>,
    /// The tokenizer that events are read with.
    pub tokenizer: Arc<Tokenizer>,
}

/// What came of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Every probe gave the same text, with this normalization. Engines normalize as their code for the model's family
    /// does, whatever the tokenizer's files say.
    Equal(Normalization),
    /// A probe gave another text: which one, and where it differs. Holds no user's text.
    Different(String),
    /// The process could not be asked.
    NoAnswer(String),
}

/// What is known of one engine process.
#[derive(Debug, Clone, Default)]
pub(super) struct Checked {
    pub(super) verdict: Option<Verdict>,
    generation: u64,
    done: bool,
    next_at: u64,
    asked: Option<u64>,
}

impl Checked {
    /// Another text is to be compared: what was found says nothing any more.
    pub(super) fn reset(&mut self) {
        *self = Self { generation: self.generation, ..Self::default() };
    }

    /// The process came back: ask again, and believe the old answer until then.
    pub(super) fn came_back(&mut self) {
        self.done = false;
        self.next_at = 0;
    }

    /// True when it is time to ask.
    pub(super) fn is_due(&self, now: u64) -> bool {
        let waiting = self.asked.is_some_and(|asked| now < asked + LOST_MS);
        !self.done && !waiting && now >= self.next_at
    }

    /// True when it is time to ask; notes that it was.
    pub(super) fn ask(&mut self, generation: u64, now: u64) -> bool {
        if !self.is_due(now) {
            return false;
        }
        self.generation = generation;
        self.asked = Some(now);
        true
    }

    /// Takes the answer to the check of this generation.
    pub(super) fn answered(&mut self, generation: u64, verdict: Verdict, now: u64) {
        if generation != self.generation {
            return;
        }
        self.asked = None;
        self.done = matches!(verdict, Verdict::Equal(_));
        match &verdict {
            Verdict::Equal(_) => {}
            Verdict::Different(_) => self.next_at = now + RECHECK_MS,
            Verdict::NoAnswer(_) => self.next_at = now + RETRY_MS,
        }
        // A process that is away for a moment does not take back what it said.
        if !matches!((&self.verdict, &verdict), (Some(Verdict::Equal(_) | Verdict::Different(_)), Verdict::NoAnswer(_)))
        {
            self.verdict = Some(verdict);
        }
    }
}

/// What the processes of a set say together.
pub(super) fn together<'a>(all: impl Iterator<Item = &'a Checked>) -> Option<Verdict> {
    let mut found = None;
    for checked in all {
        match &checked.verdict {
            Some(Verdict::Different(why)) => return Some(Verdict::Different(why.clone())),
            Some(Verdict::Equal(now)) => match found {
                Some(Verdict::Equal(before)) if before != *now => {
                    return Some(Verdict::Different("the workers normalize text differently from one another".into()));
                }
                _ => found = Some(Verdict::Equal(*now)),
            },
            Some(Verdict::NoAnswer(why)) if found.is_none() => found = Some(Verdict::NoAnswer(why.clone())),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const EQUAL: Verdict = Verdict::Equal(Normalization::None);

    fn different() -> Verdict {
        Verdict::Different("probe 1".into())
    }

    #[test]
    fn one_question_at_a_time_and_patience_between() {
        let mut checked = Checked::default();
        assert!(checked.ask(1, 0));
        assert!(!checked.ask(1, 10));
        checked.answered(1, Verdict::NoAnswer("refused".into()), 20);
        assert!(!checked.ask(1, 21));
        assert!(checked.ask(1, 20 + RETRY_MS));
        checked.answered(1, EQUAL, 3000);
        assert!(!checked.ask(1, 1_000_000));
        checked.came_back();
        assert_eq!(checked.verdict, Some(EQUAL));
        assert!(checked.ask(1, 1_000_001));
    }

    #[test]
    fn an_answer_about_another_text_is_void() {
        let mut checked = Checked::default();
        assert!(checked.ask(1, 0));
        checked.reset();
        assert!(checked.ask(2, 1));
        checked.answered(1, EQUAL, 2);
        assert_eq!(checked.verdict, None);
        checked.answered(2, different(), 3);
        assert_eq!(checked.verdict, Some(different()));
        assert!(checked.ask(2, 3 + RECHECK_MS));
        checked.answered(2, Verdict::NoAnswer("gone".into()), 4 + RECHECK_MS);
        assert_eq!(checked.verdict, Some(different()), "silence takes nothing back");
    }

    #[test]
    fn one_that_disagrees_speaks_for_the_set() {
        let with = |verdict| Checked { verdict, ..Checked::default() };
        let all = [with(Some(EQUAL)), with(None), with(Some(Verdict::NoAnswer("x".into())))];
        assert_eq!(together(all.iter()), Some(EQUAL));
        let all = [with(Some(EQUAL)), with(Some(different()))];
        assert_eq!(together(all.iter()), Some(different()));
        assert_eq!(together([with(None)].iter()), None);
        let all = [with(Some(EQUAL)), with(Some(Verdict::Equal(Normalization::Nfc)))];
        assert!(matches!(together(all.iter()), Some(Verdict::Different(_))));
    }
}
