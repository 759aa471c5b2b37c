//! OpenAI-style requests and answers: only what routing needs, read without changing a byte.

mod budget;
mod error;
mod message;
mod request;
mod splice;
mod usage;

pub(crate) use budget::value_of;
pub use error::RequestError;
pub use message::{Content, Message, Messages, Part};
pub use request::{Chat, Endpoint, Model, Prompt, Request, parse, without_query};
pub use splice::splice_model;
pub use usage::{Usage, UsageScanner};
