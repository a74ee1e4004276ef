//! Kernels from nvcc that ask the device for something: output, memory, the whole grid, a stack.

use std::sync::{Arc, Mutex};

use mica_backend_software::{Config, Engine, OutputKind, OutputSink, SoftwareGpu};
use mica_cuda_abi::{CuResult, Limit};
use mica_gpu::{
    ContextId, Copy3d, DevicePtr, Gpu, HostSpan, Launch, ModuleId, ModuleOptions, Place, Result,
    StreamId,
};

const IMAGE: &str = include_str!("fixtures/services.ptx");

type Printed = Arc<Mutex<Vec<(OutputKind, String)>>>;

struct Rig {
    gpu: SoftwareGpu,
    context: ContextId,
    stream: StreamId,
    module: ModuleId,
    printed: Printed,
}

impl Rig {
    fn new(engine: Engine, memcheck: bool) -> Self {
        Self::of(IMAGE, engine, memcheck)
    }

    fn of(image: &str, engine: Engine, memcheck: bool) -> Self {
        let printed = Printed::default();
        let sink = Arc::clone(&printed);
        let output: OutputSink = Arc::new(move |kind, text: &[u8]| {
            let text = String::from_utf8_lossy(text).into_owned();
            sink.lock().unwrap().push((kind, text));
        });
        let config = Config {
            memory_bytes: Some(256 << 20),
            workers: Some(2),
            engine,
            output: Some(output),
            ..Config::default()
        };
        let gpu = SoftwareGpu::new(config).unwrap();
        let context = gpu.context_create().unwrap();
        let stream = gpu.default_stream(context).unwrap();
        let options = ModuleOptions { memcheck };
        let module = gpu
            .module_load(context, image.as_bytes(), &options)
            .unwrap();
        Self {
            gpu,
            context,
            stream,
            module,
            printed,
        }
    }

    fn launch(&self, name: &str, blocks: u32, threads: u32, params: &[u64]) -> Result<()> {
        self.launch_with(name, blocks, threads, params, false)
    }

    fn launch_with(
        &self,
        name: &str,
        blocks: u32,
        threads: u32,
        params: &[u64],
        cooperative: bool,
    ) -> Result<()> {
        let info = self.gpu.module_info(self.module).unwrap();
        let kernel = info.kernels.iter().position(|k| k.name == name).unwrap();
        let layout = &info.kernels[kernel].params;
        let mut bytes = vec![0; layout.last().map_or(0, |p| (p.offset + p.size) as usize)];
        for (value, at) in params.iter().zip(layout) {
            let size = at.size as usize;
            let start = at.offset as usize;
            bytes[start..start + size].copy_from_slice(&value.to_le_bytes()[..size]);
        }
        let launch = Launch {
            module: self.module,
            kernel: kernel as u32,
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            dynamic_shared: 0,
            cooperative,
            params: &bytes,
        };
        self.gpu.launch(self.stream, &launch)
    }

    fn sync(&self) -> Result<()> {
        self.gpu.context_synchronize(self.context)
    }

    fn alloc(&self, bytes: u64) -> DevicePtr {
        self.gpu.memory_alloc(self.context, bytes).unwrap()
    }

    fn copy(&self, at: DevicePtr, words: &mut [u32], to_device: bool) {
        let bytes = words.len() as u64 * 4;
        // SAFETY: the words outlive the synchronization below.
        let host = Place::Host(unsafe { HostSpan::new(words.as_mut_ptr().cast(), bytes) });
        let device = Place::Device(at);
        let copy = match to_device {
            true => Copy3d::linear(device, host, bytes),
            false => Copy3d::linear(host, device, bytes),
        };
        self.gpu.copy(self.stream, &copy).unwrap();
        self.gpu.stream_synchronize(self.stream).unwrap();
    }

    fn read(&self, at: DevicePtr, words: usize) -> Vec<u32> {
        let mut out = vec![0; words];
        self.copy(at, &mut out, false);
        out
    }
}

fn on_both(test: impl Fn(Engine)) {
    for engine in [Engine::Interpreter, Engine::Jit] {
        test(engine);
    }
}

#[test]
fn printf_formats_what_the_compiler_packs() {
    on_both(|engine| {
        let rig = Rig::new(engine, false);
        let name = rig.alloc(16);
        let mut text = [u32::from_le_bytes(*b"mica"), 0];
        rig.copy(name, &mut text, true);
        rig.launch("print", 3, 64, &[3, name.0]).unwrap();
        assert!(rig.printed.lock().unwrap().is_empty());
        rig.sync().unwrap();
        let printed = rig.printed.lock().unwrap();
        let mut lines: Vec<&str> = printed.iter().flat_map(|(_, text)| text.lines()).collect();
        lines.sort_unstable();
        let expected: Vec<String> = (0..3)
            .map(|b| format!("block {b} of 3: mica  1.50 -5000000000 x%"))
            .collect();
        assert_eq!(lines, expected, "{engine:?}");
    });
}

