//! Clusters of blocks and tensor maps, also hostile ones, in both engines.

use std::time::Duration;

use mica_backend_software::{Capability, Config, Engine, SoftwareGpu};
use mica_cuda_abi::CuResult;
use mica_gpu::{
    ClusterQuestion, ContextId, Copy3d, DevicePtr, Gpu, GpuError, HostSpan, Launch,
    LaunchAttribute, ModuleId, ModuleOptions, Place, StreamId, TensorMapKind, TensorMapRequest,
};

const HEAD: &str = ".version 8.4\n.target sm_90a\n.address_size 64\n";

/// Each block reads what its neighbour in the cluster has written into its own shared memory.
const RING: &str = "
.visible .entry ring(.param .u64 out)
{
.reg .b32 %r<12>; .reg .b64 %d<3>; .shared .align 4 .b8 own[4];
mov.u32 %r0, %ctaid.x; mov.u32 %r1, own; mul.lo.u32 %r2, %r0, 10;
st.shared.u32 [%r1], %r2;
barrier.cluster.arrive.release; barrier.cluster.wait.acquire;
mov.u32 %r3, %cluster_ctarank; mov.u32 %r4, %cluster_nctarank;
add.u32 %r3, %r3, 1; rem.u32 %r3, %r3, %r4;
mapa.shared::cluster.u32 %r5, %r1, %r3;
ld.shared::cluster.u32 %r6, [%r5];
barrier.cluster.arrive.release; barrier.cluster.wait.acquire;
ld.param.u64 %d0, [out]; mul.wide.u32 %d1, %r0, 4; add.s64 %d0, %d0, %d1;
st.global.u32 [%d0], %r6;
ret;
}";

/// The first block waits at a barrier that nobody else comes to, the others for the cluster.
const STUCK: &str = "
.visible .entry stuck() .reqnctapercluster 2, 1, 1
{
.reg .b32 %r<2>; .reg .pred %p;
mov.u32 %r0, %cluster_ctarank; setp.eq.u32 %p, %r0, 0;
@%p bar.sync 1, 64;
barrier.cluster.arrive; barrier.cluster.wait;
ret;
}";

/// Reads the memory of a block that the cluster does not have.
const FAR: &str = "
.visible .entry far(.param .u32 rank) .reqnctapercluster 2, 1, 1
{
.reg .b32 %r<4>; .shared .align 4 .b8 own[4];
ld.param.u32 %r0, [rank]; mov.u32 %r1, own;
mapa.shared::cluster.u32 %r2, %r1, %r0;
ld.shared::cluster.u32 %r3, [%r2];
ret;
}";

/// The first block waits for ever for a word of the second.
const SPIN: &str = "
.visible .entry spin() .reqnctapercluster 2, 1, 1
{
.reg .b32 %r<4>; .reg .pred %p; .shared .align 4 .b8 own[4];
mov.u32 %r1, own; st.shared.u32 [%r1], 0;
mapa.shared::cluster.u32 %r2, %r1, 1;
AGAIN: ld.volatile.shared::cluster.u32 %r3, [%r2];
setp.eq.u32 %p, %r3, 0;
@%p bra AGAIN;
ret;
}";

/// Copies a box of 8 rows of 16 bytes in or out by the tensor map at an address.
const BOXES: &str = "
.visible .entry load(.param .u64 map, .param .u32 x)
{
.reg .b32 %r<4>; .reg .b64 %d; .shared .align 128 .b8 room[128]; .shared .align 8 .b8 bar[8];
ld.param.u64 %d, [map]; ld.param.u32 %r0, [x]; mov.u32 %r1, room; mov.u32 %r2, bar;
mbarrier.init.shared.b64 [%r2], 1;
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%d, {%r0, %r0}], [%r2];
ret;
}
.visible .entry store(.param .u64 map, .param .u32 x)
{
.reg .b32 %r<4>; .reg .b64 %d; .shared .align 128 .b8 room[128];
ld.param.u64 %d, [map]; ld.param.u32 %r0, [x]; mov.u32 %r1, room;
cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d, {%r0, %r0}], [%r1];
ret;
}";

struct Device {
    gpu: SoftwareGpu,
    context: ContextId,
    stream: StreamId,
    module: ModuleId,
}

