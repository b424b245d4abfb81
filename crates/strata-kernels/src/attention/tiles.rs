//! A row's tokens by tiles: what bfloat16 attention takes at a time.

use std::ops::Range;

use super::Ranges;
use super::cache::GRAIN_TOKENS;

/// Grains of a tile.
pub(super) const TILE_GRAINS: usize = 16;
/// Tokens of a tile.
pub(super) const TILE_TOKENS: usize = TILE_GRAINS * GRAIN_TOKENS;

/// A part of a row's tokens: grains, and which of their tokens are meant.
pub(super) struct Tile {
    pub(super) grains: [usize; TILE_GRAINS],
    pub(super) len: usize,
    /// Bit `4 g + t`: token `t` of grain `g`.
    pub(super) mask: u64,
}

/// Cuts a row's ranges into tiles.
pub(super) struct Tiles<'a> {
    ranges: Ranges<'a>,
    /// What is left of the last range.
    rest: Range<usize>,
}

impl<'a> Tiles<'a> {
    pub(super) fn of(ranges: Ranges<'a>) -> Self {
        Self { ranges, rest: 0..0 }
    }

    pub(super) fn next(&mut self) -> Option<Tile> {
        let mut tile = Tile { grains: [0; TILE_GRAINS], len: 0, mask: 0 };
        while tile.len < TILE_GRAINS {
            if self.rest.is_empty() {
                let Some(range) = self.ranges.next() else { break };
                self.rest = range;
            }
            let start = self.rest.start;
            let grain = start / GRAIN_TOKENS;
            let end = self.rest.end.min((grain + 1) * GRAIN_TOKENS);
            let tokens = ((1 << (end - start)) - 1) << (start % GRAIN_TOKENS);
            tile.grains[tile.len] = grain;
            tile.mask |= tokens << (GRAIN_TOKENS * tile.len);
            tile.len += 1;
            self.rest.start = end;
        }
        (tile.len > 0).then_some(tile)
    }
}
