//! A device just large enough to run kernels in tests: an arena and a bump allocator. The compiler's
//! tests use it too.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]

mod arena;
mod team;
mod watch;

use arena::Arena;
use mica_kernel::{
    BlockContext, BlockOutcome, Dim3, Executable, Fault, Interrupt, LaunchFacts, Services,
    ServicesRef, TextureView,
};
use mica_ptx_interp::InterpModule;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use team::Member;

const ARENA_WORDS: usize = 2 << 20;

/// Records what kernels ask of the device.
#[derive(Default)]
pub struct Host {
    pub printed: Mutex<Vec<(String, u64)>>,
    pub asserted: Mutex<Vec<(String, u32)>>,
    pub textures: Mutex<HashMap<u64, TextureView>>,
    pub heap: AtomicU64,
    pub pauses: AtomicU32,
    /// How many pauses after the first go on; the next one cancels.
    pub patience: AtomicU32,
    ticks: AtomicU64,
    /// What kernels may touch; anything where this is empty.
    pub allowed: Mutex<Vec<Range<u64>>>,
}

impl Host {
    /// The range that holds so many bytes, if kernels may touch them.
    fn range_of(&self, address: u64, bytes: u64) -> Option<Range<u64>> {
        let allowed = self.allowed.lock().expect("lock");
        let holds = |r: &&Range<u64>| r.start <= address && address + bytes <= r.end;
        allowed.iter().find(holds).cloned()
    }

    fn allows_everything(&self) -> bool {
        self.allowed.lock().expect("lock").is_empty()
    }
}

impl Services for Host {
    fn pause(&self) -> bool {
        let before = self.pauses.fetch_add(1, Ordering::SeqCst);
        before <= self.patience.load(Ordering::SeqCst)
    }
    fn printf(&self, format: u64, args: u64) -> i32 {
        let text = c_string(format);
        self.printed.lock().expect("lock").push((text, args));
        1
    }
    fn assert_fail(&self, message: u64, _file: u64, line: u32, _function: u64) {
        self.asserted
            .lock()
            .expect("lock")
            .push((c_string(message), line));
    }
    fn malloc(&self, bytes: u64) -> u64 {
        self.heap
            .fetch_add(bytes.next_multiple_of(16), Ordering::SeqCst)
    }
    fn free(&self, _address: u64) {}
    fn global_timer_ns(&self) -> u64 {
        self.ticks.fetch_add(10, Ordering::SeqCst)
    }
    fn sleep(&self, _ns: u32) {
        std::thread::yield_now();
    }
    fn texture(&self, handle: u64) -> Option<TextureView> {
        self.textures.lock().expect("lock").get(&handle).copied()
    }
    fn check_access(&self, address: u64, bytes: u64, _is_write: bool) -> bool {
        address != 0 && (self.allows_everything() || self.range_of(address, bytes).is_some())
    }
}

fn c_string(address: u64) -> String {
    // SAFETY: tests pass addresses of strings that the module placed in the arena.
    let text = unsafe { std::ffi::CStr::from_ptr(address as *const std::ffi::c_char) };
    text.to_string_lossy().into_owned()
}

/// A loaded module and its memory.
pub struct Device {
    pub module: Box<dyn Executable>,
    arena: Arena,
    next: u64,
    globals: Vec<u64>,
    pub host: Arc<Host>,
    pub stop: AtomicU32,
    pub local_stride: u64,
    /// Blocks of a cluster, side by side.
    pub cluster: u32,
    /// Whether the last launch ran with `BlockContext::proven`.
    pub proven: bool,
    /// Bytes after each piece of memory that nobody may touch.
    gap: u64,
    gaps: Vec<Range<u64>>,
    /// An address in a gap that the last launch has changed.
    pub torn: Option<u64>,
}

const PAINT: u8 = 0xa5;

/// Parameters of a launch, packed as PTX lays them out.
#[derive(Default)]
pub struct Params(pub Vec<u8>);

impl Params {
    pub fn u64(mut self, x: u64) -> Self {
        while !self.0.len().is_multiple_of(8) {
            self.0.push(0);
        }
        self.0.extend(x.to_le_bytes());
        self
    }
    pub fn u32(mut self, x: u32) -> Self {
        self.0.extend(x.to_le_bytes());
        self
    }
    pub fn f32(self, x: f32) -> Self {
        self.u32(x.to_bits())
    }
}

pub fn dim(x: u32) -> Dim3 {
    Dim3 { x, y: 1, z: 1 }
}