impl Device {
    fn new(engine: Engine, body: &str) -> Self {
        let config = Config {
            memory_bytes: Some(64 << 20),
            workers: Some(2),
            engine,
            capability: Capability::Hopper,
            ..Config::default()
        };
        let gpu = SoftwareGpu::new(config).unwrap();
        let context = gpu.context_create().unwrap();
        let text = format!("{HEAD}{body}");
        let module = gpu.module_load(context, text.as_bytes(), &ModuleOptions::default());
        let stream = gpu.default_stream(context).unwrap();
        Self {
            module: module.unwrap(),
            gpu,
            context,
            stream,
        }
    }

    fn launch(
        &self,
        kernel: u32,
        blocks: u32,
        cluster: u32,
        params: &[u8],
    ) -> Result<(), GpuError> {
        let launch = Launch {
            module: self.module,
            kernel,
            grid: [blocks, 1, 1],
            block: [32, 1, 1],
            dynamic_shared: 0,
            cooperative: false,
            params,
        };
        let mut value = [0; 16];
        value[..3].copy_from_slice(&[cluster, 1, 1]);
        let attribute = LaunchAttribute {
            id: LaunchAttribute::CLUSTER_DIMENSION,
            value,
            event: None,
        };
        let attributes: &[LaunchAttribute] = if cluster > 0 { &[attribute] } else { &[] };
        self.gpu.launch_with(self.stream, &launch, attributes)
    }

    /// What a kernel's end says.
    fn ended(&self) -> Option<CuResult> {
        self.gpu
            .stream_synchronize(self.stream)
            .err()
            .map(|e| e.code)
    }

    fn copy(&self, host: &mut [u8], device: DevicePtr, is_read: bool) {
        let bytes = host.len() as u64;
        // SAFETY: the bytes outlive the synchronization below.
        let host = Place::Host(unsafe { HostSpan::new(host.as_mut_ptr(), bytes) });
        let device = Place::Device(device);
        let (to, from) = if is_read {
            (host, device)
        } else {
            (device, host)
        };
        self.gpu
            .copy(self.stream, &Copy3d::linear(to, from, bytes))
            .unwrap();
        self.gpu.stream_synchronize(self.stream).unwrap();
    }
}

const ENGINES: [Engine; 2] = [Engine::Jit, Engine::Interpreter];

#[test]
fn blocks_read_the_shared_memory_of_their_cluster() {
    for engine in ENGINES {
        let device = Device::new(engine, RING);
        let out = device.gpu.memory_alloc(device.context, 4 * 48).unwrap();
        for size in [1, 2, 3, 8, 16] {
            device.launch(0, 48, size, &out.0.to_le_bytes()).unwrap();
            let mut bytes = [0; 4 * 48];
            device.copy(&mut bytes, out, true);
            for (block, word) in (0..48).zip(bytes.as_chunks::<4>().0) {
                let first = block / size * size;
                let want = 10 * (first + (block - first + 1) % size);
                assert_eq!(
                    u32::from_le_bytes(*word),
                    want,
                    "{engine:?}, {size}, block {block}"
                );
            }
        }
    }
}

#[test]
fn clusters_that_do_not_fit_are_refused() {
    let device = Device::new(Engine::Jit, &format!("{RING}{STUCK}"));
    let out = 0u64.to_le_bytes();
    for (blocks, size) in [(10, 4), (32, 17), (17, 17)] {
        let refused = device.launch(0, blocks, size, &out).unwrap_err();
        assert_eq!(refused.code, CuResult::InvalidClusterSize, "{refused:?}");
    }
    let refused = device.launch(1, 8, 4, &[]).unwrap_err();
    assert!(refused.message.contains("built for"), "{refused:?}");
    assert_eq!(device.ended(), None);
}

#[test]
fn numbers_of_a_stranger_are_no_more_than_wrong() {
    let device = Device::new(Engine::Jit, RING);
    let out = 0u64.to_le_bytes();
    let attribute = |value: [u32; 3]| {
        let mut words = [0; 16];
        words[..3].copy_from_slice(&value);
        LaunchAttribute {
            id: LaunchAttribute::CLUSTER_DIMENSION,
            value: words,
            event: None,
        }
    };
    for value in [[u32::MAX; 3], [0; 3], [1 << 31, 1 << 31, 4]] {
        let attributes = [attribute(value)];
        let launch = Launch {
            module: device.module,
            kernel: 0,
            grid: [16, 1, 1],
            block: [32, 1, 1],
            dynamic_shared: 0,
            cooperative: false,
            params: &out,
        };
        let refused = (device.gpu).launch_with(device.stream, &launch, &attributes);
        assert_eq!(refused.unwrap_err().code, CuResult::InvalidClusterSize);
        for (grid, block, largest) in [
            ([16, 1, 1], [u32::MAX; 3], true),
            ([u32::MAX; 3], [32, 1, 1], false),
            (value, [1 << 16, 1 << 16, 1], false),
        ] {
            let question = ClusterQuestion {
                module: device.module,
                kernel: 0,
                grid,
                block,
                dynamic_shared: 0,
                attributes: &attributes,
                largest,
            };
            let answer = device.gpu.clusters(&question);
            assert!(answer.is_err() || answer == Ok(0), "{grid:?} {block:?}");
        }
    }
}

