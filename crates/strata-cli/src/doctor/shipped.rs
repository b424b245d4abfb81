//! The arithmetic of this machine: the shipped model against what the reference implementation computes.

use serde_json::{Value, json};
use strata_engine::exact::{FromReference, from_reference};
use strata_engine::{Engine, EngineError, EngineOptions, ModelOptions, Stop};

use super::Report;
use crate::error::CliError;
use crate::setup;

/// The largest difference of a logit in float32. Measured: 7e-6 (docs/accuracy.md).
const MOST_DIFFERENCE: f64 = 2e-4;
/// The most mean divergence of the fast arithmetic. Measured: 2e-3.
const MOST_FAST_KL: f64 = 1e-2;

pub(super) fn check(report: &mut Report, stop: &Stop) -> Result<(), CliError> {
    let (Ok(model), Some(reference)) = (setup::model_path(None), setup::reference_path()) else {
        report.set("arithmetic", Value::Null);
        return report.line("arithmetic", "not checked: the model that comes with Strata is not here");
    };
    let compare = |is_precise: bool| {
        let options = EngineOptions {
            is_precise,
            model: ModelOptions { context_tokens: Some(1024), ..ModelOptions::default() },
            ..EngineOptions::default()
        };
        let mut engine = Engine::open(&model, &options)?;
        Ok::<_, EngineError>((from_reference(&mut engine, &reference, stop)?, engine.model().describe_backend()))
    };
    let (precise, fast) = match compare(true).and_then(|precise| Ok((precise.0, compare(false)?))) {
        Ok(compared) => compared,
        Err(error) if error.is_cancelled() => return Err(error.into()),
        Err(error) => {
            report.set("arithmetic", json!({ "ok": false, "error": error.to_string() }));
            report.line("arithmetic", &format!("the shipped model cannot be run: {error}"))?;
            report.broken(format!("the model that comes with Strata cannot be run: {error}"), REPORT_IT);
            return Ok(());
        }
    };
    let (fast, backend) = fast;
    let is_ok = precise.max_difference <= MOST_DIFFERENCE && fast.mean_kl <= MOST_FAST_KL;
    let shown = |compared: &FromReference| {
        json!({
            "max_difference": compared.max_difference, "mean_kl": compared.mean_kl,
            "same_best": compared.same_best, "positions": compared.positions,
        })
    };
    report.set(
        "arithmetic",
        json!({ "ok": is_ok, "precise": shown(&precise), "fast": shown(&fast), "backend": backend }),
    );
    report.line(
        "arithmetic",
        &format!(
            "{}: the shipped model against its reference, {} tokens: float32 differs by {:.1e} at most (allowed {:.0e}); \
             {backend} by {:.1e} nats on average (allowed {:.0e}), with the same best token at {} of {} positions",
            if is_ok { "right" } else { "WRONG" },
            precise.tokens,
            precise.max_difference,
            MOST_DIFFERENCE,
            fast.mean_kl,
            MOST_FAST_KL,
            fast.same_best,
            fast.positions
        ),
    )?;
    if !is_ok {
        report.broken(
            format!(
                "this machine computes something else than the reference: float32 differs by {:.1e}, the fast arithmetic \
                 by {:.1e} nats",
                precise.max_difference, fast.mean_kl
            ),
            REPORT_IT,
        );
    }
    Ok(())
}

const REPORT_IT: &str = "check that the files under models/ are whole (git lfs, a broken copy); else try --isa portable, and \
                         report it with the output of `strata doctor --json`";
