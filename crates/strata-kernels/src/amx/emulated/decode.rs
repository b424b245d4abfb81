//! The machine code of the instructions on tiles (Intel SDM, volume 2, section 2.3 and their pages).

/// A memory operand: `base + displacement` and `index * scale`, which tile instructions use as the stride of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) base: Base,
    pub(super) index: Option<u8>,
    pub(super) scale: u8,
    pub(super) displacement: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    None,
    Register(u8),
    /// The address of the next instruction.
    Next,
}

/// An instruction on tiles; `u8` are their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Instruction {
    Configure(Memory),
    Release,
    Zero(u8),
    Load(u8, Memory),
    Store(Memory, u8),
    /// TDPBF16PS: result, first factor, second factor.
    Product(u8, u8, u8),
}

/// The instruction on tiles whose bytes are `byte(0), byte(1), ...`, and its length. Asks for bytes in order, and for none
/// beyond the instruction.
pub(super) fn decode(byte: impl Fn(usize) -> u8) -> Option<(Instruction, usize)> {
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

#[cfg(test)]
mod tests {
    use super::{Base, Instruction, Memory, decode};

    fn memory(base: Base, index: Option<u8>, scale: u8, displacement: i32) -> Memory {
        Memory { base, index, scale, displacement }
    }

    #[test]
    fn instructions_are_decoded() {
        use Base::{Next, None as NoBase, Register};
        use Instruction::{Configure, Load, Product, Release, Store, Zero};
        let (rax, rcx, rdx, rbx, rsp, rbp, rdi, r9, r12, r13) = (0, 1, 2, 3, 4, 5, 7, 9, 12, 13);
        #[rustfmt::skip]
        let cases: &[(&[u8], Instruction)] = &[
            (&[0xc4, 0xe2, 0x78, 0x49, 0xc0], Release),
            (&[0xc4, 0xe2, 0x7b, 0x49, 0xc0], Zero(0)),
            (&[0xc4, 0xe2, 0x7b, 0x49, 0xe8], Zero(5)),
            (&[0xc4, 0xe2, 0x4a, 0x5c, 0xc4], Product(0, 4, 6)),
            (&[0xc4, 0xe2, 0x42, 0x5c, 0xdd], Product(3, 5, 7)),
            (&[0xc4, 0xe2, 0x7b, 0x4b, 0x24, 0x17], Load(4, memory(Register(rdi), Some(rdx), 1, 0))),
            (&[0xc4, 0xe2, 0x7b, 0x4b, 0xb4, 0x17, 0, 4, 0, 0], Load(6, memory(Register(rdi), Some(rdx), 1, 1024))),
            (&[0xc4, 0x82, 0x7a, 0x4b, 0x4c, 0x4d, 0x10], Store(memory(Register(r13), Some(r9), 2, 16), 1)),
            (&[0xc4, 0xe2, 0x7a, 0x4b, 0x7c, 0x9d, 0xf0], Store(memory(Register(rbp), Some(rbx), 4, -16), 7)),
            (&[0xc4, 0xa2, 0x7b, 0x4b, 0x04, 0xe1], Load(0, memory(Register(rcx), Some(r12), 8, 0))),
            (&[0xc4, 0xe2, 0x7b, 0x4b, 0x04, 0x24], Load(0, memory(Register(rsp), None, 1, 0))),
            (&[0xc4, 0xe2, 0x7b, 0x4b, 0x04, 0x05, 0, 1, 0, 0], Load(0, memory(NoBase, Some(rax), 1, 256))),
            (&[0xc4, 0xe2, 0x78, 0x49, 0x01], Configure(memory(Register(rcx), None, 1, 0))),
            (&[0xc4, 0xe2, 0x78, 0x49, 0x44, 0x24, 0x08], Configure(memory(Register(rsp), None, 1, 8))),
            (&[0xc4, 0xc2, 0x78, 0x49, 0x45, 0xc0], Configure(memory(Register(r13), None, 1, -64))),
            (&[0xc4, 0xe2, 0x78, 0x49, 0x05, 0, 0, 0, 0xff], Configure(memory(Next, None, 1, -1 << 24))),
        ];
        for (bytes, instruction) in cases {
            // A byte beyond the instruction would be out of bounds.
            assert_eq!(decode(|i| bytes[i]), Some((*instruction, bytes.len())), "{bytes:x?}");
        }
    }

    #[test]
    fn other_instructions_are_not_decoded() {
        #[rustfmt::skip]
        let cases: &[(&str, &[u8])] = &[
            ("ud2", &[0x0f, 0x0b]),
            ("two-byte VEX", &[0xc5, 0xf8, 0x77]),
            ("EVEX", &[0x62, 0xf2, 0x7f, 0x48, 0x72, 0xc0]),
            ("vpermd: another map", &[0xc4, 0xe1, 0x78, 0x49, 0xc0]),
            ("W = 1", &[0xc4, 0xe2, 0xf8, 0x49, 0xc0]),
            ("L = 1", &[0xc4, 0xe2, 0x7c, 0x49, 0xc0]),
            ("vfmadd132ps", &[0xc4, 0xe2, 0x71, 0x98, 0xc2]),
            ("sttilecfg", &[0xc4, 0xe2, 0x79, 0x49, 0x01]),
            ("tileloaddt1", &[0xc4, 0xe2, 0x79, 0x4b, 0x04, 0x17]),
            ("tileloadd without SIB", &[0xc4, 0xe2, 0x7b, 0x4b, 0x01]),
            ("tdpfp16ps", &[0xc4, 0xe2, 0x4b, 0x5c, 0xc4]),
            ("tilezero of a ninth tile", &[0xc4, 0x62, 0x7b, 0x49, 0xc0]),
            ("product with a ninth tile", &[0xc4, 0xe2, 0x3a, 0x5c, 0xc4]),
            ("tilezero that names a third operand", &[0xc4, 0xe2, 0x4b, 0x49, 0xc0]),
        ];
        for (name, bytes) in cases {
            assert_eq!(decode(|i| bytes[i]), None, "{name}");
        }
    }
}
