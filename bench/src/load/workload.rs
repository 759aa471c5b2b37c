//! The three workloads, as sessions of one turn or more.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::error::LoadError;
use super::text::{Random, words};

/// What is asked, how often, and what the prompts have in common. Lengths are in tokens, about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Shape {
    /// No two prompts share more than the template's opening: nothing to gain from caches.
    Control {
        /// Requests.
        requests: usize,
        /// Length of each prompt.
        prompt_tokens: usize,
    },
    /// Groups of requests with a long system prompt in common, each with a question of its own, in random order.
    SharedPrefix {
        /// Groups.
        groups: usize,
        /// Requests of each group.
        requests_per_group: usize,
        /// Length of a group's system prompt.
        prefix_tokens: usize,
        /// Length of a question.
        question_tokens: usize,
    },
    /// Conversations: each turn carries all turns before it and the answers that were given, and starts after the last answer.
    Multiturn {
        /// Conversations.
        conversations: usize,
        /// Turns of each.
        turns: usize,
        /// Length of the first message.
        opening_tokens: usize,
        /// Length of the later ones.
        question_tokens: usize,
    },
}

/// A shape with what else fixes every byte of its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// What is asked.
    pub shape: Shape,
    /// Length of each answer in tokens, at least 1.
    pub answer_tokens: usize,
    /// Seeds all text and the order.
    pub seed: u64,
}

/// Turns that follow each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// System prompt, shared by the sessions of a group.
    pub system: Option<Arc<str>>,
    /// What the user says, turn by turn; never empty.
    pub turns: Vec<String>,
}

impl Shape {
    /// Name, as in tables.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Control { .. } => "control",
            Self::SharedPrefix { .. } => "shared prefix",
            Self::Multiturn { .. } => "multiturn",
        }
    }

    /// Sessions and requests in all.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        match *self {
            Self::Control { requests, .. } => (requests, requests),
            Self::SharedPrefix { groups, requests_per_group, .. } => {
                (groups.saturating_mul(requests_per_group), groups.saturating_mul(requests_per_group))
            }
            Self::Multiturn { conversations, turns, .. } => (conversations, conversations.saturating_mul(turns)),
        }
    }
}

impl Workload {
    /// Checks that there is something to do and that it fits in memory.
    ///
    /// # Errors
    /// [`LoadError::Setting`] names what is out of range.
    pub fn validate(&self) -> Result<(), LoadError> {
        let (_, requests) = self.shape.counts();
        if !(1..=10_000_000).contains(&requests) {
            return Err(LoadError::Setting(format!(
                "the workload has {requests} requests; it must have 1 to 10000000"
            )));
        }
        if self.answer_tokens == 0 {
            return Err(LoadError::Setting("answers must have at least 1 token".into()));
        }
        Ok(())
    }

    /// All sessions, in the order in which they start.
    #[must_use]
    pub fn sessions(&self) -> Vec<Session> {
        let text = |stream: u64, count| words(&mut Random::new(self.seed, stream), count);
        let question = |stream: u64, count| format!("Question {stream}: {}", text(stream, count));
        match self.shape {
            Shape::Control { requests, prompt_tokens } => (0..requests as u64)
                .map(|i| Session {
                    system: None,
                    turns: vec![format!("{} {}", unique(self.seed, i), text(i, prompt_tokens))],
                })
                .collect(),
            Shape::SharedPrefix { groups, requests_per_group, prefix_tokens, question_tokens } => {
                let mut sessions = Vec::with_capacity(groups * requests_per_group);
                for group in 0..groups {
                    let stream = 1 << 32 | group as u64;
                    let system: Arc<str> =
                        format!("{} {}", unique(self.seed, stream), text(stream, prefix_tokens)).into();
                    for request in 0..requests_per_group {
                        let turns = vec![question((group * requests_per_group + request) as u64, question_tokens)];
                        sessions.push(Session { system: Some(system.clone()), turns });
                    }
                }
                Random::new(self.seed, 1 << 33).shuffle(&mut sessions);
                sessions
            }
            Shape::Multiturn { conversations, turns, opening_tokens, question_tokens } => (0..conversations as u64)
                .map(|i| {
                    let opening = format!("{} {}", unique(self.seed, i), text(i, opening_tokens));
                    let later = (1..turns as u64).map(|turn| question(turn << 32 | i, question_tokens));
                    Session { system: None, turns: std::iter::once(opening).chain(later).collect() }
                })
                .collect(),
        }
    }
}

/// Words at the start of a prompt that no other prompt starts with.
fn unique(seed: u64, stream: u64) -> String {
    format!("{:016x}", Random::new(seed, stream).next())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn sessions(shape: Shape) -> Vec<Session> {
        Workload { shape, answer_tokens: 10, seed: 1 }.sessions()
    }

    #[test]
    fn control_prompts_share_no_beginning() {
        let sessions = sessions(Shape::Control { requests: 200, prompt_tokens: 50 });
        let beginnings: HashSet<_> = sessions.iter().map(|session| session.turns[0][..16].to_owned()).collect();
        assert_eq!(beginnings.len(), 200);
        assert!(sessions.iter().all(|session| session.turns.len() == 1 && session.system.is_none()));
    }

    #[test]
    fn groups_share_their_system_prompt_and_nothing_else() {
        let sessions =
            sessions(Shape::SharedPrefix { groups: 5, requests_per_group: 4, prefix_tokens: 60, question_tokens: 9 });
        let systems: HashSet<_> = sessions.iter().map(|session| session.system.clone().unwrap()).collect();
        let beginnings: HashSet<_> = systems.iter().map(|system| system[..16].to_owned()).collect();
        let questions: HashSet<_> = sessions.iter().map(|session| session.turns[0].clone()).collect();
        assert_eq!((sessions.len(), systems.len(), beginnings.len(), questions.len()), (20, 5, 5, 20));
        for system in systems {
            assert_eq!(sessions.iter().filter(|session| session.system.as_ref() == Some(&system)).count(), 4);
        }
        assert!(sessions[..4].iter().any(|session| session.system != sessions[0].system), "groups come mixed");
    }

    #[test]
    fn conversations_have_their_turns() {
        let sessions =
            sessions(Shape::Multiturn { conversations: 3, turns: 4, opening_tokens: 100, question_tokens: 5 });
        assert_eq!(sessions.len(), 3);
        for session in &sessions {
            assert_eq!(session.turns.len(), 4);
            assert!(session.turns[0].len() > 5 * session.turns[1].len());
        }
        assert_ne!(sessions[0].turns[1], sessions[1].turns[1]);
    }

    #[test]
    fn workloads_are_the_same_each_time_and_differ_by_seed() {
        let workload = Workload { shape: Shape::Control { requests: 3, prompt_tokens: 9 }, answer_tokens: 1, seed: 4 };
        assert_eq!(workload.sessions(), workload.sessions());
        assert_ne!(workload.sessions(), Workload { seed: 5, ..workload }.sessions());
    }

    #[test]
    fn an_empty_workload_is_refused() {
        let empty = Workload { shape: Shape::Control { requests: 0, prompt_tokens: 9 }, answer_tokens: 1, seed: 4 };
        assert!(empty.validate().is_err());
    }
}
