//! A device just large enough to run any module that a fuzzer makes.
//!
//! Owns an arena between inaccessible pages, and launches every kernel of a module once with few
//! threads. Refuses modules that want more memory than it has.

use mica_kernel::monitor::{Access, AccessSpace, Line, Misuse, ThreadSet};
use mica_kernel::{
    BlockContext, BlockOutcome, Dim3, Executable, KernelInfo, LaunchFacts, LiveSlot, Monitor,
    MonitorRef, Services, ServicesRef, TextureView, stop,
};
use mica_ptx_interp::InterpModule;
use mica_ptx_jit::{JitModule, Options};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const ARENA: usize = 1 << 20;
/// What an address that is wrong by an offset or an index would hit.
const GUARD: usize = 8 << 30;
const LOCAL: u64 = 4096;
const SHARED: u64 = 48 << 10;
const THREADS: u32 = 40;
/// What pointers among the parameters point to: the end of the arena.
const DATA: u64 = 8192;
/// Other parameters.
const NUMBER: u64 = 64;

const GRID: Dim3 = Dim3 { x: 3, y: 1, z: 1 };

/// Answers what kernels ask for.
struct Host {
    /// How often the kernel may still ask to go on.
    asks: AtomicU32,
    clock: AtomicU64,
    texture: TextureView,
    heap: u64,
}

impl Services for Host {
    fn pause(&self) -> bool {
        let left = self.asks.load(Ordering::Relaxed);
        self.asks.store(left.saturating_sub(1), Ordering::Relaxed);
        left > 0
    }
    fn printf(&self, _format: u64, _args: u64) -> i32 {
        0
    }
    fn assert_fail(&self, _message: u64, _file: u64, _line: u32, _function: u64) {}
    fn malloc(&self, bytes: u64) -> u64 {
        if bytes <= 4096 { self.heap } else { 0 }
    }
    fn free(&self, _address: u64) {}
    fn global_timer_ns(&self) -> u64 {
        self.clock.fetch_add(10, Ordering::Relaxed)
    }
    fn sleep(&self, _ns: u32) {}
    fn texture(&self, handle: u64) -> Option<TextureView> {
        (handle != 0).then_some(self.texture)
    }
}

/// Told of accesses, each of which must be inside the arena by then, and of local memory inside the thread's own.
struct Watch {
    arena: u64,
    locals: (u64, u64),
}

impl Monitor for Watch {
    fn access(&mut self, access: &Access) -> bool {
        let (base, len) = match access.space {
            AccessSpace::Local => {
                let (base, stride) = self.locals;
                (base + u64::from(access.thread) * stride, stride)
            }
            _ => (self.arena, ARENA as u64),
        };
        let offset = access.address.wrapping_sub(base);
        let is_inside =
            offset <= len && u64::from(access.bytes) <= len - offset && access.thread < 64;
        assert!(is_inside, "{access:x?} is not inside {base:x}, {len:x}");
        true
    }
    /// Quarters of the arena, so that live memory is asked for now and then.
    fn live_range(&mut self, access: &Access) -> Option<(u64, u64)> {
        let quarter = ARENA as u64 / 4;
        let base = self.arena + (access.address - self.arena) / quarter * quarter;
        (access.address + u64::from(access.bytes) <= base + quarter).then_some((base, quarter))
    }
    fn fence(&mut self, _thread: u32) {}
    fn arrive(&mut self, _barrier: u32, _thread: u32) {}
    fn barrier(&mut self, _barrier: u32, _waiting: &ThreadSet) {}
    fn warp(&mut self, _lanes: &ThreadSet) {}
    fn misuse(&mut self, _what: Misuse, _thread: u32, _line: Line) {}
}

/// Hands out the arena from its start.
struct Bump {
    next: u64,
    end: u64,
}

impl Bump {
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let at = self.next.next_multiple_of(256);
        let next = at.checked_add(bytes.max(16))?;
        (next <= self.end).then(|| {
            self.next = next;
            at
        })
    }
}

