//! The n-gram module (spec 8): which table rows a token uses, and the weights around them. The table itself stays on
//! the drive.

use std::ops::Range;

use strata_backend::{Ple, StateShape};
use strata_store::timeline::Timeline;
use strata_store::{GatherId, RowCounts, RowTable, StoreError, TablePlace};

use super::config::{Config, PleConfig};
use super::weights::{Loader, tensor};
use super::{OpenPort, Streaming};
use crate::ModelError;

/// When rows of the n-gram table are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowsWhen {
    /// Before the first layer of their pass, which waits for them.
    Before,
    /// Beside the computation of the layers before, and of the pass before.
    #[default]
    Beside,
}

/// The module of the one layer that has it.
pub(super) struct PleModule {
    pub(super) config: PleConfig,
    pub(super) weights: Ple,
    pub(super) table: NgramRows,
}

/// The rows of passes.
pub(super) struct NgramRows {
    source: Source,
    /// Rows of the strip at hand, where the source does not keep them.
    strip: Vec<u8>,
    /// Hands out zeros instead of rows, reading nothing: for measuring computation alone.
    pub(super) is_fake: bool,
}

/// Where rows come from.
enum Source {
    /// The whole table is in memory.
    Memory { place: TablePlace, table: Vec<u8> },
    /// Rows are read.
    Drive(Box<RowTable>),
}

impl NgramRows {
    fn new(source: Source) -> Self {
        Self { source, strip: Vec::new(), is_fake: false }
    }

    /// The table that is read from, unless nothing is.
    fn drive(&mut self) -> Option<&mut RowTable> {
        match &mut self.source {
            Source::Drive(table) if !self.is_fake => Some(table),
            _ => None,
        }
    }

    /// Begins to gather the rows `ids` for a pass that begins now, in strips of `strip_ids`; `None`: none are read.
    pub(super) fn begin(&mut self, ids: &[u64], strip_ids: usize) -> Result<Option<GatherId>, StoreError> {
        self.drive().map(|table| table.begin(ids, strip_ids)).transpose()
    }

    /// [`begin`](Self::begin) for a pass that comes later.
    pub(super) fn begin_later(&mut self, ids: &[u64], strip_ids: usize) -> Result<Option<GatherId>, StoreError> {
        self.drive().map(|table| table.begin_later(ids, strip_ids)).transpose()
    }

    /// The rows at these places of those that a pass gathers, whose `ids` they are.
    pub(super) fn rows(
        &mut self,
        gather: Option<GatherId>,
        places: Range<usize>,
        ids: &[u64],
    ) -> Result<&[u8], StoreError> {
        match &mut self.source {
            Source::Drive(table) => {
                if let Some(gather) = gather.filter(|_| !self.is_fake) {
                    return table.rows(gather, places);
                }
                self.strip.resize(ids.len() * table.place().row_bytes, 0);
                Ok(&self.strip)
            }
            Source::Memory { place, table } => {
                self.strip.clear();
                for &row in ids {
                    let bytes = table.chunks_exact(place.row_bytes).nth(row as usize);
                    self.strip.extend_from_slice(bytes.ok_or(StoreError::NoSuchRow { row, rows: place.rows })?);
                }
                Ok(&self.strip)
            }
        }
    }

    pub(super) fn poll(&mut self) -> Result<(), StoreError> {
        self.drive().map_or(Ok(()), RowTable::poll)
    }

    /// A pass needs its rows no more.
    pub(super) fn finish(&mut self, gather: GatherId) {
        if let Source::Drive(table) = &mut self.source {
            table.finish(gather);
        }
    }

    pub(super) fn counts(&self) -> RowCounts {
        match &self.source {
            Source::Memory { .. } => RowCounts::default(),
            Source::Drive(table) => table.counts(),
        }
    }
}

pub(super) fn load(
    loader: &mut Loader<'_>,
    config: &Config,
    ple: &PleConfig,
    streaming: &Streaming,
    timeline: &Timeline,
    open: OpenPort<'_>,
) -> Result<PleModule, ModelError> {
    let (hidden, wide) = (config.hidden, config.streams * config.hidden);
    let embedded = ple.rows_per_token() * ple.row_dim;
    let name = |part: &str| format!("blk.{}.{part}", ple.layer);

    loader.no_scale("per_layer_token_embd")?;
    let table = tensor(loader.gguf, "per_layer_token_embd.weight")?.clone();
    let rows = table.rows();
    if table.dims[0] != ple.row_dim as u64 {
        return Err(ModelError::Shape {
            name: table.name.clone(),
            expected: vec![ple.row_dim as u64, rows],
            got: table.dims.clone(),
        });
    }
    for (head, (offset, count)) in ple.head_offsets.iter().zip(&ple.head_rows).enumerate() {
        if offset.checked_add(*count).is_none_or(|end| end > rows) {
            return Err(ModelError::Config {
                key: "qwen4exp.ple.head_offsets".to_owned(),
                problem: format!("head {head} uses {count} rows from row {offset} of a table of {rows} rows"),
            });
        }
    }
    let weights = Ple {
        key: loader.matrix(&name("ple_key"), embedded, wide)?,
        value: loader.matrix(&name("ple_value"), embedded, hidden)?,
        norm_key: loader.vector(&name("ple_norm_key.weight"), wide)?,
        norm_query: loader.vector(&name("ple_norm_query.weight"), wide)?,
        norm_conv: loader.vector(&name("ple_norm_conv.weight"), wide)?,
        conv: loader.taps(&name("ple_conv1d.weight"), ple.conv_taps, wide)?,
        dilation: ple.ngram,
        row_type: table.ty,
        eps: config.eps,
    };
    let place = TablePlace { file: table.file, offset: table.offset, row_bytes: table.row_bytes() as usize, rows };
    let table = if table.len_bytes <= streaming.small_table_bytes.unwrap_or(Streaming::SMALL_TABLE_BYTES) {
        Source::Memory { place, table: loader.gguf.read(&table)? }
    } else {
        let queue = super::queue(loader.gguf.reopen_files()?, &[], RowTable::READS, streaming, open)?;
        let room_bytes = RowTable::READS * (place.row_bytes + 2 * strata_store::PAGE_BYTES);
        let table = RowTable::new(place, queue).ok_or_else(|| super::no_memory("n-gram rows", room_bytes))?;
        Source::Drive(Box::new(table.recorded(timeline.clone())))
    };
    Ok(PleModule { config: ple.clone(), weights, table: NgramRows::new(table) })
}

