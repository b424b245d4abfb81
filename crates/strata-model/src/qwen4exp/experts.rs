//! The experts of a layer: who chose which, and their computation in the order in which they are in memory.

use strata_backend::{Backend, Choice, GroupEntry, PassId};
use strata_store::{Demand, ExpertStore, Slot};

use super::ple::NgramRows;
use super::workspace::Buffers;
use super::{Layer, Observer};
use crate::ModelError;

/// Computes the layer's experts in the order in which the store has them ready.
#[allow(clippy::too_many_arguments)] // one caller, which takes them all from the model
pub(super) fn experts(
    backend: &mut dyn Backend,
    store: &mut dyn ExpertStore,
    table: &mut Option<&mut NgramRows>,
    pass: PassId,
    index: u32,
    layer: &Layer,
    top_k: usize,
    buffers: &mut Buffers,
    observer: &dyn Observer,
) -> Result<(), ModelError> {
    let Buffers { routes, choices, starts, group, .. } = buffers;
    sort_choices(&routes.ids, top_k, layer.moe.scales.len(), choices, starts);
    loop {
        // From a slow drive, the experts of a layer take long.
        if observer.is_cancelled() {
            return Err(ModelError::Cancelled);
        }
        let mut slots: Vec<Slot> = Vec::new();
        store.ready(index, &mut slots)?;
        if slots.is_empty() {
            return Ok(());
        }
        group.clear();
        group.extend(slots.iter().enumerate().map(|(slot, held)| {
            let expert = held.id().index as usize;
            GroupEntry { slot, choices: starts[expert]..starts[expert + 1], scales: layer.moe.scales[expert] }
        }));
        let ticket = backend.experts(pass, &layer.moe.experts, slots, group, choices);
        let mut done = Vec::new();
        backend.take_slots(ticket, &mut done)?;
        done.into_iter().for_each(|slot| store.release(slot));
        // The store looks after its own reads when it is asked for more.
        if let Some(table) = table {
            table.poll()?;
        }
    }
}

/// Lists the choices of `ids` (`[rows][top_k]`) by expert, rows ascending: those of expert `e` are
/// `choices[starts[e]..starts[e + 1]]`.
fn sort_choices(ids: &[u32], top_k: usize, experts: usize, choices: &mut Vec<Choice>, starts: &mut Vec<usize>) {
    starts.clear();
    starts.resize(experts + 1, 0);
    for id in ids {
        starts[*id as usize + 1] += 1;
    }
    for expert in 0..experts {
        starts[expert + 1] += starts[expert];
    }
    choices.clear();
    choices.resize(ids.len(), Choice { row: 0, k: 0 });
    // Each start moves to its expert's end, which is the next one's start; then all move back by one place.
    for (at, id) in ids.iter().enumerate() {
        let place = &mut starts[*id as usize];
        choices[*place] = Choice { row: (at / top_k) as u32, k: (at % top_k) as u32 };
        *place += 1;
    }
    starts.rotate_right(1);
    starts[0] = 0;
}

/// Counts how many rows chose each expert.
#[derive(Default)]
pub(super) struct DemandCount {
    by_expert: Vec<u32>,
    demands: Vec<Demand>,
}

impl DemandCount {
    /// The distinct experts of `ids`, most rows first, the lower index first among equals.
    pub(super) fn count(&mut self, ids: &[u32], experts: usize) -> &[Demand] {
        self.by_expert.clear();
        self.by_expert.resize(experts, 0);
        ids.iter().for_each(|id| self.by_expert[*id as usize] += 1);
        self.demands.clear();
        let counts = (0u32..).zip(&self.by_expert).filter(|(_, tokens)| **tokens > 0);
        self.demands.extend(counts.map(|(expert, tokens)| Demand { expert, tokens: *tokens }));
        self.demands.sort_by_key(|demand| std::cmp::Reverse(demand.tokens));
        &self.demands
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_sorted_by_expert_then_row() {
        let (mut choices, mut starts) = (Vec::new(), Vec::new());
        sort_choices(&[3, 0, 0, 2, 3, 2], 2, 5, &mut choices, &mut starts);
        let choice = |row, k| Choice { row, k };
        assert_eq!(starts, [0, 2, 2, 4, 6, 6]);
        assert_eq!(choices, [choice(0, 1), choice(1, 0), choice(1, 1), choice(2, 1), choice(0, 0), choice(2, 0)]);
    }

    #[test]
    fn demand_is_counted_most_rows_first() {
        let demand = |expert, tokens| Demand { expert, tokens };
        let mut count = DemandCount::default();
        assert_eq!(count.count(&[4, 1, 1, 0, 4, 1, 3], 5), [demand(1, 3), demand(4, 2), demand(0, 1), demand(3, 1)]);
        assert_eq!(count.count(&[2], 5), [demand(2, 1)]);
    }
}
