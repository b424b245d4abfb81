//! Tiles on processors without them, so that the kernels for them can be tested anywhere.
//!
//! Owns: a handler of SIGILL that executes the instructions that [`super::tiles`] uses, by their definitions in the Intel
//! SDM, on tiles of its own for each thread. Promises: the bits of real tiles. Refuses: every other instruction, and
//! what real tiles refuse; these get the signal's default action, the end of the process.

use std::cell::UnsafeCell;

use crate::Isa;

/// Registers of a tile's row: 16 values of 32 bits.
type Row = [u32; 16];

/// The state of a thread.
struct Tiles {
    /// Bytes in a row and rows of each tile; zero without a configuration.
    row_bytes: [usize; 8],
    rows: [usize; 8],
    data: [[Row; 16]; 8],
}

impl Tiles {
    const RELEASED: Self = Self { row_bytes: [0; 8], rows: [0; 8], data: [[[0; 16]; 16]; 8] };
}

thread_local! {
    // Made at compile time and without a destructor: the handler finds it in place.
    static TILES: UnsafeCell<Tiles> = const { UnsafeCell::new(Tiles::RELEASED) };
}

/// A memory operand: `base + displacement` and `index * scale`, which tile instructions use as the stride of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Memory {
    base: Base,
    index: Option<u8>,
    scale: u8,
    displacement: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    None,
    Register(u8),
    /// The address of the next instruction.
    Next,
}

/// An instruction on tiles; `u8` are their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instruction {
    Configure(Memory),
    Release,
    Zero(u8),
    Load(u8, Memory),
    Store(Memory, u8),
    /// TDPBF16PS: result, first factor, second factor.
    Product(u8, u8, u8),
}

/// Makes this process execute instructions on tiles; says whether that worked.
pub(super) fn install() -> bool {
    if !Isa::Avx2.is_available() {
        return false;
    }
    // SAFETY: zero is a valid action; `handle` has the signature that SA_SIGINFO asks for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGILL, &raw const action, std::ptr::null_mut()) == 0
    }
}

/// The handler. It runs where the instruction would have run, never in the middle of a call, so it may do what any
/// function may.
extern "C" fn handle(_signal: libc::c_int, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the third argument is the interrupted thread's context, this handler's alone.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let at = registers[libc::REG_RIP as usize] as usize;
    // SAFETY: the processor fetched these bytes; `decode` asks for no byte beyond the instruction.
    let decoded = decode(|i| unsafe { *(at as *const u8).wrapping_add(i) });
    let executed = decoded.and_then(|(instruction, len)| {
        let next = at + len;
        // SAFETY: no other reference to this thread's tiles: instructions on tiles do not interrupt this function.
        let tiles = unsafe { &mut *TILES.with(UnsafeCell::get) };
        // SAFETY: the instruction's memory is in the program's responsibility, as with real tiles.
        unsafe { execute(instruction, &|n| general_register(registers, n), next, tiles) }.then_some(next)
    });
    match executed {
        Some(next) => registers[libc::REG_RIP as usize] = next as i64,
        // The instruction runs again when the handler returns.
        // SAFETY: takes numbers only.
        None => unsafe { _ = libc::signal(libc::SIGILL, libc::SIG_DFL) },
    }
}

/// The general register that instructions call `n`.
fn general_register(registers: &[libc::greg_t; 23], n: u8) -> usize {
    use libc::{
        REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RAX, REG_RBP, REG_RBX, REG_RCX,
        REG_RDI, REG_RDX, REG_RSI, REG_RSP,
    };
    const ORDER: [libc::c_int; 16] = [
        REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI, REG_R8, REG_R9, REG_R10, REG_R11,
        REG_R12, REG_R13, REG_R14, REG_R15,
    ];
    registers[ORDER[usize::from(n)] as usize] as usize
}