impl Device {
    pub fn interpreter(text: &str) -> Device {
        Device::interpreter_with(text, false)
    }

    /// With `memcheck`, which asks about every access.
    pub fn interpreter_with(text: &str, memcheck: bool) -> Device {
        let parsed =
            mica_ptx::parse(text.as_bytes()).unwrap_or_else(|e| panic!("does not parse: {e}"));
        let module = InterpModule::new(Arc::new(parsed)).unwrap_or_else(|e| panic!("{e}"));
        Device::new(Box::new(module.with_memcheck(memcheck)))
    }

    pub fn kernel(&self, name: &str) -> usize {
        let found = self.module.kernels().iter().position(|k| k.name == name);
        found.unwrap_or_else(|| panic!("no kernel {name}"))
    }

    pub fn new(module: Box<dyn Executable>) -> Device {
        let arena = Arena::new(ARENA_WORDS);
        // Past an unused page, and aligned, so that offset 0 is never a valid address.
        let next = (arena.as_ptr() as u64 + 4096).next_multiple_of(4096);
        let mut device = Device {
            module,
            arena,
            next,
            globals: Vec::new(),
            host: Arc::new(Host::default()),
            stop: AtomicU32::new(0),
            local_stride: 16384,
            cluster: 1,
            proven: false,
            gap: 0,
            gaps: Vec::new(),
            torn: None,
        };
        device.place_globals();
        let heap = device.alloc(1 << 20);
        device.host.heap.store(heap, Ordering::SeqCst);
        device
    }

    fn place_globals(&mut self) {
        let infos = self.module.globals().to_vec();
        self.globals = infos.iter().map(|g| self.alloc(g.size.max(1))).collect();
        for (info, at) in infos.iter().zip(self.globals.clone()) {
            self.write_bytes(at, &info.init);
            for &(offset, target, addend) in &info.relocations {
                let value = self.globals[target].wrapping_add_signed(addend);
                self.write_bytes(at + offset, &value.to_le_bytes());
            }
            for (offset, name) in &info.function_relocations {
                let value = self.module.function_address(name).expect("a function");
                self.write_bytes(at + offset, &value.to_le_bytes());
            }
        }
    }

    pub fn global(&self, name: &str) -> u64 {
        let index = self
            .module
            .globals()
            .iter()
            .position(|g| g.name == name)
            .expect("a global");
        self.globals[index]
    }

    /// The first address, and the one past the last.
    pub fn arena(&self) -> (u64, u64) {
        let base = self.arena.as_ptr() as u64;
        (base, base + 8 * ARENA_WORDS as u64)
    }

    pub fn alloc(&mut self, bytes: u64) -> u64 {
        let at = self.next.next_multiple_of(256);
        self.next = at + bytes;
        assert!(
            self.next <= self.arena.as_ptr() as u64 + 8 * ARENA_WORDS as u64,
            "arena is full"
        );
        if self.gap > 0 {
            let gap = self.next..self.next + self.gap;
            self.write_bytes(gap.start, &vec![PAINT; self.gap as usize]);
            self.next = gap.end;
            self.gaps.push(gap);
        }
        at
    }

    /// From now on kernels may touch what is allowed and their block's own memory, and nothing else. What comes after each
    /// piece of memory is painted, and looked at when a launch is over.
    pub fn confine(&mut self) {
        self.gap = 1024;
        let globals: Vec<(u64, u64)> = (self.module.globals().iter().zip(&self.globals))
            .map(|(info, at)| (*at, info.size))
            .collect();
        globals
            .into_iter()
            .for_each(|(at, size)| self.allow(at, size));
    }

    /// Lets kernels touch a piece of memory.
    pub fn allow(&mut self, at: u64, bytes: u64) {
        let mut allowed = self.host.allowed.lock().expect("lock");
        allowed.push(at..at + bytes);
    }

    fn find_torn(&self) -> Option<u64> {
        self.gaps.iter().find_map(|gap| {
            let bytes = self.read_bytes(gap.start, self.gap as usize);
            let torn = bytes.iter().position(|b| *b != PAINT);
            torn.map(|i| gap.start + i as u64)
        })
    }