#[test]
fn a_cluster_that_waits_for_itself_ends() {
    for engine in ENGINES {
        let device = Device::new(engine, STUCK);
        device.launch(0, 4, 0, &[]).unwrap();
        assert_eq!(device.ended(), Some(CuResult::LaunchFailed), "{engine:?}");
    }
}

#[test]
fn blocks_that_the_cluster_does_not_have_are_out_of_reach() {
    for engine in ENGINES {
        for rank in [2u32, 16, 255, 256, u32::MAX] {
            let device = Device::new(engine, FAR);
            device.launch(0, 2, 0, &rank.to_le_bytes()).unwrap();
            let ended = device.ended();
            assert_eq!(
                ended,
                Some(CuResult::IllegalAddress),
                "{engine:?}, rank {rank}"
            );
        }
    }
}

#[test]
fn a_cluster_that_waits_for_ever_can_be_cancelled() {
    for engine in ENGINES {
        let device = Device::new(engine, SPIN);
        device.launch(0, 2, 0, &[]).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert!(!device.gpu.stream_query(device.stream).unwrap());
        device.gpu.cancel(device.context, None).unwrap();
        assert_eq!(device.ended(), None, "{engine:?}");
    }
}

/// A map of rows of 16 bytes at an address, so far apart.
fn map_at(device: &Device, address: u64, stride: u64) -> [u8; 128] {
    let request = TensorMapRequest {
        kind: TensorMapKind::Tiled([4, 8, 0, 0, 0]),
        data_type: 2,
        rank: 2,
        address: DevicePtr(address),
        dims: [1 << 32, 1 << 32, 0, 0, 0],
        strides: [stride, 0, 0, 0, 0],
        element_strides: [1, 1, 0, 0, 0],
        interleave: 0,
        swizzle: 0,
        l2_promotion: 0,
        fill: 0,
    };
    device.gpu.tensor_map(device.context, &request).unwrap()
}

#[test]
fn hostile_tensor_maps_end_the_kernel_and_nothing_else() {
    for engine in ENGINES {
        for kernel in [0, 1] {
            let with = |make: &dyn Fn(&Device, u64) -> [u8; 128], x: i32| {
                let device = Device::new(engine, BOXES);
                let memory = device.gpu.memory_alloc(device.context, 4096).unwrap();
                let mut map = make(&device, memory.0);
                let at = DevicePtr(memory.0 + 1024);
                device.copy(&mut map, at, false);
                let params = [at.0.to_le_bytes(), (x as u64).to_le_bytes()].concat();
                device.launch(kernel, 1, 0, &params).unwrap();
                device.ended()
            };
            assert_eq!(with(&|d, at| map_at(d, at, 16), 0), None, "{engine:?}");
            let illegal = Some(CuResult::IllegalAddress);
            // Far from any memory, behind its end, wrapping round, all over the address space.
            for (address, stride, x) in [
                (0x10, 16, 0),
                (0, 0xff_ffff_fff0, i32::MAX),
                (u64::MAX - 15, 16, 0),
                (u64::MAX - 15, 0xff_ffff_fff0, 77),
            ] {
                let ended = with(&|d, _| map_at(d, address, stride), x);
                assert_eq!(ended, illegal, "{engine:?}, {address:#x} {stride:#x} {x}");
            }
            let ended = with(&|d, at| map_at(d, at, 1 << 39), 1);
            assert_eq!(ended, illegal, "{engine:?}");
            for bytes in [[0u8; 128], [0xff; 128]] {
                let ended = with(&|_, _| bytes, 0);
                assert_eq!(ended, Some(CuResult::IllegalInstruction), "{engine:?}");
            }
            // Bytes of a map with one changed are another map, or none; the kernel ends either way, and the device lives.
            for at in 0..128 {
                let changed = |d: &Device, memory: u64| {
                    let mut map = map_at(d, memory, 16);
                    map[at] ^= 0xa5;
                    map
                };
                if at % 7 == 3 || engine == Engine::Jit && at % 5 == 1 {
                    with(&changed, -3);
                }
            }
        }
    }
}
