//! The fixed set of slots: where each lies, and where the parts of a record lie in it.

use std::ops::Range;
use std::sync::Arc;

use crate::reads::FileRange;
use crate::{Area, ExpertId, LayerRecords, PAGE_BYTES, Part, Records};

/// Slots of equal size in a list of areas. Their memory may be given back one by one.
pub(super) struct Arena {
    areas: Vec<Arc<Area>>,
    slot_bytes: usize,
    area_slots: usize,
    /// By slot, which one of the areas it is.
    places: Vec<u32>,
    /// Slots whose memory was given back.
    retired: Vec<u32>,
}

/// Room for any record: each of its parts in a window of whole pages.
fn slot_bytes(records: &Records) -> usize {
    let record = |layer: &LayerRecords| {
        layer.parts.iter().map(|part| FileRange::most_window_bytes(part.len_bytes as usize)).sum()
    };
    records.layers.iter().map(record).max().unwrap_or(0).max(PAGE_BYTES)
}

/// Slots of one area.
fn area_slots(slot_bytes: usize) -> usize {
    (Area::MAX_BYTES / slot_bytes).max(1)
}

/// Sizes of the areas that `slots` slots for these records need.
pub(super) fn area_sizes(records: &Records, slots: usize) -> Vec<usize> {
    let slot_bytes = slot_bytes(records);
    let area_slots = area_slots(slot_bytes);
    let firsts = (0..slots).step_by(area_slots);
    firsts.map(|first| (slots - first).min(area_slots) * slot_bytes).collect()
}

impl Arena {
    /// Slots for these records in `areas`, which have the sizes that [`area_sizes`] said.
    pub(super) fn new(records: &Records, areas: Vec<Arc<Area>>) -> Self {
        let slot_bytes = slot_bytes(records);
        let slots = areas.iter().map(|area| area.len_bytes() / slot_bytes).sum::<usize>() as u32;
        let places = (0..slots).collect();
        Self { areas, slot_bytes, area_slots: area_slots(slot_bytes), places, retired: Vec::new() }
    }

    /// Slots, those given back among them.
    pub(super) fn slots(&self) -> usize {
        self.places.len()
    }

    /// Gives the memory of a slot back to the system. It must not be used any more.
    pub(super) fn retire(&mut self, slot: u32) {
        let (area, at) = self.place(slot);
        // SAFETY: the scheduler has given the slot up: nobody reads into it or holds it, and nobody ever will.
        unsafe { area.discard(at..at + self.slot_bytes) };
        self.retired.push(slot);
    }

    /// Numbers the slots that are left anew, from 0.
    pub(super) fn renumber(&mut self) {
        let retired = std::mem::take(&mut self.retired);
        let mut slot = 0..;
        self.places.retain(|_| !retired.contains(&slot.next().expect("endless")));
    }

    /// The memory of all areas.
    ///
    /// # Safety
    /// Nobody writes to it meanwhile: no read is under way.
    pub(super) unsafe fn memory(&self) -> impl Iterator<Item = &[u8]> {
        // SAFETY: this function's own contract.
        self.areas.iter().map(|area| unsafe { area.bytes(0..area.len_bytes()) })
    }

    /// The area of a slot, and where in it the slot begins.
    fn place(&self, slot: u32) -> (&Arc<Area>, usize) {
        let slot = self.places[slot as usize] as usize;
        (&self.areas[slot / self.area_slots], slot % self.area_slots * self.slot_bytes)
    }

    /// What is read to fill a slot with a record, and where the pages around it go.
    pub(super) fn reads(&self, layer: &LayerRecords, index: u32, slot: u32) -> [(FileRange, *mut u8); 3] {
        let (area, mut at) = self.place(slot);
        Part::ALL.map(|part| {
            let part = &layer.parts[part as usize];
            let window = FileRange::most_window_bytes(part.len_bytes as usize);
            assert!(at + window <= area.len_bytes(), "the slot holds every record");
            // SAFETY: inside of the area.
            let memory = unsafe { area.start().add(at) };
            at += window;
            (part.range(index), memory)
        })
    }

    /// The bytes of the parts of a record in a slot.
    pub(super) fn parts(&self, layer: &LayerRecords, id: ExpertId, slot: u32) -> (Arc<Area>, [Range<usize>; 3]) {
        let (area, mut at) = self.place(slot);
        let parts = Part::ALL.map(|part| {
            let part = &layer.parts[part as usize];
            let range = part.range(id.index);
            let start = at + range.shift();
            at += FileRange::most_window_bytes(part.len_bytes as usize);
            start..start + range.len_bytes
        });
        (area.clone(), parts)
    }
}
