//! A drive in virtual time.

use std::collections::VecDeque;

use super::Drive;
use crate::scheduler::Read;

pub(super) struct VirtualDrive {
    drive: Drive,
    /// When the last transfer that was started ends.
    free_ns: f64,
    /// Until when reads of table rows take their share.
    rows_until_ns: f64,
    /// Reads under way, with their arrival: since all have the same latency, they arrive in the order of their start.
    in_flight: VecDeque<(u64, Read)>,
}

impl VirtualDrive {
    pub(super) fn new(drive: Drive) -> Self {
        Self { drive, free_ns: 0.0, rows_until_ns: 0.0, in_flight: VecDeque::new() }
    }

    /// Starts a read.
    pub(super) fn start(&mut self, now_ns: u64, read: Read, record_bytes: u64) {
        let begin_ns = self.free_ns.max(now_ns as f64);
        let transfer_ns = record_bytes as f64 / self.drive.bytes_per_second * 1e9;
        // What of the transfer is done beside the reads of rows, and how much longer that takes.
        let rest = 1.0 - self.drive.ple_share;
        let shared_ns = (self.rows_until_ns - begin_ns).clamp(0.0, transfer_ns / rest);
        self.free_ns = begin_ns + transfer_ns + shared_ns * (1.0 - rest);
        let arrival_ns = (self.free_ns.ceil() as u64).saturating_add(self.drive.latency_ns);
        self.in_flight.push_back((arrival_ns, read));
    }

    /// Starts the reads of table rows for so many tokens; gives the time when they are done.
    pub(super) fn start_rows(&mut self, now_ns: u64, tokens: u64) -> u64 {
        let begin_ns = self.rows_until_ns.max(now_ns as f64);
        self.rows_until_ns = begin_ns + self.drive.ple_token_ns * tokens as f64;
        self.rows_until_ns.ceil() as u64
    }

    /// When the next read arrives.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.in_flight.front().map(|(at_ns, _)| *at_ns)
    }

    /// Takes the next read, when it has arrived by then.
    pub(super) fn arrived(&mut self, by_ns: u64) -> Option<(u64, Read)> {
        if self.next_ns()? <= by_ns { self.in_flight.pop_front() } else { None }
    }
}