/// The instruction on tiles whose bytes are `byte(0), byte(1), ...`, and its length. Asks for bytes in order, and for none
/// beyond the instruction.
fn decode(byte: impl Fn(usize) -> u8) -> Option<(Instruction, usize)> {
    // Three-byte VEX prefix of map 0F38 with W = 0, L = 0.
    if byte(0) != 0xc4 {
        return None;
    }
    let extensions = !byte(1);
    if byte(1) & 0x1f != 2 {
        return None;
    }
    let prefix = byte(2);
    if prefix & 0b1000_0100 != 0 {
        return None;
    }
    let (third, mandatory) = (!(prefix >> 3) & 0xf, prefix & 3);
    let opcode = byte(3);
    if !matches!(opcode, 0x49 | 0x4b | 0x5c) {
        return None;
    }
    let modrm = byte(4);
    let (mode, reg, rm) = (modrm >> 6, modrm >> 3 & 7, modrm & 7);
    // There are eight tiles: numbers of tiles have no extensions.
    let (reg_extended, index_extended, base_extended) =
        (extensions >> 7 & 1 != 0, extensions >> 6 & 1 != 0, extensions >> 5 & 1 != 0);
    if reg_extended || (mode == 3 && base_extended) || third > 7 {
        return None;
    }
    const NONE: u8 = 0;
    const F3: u8 = 2;
    const F2: u8 = 3;
    let instruction = match (opcode, mandatory, mode, third) {
        (0x49, NONE, 3, 0) if reg == 0 && rm == 0 => (Instruction::Release, 5),
        (0x49, F2, 3, 0) if rm == 0 => (Instruction::Zero(reg), 5),
        (0x5c, F3, 3, _) => (Instruction::Product(reg, rm, third), 5),
        (0x49, NONE, 0..=2, 0) if reg == 0 => {
            let (memory, len) = decode_memory(&byte, mode, rm, index_extended, base_extended);
            (Instruction::Configure(memory), len)
        }
        (0x4b, F2 | F3, 0..=2, 0) if rm == 4 => {
            let (memory, len) = decode_memory(&byte, mode, rm, index_extended, base_extended);
            (if mandatory == F2 { Instruction::Load(reg, memory) } else { Instruction::Store(memory, reg) }, len)
        }
        _ => return None,
    };
    Some(instruction)
}

/// The memory operand of an instruction whose ModRM is byte 4, and the instruction's length.
fn decode_memory(
    byte: &impl Fn(usize) -> u8,
    mode: u8,
    rm: u8,
    index_extended: bool,
    base_extended: bool,
) -> (Memory, usize) {
    let mut memory =
        Memory { base: Base::Register(rm | u8::from(base_extended) << 3), index: None, scale: 1, displacement: 0 };
    let mut at = 5;
    let mut base_bits = rm;
    if rm == 4 {
        let sib = byte(at);
        at += 1;
        base_bits = sib & 7;
        memory.base = Base::Register(base_bits | u8::from(base_extended) << 3);
        memory.scale = 1 << (sib >> 6);
        let index = sib >> 3 & 7 | u8::from(index_extended) << 3;
        memory.index = (index != 4).then_some(index);
    }
    let displacement_bytes = match mode {
        0 if base_bits == 5 => {
            memory.base = if rm == 5 { Base::Next } else { Base::None };
            4
        }
        0 => 0,
        1 => 1,
        _ => 4,
    };
    if displacement_bytes == 1 {
        memory.displacement = i32::from(byte(at) as i8);
    } else if displacement_bytes == 4 {
        memory.displacement = i32::from_le_bytes([byte(at), byte(at + 1), byte(at + 2), byte(at + 3)]);
    }
    (memory, at + displacement_bytes)
}

