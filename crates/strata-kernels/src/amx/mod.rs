//! AMX: products of bfloat16 in tile registers (Intel SDM, volume 1 chapter 18).
//!
//! Owns: whether this process may use tiles, the layout of inputs that tiles multiply, and the product of a panel of
//! weights with them. Promises: an output value is the sum over blocks of 32 columns, in order, of what TDPBF16PS makes
//! of a block (the products of even columns and those of odd columns summed apart, then added); the number of input or
//! weight rows does not show. Tiles hold nothing between two calls, so threads and other users of tiles do not meet.
//! Refuses: to know of block formats; weights come as bfloat16.

mod product;
mod tiles;

#[cfg(all(feature = "emulated-amx", target_os = "linux"))]
mod emulated;

use std::sync::OnceLock;

pub(crate) use product::{multiply, pack, packed_lines};
pub(crate) use tiles::{bfloat16_products, int8_products};

/// Whether this process may use tiles; with the feature `emulated-amx`, whether it may or can act as if it might.
///
/// The kernel is asked once; when it refuses, the answer stays no.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| is_usable(processor(), enabled_state(), request_permission) || emulate())
}

/// What of CPUID and XCR0 counts, and what it must say.
pub(crate) const BF16: u32 = 1 << 22; // leaf 7, EDX, as the next two
pub(crate) const TILE: u32 = 1 << 24;
pub(crate) const INT8: u32 = 1 << 25;
const PROCESSOR_BITS: u32 = BF16 | TILE;
const STATE_BITS: u64 = 1 << 17 | 1 << 18; // XCR0: XTILECFG, XTILEDATA

/// Whether the processor has one of these features, whatever the system says.
pub(crate) fn has_feature(bit: u32) -> bool {
    processor() & bit != 0
}

fn is_usable(processor: u32, enabled_state: u64, request_permission: impl FnOnce() -> bool) -> bool {
    processor & PROCESSOR_BITS == PROCESSOR_BITS && enabled_state & STATE_BITS == STATE_BITS && request_permission()
}

/// CPUID leaf 7, EDX.
#[allow(unused_unsafe)] // CPUID is safe to call in newer standard libraries only
fn processor() -> u32 {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    // SAFETY: every x86-64 processor has CPUID.
    unsafe { if __cpuid(0).eax < 7 { 0 } else { __cpuid_count(7, 0).edx } }
}

/// XCR0: the register state that the system saves.
fn enabled_state() -> u64 {
    #[target_feature(enable = "xsave")]
    fn xcr0() -> u64 {
        // SAFETY: register 0 exists wherever the instruction does.
        unsafe { std::arch::x86_64::_xgetbv(0) }
    }
    // SAFETY: the feature is detected only where the system has enabled XGETBV, too.
    if is_x86_feature_detected!("xsave") { unsafe { xcr0() } } else { 0 }
}

/// Asks the kernel for room to save tiles in (Linux: Documentation/arch/x86/xstate.rst).
#[cfg(target_os = "linux")]
fn request_permission() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: this call takes two numbers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn request_permission() -> bool {
    false
}

#[cfg(all(feature = "emulated-amx", target_os = "linux"))]
fn emulate() -> bool {
    emulated::install()
}

#[cfg(not(all(feature = "emulated-amx", target_os = "linux")))]
fn emulate() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use crate::Isa;

    use super::{PROCESSOR_BITS, STATE_BITS, enabled_state, is_available, is_usable, processor, request_permission};

    #[test]
    fn tiles_need_the_processor_the_system_and_permission() {
        let asked = Cell::new(0);
        let answer = |yes| {
            asked.set(asked.get() + 1);
            yes
        };
        assert!(is_usable(PROCESSOR_BITS, STATE_BITS, || answer(true)));
        assert!(is_usable(!0, !0, || answer(true)));
        assert!(!is_usable(!0, !0, || answer(false)), "refused");
        assert_eq!(asked.get(), 3);
        for bit in [22, 24] {
            assert!(!is_usable(!(1 << bit), !0, || answer(true)), "CPUID bit {bit}");
        }
        for bit in [17, 18] {
            assert!(!is_usable(!0, !(1 << bit), || answer(true)), "XCR0 bit {bit}");
        }
        assert_eq!(asked.get(), 3, "the kernel is asked only for what the processor has");
    }

    #[test]
    #[cfg(not(miri))] // no CPUID there
    fn this_machine_is_judged_by_what_it_is() {
        assert_eq!(
            enabled_state() & 0b11,
            if enabled_state() == 0 { 0 } else { 0b11 },
            "x87 and SSE are always enabled"
        );
        let usable = is_usable(processor(), enabled_state(), request_permission);
        if usable {
            assert!(is_available());
        } else {
            let emulated = cfg!(all(feature = "emulated-amx", target_os = "linux")) && Isa::Avx2.is_available();
            assert_eq!(is_available(), emulated);
        }
        if processor() & 1 << 24 == 0 {
            assert!(!request_permission(), "permission for tiles that are not there");
        }
    }
}
