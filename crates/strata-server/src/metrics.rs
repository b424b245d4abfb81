//! Figures for Prometheus.
//!
//! Owns: what is counted of HTTP requests, and how the host's state is written for scrapers. Refuses: labels that clients
//! can make up: a path is one of the router's own.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use strata_engine::host::Status;

use crate::model::Writer;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    path: String,
    status: u32,
}

/// Seconds that requests may take.
const SECONDS: [f64; 12] = [0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0];

/// What is counted.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<Labels, Counter>,
    request_s: Histogram,
    first_token_s: Histogram,
}

impl Metrics {
    pub(crate) fn new(writer: Arc<dyn Writer>) -> Self {
        let mut registry = Registry::with_prefix("strata");
        let requests = Family::default();
        let request_s = Histogram::new(SECONDS);
        let first_token_s = Histogram::new(SECONDS);
        registry.register(
            "http_requests",
            "HTTP requests by path and status (0: the client went away)",
            requests.clone(),
        );
        registry.register("http_request_seconds", "Time of HTTP requests, to the last byte", request_s.clone());
        registry.register(
            "first_token_seconds",
            "Time from a request to its first token's logits",
            first_token_s.clone(),
        );
        registry.register_collector(Box::new(Host(writer)));
        Self { registry, requests, request_s, first_token_s }
    }

    pub(crate) fn responded(&self, path: &str, status: u16, elapsed: Duration) {
        self.requests.get_or_create(&Labels { path: path.to_owned(), status: status.into() }).inc();
        self.request_s.observe(elapsed.as_secs_f64());
    }

    pub(crate) fn first_token(&self, elapsed: Duration) {
        self.first_token_s.observe(elapsed.as_secs_f64());
    }

    /// In the OpenMetrics text format.
    pub(crate) fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// The host's own figures, taken when they are asked for.
struct Host(Arc<dyn Writer>);

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Host")
    }
}

type Figure<T> = (&'static str, &'static str, fn(&Status) -> T);

const COUNTERS: [Figure<u64>; 14] = [
    ("requests_done", "Requests that ended with an answer", |s| s.done),
    ("requests_cancelled", "Requests that were given up by who asked", |s| s.cancelled),
    ("requests_failed", "Requests that failed", |s| s.failed),
    ("prompt_tokens", "Tokens of prompts", |s| s.prompt_tokens),
    ("reused_tokens", "Tokens of prompts that came from kept prefixes", |s| s.reused_tokens),
    ("written_tokens", "Tokens written", |s| s.written_tokens),
    ("drafted_tokens", "Tokens drafted", |s| s.drafted_tokens),
    ("accepted_tokens", "Drafted tokens that texts agreed with", |s| s.accepted_tokens),
    ("routed_choices", "Choices of experts by cache-aware routing", |s| s.routed_choices),
    ("substituted_choices", "Of these, those that the router would not have made", |s| s.substituted_choices),
    ("drive_read_bytes", "Bytes read from the drive", |s| s.drive.read_bytes),
    ("lookup_resident_bytes", "Bytes of experts that were in memory when they were needed", |s| {
        s.lookups.resident_bytes
    }),
    ("lookup_ahead_bytes", "Bytes of experts that were read or asked for before", |s| s.lookups.ahead_bytes),
    ("lookup_missed_bytes", "Bytes of experts that were neither", |s| s.lookups.missed_bytes),
];

const GAUGES: [Figure<f64>; 16] = [
    ("uptime_seconds", "Seconds since the start", |s| s.uptime_s),
    ("queued", "Requests that wait", |s| s.queued as f64),
    ("queue_limit", "The most that may", |s| s.queue_limit as f64),
    ("active", "Requests at work", |s| s.active.len() as f64),
    ("parallel", "The most that may be", |s| s.parallel as f64),
    ("prompt_tokens_per_second", "Tokens of prompts read, over the last seconds", |s| s.prompt_tok_s),
    ("written_tokens_per_second", "Tokens written, over the last seconds", |s| s.decode_tok_s),
    ("drive_bytes_per_second", "Bytes read from the drive, over the last seconds", |s| s.drive.bytes_s),
    ("drive_busy_ratio", "Part of the last seconds in which reads were under way", |s| s.drive.busy),
    ("drive_waited_seconds", "Seconds that computation has waited for reads", |s| s.drive.waited_s),
    ("memory_plan_bytes", "Memory that the plan promises", |s| s.memory.plan_bytes as f64),
    ("memory_rss_bytes", "Memory that the process has", |s| s.memory.rss_bytes as f64),
    ("memory_peak_rss_bytes", "The most that it ever had", |s| s.memory.peak_rss_bytes as f64),
    ("substituted_mass_ratio", "Router mass that gave way, mean over tokens and layers", |s| s.substituted_mass),
    ("routing_kl_nats", "Mean KL of exact against cache-aware routing, of sampled tokens", |s| s.routing_kl),
    ("checkpoint_bytes", "Memory of kept prefixes", |s| s.checkpoint_bytes as f64),
];

impl Collector for Host {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let status = self.0.status();
        for (name, help, of) in COUNTERS {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(of(&status)).encode(metric)?;
        }
        for (name, help, of) in GAUGES {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(of(&status)).encode(metric)?;
        }
        Ok(())
    }
}
