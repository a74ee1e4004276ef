//! Times kernels on one thread against gcc's loops. `cargo run --release -p mica-ptx-jit --example bench
//! [lanes [kernel]|checks|compile files…]`

use mica_kernel::{BlockContext, BlockOutcome, Dim3, Executable, Interrupt, LaunchFacts};
use mica_ptx_jit::{JitModule, Options};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

struct Bench {
    module: JitModule,
    arena: Vec<u64>,
    scratch: Vec<u128>,
    stop: AtomicU32,
}

fn cpu_ms() -> f64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a valid place for the time.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 * 1e3 + t.tv_nsec as f64 * 1e-6
}

impl Bench {
    fn at(&self, word: usize) -> u64 {
        self.arena.as_ptr() as u64 + 4 * word as u64
    }

    fn run(&mut self, kernel: &str, grid: Dim3, block: Dim3, params: &[u8]) -> f64 {
        let k = self
            .module
            .kernels()
            .iter()
            .position(|k| k.name == kernel)
            .expect("a kernel");
        let info = self.module.kernels()[k].clone();
        let bytes = self.module.scratch_bytes(k, block.count() as u32);
        self.scratch.resize(bytes / 16 + 8, 0);
        let scratch = (self.scratch.as_mut_ptr() as usize).next_multiple_of(64) as *mut u8;
        let mut params = params.to_vec();
        params.resize(info.params_len as usize, 0);
        let top = self.arena.len() * 8;
        let base = self.arena.as_ptr() as u64;
        let launch = LaunchFacts {
            arena_base: base,
            arena_len: top as u64,
            params: &params,
            grid,
            block,
            interrupt: Interrupt::default(),
        };
        let proven = self.module.prepare(k, &launch).expect("compiles");
        let start = cpu_ms();
        for y in 0..grid.y {
            for x in 0..grid.x {
                let mut c = BlockContext {
                    arena_base: base,
                    arena_len: top as u64,
                    shared_base: base + top as u64 - (1 << 20),
                    shared_len: u64::from(info.static_shared),
                    local_base: base + top as u64 - (2 << 20),
                    local_stride: 1024,
                    params: params.as_ptr(),
                    params_len: params.len() as u64,
                    grid,
                    block,
                    ctaid: Dim3 { x, y, z: 0 },
                    stop: &self.stop,
                    scratch,
                    proven: u32::from(proven),
                    ..BlockContext::empty()
                };
                // SAFETY: every pointer outlives the call.
                let o = unsafe { self.module.run_block(k, &mut c) };
                assert_eq!(o, BlockOutcome::Done, "{:?}", c.fault);
            }
        }
        cpu_ms() - start
    }
}

fn d(x: u32, y: u32) -> Dim3 {
    Dim3 { x, y, z: 1 }
}

