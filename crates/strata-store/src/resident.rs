//! Every expert in memory from the start: for models that fit.

use std::sync::Arc;

use crate::{Area, Demand, ExpertId, ExpertStore, Reader, Records, Slot, StoreError};

/// A store whose arena holds all records.
pub struct ResidentStore {
    areas: Vec<Arc<Area>>,
    layers: Vec<Layer>,
}

struct Layer {
    part_bytes: [usize; 3],
    /// Area and first byte of each expert's record.
    places: Vec<(usize, usize)>,
    /// Experts demanded and not yet handed out, in order of first demand.
    wanted: Vec<u32>,
    is_wanted: Vec<bool>,
}

impl ResidentStore {
    /// Sizes of the areas that [`load`](Self::load) needs for these records, each at most [`Area::MAX_BYTES`] (or one
    /// record, should that be larger).
    pub fn area_bytes(records: &Records) -> Vec<usize> {
        let mut sizes = Vec::new();
        let mut last = 0;
        for record in record_sizes(records) {
            if last > 0 && last + record > Area::MAX_BYTES {
                sizes.push(last);
                last = 0;
            }
            last += record;
        }
        if last > 0 {
            sizes.push(last);
        }
        sizes
    }

    /// Reads every record into `areas`.
    ///
    /// # Errors
    /// When the areas are too small or a record cannot be read.
    pub fn load(records: &Records, reader: &dyn Reader, mut areas: Vec<Area>) -> Result<Self, StoreError> {
        let too_small = StoreError::AreasTooSmall {
            needed_bytes: records.total_bytes(),
            given_bytes: areas.iter().map(|a| a.len_bytes() as u64).sum(),
        };
        let (mut area, mut used) = (0, 0);
        let mut layers = Vec::with_capacity(records.layers.len());
        for layer in &records.layers {
            let record_bytes = layer.record_bytes() as usize;
            let mut places = Vec::with_capacity(layer.experts as usize);
            for expert in 0..u64::from(layer.experts) {
                while areas.get(area).is_some_and(|a| used + record_bytes > a.len_bytes()) {
                    (area, used) = (area + 1, 0);
                }
                let Some(memory) = areas.get_mut(area) else { return Err(too_small) };
                places.push((area, used));
                for part in &layer.parts {
                    // SAFETY: the area is still this function's own.
                    let out = unsafe { memory.bytes_mut(used..used + part.len_bytes as usize) };
                    reader.read(part.file, part.offset + expert * part.stride_bytes, out)?;
                    used += part.len_bytes as usize;
                }
            }
            layers.push(Layer {
                part_bytes: layer.parts.each_ref().map(|p| p.len_bytes as usize),
                is_wanted: vec![false; places.len()],
                wanted: Vec::with_capacity(places.len()),
                places,
            });
        }
        Ok(Self { areas: areas.into_iter().map(Arc::new).collect(), layers })
    }
}

fn record_sizes(records: &Records) -> impl Iterator<Item = usize> {
    records.layers.iter().flat_map(|l| std::iter::repeat_n(l.record_bytes() as usize, l.experts as usize))
}

impl ExpertStore for ResidentStore {
    fn demand(&mut self, layer: u32, experts: &[Demand]) -> Result<(), StoreError> {
        let missing = |expert: u32| StoreError::NoSuchExpert(ExpertId { layer, index: expert });
        for demand in experts {
            let known = self.layers.get_mut(layer as usize).ok_or_else(|| missing(demand.expert))?;
            let wanted = known.is_wanted.get_mut(demand.expert as usize).ok_or_else(|| missing(demand.expert))?;
            if !*wanted {
                *wanted = true;
                known.wanted.push(demand.expert);
            }
        }
        Ok(())
    }

    fn forecast(&mut self, _layer: u32, _experts: &[Demand]) {}

    fn wants_forecast(&self) -> bool {
        false
    }

    fn close(&mut self, _layer: u32) {}

    fn ready(&mut self, layer: u32, slots: &mut Vec<Slot>) -> Result<(), StoreError> {
        let Some(known) = self.layers.get_mut(layer as usize) else { return Ok(()) };
        for index in known.wanted.drain(..) {
            known.is_wanted[index as usize] = false;
            let (area, start) = known.places[index as usize];
            let mut at = start;
            let parts = known.part_bytes.map(|len| {
                at += len;
                at - len..at
            });
            slots.push(Slot { id: ExpertId { layer, index }, area: self.areas[area].clone(), parts });
        }
        Ok(())
    }

    fn release(&mut self, _slot: Slot) {}

