//! Why memory cannot be divided, and what would help.

use thiserror::Error;

use super::Limit;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// The system does not tell how much memory there is, and the user did not say how much to use.
    #[error(
        "this system does not tell how much memory there is: say how much may be used (--memory-gb, or --arena-gb)"
    )]
    UnknownMachine,
    /// The memory asked for is not there.
    #[error("{} of memory were asked for, but {} has only {}", gib(*memory_bytes), bound.source_name(), gib(*most_bytes))]
    MoreThanThereIs {
        /// Memory asked for.
        memory_bytes: u64,
        /// Memory that there is.
        most_bytes: u64,
        /// What says so.
        bound: Limit,
    },
    /// The arena asked for cannot make progress.
    #[error(
        "an arena of {} is too small: one token needs {smallest_slots} slots{}",
        gib(*arena_bytes), suggestion(*needed_bytes, None)
    )]
    ArenaTooSmall {
        /// Arena asked for.
        arena_bytes: u64,
        /// The smallest that works; `None` when it is beyond counting.
        needed_bytes: Option<u64>,
        /// Its slots.
        smallest_slots: u64,
    },
    /// What must be in memory is more than the budget.
    #[error(
        "with a context of {context_tokens} tokens the model does not fit into {} ({}){}",
        gib(*budget_bytes), bound.budget_name(), suggestion(*needed_bytes, *shorter_context_tokens)
    )]
    DoesNotFit {
        /// The budget.
        budget_bytes: u64,
        /// What set it.
        bound: Limit,
        /// The smallest budget that works; `None` when it is beyond counting.
        needed_bytes: Option<u64>,
        /// The context.
        context_tokens: u64,
        /// A shorter context that fits into this budget, if there is one.
        shorter_context_tokens: Option<u64>,
    },
}

impl PlanError {
    /// How much is missing.
    pub fn missing_bytes(&self) -> Option<u64> {
        match *self {
            Self::UnknownMachine => None,
            Self::MoreThanThereIs { memory_bytes, most_bytes, .. } => Some(memory_bytes - most_bytes),
            Self::ArenaTooSmall { arena_bytes, needed_bytes, .. } => needed_bytes.map(|bytes| bytes - arena_bytes),
            Self::DoesNotFit { budget_bytes, needed_bytes, .. } => needed_bytes.map(|bytes| bytes - budget_bytes),
        }
    }
}

impl Limit {
    fn source_name(self) -> &'static str {
        match self {
            Self::ControlGroup => "this process's control group",
            _ => "this machine",
        }
    }

    fn budget_name(self) -> &'static str {
        match self {
            Self::Memory => "the memory asked for",
            Self::ControlGroup => "what the control group leaves",
            Self::Available => "what other programs leave of this machine's memory",
            _ => "what this machine can spare",
        }
    }
}

/// Bytes in GiB, as flags take them: rounded up, so that what is read here is enough.
fn gib(bytes: u64) -> String {
    let hundredths = u128::from(bytes).saturating_mul(100).div_ceil(1 << 30);
    format!("{}.{:02} GiB", hundredths / 100, hundredths % 100)
}

fn suggestion(needed_bytes: Option<u64>, shorter_context_tokens: Option<u64>) -> String {
    let Some(bytes) = needed_bytes else { return "; no memory would be enough".to_owned() };
    let context = shorter_context_tokens.map(|tokens| format!(", or a context of at most {tokens} tokens"));
    format!("; it needs {}{}", gib(bytes), context.unwrap_or_default())
}
