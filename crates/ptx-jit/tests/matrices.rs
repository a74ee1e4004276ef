//! Matrices that a whole warp loads and stores: layouts, distances of rows, tiles, faults, against the interpreter.

mod common;

use common::{Device, Params, compiled, dim};
use mica_kernel::BlockOutcome;

/// Bytes of the memory that kernels read and write.
const BYTES: usize = 1 << 14;
const LANES: [u32; 5] = [1, 4, 8, 16, 32];

/// The text of a kernel of one warp with the address of a matrix in `%m` and the distance of its rows in `%s`; each lane
/// has 64 bytes of its own at `%o`. Instructions of `body` have 8 registers `%r`, `%f` and `%d` each.
fn kernel(body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n\
         .visible .entry k(.param .u64 m, .param .u64 o, .param .u32 s)\n{{\n\
         .reg .b64 %m, %o, %l, %a;\n.reg .b32 %s, %t, %x, %r<8>;\n.reg .f32 %f<8>;\n.reg .f64 %d<8>;\n\
         ld.param.u64 %m, [m]; ld.param.u64 %o, [o]; ld.param.u32 %s, [s];\n\
         mov.u32 %t, %tid.x; mul.wide.u32 %l, %t, 64; add.u64 %o, %o, %l;\n\
         {body}\nret;\n}}\n"
    )
}

/// Where a kernel is told that its matrix is.
#[derive(Clone, Copy)]
enum At {
    /// So many bytes into its memory.
    Inside(u64),
    /// So many bytes before the end of all memory.
    BeforeEnd(u64),
}

/// Words of the memory that kernels may change, and of what the lanes have; or what ended the kernel, and how far from the
/// beginning of all memory.
type Outcome = Result<[Vec<u32>; 2], (u32, u64)>;

/// Runs one warp.
fn run(mut d: Device, at: At, stride: u32) -> Outcome {
    // Halves that are no NaN.
    let words: Vec<u32> = (0..BYTES as u32 / 4)
        .map(|i| i.wrapping_mul(2_654_435_761) & 0x3bff_3bff)
        .collect();
    let (matrix, own) = (d.upload(&words), d.upload(&words[..512]));
    let (base, end) = d.arena();
    let at = match at {
        At::Inside(offset) => matrix + offset,
        At::BeforeEnd(bytes) => end - bytes,
    };
    let params = Params::default().u64(at).u64(own).u32(stride);
    match d.launch("k", dim(1), dim(32), 0, params) {
        (BlockOutcome::Done, _) => Ok([d.read(matrix, words.len()), d.read(own, 512)]),
        (_, fault) => Err((fault.kind, fault.address.wrapping_sub(base))),
    }
}

/// What the compiler does with a kernel is what the interpreter does.
fn agree(body: &str, at: At, stride: u32) -> Outcome {
    let text = kernel(body);
    let want = run(Device::interpreter(&text), at, stride);
    for lanes in LANES {
        assert_eq!(
            run(compiled(&text, lanes), at, stride),
            want,
            "{lanes} lanes, {stride}:\n{body}"
        );
    }
    want
}

/// Matrix, shape, type and registers.
const FRAGMENTS: [(&str, &str, &str, usize); 14] = [
    ("a", "m16n16k16", "f16", 8),
    ("b", "m16n16k16", "f16", 8),
    ("a", "m32n8k16", "f16", 8),
    ("b", "m8n32k16", "f16", 8),
    ("c", "m16n16k16", "f16", 4),
    ("c", "m16n16k16", "f32", 8),
    ("c", "m32n8k16", "f32", 8),
    ("a", "m16n16k16", "bf16", 4),
    ("a", "m16n16k16", "s8", 2),
    ("b", "m32n8k16", "u8", 1),
    ("c", "m8n32k16", "s32", 8),
    ("a", "m16n16k8", "tf32", 4),
    ("b", "m8n8k4", "f64", 1),
    // Elements that are no bytes go lane by lane.
    ("a", "m8n8k32", "s4", 1),
];

