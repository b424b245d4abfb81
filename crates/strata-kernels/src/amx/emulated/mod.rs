//! Tiles on processors without them, so that the kernels for them can be tested anywhere.
//!
//! Owns: a handler of SIGILL that executes the instructions that [`super::tiles`] uses, by their definitions in the Intel
//! SDM, on tiles of its own for each thread. Promises: the bits of real tiles. Refuses: every other instruction, and
//! what real tiles refuse; these get the signal's default action, the end of the process.

mod decode;

use std::cell::UnsafeCell;

use crate::Isa;

use decode::{Base, Instruction, Memory, decode};

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
    // SAFETY: no other reference to this thread's tiles: instructions on tiles do not interrupt this function.
    let tiles = unsafe { &mut *TILES.with(UnsafeCell::get) };
    let first = registers[libc::REG_RIP as usize] as usize;
    let mut at = first;
    // Each signal is dear, so those that follow at once are executed, too.
    // SAFETY: the program is about to execute what is at `at`; `decode` asks for no byte beyond an instruction.
    while let Some((instruction, len)) = decode(|i| unsafe { *(at as *const u8).wrapping_add(i) }) {
        // SAFETY: the instruction's memory is in the program's responsibility, as with real tiles.
        if !unsafe { execute(instruction, &|n| general_register(registers, n), at + len, tiles) } {
            break;
        }
        at += len;
    }
    if at == first {
        // The instruction runs again when the handler returns.
        // SAFETY: takes numbers only.
        unsafe { libc::signal(libc::SIGILL, libc::SIG_DFL) };
    }
    registers[libc::REG_RIP as usize] = at as i64;
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
    let mut b_halves = [[[0.0f32; 16]; 2]; 16];
    for k in 0..pairs {
        for n in 0..16 {
            [b_halves[k][0][n], b_halves[k][1][n]] = halves(b[k][n]);
        }
    }
    for m in 0..tiles.rows[result] {
        let mut sums = [[0.0f32; 16]; 2];
        for k in 0..pairs {
            let a_halves = halves(a[m][k]);
            for half in 0..2 {
                for n in 0..16 {
                    sums[half][n] = flushed(a_halves[half].mul_add(b_halves[k][half][n], sums[half][n]));
                }
            }
        }
        for n in 0..columns {
            let sum = flushed(sums[0][n] + sums[1][n]);
            let value = &mut tiles.data[result][m][n];
            *value = flushed(flushed(f32::from_bits(*value)) + sum).to_bits();
        }
    }
}

/// The two bfloat16 values of a pair, the lower one first.
#[inline(always)]
fn halves(pair: u32) -> [f32; 2] {
    [flushed(f32::from_bits(pair << 16)), flushed(f32::from_bits(pair & 0xffff_0000))]
}

/// Zero of its sign for a subnormal number.
#[inline(always)]
fn flushed(value: f32) -> f32 {
    if value.abs() < f32::MIN_POSITIVE { 0.0f32.copysign(value) } else { value }
}

#[cfg(test)]
mod tests {
    use std::arch::asm;

    use super::super::is_available;
    use super::{Instruction, Row, Tiles, execute};

    /// Executes instructions on tiles that are given no registers.
    fn run(tiles: &mut Tiles, instruction: Instruction) -> bool {
        // SAFETY: no memory operands.
        unsafe { execute(instruction, &|_| unreachable!("a register"), 0, tiles) }
    }

    fn tiles(shapes: [(usize, usize); 8]) -> Tiles {
        Tiles { rows: shapes.map(|s| s.0), row_bytes: shapes.map(|s| s.1), data: [[[0; 16]; 16]; 8] }
    }

    fn pair(lower: f32, upper: f32) -> u32 {
        lower.to_bits() >> 16 | upper.to_bits() & 0xffff_0000
    }

