//! The APIs over a host that plays a script: shapes, errors, limits, access.

mod anthropic;
mod connections;
mod limits;
mod openai;
mod responses;
mod script;
