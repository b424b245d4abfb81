//! Anthropic's messages API.

mod answer;
mod request;

pub(crate) use self::answer::Messages;
pub(crate) use self::request::{MessagesRequest, read};