    pub fn write_bytes(&mut self, at: u64, bytes: &[u8]) {
        let start = (at - self.arena.as_ptr() as u64) as usize;
        assert!(start + bytes.len() <= 8 * ARENA_WORDS);
        // SAFETY: inside the arena, which nothing else touches now.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.arena.as_mut_ptr().cast::<u8>().add(start),
                bytes.len(),
            );
        }
    }

    pub fn upload(&mut self, words: &[u32]) -> u64 {
        let at = self.alloc(4 * words.len() as u64);
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        self.write_bytes(at, &bytes);
        at
    }

    pub fn upload_f32(&mut self, values: &[f32]) -> u64 {
        let words: Vec<u32> = values.iter().map(|x| x.to_bits()).collect();
        self.upload(&words)
    }

    pub fn read_bytes(&self, at: u64, count: usize) -> Vec<u8> {
        let start = (at - self.arena.as_ptr() as u64) as usize;
        assert!(start + count <= 8 * ARENA_WORDS);
        // SAFETY: inside the arena, and no kernel runs now.
        unsafe {
            std::slice::from_raw_parts(self.arena.as_ptr().cast::<u8>().add(start), count).to_vec()
        }
    }

    pub fn read(&self, at: u64, count: usize) -> Vec<u32> {
        self.read_bytes(at, 4 * count)
            .chunks_exact(4)
            .map(|c| u32::from_le_bytes(c.try_into().expect("4 bytes")))
            .collect()
    }

    pub fn read_f32(&self, at: u64, count: usize) -> Vec<f32> {
        self.read(at, count)
            .into_iter()
            .map(f32::from_bits)
            .collect()
    }

    /// Runs every block of a launch; stops at the first that does not end well.
    pub fn launch(
        &mut self,
        kernel: &str,
        grid: Dim3,
        block: Dim3,
        dynamic_shared: u32,
        params: Params,
    ) -> (BlockOutcome, Fault) {
        let index = self.kernel(kernel);
        let info = self.module.kernels()[index].clone();
        assert!(
            params.0.len() <= info.params_len as usize,
            "too many parameters"
        );
        let mut bytes = params.0;
        bytes.resize(info.params_len as usize, 0);
        let mark = self.next;
        let known = (
            self.gaps.len(),
            self.host.allowed.lock().expect("lock").len(),
        );
        let shared_len = u64::from(info.static_shared + dynamic_shared);
        let params_device = if info.params_addressed {
            let at = self.alloc(bytes.len() as u64);
            self.write_bytes(at, &bytes);
            at
        } else {
            0
        };
        if self.gap > 0 {
            self.allow(params_device, bytes.len() as u64);
        }
        let services = ServicesRef(Arc::as_ptr(&self.host) as *const dyn Services);
        let facts = LaunchFacts {
            arena_base: self.arena.as_ptr() as u64,
            arena_len: 8 * ARENA_WORDS as u64,
            params: &bytes,
            grid,
            block,
            interrupt: Interrupt::default(),
        };
        // What cannot be prepared says so when it is run.
        self.proven = self.module.prepare(index, &facts).unwrap_or(false);
        let context = BlockContext {
            arena_base: self.arena.as_ptr() as u64,
            arena_len: 8 * ARENA_WORDS as u64,
            shared_len,
            local_stride: self.local_stride,
            params: bytes.as_ptr(),
            params_len: bytes.len() as u64,
            params_device,
            globals: self.globals.as_ptr(),
            grid,
            block,
            dynamic_shared,
            stop: &self.stop,
            services: &services,
            proven: u32::from(self.proven),
            ..BlockContext::empty()
        };
        let mut team: Vec<Member> = (0..self.cluster)
            .map(|_| Member::new(self, index, &context))
            .collect();
        let clusters = Dim3 {
            x: grid.x / self.cluster,
            ..grid
        };
        let mut result = (BlockOutcome::Done, Fault::default());
        'grid: for z in 0..clusters.z {
            for y in 0..clusters.y {
                for x in 0..clusters.x {
                    let place = Dim3 { x, y, z };
                    // SAFETY: every pointer outlives the call; the arena is ours alone.
                    result = unsafe { team::run(&*self.module, index, &mut team, place, clusters) };
                    if result.0 != BlockOutcome::Done {
                        break 'grid;
                    }
                }
            }
        }
        self.torn = self.find_torn();
        self.next = mark;
        self.gaps.truncate(known.0);
        self.host.allowed.lock().expect("lock").truncate(known.1);
        result
    }

    /// Launches and expects a good end.
    pub fn run(&mut self, kernel: &str, grid: u32, block: u32, params: Params) {
        let result = self.launch(kernel, dim(grid), dim(block), 0, params);
        assert_eq!(result.0, BlockOutcome::Done, "{kernel}: {:?}", result.1);
    }
}
