//! What monitors want to know of a store.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use super::StreamingStore;

impl StreamingStore {
    /// Counts the reads under way, for whoever may look while the store is at work.
    pub fn reads_gauge(&self) -> Arc<AtomicUsize> {
        self.queue.gauge()
    }

    /// Time in which reads were under way.
    pub fn busy(&self) -> Duration {
        self.queue.busy()
    }

    /// Experts of each layer that are in memory.
    pub fn resident_by_layer(&self) -> Vec<u32> {
        let mut layers = vec![0; self.records.layers.len()];
        self.scheduler.resident().for_each(|(expert, _)| layers[expert.layer as usize] += 1);
        layers
    }
}
