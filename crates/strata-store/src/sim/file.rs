//! Route traces as files.
//!
//! A file is the eight bytes `STRATART`, then numbers in LEB128 (seven bits a byte, the lowest first, in as few bytes as
//! possible): version, layers, experts, top-k, strips, and in version 2 the passes that came after the text, at least one;
//! then for each strip, and for each of these passes, its rows and, layer by layer, two lists: demand and forecast. A list
//! is its length and, for each expert in order of index, how many indices it is past the one before (for the first: its
//! index), and its tokens less one.

use std::io::{self, Read, Write};

use thiserror::Error;

use super::{LayerRoutes, Strip, Trace};
use crate::Demand;

const MAGIC: &[u8; 8] = b"STRATART";
/// Version of a trace of a text alone, and of one with passes after it.
const TEXT: u32 = 1;
const WITH_DECODE: u32 = 2;
/// More than any model has; few enough that tables of layers and experts stay small.
const MOST_LAYERS: u32 = 1 << 12;
const MOST_EXPERTS: u32 = 1 << 16;
const MOST_EXPERTS_IN_ALL: u32 = 1 << 22;
/// Rows that a strip may have.
const MOST_ROWS: u32 = 1 << 20;

/// A trace could not be read.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The bytes could not be had.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// They are no trace, or not one of these versions.
    #[error("this is no route trace of version {TEXT} or {WITH_DECODE}")]
    NotATrace,
    /// A number makes no sense.
    #[error("broken trace: at offset {offset}, {what}")]
    Broken {
        /// Where, in bytes.
        offset: u64,
        /// What is wrong.
        what: String,
    },
}

impl Trace {
    /// Writes the trace.
    ///
    /// # Errors
    /// When `out` fails, or the trace is one that [`read`](Self::read) would refuse.
    pub fn write(&self, out: &mut impl Write) -> Result<(), TraceError> {
        let mut bytes = MAGIC.to_vec();
        let version = if self.decode.is_empty() { TEXT } else { WITH_DECODE };
        for number in [version, self.layers, self.experts, self.top_k, self.strips.len() as u32] {
            put(&mut bytes, number);
        }
        if version == WITH_DECODE {
            put(&mut bytes, self.decode.len() as u32);
        }
        for strip in self.strips.iter().chain(&self.decode) {
            put(&mut bytes, strip.rows);
            for layer in &strip.layers {
                put_list(&mut bytes, &layer.demand);
                put_list(&mut bytes, &layer.forecast);
            }
        }
        // What is written can be read: nobody records for an hour what no one takes.
        Self::read(&mut bytes.as_slice())?;
        Ok(out.write_all(&bytes)?)
    }

    /// Reads a trace of any origin. Memory grows with the bytes that there are, not with what they promise.
    ///
    /// # Errors
    /// When `input` fails, or holds anything but one trace in which every row is routed to as many experts as it must be.
    pub fn read(input: &mut impl Read) -> Result<Self, TraceError> {
        let mut input = Input { input, offset: 0 };
        let mut magic = [0; 8];
        for byte in &mut magic {
            *byte = input.byte()?.ok_or(TraceError::NotATrace)?;
        }
        if magic != *MAGIC {
            return Err(TraceError::NotATrace);
        }
        let version = input.number("the version", 0, u32::MAX)?;
        if version != TEXT && version != WITH_DECODE {
            return Err(TraceError::NotATrace);
        }
        let layers = input.number("the number of layers", 1, MOST_LAYERS)?;
        let experts = input.number("the number of experts", 1, MOST_EXPERTS.min(MOST_EXPERTS_IN_ALL / layers))?;
        let top_k = input.number("top-k", 1, experts)?;
        let strips = input.number("the number of strips", 1, u32::MAX)?;
        let passes = match version {
            WITH_DECODE => input.number("the number of passes after the text", 1, u32::MAX)?,
            _ => 0,
        };
        let mut trace = Self { layers, experts, top_k, strips: Vec::new(), decode: Vec::new() };
        for _ in 0..strips {
            let strip = input.strip(&trace)?;
            trace.strips.push(strip);
        }
        for _ in 0..passes {
            let strip = input.strip(&trace)?;
            trace.decode.push(strip);
        }
        match input.byte()? {
            None => Ok(trace),
            Some(_) => Err(input.broken("the trace has ended, but the file has not")),
        }
    }
}

