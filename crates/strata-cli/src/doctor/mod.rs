//! `strata doctor`: whether this machine and a model are well, what speed to expect, and how far the last run was from it.
//!
//! Promises: what is wrong is a finding with what to do, never a crash; the exit code is 1 when something is broken, and 0
//! when there are only warnings. Refuses: to change anything but what it keeps of its measurements.

mod machine;
mod model;
mod shipped;
mod speed;

use std::io::Write;

use serde_json::{Map, Value, json};

use crate::error::CliError;
use crate::flags::DoctorFlags;
use crate::{interrupt, note};

pub(crate) fn doctor(flags: &DoctorFlags) -> Result<(), CliError> {
    let mut report = Report { is_json: flags.json, shown: Map::new(), findings: Vec::new() };
    machine::check(&mut report, flags.isa)?;
    if flags.isa {
        return report.end_facts();
    }
    interrupt::install()?;
    interrupt::stoppable(|stop| {
        shipped::check(&mut report, stop)?;
        model::check(&mut report, flags, stop)
    })?;
    report.end()
}

/// What is told: in lines as it is known, or as one object at the end.
struct Report {
    is_json: bool,
    shown: Map<String, Value>,
    findings: Vec<Finding>,
}

/// Something that is not as it should be.
struct Finding {
    /// Whether something does not work; else it is slow, or may become a problem.
    is_broken: bool,
    what: String,
    /// What to do.
    advice: String,
}

/// Characters of a line's name.
const NAME_WIDTH: usize = 12;

impl Report {
    /// A line for people.
    fn line(&self, name: &str, text: &str) -> Result<(), CliError> {
        if !self.is_json {
            let mut out = std::io::stdout().lock();
            writeln!(out, "{name:<NAME_WIDTH$}{}", note::visible(text))?;
            out.flush()?;
        }
        Ok(())
    }

    /// A value for programs.
    fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.shown.insert(key.to_owned(), value.into());
    }

    fn broken(&mut self, what: impl Into<String>, advice: impl Into<String>) {
        self.findings.push(Finding { is_broken: true, what: what.into(), advice: advice.into() });
    }

    fn warn(&mut self, what: impl Into<String>, advice: impl Into<String>) {
        self.findings.push(Finding { is_broken: false, what: what.into(), advice: advice.into() });
    }

    /// Ends a report that has facts only.
    fn end_facts(self) -> Result<(), CliError> {
        if self.is_json {
            writeln!(std::io::stdout(), "{}", Value::Object(self.shown))?;
        }
        Ok(())
    }

    /// Tells what was found.
    fn end(mut self) -> Result<(), CliError> {
        let is_broken = self.findings.iter().any(|finding| finding.is_broken);
        if self.is_json {
            let findings = self
                .findings
                .iter()
                .map(|finding| json!({ "broken": finding.is_broken, "what": finding.what, "advice": finding.advice }));
            let findings: Vec<Value> = findings.collect();
            self.set("findings", findings);
            self.set("ok", !is_broken);
            self.end_facts()?;
        } else {
            let mut out = std::io::stdout().lock();
            writeln!(out)?;
            for Finding { is_broken, what, advice } in &self.findings {
                let weight = if *is_broken { "BROKEN" } else { "warning" };
                writeln!(out, "{weight}: {}", note::visible(what))?;
                if !advice.is_empty() {
                    writeln!(out, "    {}", note::visible(advice))?;
                }
            }
            match (is_broken, self.findings.len()) {
                (false, 0) => writeln!(out, "all is well")?,
                (false, _) => writeln!(out, "nothing is broken")?,
                (true, _) => {}
            }
        }
        if is_broken { Err(CliError::Broken) } else { Ok(()) }
    }
}
