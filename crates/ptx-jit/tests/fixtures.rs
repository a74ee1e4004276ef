//! Every kernel that nvcc made for the fixtures, as native code against the interpreter.

mod common;

use common::{Device, Params};
use mica_kernel::{BlockOutcome, Dim3};
use mica_ptx_jit::{JitModule, Options};
use std::path::PathBuf;
use std::sync::Arc;

fn fixtures() -> Vec<PathBuf> {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/ptx");
    // Any other folder of PTX can be put to the same test.
    let dir = std::env::var_os("MICA_PTX").map_or(own, PathBuf::from);
    let mut found: Vec<PathBuf> = std::fs::read_dir(&dir)
        .expect("tests/ptx")
        .map(|e| e.expect("an entry").path())
        .filter(|p| p.extension().is_some_and(|e| e == "ptx"))
        .collect();
    found.sort();
    assert!(!found.is_empty(), "fixtures are missing");
    found
}

#[test]
fn every_kernel_compiles() {
    let mut kernels = 0;
    let mut wrong: Vec<String> = Vec::new();
    // One architecture of each: the others differ in a few instructions only.
    for path in fixtures()
        .iter()
        .filter(|p| !p.to_string_lossy().contains(".75.") && !p.to_string_lossy().contains(".90."))
    {
        let text = std::fs::read(path).expect("a fixture");
        let parsed = Arc::new(mica_ptx::parse(&text).unwrap_or_else(|e| panic!("{path:?}: {e}")));
        // The others are compiled by the test below.
        for lanes in [8] {
            let options = Options {
                lanes,
                ..Options::default()
            };
            if refused(&String::from_utf8_lossy(&text)) {
                continue;
            }
            let module = match JitModule::compile(parsed.clone(), options) {
                Ok(m) => m,
                Err(e) => {
                    wrong.push(format!("{path:?}: {e}"));
                    continue;
                }
            };
            let infos = mica_kernel::Executable::kernels(&module).to_vec();
            for (i, info) in infos.iter().enumerate() {
                if let Err(e) = module.prepare_block(i, Dim3 { x: 32, y: 1, z: 1 }) {
                    wrong.push(format!("{path:?}: {} with {lanes} lanes: {e}", info.name));
                }
                kernels += 1;
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(kernels > 80, "only {kernels} kernels");
}

/// Kernels whose results depend on time or, with noise as input, on the order of threads.
const UNORDERED: [&str; 9] = [
    "pointers",
    "atomics_std",
    "with_lines",
    "special",
    "matmul_regs",
    "heap",
    "globals",
    "dynamic",
    "caches",
];

/// Runs a kernel with pointers to noise and small integers.
fn outcome(mut d: Device, kernel: &str, seed: u64) -> (BlockOutcome, u32, Vec<u32>) {
    let index = d.kernel(kernel);
    let info = d.module.kernels()[index].clone();
    let mut x = seed | 1;
    let mut next = move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    let mut p = Params::default();
    let mut buffers = Vec::new();
    for param in &info.params {
        p.0.resize(param.offset as usize, 0);
        match param.size {
            8 => {
                let noise: Vec<u32> = (0..2048)
                    .map(|i| match i % 3 {
                        0 => (next() % 1000) as u32,
                        1 => ((next() % 4096) as f32 / 64.0).to_bits(),
                        _ => next() as u32 & 0xff,
                    })
                    .collect();
                let at = d.upload(&noise);
                buffers.push(at);
                p.0.extend(at.to_le_bytes());
            }
            4 => p.0.extend(24u32.to_le_bytes()),
            n => p.0.extend(std::iter::repeat_n(0, n as usize)),
        }
    }
    let required = info.required_block;
    let block = if required.x != 0 {
        required
    } else {
        Dim3 { x: 32, y: 1, z: 1 }
    };
    let (o, f) = d.launch(kernel, Dim3 { x: 1, y: 1, z: 1 }, block, 4096, p);
    let memory = buffers.iter().flat_map(|b| d.read(*b, 2048)).collect();
    (o, f.kind, memory)
}

#[test]
fn kernels_do_to_noise_what_the_interpreter_does() {
    let mut compared = 0;
    let mut wrong = Vec::new();
    for path in fixtures()
        .iter()
        .filter(|p| !p.to_string_lossy().contains(".75.") && !p.to_string_lossy().contains(".90."))
    {
        let text = std::fs::read_to_string(path).expect("a fixture");
        let parsed = mica_ptx::parse(text.as_bytes()).expect("parses");
        let names: Vec<String> = parsed.kernels().map(|(_, k)| k.name.clone()).collect();
        for name in names {
            if UNORDERED.contains(&name.as_str()) {
                continue;
            }
            if refused(&text) {
                continue;
            }
            let want = outcome(Device::interpreter(&text), &name, 7);
            for lanes in [1, 16, 32] {
                let got = outcome(common::compiled(&text, lanes), &name, 7);
                if (got.0, got.1) != (want.0, want.1) {
                    wrong.push(format!(
                        "{path:?} {name}, {lanes} lanes: {:?}, not {:?}",
                        (got.0, got.1),
                        (want.0, want.1)
                    ));
                    continue;
                }
                if want.0 != BlockOutcome::Done {
                    continue; // how far it came before the fault is open
                }
                let bad =
                    (0..want.2.len()).find(|&i| !same(got.2[i], want.2[i], name == "math_f32"));
                if let Some(i) = bad {
                    wrong.push(format!(
                        "{path:?} {name}, {lanes} lanes: word {i} is {:#x}, not {:#x}",
                        got.2[i], want.2[i]
                    ));
                }
                compared += 1;
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(compared > 100, "only {compared} compared");
}

/// Modules that the interpreter refuses too.
fn refused(text: &str) -> bool {
    let parsed = mica_ptx::parse(text.as_bytes()).expect("parses");
    mica_ptx_interp::InterpModule::new(Arc::new(parsed)).is_err()
}

/// Equal bits, or both NaN (their payloads are the processor's), or neighbours where the fixture
/// uses approximate functions.
fn same(a: u32, b: u32, approximate: bool) -> bool {
    let nan = f32::from_bits(a).is_nan() && f32::from_bits(b).is_nan();
    a == b || nan || (approximate && a.abs_diff(b) <= 4)
}