fn pack(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

fn reference() -> Vec<(String, f64)> {
    let dir = std::env::temp_dir().join(format!("mica-bench-{}", std::process::id()));
    if std::fs::create_dir_all(&dir).is_err() {
        return Vec::new();
    }
    let exe = dir.join("reference");
    let source = dir.join("reference.c");
    let _ = std::fs::write(&source, include_str!("bench_reference.c"));
    let built = std::process::Command::new("gcc")
        .args(["-O3", "-march=native", "-ffast-math", "-o"])
        .arg(&exe)
        .arg(&source)
        .arg("-lm")
        .status();
    let mut out = Vec::new();
    if built.is_ok_and(|s| s.success())
        && let Ok(o) = std::process::Command::new(&exe).output()
    {
        for line in String::from_utf8_lossy(&o.stdout).lines() {
            if let Some((name, ms)) = line.split_once(' ') {
                out.push((name.to_owned(), ms.parse().unwrap_or(0.0)));
            }
        }
    }
    let _ = std::fs::remove_dir_all(&dir);
    out
}

/// Compiles every kernel of PTX files and lists the slow ones.
fn compile_files(files: &[String]) {
    for file in files {
        let text = std::fs::read(file).expect("a file");
        let t = cpu_ms();
        let Ok(parsed) = mica_ptx::parse(&text) else {
            continue;
        };
        let parse = cpu_ms() - t;
        let Ok(module) = JitModule::compile(Arc::new(parsed), Options::default()) else {
            continue;
        };
        for (i, k) in module.kernels().iter().enumerate() {
            let t = cpu_ms();
            let r = module.prepare_block(i, d(256, 1));
            let ms = cpu_ms() - t;
            if ms > 10.0 || r.is_err() {
                println!(
                    "{file} {} parse {parse:.1} ms compile {ms:.1} ms {r:?}",
                    k.name
                );
            }
        }
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|a| a == "compile") {
        compile_files(&args[1..]);
        return;
    }
    if args.first().is_some_and(|a| a == "checks") {
        for p in mica_ptx_jit::bounds_cost::bounds_checks(15).expect("runs") {
            let cost = 100.0 * (p.checked_ns / p.unchecked_ns - 1.0);
            let (with, without) = (p.checked_ns / 1e6, p.unchecked_ns / 1e6);
            println!(
                "{:12} {with:8.3} ms {without:8.3} ms without {cost:+.1} %",
                p.kernel
            );
        }
        return;
    }
    let lanes = std::env::args()
        .nth(1)
        .and_then(|a| a.parse().ok())
        .unwrap_or(16);
    let only = std::env::args().nth(2);
    let parsed = Arc::new(mica_ptx::parse(include_str!("bench.ptx").as_bytes()).expect("parses"));
    let optimize = std::env::var_os("MIDEND").is_some();
    let options = Options {
        lanes,
        optimize,
        ..Options::default()
    };
    let t = cpu_ms();
    let module = JitModule::compile(parsed, options).expect("compiles");
    println!("load {:.2} ms", cpu_ms() - t);
    let n = 1usize << 24;
    let mut b = Bench {
        module,
        arena: vec![0; n / 2 * 3 + (1 << 19)],
        scratch: Vec::new(),
        stop: AtomicU32::new(0),
    };
    let words = b.arena.as_mut_ptr().cast::<f32>();
    for i in 0..n {
        // SAFETY: inside the arena.
        unsafe {
            *words.add(i) = (i as i32).wrapping_mul(7).rem_euclid(101) as f32 / 50.0 - 1.0;
            *words.add(n + i) = (i as i32).wrapping_mul(13).rem_euclid(103) as f32 / 50.0 - 1.0;
        }
    }
    let (pa, pb, pc) = (b.at(0), b.at(n), b.at(2 * n));
    let (a, bb, c) = (pa.to_le_bytes(), pb.to_le_bytes(), pc.to_le_bytes());
    let i = |x: i32| x.to_le_bytes();
    let size = i(n as i32);
    let eps = 0.01f32.to_le_bytes();
    let abc = |n: [u8; 4]| pack(&[&a, &bb, &c, &n]);
    type Case<'a> = (&'a str, &'a str, Dim3, Dim3, Vec<u8>, u32);
    let cases: Vec<Case<'_>> = vec![
        ("vadd", "vadd", d(65536, 1), d(256, 1), abc(size), 5),
        (
            "nbody",
            "nbody",
            d(64, 1),
            d(256, 1),
            pack(&[&a, &c, &i(16384), &eps]),
            2,
        ),
        ("matmul", "matmul16", d(64, 64), d(16, 16), abc(i(1024)), 2),
        ("matmul", "matmul32", d(32, 32), d(32, 32), abc(i(1024)), 2),
        (
            "mandelbrot",
            "mandelbrot",
            d(64, 64),
            d(16, 16),
            pack(&[&c, &i(1024), &i(1024), &i(1000)]),
            1,
        ),
        ("", "reduce", d(64, 1), d(256, 1), pack(&[&a, &c, &size]), 3),
        (
            "",
            "histogram",
            d(64, 1),
            d(256, 1),
            pack(&[&a, &c, &size]),
            3,
        ),
        (
            "",
            "stencil",
            d(256, 256),
            d(16, 16),
            pack(&[&a, &c, &i(4096)]),
            3,
        ),
    ];
    let reference = if only.is_none() {
        reference()
    } else {
        Vec::new()
    };
    for (like, kernel, grid, block, params, runs) in cases {
        if only.as_ref().is_some_and(|o| o != kernel) {
            continue;
        }
        let k = b
            .module
            .kernels()
            .iter()
            .position(|k| k.name == kernel)
            .expect("a kernel");
        let t = cpu_ms();
        b.module.prepare_block(k, block).expect("compiles");
        let compile = cpu_ms() - t;
        let best = (0..runs)
            .map(|_| b.run(kernel, grid, block, &params))
            .fold(f64::MAX, f64::min);
        let gcc = reference.iter().find(|r| r.0 == like).map(|r| r.1);
        let ratio = gcc.map_or(String::new(), |g| {
            format!("  gcc {g:8.2} ms  {:.2}x", best / g)
        });
        println!("{kernel:12} {best:8.2} ms  compile {compile:6.2} ms{ratio}");
    }
    println!("code {} KiB", b.module.code_bytes() / 1024);
}