/// Executes an instruction; false when real tiles would refuse it.
///
/// # Safety
/// The memory that the instruction reads or writes must be readable or writable.
unsafe fn execute(instruction: Instruction, register: &impl Fn(u8) -> usize, next: usize, tiles: &mut Tiles) -> bool {
    let address = |memory: Memory| {
        let base = match memory.base {
            Base::None => 0,
            Base::Register(n) => register(n),
            Base::Next => next,
        };
        base.wrapping_add_signed(memory.displacement as isize)
    };
    let stride = |memory: Memory| memory.index.map_or(0, |n| register(n).wrapping_mul(usize::from(memory.scale)));
    match instruction {
        Instruction::Configure(memory) => {
            let at = address(memory).wrapping_add(stride(memory));
            // SAFETY: the caller's promise.
            configure(tiles, &unsafe { (at as *const [u8; 64]).read_unaligned() })
        }
        Instruction::Release => {
            *tiles = Tiles::RELEASED;
            true
        }
        Instruction::Zero(tile) => {
            let tile = usize::from(tile);
            tiles.data[tile] = [[0; 16]; 16];
            tiles.rows[tile] > 0
        }
        Instruction::Load(tile, memory) => {
            let tile = usize::from(tile);
            let mut data = [[0; 16]; 16];
            for r in 0..tiles.rows[tile] {
                let from = address(memory).wrapping_add(stride(memory).wrapping_mul(r)) as *const u8;
                // SAFETY: the caller's promise; a row of a tile has room for as many bytes as a configuration allows.
                unsafe { from.copy_to_nonoverlapping((&raw mut data[r]).cast(), tiles.row_bytes[tile]) };
            }
            tiles.data[tile] = data;
            tiles.rows[tile] > 0
        }
        Instruction::Store(memory, tile) => {
            let tile = usize::from(tile);
            for r in 0..tiles.rows[tile] {
                let to = address(memory).wrapping_add(stride(memory).wrapping_mul(r)) as *mut u8;
                // SAFETY: as above.
                unsafe { to.copy_from_nonoverlapping((&raw const tiles.data[tile][r]).cast(), tiles.row_bytes[tile]) };
            }
            tiles.rows[tile] > 0
        }
        Instruction::Product(result, a, b) => {
            let (result, a, b) = (usize::from(result), usize::from(a), usize::from(b));
            let fits = tiles.rows[result] == tiles.rows[a]
                && tiles.row_bytes[a] == 4 * tiles.rows[b]
                && tiles.row_bytes[result] == tiles.row_bytes[b];
            if !fits || tiles.rows[result] == 0 || result == a || result == b || a == b {
                return false;
            }
            // SAFETY: `install` has seen to the instructions.
            unsafe { add_products(tiles, result, a, b) };
            true
        }
    }
}

/// LDTILECFG of these 64 bytes.
fn configure(tiles: &mut Tiles, bytes: &[u8; 64]) -> bool {
    *tiles = Tiles::RELEASED;
    let [palette, start_row, ..] = *bytes;
    if palette == 0 {
        return true;
    }
    let unused_are_zero = [2..16, 32..48, 56..64].into_iter().all(|range| bytes[range].iter().all(|byte| *byte == 0));
    let mut valid = palette == 1 && start_row == 0 && unused_are_zero;
    for tile in 0..8 {
        let row_bytes = usize::from(u16::from_le_bytes([bytes[16 + 2 * tile], bytes[17 + 2 * tile]]));
        let rows = usize::from(bytes[48 + tile]);
        valid &= row_bytes <= 64 && rows <= 16 && row_bytes.is_multiple_of(4) && (row_bytes == 0) == (rows == 0);
        (tiles.row_bytes[tile], tiles.rows[tile]) = (row_bytes, rows);
    }
    valid
}

/// TDPBF16PS: the products of the lower halves and those of the upper halves are summed apart, fused, from zero; the two
/// sums are added, and that to the result.
#[target_feature(enable = "avx2,fma")]
fn add_products(tiles: &mut Tiles, result: usize, a: usize, b: usize) {
    let (a, b, pairs, columns) = (tiles.data[a], tiles.data[b], tiles.rows[b], tiles.row_bytes[b] / 4);
    for m in 0..tiles.rows[result] {
        let (mut lower, mut upper) = ([0.0f32; 16], [0.0f32; 16]);
        for k in 0..pairs {
            let (a_lower, a_upper) = halves(a[m][k]);
            for n in 0..columns {
                let (b_lower, b_upper) = halves(b[k][n]);
                lower[n] = flushed(a_lower.mul_add(b_lower, lower[n]));
                upper[n] = flushed(a_upper.mul_add(b_upper, upper[n]));
            }
        }
        for n in 0..columns {
            let sum = flushed(lower[n] + upper[n]);
            let value = &mut tiles.data[result][m][n];
            *value = flushed(flushed(f32::from_bits(*value)) + sum).to_bits();
        }
    }
}

/// The two bfloat16 values of a pair.
#[inline(always)]
fn halves(pair: u32) -> (f32, f32) {
    (flushed(f32::from_bits(pair << 16)), flushed(f32::from_bits(pair & 0xffff_0000)))
}

/// Zero of its sign for a subnormal number.
#[inline(always)]
fn flushed(value: f32) -> f32 {
    if value.abs() < f32::MIN_POSITIVE { 0.0f32.copysign(value) } else { value }
}
