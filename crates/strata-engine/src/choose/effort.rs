//! How much a model shall think, in the words of clients.

use std::str::FromStr;

use crate::ChatOptions;

/// A client's `reasoning_effort`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// No thinking.
    None,
    /// A few sentences.
    Minimal,
    /// Some.
    Low,
    /// Plenty.
    Medium,
    /// As much as the model likes.
    High,
}

impl Effort {
    /// All of them, the least first.
    pub const ALL: [Effort; 5] = [Effort::None, Effort::Minimal, Effort::Low, Effort::Medium, Effort::High];

    /// Its name in requests.
    pub fn name(self) -> &'static str {
        match self {
            Effort::None => "none",
            Effort::Minimal => "minimal",
            Effort::Low => "low",
            Effort::Medium => "medium",
            Effort::High => "high",
        }
    }

    /// The most tokens of thinking; `None`: no limit. Templates mostly know only on and off, so the limit is what tells
    /// the levels apart.
    pub fn thinking_tokens(self) -> Option<usize> {
        match self {
            Effort::None => Some(0),
            Effort::Minimal => Some(256),
            Effort::Low => Some(1_024),
            Effort::Medium => Some(8_192),
            Effort::High => None,
        }
    }

    /// Tells a template: by `enable_thinking`, and by `reasoning_effort` where it looks at that. Variables that the client
    /// gave itself stay.
    pub fn apply(self, options: &mut ChatOptions) {
        options.enable_thinking = Some(self != Effort::None);
        options.variables.entry("reasoning_effort").or_insert_with(|| self.name().into());
    }
}

impl FromStr for Effort {
    type Err = String;

    fn from_str(name: &str) -> Result<Effort, String> {
        let found = Effort::ALL.into_iter().find(|effort| effort.name() == name);
        found.ok_or_else(|| format!("must be none, minimal, low, medium or high, got {name:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn efforts_are_variables_of_templates() {
        for effort in Effort::ALL {
            assert_eq!(effort.name().parse(), Ok(effort));
            let mut options = ChatOptions::default();
            effort.apply(&mut options);
            assert_eq!(options.enable_thinking, Some(effort != Effort::None));
            assert_eq!(options.variables["reasoning_effort"], effort.name());
        }
        let mut given = ChatOptions::default();
        given.variables.insert("reasoning_effort".to_owned(), "xhigh".into());
        Effort::Low.apply(&mut given);
        assert_eq!(given.variables["reasoning_effort"], "xhigh");
        assert!("HIGH".parse::<Effort>().unwrap_err().contains("HIGH"));
    }
}
