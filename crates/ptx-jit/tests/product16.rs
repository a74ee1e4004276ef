//! Products of 16-bit values, which vector code computes in lanes of 32 bits.

mod common;

use common::{Device, Params, compiled};

const KERNEL: &str = ".version 8.0\n.target sm_80\n.address_size 64\n\
    .visible .entry k(.param .u64 a, .param .u64 b, .param .u64 out)\n{\n\
    .reg .b64 %a, %b, %out, %x, %y, %to;\n.reg .b32 %t, %n, %p<6>;\n.reg .b16 %u, %v, %h<2>;\n\
    ld.param.u64 %a, [a]; ld.param.u64 %b, [b]; ld.param.u64 %out, [out];\n\
    mov.u32 %t, %tid.x; mad.wide.u32 %x, %t, 4, %a; mad.wide.u32 %y, %t, 4, %b;\n\
    mad.wide.u32 %to, %t, 24, %out;\n\
    ld.global.u16 %u, [%x]; ld.global.u16 %v, [%y];\n\
    mul.wide.u16 %p0, %u, %v; mul.wide.s16 %p1, %u, %v;\n\
    mul.wide.u16 %p2, %u, 4; mad.wide.s16 %p3, %u, -3, %p0;\n\
    mul.hi.u16 %h0, %u, %v; mul.hi.s16 %h1, %u, %v;\n\
    cvt.u32.u16 %p4, %h0; cvt.u32.u16 %p5, %h1;\n\
    st.global.u32 [%to], %p0; st.global.u32 [%to+4], %p1; st.global.u32 [%to+8], %p2;\n\
    st.global.u32 [%to+12], %p3; st.global.u32 [%to+16], %p4; st.global.u32 [%to+20], %p5;\n\
    ret;\n}\n";

fn products(a: u16, b: u16) -> [u32; 6] {
    let (u, v) = (u32::from(a), u32::from(b));
    let (s, t) = (i32::from(a as i16), i32::from(b as i16));
    let signed = (s * t) as u32;
    let mad = (s * -3) as u32;
    let upper = |p: u32| p >> 16;
    [
        u * v,
        signed,
        u * 4,
        mad.wrapping_add(u * v),
        upper(u * v),
        upper(signed),
    ]
}

#[test]
fn products_of_16_bits_are_exact_in_every_lane() {
    let edges = [0u16, 1, 2, 255, 256, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff];
    let pairs: Vec<(u16, u16)> = (0..112)
        .map(|i| match i < 100 {
            true => (edges[i / 10], edges[i % 10]),
            false => (
                40503u16.wrapping_mul(i as u16),
                25717u16.wrapping_mul(i as u16),
            ),
        })
        .collect();
    let want: Vec<u32> = pairs.iter().flat_map(|p| products(p.0, p.1)).collect();
    let words = |pick: fn(&(u16, u16)) -> u16| -> Vec<u32> {
        // What is beside a value in memory must not get into it.
        pairs
            .iter()
            .map(|p| 0xdead_0000 | u32::from(pick(p)))
            .collect()
    };
    let run = |mut d: Device| {
        let (a, b) = (d.upload(&words(|p| p.0)), d.upload(&words(|p| p.1)));
        let out = d.upload(&vec![0; want.len()]);
        let params = Params::default().u64(a).u64(b).u64(out);
        d.run("k", 1, pairs.len() as u32, params);
        d.read(out, want.len())
    };
    assert_eq!(run(Device::interpreter(KERNEL)), want, "interpreter");
    for lanes in [1, 4, 8, 16, 32] {
        assert_eq!(run(compiled(KERNEL, lanes)), want, "{lanes} lanes");
    }
}
