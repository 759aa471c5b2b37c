//! OpenAI-style requests and answers: only what routing needs, read without changing a byte.

mod error;
mod message;
mod request;
mod splice;
mod usage;

pub use error::RequestError;
pub use message::{Content, Message, Messages, Part};
pub use request::{Chat, Endpoint, Model, Prompt, Request, parse};
pub use splice::splice_model;
pub use usage::{Usage, UsageScanner};