pub struct Device {
    base: *mut u8,
}

impl Device {
    pub fn new() -> std::io::Result<Device> {
        // SAFETY: a fresh reservation; no existing mapping is touched.
        let all = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                2 * GUARD + ARENA,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if all == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let base = all.cast::<u8>().wrapping_add(GUARD);
        // SAFETY: inside the reservation, on page boundaries.
        let failed =
            unsafe { libc::mprotect(base.cast(), ARENA, libc::PROT_READ | libc::PROT_WRITE) != 0 };
        if failed {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Device { base })
    }

    /// Takes bytes as PTX: they are refused, or compiled and interpreted. Whether they were run.
    pub fn take(&self, bytes: &[u8]) -> bool {
        let Ok(module) = mica_ptx::parse(bytes) else {
            return false;
        };
        let module = Arc::new(module);
        // Which code is made depends on the text, so that one text always does the same.
        let options = Options {
            lanes: [1, 4, 16, 32][bytes.len() % 4],
            memcheck: bytes.len().is_multiple_of(7),
            monitor: bytes.len().is_multiple_of(5),
            monitor_own: bytes.len().is_multiple_of(10),
            coverage: bytes.len().is_multiple_of(3),
            ..Options::default()
        };
        // Compiled code asks at every turn of a loop, the interpreter now and then.
        let compiled = JitModule::compile(Arc::clone(&module), options);
        let was_run = compiled.is_ok();
        if let Ok(compiled) = compiled {
            self.run(&compiled, 300);
        }
        if let Ok(interpreted) = InterpModule::new(module) {
            self.run(&interpreted, 100);
        }
        was_run
    }

    /// Launches every kernel of the module once, for as long as it asks at most this often to go on.
    fn run(&self, module: &dyn Executable, asks: u32) {
        // SAFETY: the arena is mapped, and no kernel runs.
        unsafe { std::ptr::write_bytes(self.base, 0, ARENA) };
        let start = self.base as u64;
        let mut bump = Bump {
            next: start + 4096,
            end: start + ARENA as u64 - DATA,
        };
        let Some(globals) = self.place_globals(module, &mut bump) else {
            return;
        };
        for (index, kernel) in module.kernels().iter().enumerate().take(4) {
            let mut left = Bump {
                next: bump.next,
                end: bump.end,
            };
            let _ = self.launch(module, (index, kernel), &globals, &mut left, asks);
        }
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Option<()> {
        let offset = usize::try_from(at.checked_sub(self.base as u64)?).ok()?;
        (offset.checked_add(bytes.len())? <= ARENA).then(|| {
            // SAFETY: inside the arena by the test above, and no kernel runs.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(offset), bytes.len());
            }
        })
    }

    fn place_globals(&self, module: &dyn Executable, bump: &mut Bump) -> Option<Vec<u64>> {
        let infos = module.globals();
        let places: Option<Vec<u64>> = infos.iter().map(|g| bump.take(g.size)).collect();
        let places = places?;
        for (info, at) in infos.iter().zip(&places) {
            assert!(
                info.init.len() as u64 <= info.size,
                "{} overflows",
                info.name
            );
            self.write(*at, &info.init)?;
            for (offset, target, addend) in &info.relocations {
                let value = places[*target].wrapping_add_signed(*addend);
                self.write(at + offset, &value.to_le_bytes())?;
            }
            for (offset, name) in &info.function_relocations {
                let value = module.function_address(name)?;
                self.write(at + offset, &value.to_le_bytes())?;
            }
        }
        Some(places)
    }

