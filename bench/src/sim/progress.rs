//! How far a request has come, told by the engine and awaited by whoever answers the client.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::task::{Context, Poll};

use futures::task::AtomicWaker;

/// Why a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finish {
    /// The answer ended by itself.
    Stop,
    /// The answer reached its greatest length.
    Length,
    /// The client went away.
    Abort,
}

impl Finish {
    /// The name in responses and metrics.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
        }
    }
}

/// A view of a request's progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    /// Answer tokens so far.
    pub(super) tokens: usize,
    /// Set once no more tokens come.
    pub(super) finish: Option<Finish>,
}

/// Shared between the engine and one reader. A reader that falls behind sees several tokens at once, as in vLLM.
#[derive(Debug, Default)]
pub(super) struct Progress {
    tokens: AtomicU32,
    cached: AtomicU32,
    finish: AtomicU8,
    reader: AtomicWaker,
}

impl Progress {
    /// Engine: records how many prompt tokens were found in the cache.
    pub(super) fn set_cached(&self, tokens: usize) {
        self.cached.store(tokens as u32, Ordering::Release);
    }

    /// Engine: one step is over.
    pub(super) fn advance(&self, tokens: usize, finish: Option<Finish>) {
        self.tokens.store(tokens as u32, Ordering::Release);
        if let Some(finish) = finish {
            let code = match finish {
                Finish::Stop => 1,
                Finish::Length => 2,
                Finish::Abort => 3,
            };
            self.finish.store(code, Ordering::Release);
        }
        self.reader.wake();
    }

    /// Prompt tokens found in the cache; meaningful after the first token.
    pub(super) fn cached(&self) -> usize {
        self.cached.load(Ordering::Acquire) as usize
    }

    /// The present state.
    pub(super) fn seen(&self) -> Seen {
        let finish = match self.finish.load(Ordering::Acquire) {
            1 => Some(Finish::Stop),
            2 => Some(Finish::Length),
            3 => Some(Finish::Abort),
            _ => None,
        };
        // After `finish`, so that a finished request's count is final.
        Seen { tokens: self.tokens.load(Ordering::Acquire) as usize, finish }
    }

    /// Waits until there are at least `wanted` tokens or the request has finished. One reader at a time.
    pub(super) fn poll(&self, wanted: usize, context: &Context<'_>) -> Poll<Seen> {
        let done = |seen: Seen| seen.finish.is_some() || seen.tokens >= wanted;
        let seen = self.seen();
        if done(seen) {
            return Poll::Ready(seen);
        }
        self.reader.register(context.waker());
        let seen = self.seen();
        if done(seen) { Poll::Ready(seen) } else { Poll::Pending }
    }

    /// Waits until the request has finished.
    pub(super) async fn finished(&self) -> Seen {
        std::future::poll_fn(|context| self.poll(usize::MAX, context)).await
    }
}