    fn abandon(&mut self) {
        for layer in &mut self.layers {
            layer.wanted.drain(..).for_each(|index| layer.is_wanted[index as usize] = false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LayerRecords, Part, PartRange};

    /// The byte at offset `o` of file `f` is `o * 7 + f * 50`.
    struct Pattern;

    fn pattern(file: usize, offset: u64) -> u8 {
        (offset * 7 + file as u64 * 50) as u8
    }

    impl Reader for Pattern {
        fn read(&self, file: usize, offset: u64, out: &mut [u8]) -> Result<(), StoreError> {
            (offset..).zip(out).for_each(|(o, b)| *b = pattern(file, o));
            Ok(())
        }
    }

    fn records() -> Records {
        let part = |file, offset, len_bytes| PartRange { file, offset, stride_bytes: len_bytes, len_bytes };
        let layer = |base| LayerRecords {
            experts: 3,
            parts: [part(0, base, 5), part(1, base + 100, 5), part(0, base + 50, 4)],
        };
        Records { layers: vec![layer(1000), layer(2000)] }
    }

    fn areas(sizes: &[usize]) -> Vec<Area> {
        sizes.iter().map(|s| Area::allocate(*s).unwrap()).collect()
    }

    fn ready(store: &mut ResidentStore, layer: u32) -> Vec<Slot> {
        let mut slots = Vec::new();
        store.ready(layer, &mut slots).unwrap();
        slots
    }

    #[test]
    fn slots_hold_the_bytes_of_their_record_whatever_the_areas() {
        let records = records();
        assert_eq!(records.total_bytes(), 84);
        assert_eq!(ResidentStore::area_bytes(&records), [84]);
        for sizes in [vec![84], vec![30, 30, 30], vec![14, 15, 14, 14, 14, 27], vec![3, 100]] {
            let mut store = ResidentStore::load(&records, &Pattern, areas(&sizes)).unwrap();
            for layer in 0..2 {
                let all: Vec<_> = (0..3).map(|expert| Demand { expert, tokens: 1 }).collect();
                store.demand(layer, &all).unwrap();
                store.close(layer);
                let slots = ready(&mut store, layer);
                assert_eq!(slots.len(), 3);
                for slot in slots {
                    for part in Part::ALL {
                        let range = &records.layers[layer as usize].parts[part as usize];
                        let from = range.offset + u64::from(slot.id().index) * range.stride_bytes;
                        let want: Vec<_> = (from..from + range.len_bytes).map(|o| pattern(range.file, o)).collect();
                        assert_eq!(slot.part(part), want, "{} {part:?} {sizes:?}", slot.id());
                    }
                    store.release(slot);
                }
            }
        }
    }

    #[test]
    fn each_demanded_expert_is_handed_out_once() {
        let mut store = ResidentStore::load(&records(), &Pattern, areas(&[84])).unwrap();
        let demand = |experts: &[u32]| experts.iter().map(|e| Demand { expert: *e, tokens: 2 }).collect::<Vec<_>>();
        store.demand(1, &demand(&[2, 0])).unwrap();
        store.demand(1, &demand(&[0, 2])).unwrap();
        store.close(1);
        let ids: Vec<_> = ready(&mut store, 1).iter().map(|s| s.id().index).collect();
        assert_eq!(ids, [2, 0]);
        assert!(ready(&mut store, 1).is_empty());
        // What is given up is not handed out, and can be demanded again.
        store.demand(1, &demand(&[0, 2])).unwrap();
        store.abandon();
        assert!(ready(&mut store, 1).is_empty());
        // The next pass starts afresh.
        store.demand(1, &demand(&[2])).unwrap();
        assert_eq!(ready(&mut store, 1).len(), 1);
    }

    #[test]
    fn what_does_not_exist_or_fit_is_an_error() {
        let mut store = ResidentStore::load(&records(), &Pattern, areas(&[84])).unwrap();
        let one = |expert| [Demand { expert, tokens: 1 }];
        assert_eq!(
            store.demand(0, &one(3)).unwrap_err().to_string(),
            "expert 3 of layer 0 does not exist in this model"
        );
        assert_eq!(
            store.demand(2, &one(0)).unwrap_err().to_string(),
            "expert 0 of layer 2 does not exist in this model"
        );
        for sizes in [vec![83], vec![], vec![13; 20]] {
            let error = ResidentStore::load(&records(), &Pattern, areas(&sizes)).err().unwrap();
            assert!(error.to_string().contains("need 84 bytes"), "{error}");
        }
    }
}
