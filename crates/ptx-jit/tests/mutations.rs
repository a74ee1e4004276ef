//! Damaged programs are refused, or compiled and run to an end; a bounded part of `fuzz run jit`.
//!
//! `MICA_MUTATIONS=n` tries more.
#![allow(dead_code, unreachable_pub, reason = "the fuzz target uses all of it")]

#[path = "../../../fuzz/fuzz_targets/jit/device.rs"]
mod device;
#[path = "../../../fuzz/fuzz_targets/jit/mutate.rs"]
mod mutate;

/// How many changes are made to one text before the next begins anew.
const DEPTH: u32 = 6;

#[test]
fn damaged_programs_end() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/jit");
    let mut seeds: Vec<String> = std::fs::read_dir(folder)
        .expect("the corpus")
        .map(|e| std::fs::read_to_string(e.expect("a file").path()).expect("text"))
        .collect();
    seeds.sort();
    let count = std::env::var("MICA_MUTATIONS").ok();
    let count: u32 = count.and_then(|n| n.parse().ok()).unwrap_or(150);
    let device = device::Device::new().expect("address space");
    let mut ran = 0;
    let mut text = seeds[0].clone();
    for i in 0..count {
        if i % DEPTH == 0 {
            text.clone_from(&seeds[(i / DEPTH) as usize % seeds.len()]);
        }
        if let Some(changed) = mutate::text(&text, i.wrapping_mul(0x9e37_79b9) ^ i) {
            text = changed;
        }
        // Printed so that a crash names the program.
        if std::env::var_os("MICA_MUTATIONS_SAY").is_some() {
            let _ = std::fs::write(std::env::temp_dir().join("mutation.ptx"), &text);
        }
        ran += u32::from(device.take(text.as_bytes()));
    }
    assert!(ran > count / 10, "only {ran} of {count} were run");
}