    fn launch(
        &self,
        module: &dyn Executable,
        (index, kernel): (usize, &KernelInfo),
        globals: &[u64],
        bump: &mut Bump,
        asks: u32,
    ) -> Option<()> {
        let threads = match kernel.required_block.count() {
            0 => THREADS.min(kernel.max_threads),
            n => u32::try_from(n).ok()?,
        };
        let block = match kernel.required_block.count() {
            0 => Dim3 {
                x: threads,
                y: 1,
                z: 1,
            },
            _ => kernel.required_block,
        };
        if threads > 64 || u64::from(kernel.static_shared) > SHARED - 1024 {
            return None;
        }
        let local = u64::from(kernel.local_bytes)
            .max(LOCAL)
            .next_multiple_of(16);
        let shared = bump.take(u64::from(kernel.static_shared) + 1024)?;
        let locals = bump.take(local.checked_mul(u64::from(threads))?)?;
        let data = self.base as u64 + ARENA as u64 - DATA;
        let mut params = vec![0; kernel.params_len as usize];
        for p in &kernel.params {
            let value = if p.size == 8 { data } else { NUMBER };
            let bytes = &value.to_le_bytes()[..p.size.min(8) as usize];
            params
                .get_mut(p.offset as usize..p.offset as usize + bytes.len())?
                .copy_from_slice(bytes);
        }
        let params_device = bump.take(params.len() as u64)?;
        self.write(params_device, &params)?;
        let facts = LaunchFacts {
            arena_base: self.base as u64,
            arena_len: ARENA as u64,
            params: &params,
            grid: GRID,
            block,
            interrupt: mica_kernel::Interrupt::default(),
        };
        let proven = module.prepare(index, &facts).ok()?;
        let words = module.scratch_bytes(index, threads).div_ceil(64) + 1;
        let mut scratch = vec![[0u8; 64]; words];
        let host = Host {
            asks: AtomicU32::new(asks),
            clock: AtomicU64::new(0),
            texture: texture(data),
            heap: data,
        };
        let services = ServicesRef(&raw const host as *const dyn Services);
        let stop = AtomicU32::new(stop::PAUSE);
        let mut watch = Watch {
            arena: self.base as u64,
            locals: (locals, local),
        };
        let mut monitor = MonitorRef(&raw mut watch as *mut dyn Monitor);
        let mut live = vec![LiveSlot::default(); module.live_slots(index)];
        let is_told = module.tells_monitor(index);
        let mut context = BlockContext {
            arena_base: self.base as u64,
            arena_len: ARENA as u64,
            shared_base: shared,
            shared_len: u64::from(kernel.static_shared) + 1024,
            local_base: locals,
            local_stride: local,
            params: params.as_ptr(),
            params_len: params.len() as u64,
            params_device,
            globals: globals.as_ptr(),
            grid: GRID,
            block,
            proven: u32::from(proven),
            dynamic_shared: 1024,
            stop: &stop,
            services: &services,
            scratch: (scratch.as_mut_ptr() as usize).next_multiple_of(64) as *mut u8,
            monitor: match is_told {
                true => &raw mut monitor,
                false => std::ptr::null_mut(),
            },
            live: live.as_mut_ptr(),
            live_len: live.len() as u64,
            ..BlockContext::empty()
        };
        for x in 0..GRID.x {
            context.ctaid = Dim3 { x, y: 0, z: 0 };
            // SAFETY: every pointer outlives the call and has the room that the kernel asked for.
            if unsafe { module.run_block(index, &mut context) } != BlockOutcome::Done {
                break;
            }
        }
        let told = &mut |function, instruction| {
            assert!((function as usize) < 1 << 16 && (instruction as usize) < 1 << 24);
        };
        module.take_reached(index, told);
        Some(())
    }
}

fn texture(base: u64) -> TextureView {
    TextureView {
        row_pitch: 128,
        slice_pitch: 1024,
        channels: 4,
        address_mode: [0, 1, 2],
        filter: 1,
        normalized_coords: true,
        border: [1.0; 4],
        ..TextureView::of_floats(base, Dim3 { x: 8, y: 8, z: 2 })
    }
}