/// The names of registers of a type, the size of an element in bits, and what stores a register.
fn registers(ty: &str, count: usize) -> (String, u32, &'static str) {
    let (name, bits, store) = match ty {
        "f32" => ("%f", 32, "st.global.f32"),
        "f64" => ("%d", 64, "st.global.f64"),
        "s32" | "tf32" => ("%r", 32, "st.global.b32"),
        "s8" | "u8" => ("%r", 8, "st.global.b32"),
        "s4" => ("%r", 4, "st.global.b32"),
        _ => ("%r", 16, "st.global.b32"),
    };
    let list: Vec<String> = (0..count).map(|i| format!("{name}{i}")).collect();
    (list.join(", "), bits, store)
}

#[test]
fn fragments_are_loaded_as_by_the_interpreter() {
    for (matrix, shape, ty, count) in FRAGMENTS {
        let (list, bits, store) = registers(ty, count);
        for layout in ["row", "col"] {
            if (ty, (matrix, layout)) == ("s4", ("a", "col")) {
                continue;
            }
            let stores: String = list
                .split(", ")
                .enumerate()
                .map(|(i, r)| format!("{store} [%o+{}], {r};\n", 8 * i))
                .collect();
            let body = format!(
                "wmma.load.{matrix}.sync.aligned.{layout}.{shape}.global.{ty} {{{list}}}, [%m], %s;\n{stores}"
            );
            for stride in [32, 40, 64] {
                agree(&body, At::Inside(256), stride).expect("a good end");
            }
            // Misaligned, and beyond the end of all memory.
            if bits > 8 {
                agree(&body, At::Inside(1), 32).expect_err("a fault");
            }
            agree(&body, At::BeforeEnd(32), 64).expect_err("a fault");
        }
    }
}

#[test]
fn fragments_are_stored_as_by_the_interpreter() {
    for (shape, ty, count) in [
        ("m16n16k16", "f16", 4),
        ("m16n16k16", "f32", 8),
        ("m8n32k16", "f32", 8),
        ("m32n8k16", "s32", 8),
        ("m8n8k4", "f64", 2),
    ] {
        let (list, _, store) = registers(ty, count);
        let load = store.replace("st.", "ld.");
        let loads: String = list
            .split(", ")
            .enumerate()
            .map(|(i, r)| format!("{load} {r}, [%o+{}];\n", 8 * i))
            .collect();
        for layout in ["row", "col"] {
            let body = format!(
                "{loads}wmma.store.d.sync.aligned.{layout}.{shape}.global.{ty} [%m], {{{list}}}, %s;"
            );
            for stride in [32, 40] {
                agree(&body, At::Inside(512), stride).expect("a good end");
            }
            agree(&body, At::BeforeEnd(32), 64).expect_err("a fault");
        }
    }
}

/// Lanes give the rows of tiles in an order of their own.
const ROWS: &str = "mad.lo.u32 %x, %t, 7, 5; and.b32 %x, %x, 31; mul.lo.u32 %x, %x, %s; cvt.u64.u32 %a, %x;\n\
     add.u64 %a, %a, %m;\n";

#[test]
fn tiles_are_moved_as_by_the_interpreter() {
    for (count, list) in [(1, "%r0"), (2, "%r0, %r1"), (4, "%r0, %r1, %r2, %r3")] {
        for trans in ["", ".trans"] {
            let stores: String = (0..count)
                .map(|i| format!("st.global.b32 [%o+{}], %r{i};\n", 4 * i))
                .collect();
            let load = format!(
                "{ROWS}ldmatrix.sync.aligned.m8n8.x{count}{trans}.b16 {{{list}}}, [%a];\n{stores}"
            );
            let loads: String = (0..count)
                .map(|i| format!("ld.global.b32 %r{i}, [%o+{}];\n", 4 * i))
                .collect();
            let store = format!(
                "{ROWS}{loads}stmatrix.sync.aligned.m8n8.x{count}{trans}.b16 [%a], {{{list}}};"
            );
            for body in [load, store] {
                agree(&body, At::Inside(1024), 48).expect("a good end");
                agree(&body, At::Inside(1028), 48).expect_err("a fault");
                agree(&body, At::BeforeEnd(64), 4096).expect_err("a fault");
            }
        }
    }
}
