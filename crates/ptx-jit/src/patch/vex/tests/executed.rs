//! Every legacy instruction that has a replacement, and its replacement, run by this processor: they must leave
//! the same registers, flags and memory.

use super::*;

/// What an instruction reads and writes. The code below knows the layout.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    vectors: [u128; 16],
    /// `rax`, `rcx`, `rdx`, `r8`, `r9` and `r10`, then flags.
    integers: [u64; 8],
    memory: [u64; 4],
}

const MEMORY: u32 = 256 + 64;

/// Executable memory.
struct Page(*mut u8);

impl Page {
    fn new() -> Page {
        let access = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh private mapping.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, access, kind, -1, 0) };
        assert_ne!(page, libc::MAP_FAILED);
        Page(page.cast())
    }

    fn run(&self, code: &[u8], state: &mut State) {
        assert!(code.len() <= 4096);
        // SAFETY: the mapping has room for all bytes.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), self.0, code.len()) };
        // SAFETY: the mapping holds a function of this signature.
        let f: extern "C" fn(*mut State) = unsafe { std::mem::transmute(self.0) };
        f(state);
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: our own mapping.
        unsafe { libc::munmap(self.0.cast(), 4096) };
    }
}

/// A function that loads registers from `rdi`, executes an instruction, and stores registers. Memory operands of
/// the instruction are at `rsi`.
fn around(instruction: &[u8]) -> Vec<u8> {
    let mut code = Vec::new();
    let vectors = |code: &mut Vec<u8>, opcode: u8| {
        for i in 0..16u8 {
            // movups, from or to 16 * i(%rdi)
            code.extend([0x40 | (i >> 3) << 2, 0x0f, opcode, 0x87 | (i & 7) << 3]);
            code.extend((16 * u32::from(i)).to_le_bytes());
        }
    };
    let integers = |code: &mut Vec<u8>, opcode: u8| {
        for (i, r) in [0u8, 1, 2, 8, 9, 10].into_iter().enumerate() {
            // mov, from or to 256 + 8 * i(%rdi)
            code.extend([0x48 | (r >> 3) << 2, opcode, 0x87 | (r & 7) << 3]);
            code.extend((256 + 8 * i as u32).to_le_bytes());
        }
    };
    vectors(&mut code, 0x10);
    integers(&mut code, 0x8b);
    // lea MEMORY(%rdi), %rsi; xor %r11d, %r11d, so that flags are known
    code.extend([0x48, 0x8d, 0xb7]);
    code.extend(MEMORY.to_le_bytes());
    code.extend([0x45, 0x31, 0xdb]);
    code.extend(instruction);
    // pushf; pop 256 + 48(%rdi)
    code.extend([0x9c, 0x8f, 0x87]);
    code.extend((256u32 + 48).to_le_bytes());
    integers(&mut code, 0x89);
    vectors(&mut code, 0x11);
    code.push(0xc3);
    code
}

fn state(seed: &mut u64) -> State {
    let mut next = || {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        *seed
    };
    // Floats of moderate size in every lane, so that conversions and comparisons have something to do.
    let mut lane = || 0x4000_0000 | (next() & 0x83ff_ffff);
    let mut vector = || (0..4).fold(0, |v, _| v << 32 | u128::from(lane()));
    State {
        vectors: std::array::from_fn(|_| vector()),
        integers: std::array::from_fn(|i| if i < 6 { next() } else { 0 }),
        memory: std::array::from_fn(|_| next()),
    }
}

/// Operands whose integer registers are among those that `around` keeps.
const REGISTERS: [u8; 3] = [0, 1, 2];

fn instructions() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for prefix in [0u8, 0x66, 0xf2, 0xf3] {
        for rex in [
            None,
            Some(0x40),
            Some(0x41),
            Some(0x44),
            Some(0x45),
            Some(0x48),
        ] {
            for opcode in 0x10..=0xfeu8 {
                for (reg, rm) in REGISTERS.iter().flat_map(|a| REGISTERS.map(|b| (*a, b))) {
                    for operand in [0xc0 | reg << 3 | rm, reg << 3 | 6] {
                        let shift = matches!(opcode, 0x71..=0x73);
                        let operand = if shift {
                            operand & 0xc7 | 2 << 3
                        } else {
                            operand
                        };
                        let mut one: Vec<u8> = Vec::new();
                        one.extend((prefix != 0).then_some(prefix));
                        one.extend(rex);
                        one.extend([0x0f, opcode, operand, 0x05]);
                        all.push(one);
                    }
                }
            }
        }
    }
    all
}

#[test]
fn replacements_do_what_the_processor_did_before() {
    if !std::is_x86_feature_detected!("avx") {
        return;
    }
    let page = Page::new();
    let mut seed = 0x9e37_79b9_7f4a_7c15;
    let (mut run, mut opcodes) = (0, std::collections::BTreeSet::new());
    for mut legacy in instructions() {
        let Some(Instruction {
            len,
            kind: Kind::Sse(sse),
        }) = decode(&legacy)
        else {
            continue;
        };
        legacy.truncate(len);
        // With REX.B the address is %r14, which is not ours to use.
        let is_memory = legacy[sse.opcode + 1] >> 6 != 0b11;
        if is_memory && sse.rex.is_some_and(|rex| rex & 1 == 1) {
            continue;
        }
        let Some(vex) = replaced(&legacy) else {
            continue;
        };
        assert_eq!(
            decode(&vex).map(|i| (i.len, i.kind)),
            Some((len, Kind::Other))
        );
        let before = state(&mut seed);
        let (mut want, mut got) = (before, before);
        page.run(&around(&legacy), &mut want);
        page.run(&around(&vex), &mut got);
        assert_eq!(got, want, "{legacy:02x?} became {vex:02x?}");
        run += 1;
        opcodes.insert((sse.prefix, legacy[sse.opcode]));
    }
    assert!(
        run > 5000 && opcodes.len() > 120,
        "{run} of {} opcodes",
        opcodes.len()
    );
}
