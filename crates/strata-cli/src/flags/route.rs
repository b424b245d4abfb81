//! Flags of cache-aware routing.

use clap::{Args, ValueEnum};
use strata_engine::MoceOptions;

use super::at_least_one;

/// How the experts of written tokens are chosen. Prompts are always routed exactly. `--route cached` changes the text, by
/// the tokens alone: what is in memory when never does. What that costs: docs/routing.md.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Routing")]
pub(crate) struct RouteFlags {
    /// By the router alone, or with a bonus for experts that are likely in memory.
    #[arg(long, value_enum, default_value_t = RouteFlag::Exact)]
    pub(crate) route: RouteFlag,
    /// The bonus, added to router logits.
    #[arg(long, value_name = "B", default_value_t = MoceOptions::default().bonus, value_parser = bonus)]
    pub(crate) moce_bonus: f32,
    /// Of a token's experts, the J with the largest weights never give way.
    #[arg(long, value_name = "J", default_value_t = MoceOptions::default().keep)]
    pub(crate) moce_keep: usize,
    /// The most router mass of a token and layer that gives way, of 1.
    #[arg(long, value_name = "M", default_value_t = MoceOptions::default().mass, value_parser = mass)]
    pub(crate) moce_mass: f32,
    /// Experts of a layer that count as likely in memory: the N used last [default: what the arena keeps, which is the
    /// most].
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) moce_slots: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RouteFlag {
    /// By the router alone.
    Exact,
    /// With a bonus for experts that are likely in memory.
    Cached,
}

fn bonus(text: &str) -> Result<f32, String> {
    match text.parse() {
        Ok(bonus) if (0.0..f32::INFINITY).contains(&bonus) => Ok(bonus),
        _ => Err("expected a number of at least 0".to_owned()),
    }
}

fn mass(text: &str) -> Result<f32, String> {
    match text.parse() {
        Ok(mass) if (0.0..=1.0).contains(&mass) => Ok(mass),
        _ => Err("expected a number from 0 to 1".to_owned()),
    }
}
