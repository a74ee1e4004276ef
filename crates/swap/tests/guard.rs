//! Allocations that end at unmapped pages: what passes an end faults at once and is named.

use std::sync::{Arc, Mutex};

use mica_backend_software::{Config, SoftwareGpu};
use mica_cuda_abi::CuResult;
use mica_gpu::{ContextId, DevicePtr, Gpu, Launch, ModuleId, ModuleOptions, StreamId};
use mica_memory::FRAME_BYTES;
use mica_swap::{SwapGpu, Swapper};

/// Writes one byte at a distance from an address.
const PTX: &[u8] = b".version 7.0
.target sm_70
.address_size 64
.visible .entry put(.param .u64 at, .param .u64 distance)
{
    .reg .b64 %d<4>;
    .reg .b32 %r;
    ld.param.u64 %d0, [at];
    ld.param.u64 %d1, [distance];
    add.u64 %d2, %d0, %d1;
    mov.u32 %r, 7;
    st.global.u8 [%d2], %r;
    ret;
}
\0";

struct Bench {
    device: Arc<dyn Gpu>,
    gpu: Arc<SwapGpu>,
    told: Arc<Mutex<Vec<String>>>,
    context: ContextId,
    stream: StreamId,
    module: ModuleId,
}

impl Bench {
    fn new() -> Self {
        Self::with_addresses(None)
    }

    /// With an address space of so many bytes.
    fn with_addresses(arena_bytes: Option<u64>) -> Self {
        let config = Config {
            memory_bytes: Some(1 << 30),
            workers: Some(1),
            arena_bytes,
            ..Config::default()
        };
        let device: Arc<dyn Gpu> = Arc::new(SoftwareGpu::new(config).unwrap());
        let told = Arc::new(Mutex::new(Vec::new()));
        let list = Arc::clone(&told);
        let tell = move |text: &str| list.lock().unwrap().push(text.to_owned());
        let gpu = Swapper::new(|| {}).wrap_guarded(Arc::clone(&device), tell);
        let context = gpu.context_create().unwrap();
        let options = ModuleOptions::default();
        Self {
            stream: gpu.default_stream(context).unwrap(),
            module: gpu.module_load(context, PTX, &options).unwrap(),
            device,
            gpu,
            told,
            context,
        }
    }

    fn alloc(&self, bytes: u64) -> DevicePtr {
        self.gpu.memory_alloc(self.context, bytes).unwrap()
    }

    fn put(&self, at: DevicePtr, distance: i64) {
        let mut params = at.0.to_le_bytes().to_vec();
        params.extend(distance.to_le_bytes());
        let launch = Launch {
            module: self.module,
            kernel: 0,
            grid: [1; 3],
            block: [1; 3],
            dynamic_shared: 0,
            cooperative: false,
            params: &params,
        };
        self.gpu.launch(self.stream, &launch).unwrap();
    }

    fn used(&self) -> u64 {
        let (free, total) = self.device.memory_info().unwrap();
        total - free
    }

    /// What was told of the one fault, after which the program's own calls fail as without a guard.
    fn fault(&self) -> String {
        let error = self.gpu.stream_synchronize(self.stream).unwrap_err();
        assert_eq!(error.code, CuResult::IllegalAddress);
        let told = self.told.lock().unwrap();
        assert_eq!(told.len(), 1, "{told:?}");
        told[0].clone()
    }
}

#[test]
fn each_allocation_ends_at_an_unmapped_page_and_can_be_used_to_its_end() {
    let bench = Bench::new();
    let before = bench.used();
    let sizes = [1, 16, 1000, 4096, FRAME_BYTES, FRAME_BYTES + 1, 70 << 20];
    let held = sizes.map(|bytes| (bench.alloc(bytes), bytes));
    for (at, bytes) in held {
        let end = at.0 + bytes.next_multiple_of(16);
        assert_eq!((end % FRAME_BYTES, at.0 % 16), (0, 0), "{bytes} bytes");
        bench.put(at, 0);
        bench.put(at, bytes as i64 - 1);
        let range = bench
            .gpu
            .memory_range(bench.context, DevicePtr(at.0 + bytes - 1));
        assert_eq!(range.unwrap(), (at, bytes));
        assert!(
            bench
                .gpu
                .memory_range(bench.context, DevicePtr(at.0 - 1))
                .is_err()
        );
    }
    bench.gpu.stream_synchronize(bench.stream).unwrap();
    assert!(bench.told.lock().unwrap().is_empty());
    for (at, _) in held {
        bench.gpu.memory_free(bench.context, at).unwrap();
    }
    assert_eq!(bench.used(), before, "addresses are kept, memory is not");
}

#[test]
fn a_write_past_the_end_names_the_kernel_the_allocation_and_the_distance() {
    let bench = Bench::new();
    let (_, at, _) = (bench.alloc(64), bench.alloc(1008), bench.alloc(64));
    bench.put(at, 1008 + 20);
    let told = bench.fault();
    let past = format!(
        "guard: kernel put touched {:#x}, 20 bytes past the end of the allocation of 1008 bytes at {:#x}",
        at.0 + 1028,
        at.0
    );
    assert_eq!(told, past);
}

#[test]
fn the_first_byte_past_the_end_faults() {
    let bench = Bench::new();
    let at = bench.alloc(32);
    bench.put(at, 32);
    let told = bench.fault();
    assert!(
        told.contains(", just past the end of the allocation of 32 bytes"),
        "{told}"
    );
}

#[test]
fn memory_that_was_freed_faults_too() {
    let bench = Bench::new();
    let at = bench.alloc(4096);
    bench.gpu.memory_free(bench.context, at).unwrap();
    // Its addresses are given to nobody.
    let other = bench.alloc(4096);
    assert_ne!(at, other);
    bench.put(at, 8);
    let told = bench.fault();
    assert!(
        told.contains(", in the freed allocation of 4096 bytes"),
        "{told}"
    );
}

#[test]
fn addresses_of_freed_memory_are_used_again_when_there_are_no_others() {
    let bench = Bench::with_addresses(Some(4 << 30));
    for _ in 0..20 {
        let at = bench.alloc(512 << 20);
        bench.gpu.memory_free(bench.context, at).unwrap();
    }
    let at = bench.alloc(4096);
    bench.put(at, 4096);
    assert!(bench.fault().contains("just past the end"));
}
