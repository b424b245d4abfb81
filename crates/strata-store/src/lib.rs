//! Experts on the drive, and how their bytes come into memory.
//!
//! Owns: the files of a model, the reading of them, areas of memory and the slots in them, which experts are there, the
//! plan of how memory is divided, and the recorder of when what was read.
//! Promises: a slot that it hands out holds exactly the bytes of its record until it is given back; a read that fails is
//! tried once more and then ends the request with an error that names file, offset, wanted and got.
//! Refuses: to know what the bytes mean, or to allocate the memory that it fills.

// Arenas are written by reads that go on beside computation.
#![allow(unsafe_code)]

mod area;
mod error;
pub mod plan;
pub mod reads;
mod record;
mod rows;
pub mod scheduler;
pub mod sim;
mod streaming;
pub mod system;
pub mod timeline;

pub use area::{Area, PAGE_BYTES};
pub use error::StoreError;
pub use record::{ExpertId, LayerRecords, Part, PartRange, Records};
pub use rows::{GatherId, RowCounts, RowTable, TablePlace};
pub use streaming::{Lookahead, StreamingOptions, StreamingStore, Usage};

/// How many rows of a pass use one expert of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Index of the expert within its layer.
    pub expert: u32,
    /// Rows (tokens) that use it.
    pub tokens: u32,
}

/// The bytes of one expert, in memory and valid for as long as the slot is out.
///
/// A slot is a claim: its record is neither overwritten nor moved until the slot goes back to its store by
/// [`ExpertStore::release`].
pub struct Slot {
    id: ExpertId,
    slot: scheduler::SlotId,
    area: std::sync::Arc<Area>,
    /// Bytes of the area: gate, up, down.
    parts: [std::ops::Range<usize>; 3],
}

impl Slot {
    /// The expert whose record this is.
    pub fn id(&self) -> ExpertId {
        self.id
    }

    /// The bytes of one of its matrices.
    pub fn part(&self, part: Part) -> &[u8] {
        // SAFETY: a slot is a claim: nobody writes to its record while it is out.
        unsafe { self.area.bytes(self.parts[part as usize].clone()) }
    }
}

/// Where a layer's experts come from.
///
/// After [`begin_pass`](Self::begin_pass), for each layer in order: [`demand`](Self::demand) once for each strip that was
/// routed, [`close`](Self::close) when the last one was, then [`ready`](Self::ready) until it says that there are no more;
/// each slot goes back by [`release`](Self::release). At the end [`end_pass`](Self::end_pass), or anywhere
/// [`abandon`](Self::abandon). Between two layers of a pass others may begin or go on.
pub trait ExpertStore: Send {
    /// The layers of a pass follow. The pass at hand, if there is one, is left where it is, between two layers.
    fn begin_pass(&mut self, kind: PassKind) -> PassNumber;

    /// The layers of a pass follow that was begun before: it goes on where it was left, and the pass at hand is left.
    /// Nothing happens when it is at hand itself.
    ///
    /// # Panics
    /// When it ended, or was abandoned.
    fn resume(&mut self, pass: PassNumber);

    /// The pass leaves out the layers before this one.
    fn skip_to(&mut self, layer: u32);

    /// Rows of `layer` were routed to these experts. May be called again with more rows before the layer is closed.
    ///
    /// # Errors
    /// When an expert does not exist.
    fn demand(&mut self, layer: u32, experts: &[Demand]) -> Result<(), StoreError>;

    /// Experts that `layer` is expected to need. A hint: it changes when bytes arrive, never which bytes.
    fn forecast(&mut self, layer: u32, experts: &[Demand]);

    /// Experts that the only row of the pass is expected to be routed to in `layer`, the most likely first. A hint, as
    /// [`forecast`](Self::forecast) is. For the layer after the one at hand, or an early one for the layer after that.
    fn forecast_ranked(&mut self, layer: u32, experts: &[u32]);

    /// Whether forecasts are of any use to this store.
    fn wants_forecast(&self) -> bool;

    /// Whether an early forecast of the only row of the pass is worth its computation in the layer at hand, asked when the
    /// next layer's is known: whether the drive will have time for more than that.
    fn wants_early_forecast(&self) -> bool {
        false
    }

    /// All rows of the layer were routed: nothing but what was demanded will be used.
    fn close(&mut self, layer: u32);

    /// Appends demanded experts whose bytes are in memory to `slots`, each once, waiting until there is at least one;
    /// appends none when all of the layer's have been handed out. The order is the store's own.
    ///
    /// # Errors
    /// When a record could not be read; nothing was appended then.
    fn ready(&mut self, layer: u32, slots: &mut Vec<Slot>) -> Result<(), StoreError>;

    /// Takes a slot back: its memory may be used for another record.
    fn release(&mut self, slot: Slot);

    /// Between operations of a pass: looks after reads under way, waiting for none.
    fn poll(&mut self);

    /// All layers of the pass at hand are done.
    fn end_pass(&mut self);

    /// A pass was given up, at hand or left: what it demanded and was not handed out is not needed any more.
    fn abandon(&mut self, pass: PassNumber);

    /// The store that streams, if this is it.
    fn as_streaming(&mut self) -> Option<&mut StreamingStore> {
        None
    }
}

pub use scheduler::{PassKind, PassNumber};
