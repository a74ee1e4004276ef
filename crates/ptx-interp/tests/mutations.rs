//! Kernels with random mistakes in them: whatever parses and is accepted may fault or be cancelled,
//! but never panics, hangs or leaves the arena.

mod common;

use common::dim;
use mica_kernel::{
    BlockContext, BlockOutcome, Dim3, Executable, Services, ServicesRef, TextureView, stop,
};
use mica_ptx_interp::InterpModule;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Cancels after some looks at the stop word, so that endless loops end without a clock.
struct Impatient {
    polls: AtomicU32,
    heap: u64,
    texture: TextureView,
}

impl Services for Impatient {
    fn pause(&self) -> bool {
        self.polls.fetch_add(1, Ordering::Relaxed) < 20
    }
    fn printf(&self, _: u64, _: u64) -> i32 {
        0
    }
    fn assert_fail(&self, _: u64, _: u64, _: u32, _: u64) {}
    fn malloc(&self, _: u64) -> u64 {
        self.heap
    }
    fn free(&self, _: u64) {}
    fn global_timer_ns(&self) -> u64 {
        u64::from(self.polls.load(Ordering::Relaxed))
    }
    fn sleep(&self, _: u32) {}
    fn texture(&self, handle: u64) -> Option<TextureView> {
        (handle == 7).then_some(self.texture)
    }
}

struct Random(u64);
impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n.max(1)
    }
}

/// Changes, copies or removes instructions.
fn mutate(text: &str, random: &mut Random) -> String {
    const SWAPS: [(&str, &str); 10] = [
        (".u32", ".s32"),
        ("add", "sub"),
        (".lo", ".hi"),
        (".rn", ".rz"),
        ("shl", "shr"),
        (".global", ".shared"),
        ("and", "or"),
        (".b32", ".b64"),
        ("%rd", "%r"),
        ("1", "4294967295"),
    ];
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for _ in 0..1 + random.below(5) {
        let (i, j) = (random.below(lines.len()), random.below(lines.len()));
        if !lines[i].ends_with(';') || !lines[j].ends_with(';') {
            continue;
        }
        match random.below(4) {
            0 => lines[i] = lines[j].clone(),
            1 => lines[i].clear(),
            2 => {
                let (from, to) = SWAPS[random.below(SWAPS.len())];
                lines[i] = lines[i].replacen(from, to, 1);
            }
            _ => {
                let digits: Vec<usize> = lines[i]
                    .match_indices(|c: char| c.is_ascii_digit())
                    .map(|(k, _)| k)
                    .collect();
                if let Some(&at) = digits.get(random.below(digits.len())) {
                    let digit = random.below(10).to_string();
                    lines[i].replace_range(at..=at, &digit);
                }
            }
        }
    }
    lines.join("\n")
}

#[test]
fn mutated_kernels_end() {
    let mut random = Random(2026);
    let mut arena = vec![0u64; 1 << 20].into_boxed_slice();
    let base = (arena.as_mut_ptr() as u64).next_multiple_of(4096);
    let texture = TextureView {
        filter: 1,
        ..TextureView::of_floats(base + 4096, Dim3 { x: 4, y: 4, z: 2 })
    };
    let (mut ran, mut done) = (0, 0);
    for _ in 0..150 {
        let text = mutate(include_str!("ptx/kernels.ptx"), &mut random);
        let Ok(parsed) = mica_ptx::parse(text.as_bytes()) else {
            continue;
        };
        let Ok(module) = InterpModule::new(Arc::new(parsed)) else {
            continue;
        };
        let kernel = random.below(module.kernels().len());
        let info = &module.kernels()[kernel];
        let globals = vec![base + (2 << 20); module.globals().len()];
        let mut params = vec![0u8; info.params_len as usize];
        for word in params.chunks_mut(8) {
            let value = match random.below(4) {
                0 => 7,
                1 => random.below(64) as u64,
                _ => base + 4096 + 256 * random.below(1000) as u64,
            };
            word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
        }
        let host = Impatient {
            polls: AtomicU32::new(0),
            heap: base + (4 << 20),
            texture,
        };
        let services = ServicesRef(&host as *const dyn Services);
        let word = AtomicU32::new(stop::PAUSE);
        let mut context = BlockContext {
            arena_base: base,
            arena_len: (8 << 20) - 4096,
            shared_base: base + (1 << 19),
            shared_len: u64::from(info.static_shared) + 1024,
            local_base: base + (1 << 20),
            local_stride: 4096,
            params: params.as_ptr(),
            params_len: params.len() as u64,
            params_device: base + (6 << 20),
            globals: globals.as_ptr(),
            grid: dim(2),
            block: dim(1 + random.below(100) as u32),
            dynamic_shared: 1024,
            stop: &word,
            services: &services,
            ..BlockContext::empty()
        };
        // SAFETY: every pointer outlives the call, and the arena is readable and writable.
        let outcome = unsafe { module.run_block(kernel, &mut context) };
        ran += 1;
        done += u32::from(outcome == BlockOutcome::Done);
        if outcome == BlockOutcome::Faulted {
            assert_ne!(context.fault.kind, 0);
        }
    }
    assert!(
        ran > 40 && done > 10,
        "ran {ran}, done {done}: the mutations break too much"
    );
}
