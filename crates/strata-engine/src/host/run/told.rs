//! What monitors are told of the model's thread.

use std::time::{Duration, Instant};

use strata_store::scheduler::{ByClass, Class};

use super::Runner;
use crate::host::monitor::Sample;
use crate::host::{ArenaStatus, DriveStatus, LookupStatus, RequestStatus, SequencePhase};

impl Runner {
    /// Leaves a copy of all counts for monitors.
    pub(super) fn leave_copy(&mut self) {
        let rows = self.engine.model.row_counts();
        let mut drive = DriveStatus::default();
        let (mut lookups, mut arena, mut busy) = (LookupStatus::default(), ArenaStatus::default(), Duration::ZERO);
        if let Some(store) = self.engine.model.streaming() {
            let counts = store.counts();
            let sum = |by: &ByClass| by[Class::Demand].bytes + by[Class::ReadAhead].bytes + by[Class::HotSet].bytes;
            let waited_s = (store.exposed_wait() + rows.exposed_wait).as_secs_f64();
            drive = DriveStatus {
                reader: store.describe_reader(),
                read_bytes: sum(&counts.read) + rows.read_bytes,
                wasted_bytes: sum(&counts.wasted),
                waited_s,
                ..drive
            };
            let (resident, ahead, missed) = (counts.resident.bytes, counts.ahead.bytes, counts.missed.bytes);
            lookups = LookupStatus { resident_bytes: resident, ahead_bytes: ahead, missed_bytes: missed };
            busy = store.busy();
            arena.slots = store.slots() as u64;
            arena.resident_by_layer = store.resident_by_layer();
        }
        arena.slot_bytes = self.engine.plan().slot_bytes;
        arena.experts = self.engine.model.config().moe.experts as u64;
        let totals = self.totals;
        let sample = Sample {
            at: Instant::now(),
            prompt_tokens: totals.prompt,
            written_tokens: totals.written,
            read_bytes: drive.read_bytes,
            busy,
        };
        let readers =
            self.reading.iter().map(|reader| (&reader.text, reader.reading.progress(), SequencePhase::Reading));
        let writers = self.writing.iter().map(|writer| (&writer.text, 1.0, SequencePhase::Writing));
        let active = readers.chain(writers).map(|(text, progress, phase)| {
            let request = RequestStatus {
                id: text.line.id,
                phase,
                prompt_tokens: text.request.prompt.len(),
                reused_tokens: text.reused_tokens,
                progress,
                written_tokens: text.written.len(),
                age_s: 0.0,
            };
            (text.line.asked, request)
        });
        let routes = self.engine.route_receipt().unwrap_or_default();
        let (checkpoints, checkpoint_bytes) = (self.prefixes.checkpoints(), self.prefixes.bytes() as u64);
        self.monitor.leave(sample, active.collect(), |status| {
            (status.prompt_tokens, status.reused_tokens) = (totals.prompt, totals.reused);
            status.written_tokens = totals.written;
            (status.drafted_tokens, status.accepted_tokens) = (totals.drafted, totals.accepted);
            (status.routed_choices, status.substituted_choices) = (routes.counts.choices, routes.counts.substituted);
            status.substituted_mass = routes.substituted_mass().unwrap_or(0.0);
            status.routing_kl = routes.mean_kl().unwrap_or(0.0);
            (status.checkpoints, status.checkpoint_bytes) = (checkpoints, checkpoint_bytes);
            (status.drive, status.lookups, status.arena) = (drive, lookups, arena);
        });
    }
}
