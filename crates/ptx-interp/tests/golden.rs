//! Every instruction of `tests/golden/h200_math.txt` as a kernel: parsed, interpreted, and compared
//! with what an H200 computed. What is tested here beyond `mica-ptx-ops`'s own test is the way from
//! the text to the operation: modifiers, operand order, widths of registers.

mod common;

use common::{Device, Params};
use std::collections::BTreeMap;

fn golden() -> Option<String> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/golden/h200_math.txt"
    );
    std::fs::read_to_string(path).ok()
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text, 16).expect("hexadecimal")
}

fn bits_of(word: &str) -> Option<u32> {
    let digits = match word {
        "tf32" => 32,
        "f16x2" | "bf16x2" => 32,
        "e4m3x2" | "e5m2x2" => 16,
        "bf16" => 16,
        _ => word.strip_prefix(['f', 's', 'u', 'b'])?.parse().ok()?,
    };
    Some(digits)
}

/// Register widths of destination and sources.
fn widths(instruction: &str, sources: usize) -> (u32, Vec<u32>) {
    let words: Vec<&str> = instruction.split('.').collect();
    let types: Vec<u32> = words[1..].iter().filter_map(|w| bits_of(w)).collect();
    let register = |bits: u32| bits.max(if bits == 8 { 32 } else { 16 });
    let first = register(types[0]);
    match words[0] {
        "cvt" if words.contains(&"pack") => (32, vec![32; sources]),
        "cvt" => (first, vec![register(types[1]); sources]),
        "mul" if words.contains(&"wide") => (2 * first, vec![first; sources]),
        "bfind" => (32, vec![first; sources]),
        "shl" | "shr" | "bfe" => {
            let mut all = vec![32; sources];
            all[0] = first;
            (first, all)
        }
        _ => (first, vec![first; sources]),
    }
}

const HEAD: &str = ".version 8.4\n.target sm_90\n.address_size 64\n";

/// A kernel in which thread `i` applies the instruction to the `i`-th operands.
fn scalar_kernel(instruction: &str, dst: u32, sources: &[u32]) -> String {
    let class = |bits: u32| match bits {
        16 => "h",
        64 => "d",
        _ => "r",
    };
    let mut text = format!(
        "{HEAD}.visible .entry k(.param .u64 in, .param .u64 out) {{
  .reg .b16 %h<5>; .reg .b32 %r<5>; .reg .b64 %d<5>; .reg .b64 %a<4>; .reg .b32 %t<4>;
  ld.param.u64 %a0, [in];
  ld.param.u64 %a1, [out];
  mov.u32 %t0, %ctaid.x;
  mov.u32 %t1, %tid.x;
  mad.lo.u32 %t0, %t0, 128, %t1;
  mul.wide.u32 %a2, %t0, 24;
  add.u64 %a0, %a0, %a2;
  mul.wide.u32 %a2, %t0, 8;
  add.u64 %a1, %a1, %a2;
  mov.u64 %d0, 0;
  st.global.u64 [%a1], %d0;\n"
    );
    let mut operands = vec![format!("%{}0", class(dst))];
    for (i, &bits) in sources.iter().enumerate() {
        let register = format!("%{}{}", class(bits), i + 1);
        text.push_str(&format!(
            "  ld.global.b{bits} {register}, [%a0+{}];\n",
            8 * i
        ));
        operands.push(register);
    }
    text.push_str(&format!("  {instruction} {};\n", operands.join(", ")));
    text.push_str(&format!(
        "  st.global.b{dst} [%a1], %{}0;\n  ret;\n}}\n",
        class(dst)
    ));
    text
}

struct Case {
    operands: Vec<u64>,
    expected: u64,
}

fn scalar_cases(text: &str) -> BTreeMap<&str, Vec<Case>> {
    let mut cases: BTreeMap<&str, Vec<Case>> = BTreeMap::new();
    for line in text
        .lines()
        .filter(|l| !l.starts_with('#') && !l.starts_with("mma"))
    {
        let (left, right) = line.split_once(" = ").expect("a result");
        let mut words = left.split(' ');
        let instruction = words.next().expect("an instruction");
        let case = Case {
            operands: words.map(hex).collect(),
            expected: hex(right),
        };
        cases.entry(instruction).or_default().push(case);
    }
    cases
}

fn same(instruction: &str, dst: u32, ours: u64, theirs: u64) -> bool {
    let mask = if dst == 64 { u64::MAX } else { (1 << dst) - 1 };
    let (ours, theirs) = (ours & mask, theirs & mask);
    if instruction.contains("approx") || instruction.contains("full") {
        // The error bounds are tested with the operations themselves.
        return true;
    }
    let is_f64 = instruction.ends_with(".f64") && !instruction.starts_with("cvt")
        || instruction.contains("f64.f");
    let nan = |x: u64| f64::from_bits(x).is_nan();
    ours == theirs || (is_f64 && nan(ours) && nan(theirs))
}

