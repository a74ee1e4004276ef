use super::*;
use mica_ptx::ast::Op;

const ZERO: WarpRegister = [0; 32];

fn plan(text: &str) -> WgmmaPlan {
    let count = |n: usize| {
        (0..n)
            .map(|i| format!("%r{i}"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let text = (0..=128).rev().fold(text.to_owned(), |text, n| {
        text.replace(&format!("D{n},"), &format!("{{{}}},", count(n)))
    });
    let module = format!(
        ".version 8.4\n.target sm_90a\n.address_size 64\n.visible .entry k() {{\n.reg .b32 %r<128>;\n.reg .b64 %d<2>;\n\
         .reg .pred %p<1>;\nwgmma.mma_async.sync.aligned.{text};\n}}\n"
    );
    let module = mica_ptx::parse(module.as_bytes()).unwrap_or_else(|e| panic!("{e}"));
    let Op::Wgmma(inst) = &module.functions[0].body[0].op else {
        panic!("no product");
    };
    WgmmaPlan::of(inst).expect("has the registers of its shape")
}

/// A tile in shared memory as a copy by a tensor map leaves it: rows of `span` bytes, 16-byte pieces exchanged by the
/// number of the row; tiles of further columns behind.
struct Shared(Vec<u8>);

impl Shared {
    fn write(&mut self, start: usize, span: usize, row: usize, byte: usize, value: &[u8]) {
        let within = row * span + byte % span;
        let at = start + byte / span * 4096 + within;
        let at = at ^ (at >> 7 & (span / 16 - 1)) << 4;
        self.0[at..at + value.len()].copy_from_slice(value);
    }

    fn read(&self, at: u64) -> Option<[u8; PIECE]> {
        let piece = self.0.get(at as usize..at as usize + PIECE)?;
        piece.try_into().ok()
    }
}

fn swizzle(span: usize) -> u64 {
    match span {
        16 => 0,
        32 => 3,
        64 => 2,
        _ => 1,
    }
}

fn descriptor(start: usize, leading: usize, stride: usize, span: usize) -> Descriptor {
    let field = |bytes: usize| bytes as u64 >> 4;
    Descriptor::of(field(start) | field(leading) << 16 | field(stride) << 32 | swizzle(span) << 62)
}

fn half_bits(x: i64) -> [u8; 2] {
    (from_f64(float::F16, x as f64) as u16).to_le_bytes()
}

fn a_at(row: usize, k: usize) -> i64 {
    (row * 7 + k * 3) as i64 % 5 - 2
}

fn b_at(k: usize, col: usize) -> i64 {
    (k * 5 + col * 11) as i64 % 7 - 3
}

/// What a lane's register has after the product, in plain loops.
fn expected(warp: usize, lane: usize, register: usize, k: usize, start: i64) -> i64 {
    let row = warp * 16 + lane / 4 + 8 * (register / 2 % 2);
    let col = register / 4 * 8 + lane % 4 * 2 + register % 2;
    start + (0..k).map(|i| a_at(row, i) * b_at(i, col)).sum::<i64>()
}

#[test]
fn every_swizzle_of_rows_of_k() {
    let plan = plan("m64n16k16.f32.f16.f16 D8, %d0, %d1, %p0, 1, 1, 0, 0");
    for span in [16, 32, 64, 128] {
        let mut shared = Shared(vec![0; 32 << 10]);
        // The second step of k of the tile, where a row has room for one.
        let first = if span > 32 { 32 } else { 0 };
        for k in 0..16 {
            let byte = first + 2 * k;
            (0..64).for_each(|row| shared.write(0, span, row, byte, &half_bits(a_at(row, k))));
            (0..16).for_each(|col| shared.write(16384, span, col, byte, &half_bits(b_at(k, col))));
        }
        let of = |start: usize| descriptor(start + first, 4096, 8 * span, span);
        for warp in 0..4 {
            let mut d = [[f32::to_bits(2.0).into(); 32]; 8];
            let left = Left::Shared(of(0), warp as u32);
            plan.run(&left, of(16384), true, &mut d, &mut |at| shared.read(at))
                .expect("inside");
            for (register, lanes) in d.iter().enumerate() {
                for (lane, bits) in lanes.iter().enumerate() {
                    let want = expected(warp, lane, register, 16, 2);
                    assert_eq!(f32::from_bits(*bits as u32), want as f32, "span {span}");
                }
            }
        }
    }
}

#[test]
fn transposed_factors_of_every_swizzle() {
    let plan = plan("m64n64k16.f32.f16.f16 D32, %d0, %d1, %p0, 1, -1, 1, 1");
    for span in [16, 32, 64, 128] {
        let mut shared = Shared(vec![0; 64 << 10]);
        for k in 0..16 {
            (0..64).for_each(|x| shared.write(0, span, k, 2 * x, &half_bits(a_at(x, k))));
            (0..64).for_each(|x| shared.write(32768, span, k, 2 * x, &half_bits(b_at(k, x))));
        }
        // Without a pattern the roles of both distances are exchanged.
        let of = |start: usize| match span {
            16 => descriptor(start, 8 * span, 4096, span),
            _ => descriptor(start, 4096, 8 * span, span),
        };
        let mut d = [ZERO; 32];
        let left = Left::Shared(of(0), 2);
        plan.run(&left, of(32768), false, &mut d, &mut |at| shared.read(at))
            .expect("inside");
        for (register, lanes) in d.iter().enumerate() {
            let want = -expected(2, 9, register, 16, 0);
            assert_eq!(f32::from_bits(lanes[9] as u32), want as f32, "span {span}");
        }
    }
}

#[test]
fn integers_with_rows_in_registers() {
    let plan = plan("m64n8k32.s32.s8.s8 D4, {%r0, %r1, %r2, %r3}, %d1, %p0");
    let mut shared = Shared(vec![0; 4096]);
    for k in 0..32 {
        (0..8).for_each(|col| shared.write(0, 32, col, k, &[b_at(k, col) as u8]));
    }
    let mut a = [ZERO; 4];
    for (register, lanes) in a.iter_mut().enumerate() {
        for (lane, word) in lanes.iter_mut().enumerate() {
            let (row, k) = (
                lane / 4 + 8 * (register % 2),
                lane % 4 * 4 + 16 * (register / 2),
            );
            let bytes = std::array::from_fn(|i| a_at(row, k + i) as u8);
            *word = u32::from_le_bytes(bytes).into();
        }
    }
    let mut d = [[5; 32]; 4];
    let right = descriptor(0, 0, 256, 32);
    plan.run(&Left::Registers(&a), right, true, &mut d, &mut |at| {
        shared.read(at)
    })
    .expect("inside");
    for (register, lanes) in d.iter().enumerate() {
        for (lane, bits) in lanes.iter().enumerate() {
            assert_eq!(
                i64::from(*bits as u32 as i32),
                expected(0, lane, register, 32, 5)
            );
        }
    }
}

#[test]
fn what_lies_outside_ends_the_product() {
    let plan = plan("m64n8k16.f16.f16.f16 D2, %d0, %d1, %p0, 1, 1, 0, 0");
    let shared = Shared(vec![0; 1024]);
    let mut d = [[7; 32]; 2];
    let (near, far) = (descriptor(0, 0, 0, 128), descriptor(2048, 0, 0, 128));
    let left = Left::Shared(near, 0);
    let ended = plan.run(&left, far, true, &mut d, &mut |at| shared.read(at));
    assert_eq!(ended, None);
    assert_eq!(d, [[7; 32]; 2]);
}
