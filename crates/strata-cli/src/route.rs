//! Cache-aware routing: from flags to options, and its receipt for people and programs.

use serde_json::{Value, json};
use strata_engine::{Engine, Moce, MoceOptions, Route, RouteReceipt};

use crate::flags::{RouteFlag, RouteFlags};

pub(crate) fn route(flag: RouteFlag) -> Route {
    match flag {
        RouteFlag::Exact => Route::Exact,
        RouteFlag::Cached => Route::Cached,
    }
}

pub(crate) fn moce(flags: &RouteFlags) -> MoceOptions {
    let &RouteFlags { moce_slots: slots, moce_bonus: bonus, moce_keep: keep, moce_mass: mass, .. } = flags;
    MoceOptions { slots, bonus, keep, mass, ..MoceOptions::default() }
}

/// How experts are preferred, in a line; with these settings a text can be had again.
pub(crate) fn settings(moce: &Moce) -> String {
    let Moce { slots, bonus, keep, mass } = moce;
    format!("cached, {slots} slots a layer, bonus {bonus}, the best {keep} kept, at most {mass} of the mass")
}

/// What it did, as a part of a line; `None` when nothing was routed.
pub(crate) fn summary(receipt: &RouteReceipt) -> Option<String> {
    let agreement = 100.0 * receipt.agreement()?;
    let mass = 100.0 * receipt.substituted_mass()?;
    let kl = match receipt.mean_kl() {
        Some(kl) => format!(", KL {kl:.4} ({} tokens)", receipt.kl_tokens),
        None => String::new(),
    };
    Some(format!("routes: {agreement:.1} % exact, {mass:.1} % of the mass substituted{kl}"))
}

/// What it did, in lines.
pub(crate) fn table(engine: &Engine, receipt: &RouteReceipt) -> Option<String> {
    let (moce, summary) = (settings(&engine.moce()?), summary(receipt)?);
    let line = |name, misses: Option<f64>, hits: Option<f64>| {
        let (misses, hits) = (misses.unwrap_or_default(), 100.0 * hits.unwrap_or_default());
        format!("\n  {name:<20} {misses:>8.2} misses a token, {hits:.1} % hits")
    };
    let logical = line("logical residency", receipt.misses_per_token(), receipt.hit_rate());
    let arena = line("arena", receipt.arena_misses_per_token(), receipt.arena_hit_rate());
    let held = 100.0 * receipt.held_share().unwrap_or_default();
    Some(format!("{moce}\n  {summary}{logical}{arena}; {held:.1} % of what was logically resident was in memory"))
}

/// How experts are preferred, for programs.
pub(crate) fn settings_json(moce: &Moce) -> Value {
    json!({ "slots": moce.slots, "bonus": moce.bonus, "keep": moce.keep, "mass": moce.mass })
}

/// What it did, for programs.
pub(crate) fn json(receipt: &RouteReceipt) -> Value {
    json!({
        "tokens": receipt.counts.rows,
        "agreement": receipt.agreement(),
        "substituted_mass": receipt.substituted_mass(),
        "mean_kl": receipt.mean_kl(),
        "kl_tokens": receipt.kl_tokens,
        "hit_rate": receipt.hit_rate(),
        "misses_per_token": receipt.misses_per_token(),
        "arena_hit_rate": receipt.arena_hit_rate(),
        "arena_misses_per_token": receipt.arena_misses_per_token(),
        "held_share": receipt.held_share(),
    })
}
