//! Streamed answers: server-sent events, written as the engine makes tokens.

use std::convert::Infallible;
use std::fmt::Write;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Bytes;
use hyper::body::{Body, Frame};

use super::answer::{Api, Head, spoken};
use crate::sim::progress::Seen;
use crate::sim::worker::{Ticket, Worker};

/// The body of a streamed response. Dropping it, as the server does when the client goes away, aborts the request.
pub(super) struct Events {
    worker: Arc<Worker>,
    head: Head,
    ticket: Ticket,
    /// `data: ` and the opening of every chunk.
    opening: String,
    sent: usize,
    done: bool,
}

impl Events {
    pub(super) fn new(worker: Arc<Worker>, head: Head, ticket: Ticket) -> Self {
        let opening = format!("data: {}", head.opening());
        Self { worker, head, ticket, opening, sent: 0, done: false }
    }

    /// The events for what is new since the last call.
    fn write(&mut self, seen: Seen) -> String {
        let mut out = String::with_capacity(2 * self.opening.len() + 512);
        let tokens = seen.tokens.min(self.head.answer.len());
        if self.sent == 0 && self.head.api == Api::Chat {
            self.write_role(&mut out);
        }
        if tokens > self.sent {
            self.write_tokens(&mut out, tokens, seen);
        }
        if seen.finish.is_some() {
            if self.head.format.include_usage {
                let _ = write!(out, "{}],", self.opening);
                self.head.final_usage(&mut out, tokens, self.ticket.progress.cached());
                out.push_str("}\n\n");
            }
            out.push_str("data: [DONE]\n\n");
            self.done = true;
        }
        self.sent = tokens;
        out
    }

    fn write_role(&self, out: &mut String) {
        out.push_str(&self.opening);
        out.push_str(r#"{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]"#);
        self.head.running_usage(out, 0);
        out.push_str(r#","prompt_token_ids":"#);
        self.head.ids(out, &self.head.prompt);
        out.push_str(",\"prompt_text\":null}\n\n");
    }

    fn write_tokens(&self, out: &mut String, tokens: usize, seen: Seen) {
        let new = &self.head.answer[self.sent..tokens];
        out.push_str(&self.opening);
        out.push_str(match self.head.api {
            Api::Chat => r#"{"index":0,"delta":{"content":""#,
            Api::Completion => r#"{"index":0,"text":""#,
        });
        spoken(out, &self.worker.model.text, new);
        out.push_str(match self.head.api {
            Api::Chat => r#""},"logprobs":null,"finish_reason":"#,
            Api::Completion => r#"","logprobs":null,"finish_reason":"#,
        });
        match seen.finish {
            Some(finish) => {
                let _ = write!(out, r#""{}","stop_reason":null"#, finish.name());
            }
            None if self.head.api == Api::Completion => out.push_str(r#"null,"stop_reason":null"#),
            None => out.push_str("null"),
        }
        if self.head.api == Api::Completion {
            out.push_str(r#","prompt_token_ids":"#);
            let prompt = if self.sent == 0 { &*self.head.prompt } else { &[] };
            self.head.ids(out, prompt);
        }
        out.push_str(r#","token_ids":"#);
        self.head.ids(out, new);
        out.push_str("}]");
        self.head.running_usage(out, tokens);
        out.push_str("}\n\n");
    }
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.done {
            return Poll::Ready(None);
        }
        let interval = self.worker.config().stream_interval;
        let wanted = if self.sent == 0 { 1 } else { self.sent + interval };
        let seen = ready!(self.ticket.progress.poll(wanted, context));
        let events = self.write(seen);
        Poll::Ready(Some(Ok(Frame::data(events.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.done
    }
}