#[test]
fn scalar_kernels_match_the_gpu() {
    let Some(text) = golden() else { return };
    let mut report = String::new();
    let all = scalar_cases(&text);
    assert!(all.len() > 200, "the golden file is nearly empty");
    for (instruction, cases) in all {
        let (dst, sources) = widths(instruction, cases[0].operands.len());
        let mut device = Device::interpreter(&scalar_kernel(instruction, dst, &sources));
        let blocks = cases.len().div_ceil(128);
        let mut bytes = Vec::new();
        for i in 0..blocks * 128 {
            for j in 0..3 {
                let case = cases.get(i).map_or(&[][..], |c| &c.operands);
                bytes.extend(case.get(j).copied().unwrap_or(0).to_le_bytes());
            }
        }
        let (input, output) = (
            device.alloc(bytes.len() as u64),
            device.alloc(bytes.len() as u64),
        );
        device.write_bytes(input, &bytes);
        device.run(
            "k",
            blocks as u32,
            128,
            Params::default().u64(input).u64(output),
        );
        let results = device.read_bytes(output, 8 * cases.len());
        let mut shown = 0;
        for (case, bytes) in cases.iter().zip(results.chunks_exact(8)) {
            let ours = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
            if !same(instruction, dst, ours, case.expected) && shown < 3 {
                shown += 1;
                let (operands, expected) = (&case.operands, case.expected);
                report.push_str(&format!(
                    "\n{instruction} {operands:x?} = {expected:x}, ours {ours:x}"
                ));
            }
        }
    }
    assert!(report.is_empty(), "{report}");
}

/// A kernel in which each lane loads its registers, multiplies, and stores its part of D.
fn matrix_kernel(instruction: &str, counts: [usize; 4]) -> String {
    let double = instruction.contains("f64");
    let (size, ty) = if double { (8, "b64") } else { (4, "b32") };
    let total: usize = counts.iter().sum();
    let mut text = format!(
        "{HEAD}.visible .entry k(.param .u64 p) {{
  .reg .{ty} %x<{}>; .reg .b64 %a<3>; .reg .b32 %t<2>;
  ld.param.u64 %a0, [p];
  mov.u32 %t0, %tid.x;
  mul.wide.u32 %a1, %t0, {};
  add.u64 %a0, %a0, %a1;\n",
        total + 1,
        total * size
    );
    let [a, b, c, d] = counts;
    for i in 0..a + b + c {
        text.push_str(&format!("  ld.global.{ty} %x{i}, [%a0+{}];\n", i * size));
    }
    let list = |from: usize, count: usize| {
        let names: Vec<String> = (from..from + count).map(|i| format!("%x{i}")).collect();
        format!("{{{}}}", names.join(", "))
    };
    let all = [list(a + b + c, d), list(0, a), list(a, b), list(a + b, c)].join(", ");
    text.push_str(&format!("  {instruction} {all};\n"));
    for i in a + b + c..total {
        text.push_str(&format!("  st.global.{ty} [%a0+{}], %x{i};\n", i * size));
    }
    text.push_str("  ret;\n}\n");
    text
}

#[test]
fn matrix_kernels_match_the_gpu() {
    let Some(text) = golden() else { return };
    let lines: Vec<&str> = text.lines().filter(|l| l.starts_with("mma")).collect();
    let mut report = String::new();
    for warp in lines.chunks(32) {
        let instruction = warp[0].split(' ').next().expect("an instruction");
        let mut counts = [0; 4];
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        let size = if instruction.contains("f64") { 8 } else { 4 };
        for line in warp {
            let rest = line.split_once(' ').expect("operands").1.replace('=', "|");
            for (i, part) in rest.split('|').enumerate() {
                let words: Vec<u64> = part.split_whitespace().map(hex).collect();
                counts[i] = words.len();
                for word in &words {
                    let word = if i == 3 { 0 } else { *word };
                    bytes.extend(&word.to_le_bytes()[..size]);
                }
                if i == 3 {
                    expected.extend(words);
                }
            }
        }
        let mut device = Device::interpreter(&matrix_kernel(instruction, counts));
        let at = device.alloc(bytes.len() as u64);
        device.write_bytes(at, &bytes);
        device.run("k", 1, 32, Params::default().u64(at));
        let stride = counts.iter().sum::<usize>() * size;
        for (i, want) in expected.iter().enumerate() {
            let (lane, register) = (i / counts[3], i % counts[3]);
            let skip = (counts[0] + counts[1] + counts[2] + register) * size;
            let got = device.read_bytes(at + (lane * stride + skip) as u64, size);
            let mut word = [0; 8];
            word[..size].copy_from_slice(&got);
            let ours = u64::from_le_bytes(word);
            if !near(instruction, ours, *want) && report.len() < 2000 {
                report.push_str(&format!("\n{instruction}: {want:x}, ours {ours:x}"));
            }
        }
    }
    assert!(report.is_empty(), "{report}");
}

/// Integers and doubles are exact; single sums may differ in the last bits, halves by one unit.
fn near(instruction: &str, ours: u64, theirs: u64) -> bool {
    if ours == theirs {
        return true;
    }
    let single = |x: u64| f32::from_bits(x as u32);
    if instruction.contains(".f32.f16") || instruction.contains(".f32.bf16") {
        return (single(ours) - single(theirs)).abs() < 1e-3;
    }
    if instruction.contains(".f32.tf32") || instruction.contains(".f32.e4m3") {
        return (single(ours) - single(theirs)).abs() < 0.5;
    }
    let half =
        |x: u64, s: u32| mica_ptx_ops::float::to_f64(mica_ptx_ops::float::F16, x >> s & 0xffff);
    instruction.contains(".f16.f16")
        && [0, 16]
            .iter()
            .all(|&s| (half(ours, s) - half(theirs, s)).abs() <= 0.125)
}