#[test]
fn a_failed_assert_names_thread_and_line() {
    on_both(|engine| {
        let rig = Rig::new(engine, false);
        rig.launch("check", 1, 32, &[32]).unwrap();
        let error = rig.sync().unwrap_err();
        assert_eq!(error.code, CuResult::Assert, "{engine:?}");
        let printed = rig.printed.lock().unwrap();
        let (kind, text) = &printed[0];
        assert_eq!(*kind, OutputKind::Assert);
        let expected = "block: [0,0,0], thread: [31,0,0] Assertion `threadIdx.x + 1 < n` failed.";
        assert!(text.contains(expected), "{engine:?}: {text}");
        assert!(text.contains("services.cu:12: "), "{engine:?}: {text}");
    });
}

#[test]
fn malloc_and_free_in_kernels() {
    on_both(|engine| {
        let rig = Rig::new(engine, true);
        let out = rig.alloc(64 * 4);
        for _ in 0..3 {
            rig.launch("list", 1, 64, &[out.0]).unwrap();
            let expected: Vec<u32> = (0..64).map(|t| 45 + 10 * t).collect();
            assert_eq!(rig.read(out, 64), expected, "{engine:?}");
        }
    });
}

#[test]
fn cooperative_groups_synchronize_the_grid() {
    on_both(|engine| {
        let rig = Rig::new(engine, false);
        let (blocks, threads, rounds) = (12, 64, 20);
        let n = blocks * threads;
        let data = rig.alloc(u64::from(n) * 8);
        let mut start: Vec<u32> = (0..n).map(|i| i * 1000).collect();
        rig.copy(data, &mut start, true);
        rig.launch_with("rounds", blocks, threads, &[data.0, rounds], true)
            .unwrap();
        let expected: Vec<u32> = (0..n)
            .map(|i| (i + rounds as u32) % n * 1000 + rounds as u32)
            .collect();
        assert_eq!(rig.read(data, n as usize), expected, "{engine:?}");
    });
}

#[test]
fn recursion_uses_the_stack_limit_and_overflows_as_a_fault() {
    on_both(|engine| {
        let rig = Rig::new(engine, false);
        let out = rig.alloc(32 * 4);
        rig.gpu
            .context_set_limit(rig.context, Limit::StackSize, 64 << 10)
            .unwrap();
        rig.launch("recurse", 1, 32, &[out.0, 50]).unwrap();
        let expected = (1..=50_u32).fold(0_u32, |below, n| below.wrapping_mul(3).wrapping_add(n));
        assert_eq!(rig.read(out, 32), [expected; 32], "{engine:?}");
        rig.launch("recurse", 1, 32, &[out.0, 100_000]).unwrap();
        let error = rig.sync().unwrap_err();
        assert!(error.code.is_sticky(), "{engine:?}: {error}");
        assert!(error.message.contains("stack is full"), "{error}");
    });
}

/// The whole block waits for twice as many threads as it has.
const WAITS_FOR_NOBODY: &str = "
.version 7.0
.target sm_75
.address_size 64
.visible .entry waits()
{
    bar.sync 1, 64;
    ret;
}
";

#[test]
fn a_wait_that_never_ends_is_told_as_one() {
    on_both(|engine| {
        let rig = Rig::of(WAITS_FOR_NOBODY, engine, false);
        rig.launch("waits", 1, 32, &[]).unwrap();
        let error = rig.sync().unwrap_err();
        assert_eq!(error.code, CuResult::LaunchFailed, "{engine:?}");
        let expected =
            "a thread waits for threads that never come: a GPU would hang here, PTX line 7";
        assert!(error.message.contains(expected), "{engine:?}: {error}");
    });
}

#[test]
fn memcheck_finds_what_pages_hide() {
    on_both(|engine| {
        for memcheck in [false, true] {
            let rig = Rig::new(engine, memcheck);
            let p = rig.alloc(10 * 4);
            let _neighbour = rig.alloc(4096);
            rig.launch("over", 1, 1, &[p.0, 9]).unwrap();
            rig.sync().unwrap();
            rig.launch("over", 1, 1, &[p.0, 10]).unwrap();
            match rig.sync() {
                Ok(()) => assert!(!memcheck, "{engine:?}: not found"),
                Err(error) => {
                    assert!(memcheck, "{engine:?}: {error}");
                    assert_eq!(error.code, CuResult::IllegalAddress);
                }
            }
        }
    });
}

#[test]
fn a_fault_names_kernel_thread_address_and_source_line() {
    on_both(|engine| {
        let rig = Rig::new(engine, false);
        let p = rig.alloc(1 << 20);
        let at = (1_u64 << 20) + 4096;
        rig.launch("over", 1, 1, &[p.0, at / 4]).unwrap();
        let error = rig.sync().unwrap_err();
        assert_eq!(error.code, CuResult::IllegalAddress);
        for part in [
            "kernel over",
            "block (0,0,0)",
            "thread (0,0,0)",
            "write",
            ".cu:62",
            &format!("{:#x}", p.0 + at),
        ] {
            assert!(
                error.message.contains(part),
                "{engine:?}: {part} in {error}"
            );
        }
    });
}