    #[test]
    fn products_follow_their_definition() {
        // A: 3 rows of 2 pairs; B: 2 pairs of 5 columns.
        let mut t = tiles([(3, 20), (3, 8), (2, 20), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0)]);
        for m in 0..3 {
            for k in 0..2 {
                t.data[1][m][k] = pair((4 * m + 2 * k) as f32, (4 * m + 2 * k + 1) as f32);
            }
        }
        for k in 0..2 {
            for n in 0..5 {
                t.data[2][k][n] = pair((10 * k + n) as f32, -((10 * k + n) as f32) / 2.0);
            }
        }
        t.data[0][1][2] = 100f32.to_bits();
        assert!(run(&mut t, Instruction::Product(0, 1, 2)));
        let mut want: [Row; 16] = [[0; 16]; 16];
        for m in 0..3 {
            for n in 0..5 {
                let before = if (m, n) == (1, 2) { 100.0 } else { 0.0 };
                let a = |k: usize| (4 * m + k) as f32;
                let b = |k: usize| (10 * k + n) as f32;
                want[m][n] = (before + a(0) * b(0) - a(1) * b(0) / 2.0 + a(2) * b(1) - a(3) * b(1) / 2.0).to_bits();
            }
        }
        assert_eq!(t.data[0], want);
    }

    #[test]
    fn sums_of_lower_and_upper_halves_are_rounded_apart() {
        // One after the other, the ones would be lost beside 2^24; apart, they are not.
        let mut t = tiles([(1, 4), (1, 64), (16, 4), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0)]);
        t.data[1][0] = [pair(1.0, 1.0); 16];
        t.data[2][0][0] = pair(16_777_216.0, 1.0);
        (1..16).for_each(|k| t.data[2][k][0] = pair(0.0, 1.0));
        assert!(run(&mut t, Instruction::Product(0, 1, 2)));
        assert_eq!(f32::from_bits(t.data[0][0][0]), 16_777_232.0);
    }

    #[test]
    fn what_tiles_refuse_is_refused() {
        let fitting = [(3, 20), (3, 8), (2, 20), (3, 20), (3, 8), (2, 16), (2, 8), (0, 0)];
        assert!(run(&mut tiles(fitting), Instruction::Product(0, 1, 2)));
        let cases = [(0, 0, 2), (0, 1, 1), (0, 4, 5), (0, 6, 2), (7, 7, 7), (0, 3, 2), (0, 1, 7)];
        for (result, a, b) in cases {
            assert!(!run(&mut tiles(fitting), Instruction::Product(result, a, b)), "{result} {a} {b}");
        }
        assert!(!run(&mut tiles(fitting), Instruction::Zero(7)), "a tile that is not configured");
        let configured = |change: &dyn Fn(&mut [u8; 64])| {
            let mut bytes = [0; 64];
            (bytes[0], bytes[16], bytes[48]) = (1, 64, 16);
            change(&mut bytes);
            super::configure(&mut tiles(fitting), &bytes)
        };
        assert!(configured(&|_| {}));
        for (at, value) in [(0, 2), (2, 1), (16, 65), (16, 0), (17, 1), (32, 4), (48, 17), (48, 0), (56, 1), (63, 1)] {
            assert!(!configured(&|bytes| bytes[at] = value), "byte {at} is {value}");
        }
    }

    #[test]
    fn instructions_of_the_assembler_run_through_every_form_of_address() {
        if !is_available() {
            return;
        }
        let mut configuration = [0u8; 64];
        configuration[0] = 1;
        (0..8).for_each(|tile| (configuration[16 + 2 * tile], configuration[48 + tile]) = (64, 16));
        let from: Vec<u32> = (0..16 * 32).collect(); // rows are 128 bytes apart
        let mut to = vec![!0u32; 5 * 256];
        // SAFETY: loads 16 rows of `from`, stores five times 16 rows of 64 bytes to `to`.
        unsafe {
            asm!(
                "ldtilecfg [r13]",
                "tileloadd tmm1, [r12 + {from_stride}*1]",
                "tilestored [r8 + {line}*1], tmm1",
                "lea r13, [r12 - 1024]",
                "shr {from_stride}, 2",
                "tileloadd tmm2, [r13 + {from_stride}*4 + 1024]",
                "tilestored [r8 + {line}*1 + 1024], tmm2",
                "tileloadd tmm3, [r12 + {from_stride}*4 + 64]",
                "shr {line}, 3",
                "add r8, 2112",
                "tilestored [r8 + {line}*8 - 64], tmm3",
                "add r8, 1024",
                "mov r9, {line}",
                "tilezero tmm7",
                "tilestored [r8 + r9*8 - 64], tmm7",
                "tileloadd tmm7, [r12]", // no stride: each row is the first
                "tilestored [r8 + r9*8 + 960], tmm7",
                "tilezero tmm7",
                "tilerelease",
                from_stride = inout(reg) 128usize => _,
                line = inout(reg) 64usize => _,
                inout("r8") to.as_mut_ptr() => _,
                out("r9") _,
                in("r12") from.as_ptr(),
                inout("r13") configuration.as_ptr() => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
        let row = |r: usize, first: usize| (0..16).map(move |i| (32 * r + first + i) as u32);
        let want = (0..16).flat_map(|r| row(r, 0)).chain((0..16).flat_map(|r| row(r, 0)));
        let want = want.chain((0..16).flat_map(|r| row(r, 16))).chain([0; 256]);
        let want: Vec<u32> = want.chain((0..16).flat_map(|_| row(0, 0))).collect();
        assert_eq!(to, want);
    }

    /// The signal that ends a process which runs `body`.
    ///
    /// # Safety
    /// `body` must not return, allocate or take a lock.
    unsafe fn signal_that_ends(body: impl FnOnce()) -> i32 {
        // SAFETY: the child only runs `body`.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                body();
                libc::_exit(0);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            if libc::WIFSIGNALED(status) { libc::WTERMSIG(status) } else { 0 }
        }
    }

    #[test]
    fn illegal_instructions_still_end_the_process() {
        if !is_available() {
            return;
        }
        // SAFETY: each body is a few instructions. Tiles are free for this function to use.
        unsafe {
            assert_eq!(signal_that_ends(|| asm!("tilerelease")), 0);
            assert_eq!(signal_that_ends(|| asm!("ud2")), libc::SIGILL);
            assert_eq!(signal_that_ends(|| asm!("tilerelease", "tilezero tmm0", out("tmm0") _)), libc::SIGILL);
        }
    }
}
