//! Many requests on one model.
//!
//! Owns: the thread that runs the model, the queue before it, which request's pass is next, and where prefixes of texts
//! are kept. Promises: a text is the same bytes alone or in company, read anew or from a kept prefix; a request that was
//! given up frees its sequence within one layer; every request ends with exactly one [`Event::Done`] or
//! [`Event::Failed`]. Refuses: to know HTTP, or what an answer means.

mod request;
mod status;

pub use request::{Choice, Event, Failure, FailureKind, Outcome, Request, Written};
pub use status::{ArenaStatus, DriveStatus, LookupStatus, MemoryStatus, RequestStatus, SequencePhase, Status};
