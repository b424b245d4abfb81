//! What monitors want to know of a store.

use std::time::Duration;

use super::StreamingStore;

impl StreamingStore {
    /// Reads under way.
    pub fn reads_under_way(&self) -> usize {
        self.queue.under_way()
    }

    /// Time in which there were any.
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