pub(super) fn state_shape(config: &Config, ple: &PleConfig) -> StateShape {
    StateShape::Ple { channels: config.streams * config.hidden, history_rows: (ple.conv_taps - 1) * ple.ngram }
}

/// Appends the table rows of each token of `ids`. `window` holds the sequence's tokens before them, at least the last
/// `ngram - 1` where there are so many.
pub(super) fn rows(config: &PleConfig, window: &[u32], ids: &[u32], out: &mut Vec<u64>) {
    let before = |at: usize, distance: usize| match at.checked_sub(distance) {
        Some(at) => Some(ids[at]),
        None => (window.len() + at).checked_sub(distance).map(|at| window[at]),
    };
    for at in 0..ids.len() {
        let mut mix = u64::from(ids[at]).wrapping_mul(config.multipliers[0]);
        let mut cut = false;
        for distance in 1..config.ngram {
            // A boundary hides itself and everything before it; what is hidden or missing reads as the boundary.
            let token = before(at, distance).filter(|token| !cut && *token != config.boundary_token);
            cut |= token.is_none();
            let token = token.unwrap_or(config.boundary_token);
            mix ^= u64::from(token).wrapping_mul(config.multipliers[distance]);
            let heads = (distance - 1) * config.heads_per_ngram..distance * config.heads_per_ngram;
            out.extend(heads.map(|h| mix % config.head_rows[h] + config.head_offsets[h]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// splitmix64 step of the published derivation (spec 8).
    fn splitmix64(seed: u64) -> u64 {
        let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// The published model's constants, derived as spec 8 says and compared with the figures it lists.
    fn published() -> PleConfig {
        let half = ((1u64 << 63) - 1) / 248_320 / 2;
        let multiplier =
            |k: u64| 2 * (splitmix64(1234u64.wrapping_add(k.wrapping_mul(0x9E37_79B9_7F4A_7C15))) % half) + 1;
        let is_prime = |n: u64| (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d));
        let head_rows: Vec<u64> = (20_000_000..).filter(|n| is_prime(*n)).take(16).collect();
        let head_offsets = head_rows
            .iter()
            .scan(0, |sum, rows| {
                *sum += rows;
                Some(*sum - rows)
            })
            .collect();
        PleConfig {
            layer: 1,
            row_dim: 160,
            ngram: 3,
            heads_per_ngram: 8,
            conv_taps: 4,
            boundary_token: 248_044,
            multipliers: (1..=3).map(multiplier).collect(),
            head_rows,
            head_offsets,
        }
    }

    #[test]
    fn the_published_constants_follow_from_their_derivation() {
        let config = published();
        assert_eq!(config.multipliers, [23_703_573_157_769, 20_109_073_645_365, 8_052_911_324_071]);
        assert_eq!((config.head_rows[0], config.head_rows[15]), (20_000_003, 20_000_171));
        assert_eq!((config.head_offsets[1], config.head_offsets[15]), (20_000_003, 300_001_275));
        assert_eq!(config.head_offsets[15] + config.head_rows[15], 320_001_446);
    }

    fn all(config: &PleConfig, window: &[u32], ids: &[u32]) -> Vec<u64> {
        let mut out = Vec::new();
        rows(config, window, ids, &mut out);
        out
    }

    #[test]
    fn rows_do_not_depend_on_how_the_tokens_come() {
        let config = published();
        let e = config.boundary_token;
        let ids = [5, e, 17, 248_319, e, e, 3, 4, 5, 6, 7];
        let whole = all(&config, &[], &ids);
        assert_eq!(whole.len(), ids.len() * 16);
        assert!(whole.iter().all(|row| *row < 320_001_446));
        for cut in 0..=ids.len() {
            let mut pieces = all(&config, &[], &ids[..cut]);
            pieces.extend(all(&config, &ids[cut.saturating_sub(2)..cut], &ids[cut..]));
            assert_eq!(pieces, whole, "cut at {cut}");
        }
    }

    #[test]
    fn a_boundary_cuts_what_lies_before_it() {
        let config = published();
        let e = config.boundary_token;
        let last = |ids: &[u32]| all(&config, &[], ids).split_off((ids.len() - 1) * 16);
        // Behind a boundary nothing shows, and the start of a sequence is like a boundary.
        assert_eq!(last(&[9, e, 7]), last(&[e, 7]));
        assert_eq!(last(&[e, 7]), last(&[7]));
        // The boundary token itself keeps its own history.
        assert_ne!(last(&[9, e]), last(&[8, e]));
        // Bigrams see one token back, trigrams two.
        assert_eq!(last(&[1, 2, 3])[..8], last(&[9, 2, 3])[..8]);
        assert_ne!(last(&[1, 2, 3])[8..], last(&[9, 2, 3])[8..]);
    }
}