/// A kernel with a C++ compiler's name and source lines.
const MANGLED: &str = ".version 8.4
.target sm_90
.address_size 64
.visible .entry _Z4wildPii(.param .u64 p, .param .u64 n) {
  .loc 1 7 5
  .reg .b64 %d<2>; .reg .b32 %r<2>;
  ld.param.u64 %d1, [p];
  st.global.u32 [%d1], %r1;
  ret;
}
.file 1 \"wild.cu\"
";

#[test]
fn a_fault_names_the_kernel_as_its_author_did() {
    on_both(|engine| {
        let rig = Rig::of(MANGLED, engine, false);
        rig.launch("_Z4wildPii", 1, 1, &[16, 0]).unwrap();
        let error = rig.sync().unwrap_err();
        let words = "invalid write at 0x10, wild.cu:7, block (0,0,0), thread (0,0,0) in kernel wild(int*, int)";
        assert_eq!(error.message, words, "{engine:?}");
        let printed = rig.printed.lock().unwrap();
        let told = printed
            .iter()
            .any(|(kind, text)| *kind == OutputKind::Fault && text.trim() == words);
        assert!(told, "{printed:?}");
    });
}

/// Accesses that compiled code leaves to its runtime. All are of the 16 bytes that the table has for the thread.
const BY_THE_RUNTIME: &str = ".version 8.4
.target sm_90
.address_size 64
.visible .entry k(.param .u64 table, .param .u32 which) {
  .reg .b32 %r<6>; .reg .b64 %d<4>; .reg .b16 %h<4>; .reg .pred %p<3>;
  .shared .align 16 .b8 room[1024];
  ld.param.u64 %d1, [table]; ld.param.u32 %r1, [which];
  mov.u32 %r2, %tid.x; mul.wide.u32 %d2, %r2, 8; add.u64 %d1, %d1, %d2;
  ld.global.u64 %d1, [%d1];
  mov.u32 %r3, room; mad.lo.u32 %r3, %r2, 16, %r3;
  setp.eq.u32 %p1, %r1, 0; setp.eq.u32 %p2, %r1, 1;
  @%p1 bra copy;
  @%p2 bra half;
  cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d1], [%r3], 16;
  ret;
copy:
  cp.async.ca.shared.global [%r3], [%d1], 16;
  cp.async.wait_all;
  ret;
half:
  atom.global.add.noftz.f16 %h1, [%d1], %h0;
  ret;
}
";

fn runtime_rig(engine: Engine, memcheck: bool, culprit: u64) -> (Rig, DevicePtr) {
    let rig = Rig::of(BY_THE_RUNTIME, engine, memcheck);
    let (table, good) = (rig.alloc(64 * 8), rig.alloc(16));
    let mut words: Vec<u32> = (0..64)
        .flat_map(|t| {
            let at = if t == 45 { good.0 + culprit } else { good.0 };
            [at as u32, (at >> 32) as u32]
        })
        .collect();
    rig.copy(table, &mut words, true);
    (rig, table)
}

#[test]
fn a_fault_in_the_runtime_names_thread_and_line() {
    on_both(|engine| {
        for (which, line) in [(0, 17), (1, 21), (2, 14)] {
            let (rig, table) = runtime_rig(engine, false, 8 << 20);
            rig.launch("k", 1, 64, &[table.0, which]).unwrap();
            let error = rig.sync().unwrap_err();
            assert_eq!(error.code, CuResult::IllegalAddress);
            for part in ["thread (45,0,0)", &format!("PTX line {line},")] {
                let found = error.message.contains(part);
                assert!(found, "{engine:?} {which}: {part} in {error}");
            }
        }
    });
}

#[test]
fn memcheck_sees_what_the_runtime_does() {
    on_both(|engine| {
        for which in 0..3 {
            let (rig, table) = runtime_rig(engine, true, 0);
            rig.launch("k", 1, 64, &[table.0, which]).unwrap();
            rig.sync().unwrap();
            let (rig, table) = runtime_rig(engine, true, 16);
            rig.launch("k", 1, 64, &[table.0, which]).unwrap();
            let error = rig.sync().expect_err("out of bounds");
            assert_eq!(error.code, CuResult::IllegalAddress, "{engine:?} {which}");
        }
    });
}

#[test]
fn an_endless_kernel_is_cancelled() {
    on_both(|engine| {
        let rig = Rig::new(engine, false);
        let p = rig.alloc(4096);
        rig.launch("endless", 4, 64, &[p.0]).unwrap();
        rig.gpu.context_suspend(rig.context).unwrap();
        rig.gpu.context_resume(rig.context).unwrap();
        assert_eq!(rig.gpu.cancel(rig.context, None).unwrap(), 1);
        rig.sync().unwrap();
    });
}