fn put(bytes: &mut Vec<u8>, mut number: u32) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn put_list(bytes: &mut Vec<u8>, list: &[Demand]) {
    put(bytes, list.len() as u32);
    let mut next = 0;
    for Demand { expert, tokens } in list {
        // A list out of order, or without tokens, becomes one that cannot be read.
        put(bytes, expert.wrapping_sub(next));
        put(bytes, tokens.wrapping_sub(1));
        next = expert.wrapping_add(1);
    }
}

struct Input<'a, R> {
    input: &'a mut R,
    offset: u64,
}

impl<R: Read> Input<'_, R> {
    fn broken(&self, what: impl Into<String>) -> TraceError {
        TraceError::Broken { offset: self.offset, what: what.into() }
    }

    /// The next byte; `None` at the end.
    fn byte(&mut self) -> Result<Option<u8>, TraceError> {
        let mut byte = [0];
        loop {
            match self.input.read(&mut byte) {
                Ok(0) => return Ok(None),
                Ok(_) => {
                    self.offset += 1;
                    return Ok(Some(byte[0]));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn number(&mut self, name: &str, least: u32, most: u32) -> Result<u32, TraceError> {
        let (start, mut number, mut shift) = (self.offset, 0u64, 0);
        loop {
            let Some(byte) = self.byte()? else { return Err(self.broken("the file ends too early")) };
            number |= u64::from(byte & 0x7F) << shift;
            shift += 7;
            let is_last = byte & 0x80 == 0;
            if (is_last && byte == 0 && shift > 7) || (!is_last && shift > 28) {
                self.offset = start;
                return Err(self.broken(format!("{name} takes too many bytes")));
            }
            if is_last {
                break;
            }
        }
        if !(u64::from(least)..=u64::from(most)).contains(&number) {
            self.offset = start;
            return Err(self.broken(format!("{name} is {number}, which is not in {least}..={most}")));
        }
        Ok(number as u32)
    }

    fn strip(&mut self, trace: &Trace) -> Result<Strip, TraceError> {
        let rows = self.number("the number of rows", 1, MOST_ROWS)?;
        let mut strip = Strip { rows, layers: Vec::new() };
        for layer in 1..=trace.layers {
            let demand = self.list(trace, rows)?;
            let forecast = self.list(trace, rows)?;
            if demand.is_empty() {
                return Err(self.broken("rows are routed to no expert"));
            }
            if layer == trace.layers && !forecast.is_empty() {
                return Err(self.broken("there is no layer to forecast after the last"));
            }
            strip.layers.push(LayerRoutes { demand, forecast });
        }
        Ok(strip)
    }

    /// A list of so many rows' choices, or an empty one.
    fn list(&mut self, trace: &Trace, rows: u32) -> Result<Vec<Demand>, TraceError> {
        let len = self.number("the length of a list", 0, trace.experts)?;
        let (mut list, mut next, mut choices) = (Vec::new(), 0, 0);
        for _ in 0..len {
            let most = trace.experts.checked_sub(next + 1).ok_or_else(|| self.broken("there are no more experts"))?;
            let expert = next + self.number("the distance to an expert", 0, most)?;
            let tokens = self.number("the number of tokens, less one,", 0, rows - 1)? + 1;
            list.push(Demand { expert, tokens });
            next = expert + 1;
            choices += u64::from(tokens);
        }
        let wanted = u64::from(rows) * u64::from(trace.top_k);
        if !list.is_empty() && choices != wanted {
            return Err(self.broken(format!("{rows} rows make {choices} choices instead of {wanted}")));
        }
        Ok(list)
    }
}
