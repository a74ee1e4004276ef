//! The device interface before a driver whose device memory is ordinary memory.

mod common;

use std::os::fd::AsRawFd;

use common::{ALONE, fixture, started};
use mica_backend_cuda::{CudaDriver, CudaGpu, DriverError};
use mica_cuda_abi::{CuResult, DeviceAttribute, Limit};
use mica_gpu::{
    Access, ArrayDescriptor, ClusterQuestion, Copy3d, DevicePtr, EventFlags, Fill2d, FrameId, Gpu,
    GpuError, HostSpan, Launch, LaunchAttribute, ModuleId, ModuleOptions, ParamLayout, Place,
    StreamFlags, TensorMapKind, TensorMapRequest, TextureDescriptor, TextureResource, ValueWait,
};

const PTX: &[u8] = b".version 8.0\n.target sm_90\n.global .u32 counter;\n.global .u32 lost;\n";
fn span<T>(data: &mut [T]) -> HostSpan {
    // SAFETY: the tests' buffers outlive the stand-in's copies, which happen at once.
    unsafe { HostSpan::new(data.as_mut_ptr().cast(), size_of_val(data) as u64) }
}

fn code<T: std::fmt::Debug>(result: Result<T, GpuError>) -> CuResult {
    result.expect_err("it is refused").code
}

#[test]
fn drivers_and_devices_that_cannot_be_used_say_why() {
    let _alone = ALONE.lock();
    let fixture = fixture();
    fixture.set("fake_version", 11_080);
    let error = CudaDriver::load_from(&fixture.path).expect_err("too old");
    assert_eq!(error, DriverError::TooOld { found: 11_080 });
    assert!(error.to_string().contains("CUDA 11.8"), "{error}");
    fixture.set("fake_version", 13_000);
    let driver = CudaDriver::load_from(&fixture.path).expect("new enough");
    let error = CudaGpu::open(driver.clone(), 1).expect_err("there is one");
    assert_eq!(
        error,
        DriverError::Ordinal {
            ordinal: 1,
            count: 1
        }
    );
    for mode in [2, 3] {
        fixture.set("fake_mode", mode);
        let error = CudaGpu::open(driver.clone(), 0).expect_err("not shared");
        assert!(error.to_string().contains("nvidia-smi -c 0"), "{error}");
    }
}

#[test]
fn waits_for_words_reach_the_driver_in_their_width() {
    let _alone = ALONE.lock();
    let fixture = fixture();
    let gpu = fixture.gpu();
    let (context, stream) = started(&gpu);
    let word = gpu.memory_alloc(context, 16).expect("memory");
    let wait = |is_wide, flags| ValueWait::new(word, is_wide, 0x1_0000_0002, flags);
    let narrow = wait(false, 1).expect("a wait");
    gpu.stream_wait_value(stream, &narrow).expect("accepted");
    assert_eq!(fixture.text("fake_wait"), "32 bits: 2 flags 1");
    let wide = wait(true, 2 | 1 << 30).expect("a wait");
    gpu.stream_wait_value(stream, &wide).expect("accepted");
    assert_eq!(
        fixture.text("fake_wait"),
        "64 bits: 100000002 flags 40000002"
    );
    gpu.memory_free(context, word).expect("freed");
    assert_eq!(
        code(gpu.stream_wait_value(stream, &wide)),
        CuResult::InvalidValue
    );
}

#[test]
fn contexts_own_what_is_made_in_them() {
    let _alone = ALONE.lock();
    let fixture = fixture();
    let gpu = fixture.gpu();
    assert_eq!(gpu.properties().name, "Test GPU");
    assert_eq!(gpu.properties().frame_bytes, 2 << 20);
    assert_eq!(
        gpu.attribute(DeviceAttribute::MultiprocessorCount),
        Some(16)
    );
    let (context, stream) = started(&gpu);
    let event = gpu
        .event_create(context, EventFlags::default())
        .expect("an event");
    let busy = gpu
        .stream_create(context, StreamFlags::default(), 7)
        .expect("a stream");
    assert_eq!(gpu.stream_query(busy), Ok(false));
    assert_eq!(gpu.stream_query(stream), Ok(true));
    gpu.stream_wait_event(stream, event).expect("waits");
    let (sender, receiver) = std::sync::mpsc::channel();
    let callback = Box::new(move || sender.send(5).expect("the test waits"));
    gpu.stream_callback(stream, callback).expect("added");
    assert_eq!(receiver.recv(), Ok(5));
    let panics = Box::new(|| panic!("a callback's own fault"));
    gpu.stream_callback(stream, panics).expect("added");
    let default = gpu.default_stream(context).expect("there is one");
    assert_eq!(code(gpu.stream_destroy(default)), CuResult::InvalidHandle);
    gpu.context_set_limit(context, Limit::MallocHeapSize, 77)
        .expect("a known limit");
    assert_eq!(gpu.context_limit(context, Limit::MallocHeapSize), Ok(77));
    assert_eq!(
        code(gpu.context_limit(context, Limit::CigShmemFallbackEnabled)),
        CuResult::UnsupportedLimit
    );
    assert_eq!(code(gpu.context_suspend(context)), CuResult::NotSupported);
    assert_eq!(code(gpu.cancel(context, None)), CuResult::NotSupported);
    assert!(gpu.context_fault(context).is_none());

    gpu.context_destroy(context).expect("it ends");
    assert_eq!(fixture.get("fake_contexts"), 0);
    let gone = CuResult::InvalidHandle;
    assert_eq!(code(gpu.context_destroy(context)), gone);
    assert_eq!(code(gpu.stream_synchronize(stream)), gone);
    assert_eq!(code(gpu.stream_synchronize(default)), gone);
    assert_eq!(code(gpu.event_query(event)), gone);
    assert_eq!(code(gpu.memory_alloc(context, 4)), gone);
}

#[test]
fn modules_are_described_and_their_kernels_get_their_parameters() {
    let _alone = ALONE.lock();
    let fixture = fixture();
    let gpu = fixture.gpu();
    let (context, stream) = started(&gpu);
    let options = ModuleOptions::default();
    let broken = gpu.module_load(context, b".version 8.0 broken", &options);
    let error = broken.expect_err("it does not compile");
    assert_eq!(error.code, CuResult::InvalidPtx);
    assert!(error.message.contains("line 1"), "{error}");
    let module = gpu.module_load(context, PTX, &options).expect("it loads");
    let info = gpu.module_info(module).expect("it is described");
    let layout = |offset, size| ParamLayout { offset, size };
    assert_eq!(info.kernels[0].params, [layout(0, 8), layout(8, 4)]);
    assert!(!info.kernels[0].is_complete, "nothing was loaded for it");
    let whole = gpu.kernel_description(module, 0).expect("it is loaded");
    assert_eq!((whole.registers, whole.is_complete), (104, true));
    assert_eq!(info.globals.len(), 1);
    assert_eq!(info.globals[0].address, DevicePtr(0x1234));

    let mut params = 0xABCD_u64.to_ne_bytes().to_vec();
    params.extend(42_u32.to_ne_bytes());
    let launch = Launch {
        module,
        kernel: 0,
        grid: [3, 1, 1],
        block: [1, 1, 9],
        dynamic_shared: 100_000,
        cooperative: false,
        params: &params,
    };
    gpu.launch(stream, &launch).expect("it starts");
    assert_eq!(
        fixture.text("fake_launch"),
        "plain grid.x 3 block.z 9 shared 100000: abcd 42"
    );
    assert_eq!(fixture.get("fake_shared_limit"), 100_000);
    let mut cluster = LaunchAttribute {
        id: LaunchAttribute::CLUSTER_DIMENSION,
        value: [0; 16],
        event: None,
    };
    cluster.value[..3].copy_from_slice(&[2, 1, 1]);
    gpu.launch_with(stream, &launch, &[cluster])
        .expect("it starts");
    let [count, id] = [fixture.get("fake_attributes"), cluster.id as i32];
    assert_eq!((count, id), (1, 4));
    let mut question = ClusterQuestion {
        module,
        kernel: 0,
        grid: [8, 1, 1],
        block: [32, 1, 1],
        dynamic_shared: 0,
        attributes: &[cluster],
        largest: false,
    };
    assert_eq!(gpu.clusters(&question), Ok(4));
    question.largest = true;
    assert_eq!(gpu.clusters(&question), Ok(8));
    assert_eq!(gpu.available_shared(module, 0, 2, 64), Ok(116_224));
    let map = TensorMapRequest {
        kind: TensorMapKind::Tiled([16, 8, 0, 0, 0]),
        data_type: 6,
        rank: 2,
        address: DevicePtr(0x1000),
        dims: [64, 32, 0, 0, 0],
        strides: [128, 0, 0, 0, 0],
        element_strides: [1, 2, 0, 0, 0],
        interleave: 0,
        swizzle: 3,
        l2_promotion: 2,
        fill: 1,
    };
    let made = gpu.tensor_map(context, &map).expect("it is made");
    assert_eq!(made[..10], [6, 2, 32, 128, 8, 2, 0, 3, 2, 1]);
    let none = TensorMapRequest { rank: 0, ..map };
    assert!(gpu.tensor_map(context, &none).is_err());
    let cooperative = Launch {
        cooperative: true,
        dynamic_shared: 0,
        ..launch.clone()
    };
    gpu.launch(stream, &cooperative).expect("it starts");
    assert!(fixture.text("fake_launch").starts_with("cooperative"));
    let invalid = CuResult::InvalidValue;
    let short = Launch {
        params: &params[..11],
        ..launch.clone()
    };
    assert_eq!(code(gpu.launch(stream, &short)), invalid);
    let greedy = Launch {
        dynamic_shared: 300_000,
        ..launch.clone()
    };
    assert_eq!(code(gpu.launch(stream, &greedy)), invalid);
    assert_eq!(
        code(gpu.launch(
            stream,
            &Launch {
                kernel: 1,
                ..launch.clone()
            }
        )),
        invalid
    );
    assert_eq!(gpu.occupancy(module, 0, 256, 0), Ok(8));
    assert_eq!(gpu.occupancy(module, 0, 256, 300_000), Ok(0));
    gpu.module_unload(module).expect("it goes");
    assert_eq!(code(gpu.launch(stream, &launch)), CuResult::InvalidHandle);
}

#[test]
fn the_driver_loads_a_librarys_kernel_at_its_launch_unless_it_is_asked_about_before() {
    let _alone = ALONE.lock();
    let fixture = fixture();
    let gpu = fixture.gpu();
    let (context, stream) = started(&gpu);
    let loads_with = |kernels| {
        fixture.set("fake_functions", kernels);
        let before = fixture.get("fake_loads");
        let module = gpu.module_load(context, PTX, &ModuleOptions::default());
        (
            fixture.get("fake_loads") - before,
            module.expect("it loads"),
        )
    };
    let (loads, module) = loads_with(17);
    assert_eq!(loads, 0, "a program uses few of them");
    let mut launch = Launch {
        module,
        kernel: 16,
        ..plain_launch(module, &[0; 12])
    };
    for shared in [0, 48 << 10] {
        launch.dynamic_shared = shared;
        gpu.launch(stream, &launch).expect("it starts");
        gpu.launch_with(stream, &launch, &[]).expect("it starts");
    }
    assert_eq!(fixture.get("fake_loads"), 0, "it was asked about");
    gpu.kernel_description(module, 16).expect("it is loaded");
    assert_eq!(fixture.get("fake_loads"), 1);
    assert_eq!(loads_with(16).0, 16, "those of a small module");
    fixture.set("fake_functions", 1);
}

fn plain_launch(module: ModuleId, params: &[u8]) -> Launch<'_> {
    Launch {
        module,
        kernel: 0,
        grid: [1; 3],
        block: [32, 1, 1],
        dynamic_shared: 0,
        cooperative: false,
        params,
    }
}

#[test]
fn launches_in_a_row_are_one_graph_with_the_parameters_of_each() {
    let _alone = ALONE.lock();
    let fixture = fixture();
    let gpu = fixture.gpu();
    let (context, stream) = started(&gpu);
    let load = || {
        let module = gpu.module_load(context, PTX, &ModuleOptions::default());
        module.expect("it loads")
    };
    let (module, other) = (load(), load());
    let length = gpu.row_length();
    assert_eq!(length, 16);
    let row = |module, first: u32, count: usize| {
        let params: Vec<[u8; 12]> = (0..count as u32)
            .map(|index| {
                let mut bytes = [0; 12];
                bytes[8..].copy_from_slice(&(first + index).to_ne_bytes());
                bytes
            })
            .collect();
        let launches: Vec<Launch<'_>> = (params.iter().enumerate())
            .map(|(index, params)| {
                let mut launch = plain_launch(module, params);
                launch.grid[0] = index as u32 + 1;
                launch
            })
            .collect();
        gpu.launch_row(stream, &launches)
    };
    let counts =
        || ["fake_launches", "fake_graph_launches", "fake_execs"].map(|name| fixture.get(name));
    assert!(row(module, 100, length));
    assert_eq!(counts(), [16, 1, 1]);
    let last = "node grid.x 16 block.z 1 shared 0: 0 115";
    assert_eq!(fixture.text("fake_launch"), last);
    assert!(row(other, 200, length));
    assert_eq!(counts(), [32, 2, 1], "the same graph with other launches");
    let last = "node grid.x 16 block.z 1 shared 0: 0 215";
    assert_eq!(fixture.text("fake_launch"), last);
    // What is no whole row, or nothing that a graph can do, is launched one by one.
    assert!(!row(module, 0, length - 1));
    fixture.set("fake_rows_refused", 1);
    assert!(!row(module, 300, length));
    fixture.set("fake_rows_refused", 0);
    let mut cooperative = vec![plain_launch(module, &[0; 12]); length];
    cooperative[3].cooperative = true;
    assert!(!gpu.launch_row(stream, &cooperative));
    assert_eq!(counts()[..2], [32, 2]);
    // A module that goes takes the graph along, which may name its kernels.
    gpu.module_unload(other).expect("it goes");
    assert_eq!(
        (fixture.get("fake_execs"), fixture.get("fake_graphs")),
        (0, 0)
    );
    assert!(!row(other, 0, length), "its module is gone");
    assert!(row(module, 400, length));
    let last = "node grid.x 16 block.z 1 shared 0: 0 415";
    assert_eq!(fixture.text("fake_launch"), last);
    gpu.context_destroy(context).expect("it ends");
    assert_eq!(
        (fixture.get("fake_execs"), fixture.get("fake_graphs")),
        (0, 0)
    );
}

#[test]
fn launches_in_a_row_never_wait_for_those_of_another_stream() {
    let _alone = ALONE.lock();
    let fixture = fixture();
    let gpu = fixture.gpu();
    let (context, first) = started(&gpu);
    let module = gpu.module_load(context, PTX, &ModuleOptions::default());
    let module = module.expect("it loads");
    let row = |stream| {
        let launches = vec![plain_launch(module, &[0; 12]); gpu.row_length()];
        gpu.launch_row(stream, &launches)
    };
    let graphs = || fixture.get("fake_execs");
    let stream_with = |priority| {
        let stream = gpu.stream_create(context, StreamFlags::default(), priority);
        stream.expect("a stream")
    };
    assert!(row(first) && row(first));
    assert_eq!(graphs(), 1, "a stream launches its own again");
    // Streams of priority 7 have work that does not end.
    let busy: Vec<_> = (0..7).map(|_| stream_with(7)).collect();
    assert!(busy.iter().all(|stream| row(*stream)));
    assert_eq!(
        graphs(),
        8,
        "one each: a graph is launched again only when it has ended"
    );
    let more = stream_with(0);
    assert!(
        row(more),
        "the graph of the first stream, which has no work"
    );
    assert!(!row(first), "the oldest one is a stream's that has work");
    assert!(row(more) && row(busy[0]), "they keep theirs");
    assert_eq!(graphs(), 8);
    // One that is destroyed may have work left, and its graph is nobody's only after that.
    gpu.stream_destroy(busy[1]).expect("it is destroyed");
    assert!(!row(first));
    fixture.set("fake_done", 1);
    gpu.stream_synchronize(busy[0]).expect("it has ended");
    assert!(row(first), "the graph of the stream that is gone");
    assert_eq!(graphs(), 8);
    gpu.stream_destroy(first).expect("it is destroyed");
    assert!(row(stream_with(0)));
    assert_eq!(graphs(), 8);
    fixture.set("fake_done", 0);
    gpu.context_destroy(context).expect("it ends");
    assert_eq!(graphs(), 0);
}

#[test]
fn copies_of_registered_memory_are_waited_for_by_a_word_and_kernels_by_the_driver() {
    let _alone = ALONE.lock();
    let fixture = fixture();
    let gpu = fixture.gpu();
    let (context, stream) = started(&gpu);
    let waits = || (fixture.get("fake_words"), fixture.get("fake_stream_waits"));
    let mut host = vec![7_u8; 8192];
    // SAFETY: the vector outlives the context.
    let pinned = unsafe { gpu.host_register(context, span(&mut host), None, 0) };
    let pinned = pinned.expect("it is registered");
    let device = gpu.memory_alloc(context, 4096).expect("there is room");
    let copy = |dst, src| {
        let copy = Copy3d::linear(Place::Device(dst), Place::Device(src), 100);
        gpu.copy(stream, &copy).expect("it is copied");
    };
    // The stand-in's device addresses of host memory are off by one: only as host memory it is found.
    copy(device, DevicePtr(pinned.0 + 4000));
    gpu.stream_synchronize(stream).expect("it is done");
    assert_eq!(waits(), (1, 0));
    host[..200].fill(9);
    copy(pinned, device);
    gpu.stream_synchronize(stream).expect("it is done");
    assert_eq!((host[99], host[100]), (7, 9));
    assert_eq!(waits(), (2, 0));
    gpu.stream_synchronize(stream).expect("nothing runs");
    assert_eq!(waits(), (2, 1), "there is no copy to wait for");

    let module = (gpu.module_load(context, PTX, &ModuleOptions::default())).expect("it loads");
    let launch = Launch {
        module,
        kernel: 0,
        grid: [1; 3],
        block: [1; 3],
        dynamic_shared: 0,
        cooperative: false,
        params: &[0; 12],
    };
    gpu.launch(stream, &launch).expect("it starts");
    copy(device, pinned);
    gpu.stream_synchronize(stream).expect("it is done");
    assert_eq!(waits(), (2, 2), "the driver prints for the kernel");
    copy(device, pinned);
    gpu.stream_synchronize(stream).expect("it is done");
    assert_eq!(waits(), (3, 2));

    // A word that does not come is waited for by the driver.
    fixture.set("fake_hold", 1);
    copy(device, pinned);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| gpu.stream_synchronize(stream));
        while fixture.get("fake_inside") == 0 {
            std::thread::yield_now();
        }
        assert!(!waiting.is_finished());
        fixture.set("fake_hold", 0);
        waiting.join().expect("no panic").expect("it is done");
    });
    assert_eq!(waits(), (4, 3));
    gpu.context_destroy(context).expect("it goes");
}

#[test]
fn a_launch_after_another_meets_neither_a_stream_that_is_gone_nor_another_gpu_s() {
    let _alone = ALONE.lock();
    let fixture = fixture();
    let (gpu, other) = (fixture.gpu(), fixture.gpu());
    let (context, stream) = started(&gpu);
    let module = (gpu.module_load(context, PTX, &ModuleOptions::default())).expect("it loads");
    let launch = Launch {
        module,
        kernel: 0,
        grid: [1; 3],
        block: [1; 3],
        dynamic_shared: 0,
        cooperative: false,
        params: &[0; 12],
    };
    let second = gpu.stream_create(context, StreamFlags::default(), 0);
    let second = second.expect("a stream");
    for on in [stream, stream, second, second, stream] {
        gpu.launch(on, &launch).expect("it starts");
    }
    assert_eq!(
        code(other.launch(stream, &launch)),
        CuResult::InvalidHandle,
        "the numbers are the same, the tables are not"
    );
    gpu.launch(stream, &launch).expect("it starts");
    gpu.stream_destroy(stream).expect("it goes");
    assert_eq!(code(gpu.launch(stream, &launch)), CuResult::InvalidHandle);
    gpu.launch(second, &launch).expect("it starts");
    // The place of the first is taken again: its number stays dead.
    let third = gpu.stream_create(context, StreamFlags::default(), 0);
    gpu.launch(third.expect("a stream"), &launch)
        .expect("it starts");
    assert_eq!(code(gpu.launch(stream, &launch)), CuResult::InvalidHandle);
}

#[test]
fn copies_of_every_shape_arrive_and_none_leaves_its_memory() {
    let _alone = ALONE.lock();
    let fixture = fixture();
    let gpu = fixture.gpu();
    let (context, stream) = started(&gpu);
    let memory = gpu.memory_alloc(context, 4096).expect("memory");
    let device = Place::Device(memory);
    let mut data: Vec<u32> = (0..60).collect();
    let mut back = vec![0_u32; 60];
    let out = Copy3d::linear(device, Place::Host(span(&mut data)), 240);
    gpu.copy(stream, &out).expect("to the device");
    gpu.copy(
        stream,
        &Copy3d::linear(Place::Host(span(&mut back)), device, 240),
    )
    .expect("back");
    assert_eq!(back, data);

    // Boxes of 4 words × 5 rows × 3 slices; slices 100 bytes apart are no whole number of rows.
    for slice in [80, 100] {
        let mut boxed = Copy3d::linear(device, Place::Host(span(&mut data)), 16);
        (boxed.height, boxed.depth) = (5, 3);
        (boxed.src_pitch, boxed.dst_pitch) = ((16, 80), (16, slice));
        gpu.copy(stream, &boxed).expect("to the device");
        (boxed.src, boxed.dst) = (device, Place::Host(span(&mut back)));
        (boxed.src_pitch, boxed.dst_pitch) = ((16, slice), (16, 80));
        back.fill(0);
        gpu.copy(stream, &boxed).expect("back");
        assert_eq!(back, data, "slices {slice} bytes apart");
    }
    let shape = ArrayDescriptor {
        width: 10,
        height: 6,
        depth: 0,
        format: 3,
        channels: 1,
        flags: 0,
    };
    let array = gpu.array_create(context, &shape).expect("an array");
    let mut rows = Copy3d::linear(Place::Array(array), Place::Host(span(&mut data)), 40);
    (rows.height, rows.src_pitch) = (6, (40, 240));
    gpu.copy(stream, &rows).expect("into the array");
    let mut part = Copy3d::linear(Place::Host(span(&mut back)), Place::Array(array), 8);
    (part.height, part.dst_pitch, part.src_offset) = (2, (8, 16), (12, 4, 0));
    gpu.copy(stream, &part).expect("a part of it");
    assert_eq!(back[..4], [43, 44, 53, 54]);

    let invalid = CuResult::InvalidValue;
    let long = Copy3d::linear(device, Place::Host(span(&mut data)), 244);
    assert_eq!(
        code(gpu.copy(stream, &long)),
        invalid,
        "past the host's end"
    );
    let mut big = vec![0_u8; 8192];
    let past = Copy3d::linear(device, Place::Host(span(&mut big)), 8192);
    assert_eq!(
        code(gpu.copy(stream, &past)),
        invalid,
        "past the device's end"
    );
    let nowhere = Place::Device(DevicePtr(64));
    let wild = Copy3d::linear(nowhere, Place::Host(span(&mut data)), 4);
    assert_eq!(code(gpu.copy(stream, &wild)), invalid, "no memory at all");
    gpu.array_destroy(array).expect("it goes");
    assert_eq!(code(gpu.copy(stream, &rows)), CuResult::InvalidHandle);

    let mut fill = Fill2d {
        dst: memory,
        pitch: 16,
        value: 0xA1B2_C3D4,
        element_bytes: 2,
        width: 3,
        height: 2,
    };
    gpu.copy(
        stream,
        &Copy3d::linear(device, Place::Host(span(&mut [0_u32; 16])), 64),
    )
    .expect("zeros");
    gpu.fill(stream, &fill).expect("two rows");
    gpu.copy(
        stream,
        &Copy3d::linear(Place::Host(span(&mut back)), device, 32),
    )
    .expect("back");
    assert_eq!(
        back[..8],
        [0xC3D4_C3D4, 0xC3D4, 0, 0, 0xC3D4_C3D4, 0xC3D4, 0, 0]
    );
    fill.element_bytes = 3;
    assert_eq!(code(gpu.fill(stream, &fill)), invalid);
    (fill.element_bytes, fill.width) = (4, 1024);
    assert_eq!(code(gpu.fill(stream, &fill)), invalid, "past the end");
    gpu.memory_free(context, memory).expect("it goes");
    assert_eq!(code(gpu.memory_free(context, memory)), invalid);
}

#[test]
fn copies_of_frames_run_beside_streams_and_leave_no_event_behind() {
    let _alone = ALONE.lock();
    let fixture = fixture();
    let gpu = fixture.gpu();
    let (context, _) = started(&gpu);
    let events = fixture.get("fake_events");
    let memory = gpu.memory_alloc(context, 4096).expect("memory");
    let frame = FrameId(1);
    let (mut from, mut into) = ([7_u8; 64], [0_u8; 64]);
    let load = gpu.frame_load(frame, memory, 100, span(&mut from));
    let load = load.expect("begins");
    assert!(gpu.frame_copied(load, true).expect("ends"));
    let save = gpu.frame_save(frame, memory, 100, span(&mut into));
    let save = save.expect("begins");
    assert_eq!(fixture.get("fake_events"), events + 1);
    assert!(gpu.frame_copied(save, false).expect("has ended"));
    assert_eq!((into, fixture.get("fake_events")), (from, events));
    for wait in [true, false] {
        assert_eq!(code(gpu.frame_copied(save, wait)), CuResult::InvalidHandle);
    }
    gpu.context_destroy(context).expect("ends");
    let refused = gpu.frame_save(frame, memory, 0, span(&mut into));
    assert_eq!(code(refused), CuResult::InvalidValue, "without a context");
    assert_eq!(fixture.get("fake_events"), events);
}

#[test]
fn frames_textures_and_registered_memory_reach_the_driver_as_they_should() {
    let _alone = ALONE.lock();
    let fixture = fixture();
    let gpu = fixture.gpu();
    let (context, _) = started(&gpu);
    let frame = gpu.frame_create(4 << 20).expect("a frame");
    assert_eq!(code(gpu.frame_create(100)), CuResult::InvalidValue);
    let address = gpu.address_reserve(8 << 20, 0).expect("addresses");
    gpu.frame_map(address, frame).expect("mapped whole");
    for (access, flags) in [(Access::None, 0), (Access::Read, 1), (Access::ReadWrite, 3)] {
        gpu.frame_access(address, 4 << 20, access).expect("allowed");
        assert_eq!(fixture.get("fake_access"), flags);
    }
    gpu.frame_unmap(address, 4 << 20).expect("unmapped");
    gpu.frame_release(frame).expect("released");
    assert_eq!(code(gpu.frame_release(frame)), CuResult::InvalidHandle);
    assert_eq!(code(gpu.frame_map(address, frame)), CuResult::InvalidHandle);
    gpu.address_free(address, 8 << 20).expect("given back");

    let memory = gpu.memory_alloc(context, 4096).expect("memory");
    let mut how = TextureDescriptor {
        resource: TextureResource::Linear(memory, 64),
        format: 3,
        channels: 2,
        address_mode: [1; 3],
        filter: 0,
        normalized_coords: true,
        read_as_integer: false,
        border: [0.0; 4],
    };
    let texture = gpu.texture_create(context, &how).expect("a texture");
    assert_eq!(
        texture,
        memory.0 + 3 * 16 + 2,
        "format and channels lie where they should"
    );
    gpu.texture_destroy(context, texture).expect("it goes");
    assert_eq!(
        code(gpu.texture_destroy(context, texture)),
        CuResult::InvalidValue
    );
    how.resource = TextureResource::Linear(DevicePtr(256), 64);
    assert_eq!(
        code(gpu.texture_create(context, &how)),
        CuResult::InvalidValue
    );
    let shape = ArrayDescriptor {
        width: 4,
        height: 4,
        depth: 0,
        format: 3,
        channels: 1,
        flags: 2,
    };
    let array = gpu.array_create(context, &shape).expect("an array");
    let surface = gpu.surface_create(context, array).expect("a surface");
    gpu.texture_destroy(context, surface)
        .expect("by the surface's own function");

    let mut host = vec![0_u8; 4096];
    // SAFETY: the buffer lives to the end of the test.
    let seen = unsafe { gpu.host_register(context, span(&mut host), None, 0) };
    let seen = seen.expect("registered");
    assert_eq!(seen.0, host.as_ptr() as u64 + 1);
    gpu.host_unregister(context, seen).expect("unregistered");
    assert_eq!(
        code(gpu.host_unregister(context, seen)),
        CuResult::InvalidValue
    );
}

#[test]
fn allocations_of_whole_frames_can_be_shared_and_others_cannot() {
    let _alone = ALONE.lock();
    let fixture = fixture();
    fixture.set("fake_shareable", 1);
    let gpu = fixture.gpu();
    let (context, _) = started(&gpu);
    let whole = gpu.memory_alloc(context, 4 << 20).expect("memory");
    assert_eq!(whole, DevicePtr(0x7000_0000_0000), "reserved addresses");
    assert_eq!(fixture.get("fake_access"), 3);
    let (file, bytes) = gpu.memory_export(context, whole).expect("a file");
    assert_eq!(bytes, 4 << 20);
    let number = file.as_raw_fd();
    let frame = gpu.frame_import(file, bytes).expect("a frame");
    assert_eq!(fixture.get("fake_imported"), number);
    gpu.frame_export(frame).expect("a file again");
    gpu.frame_release(frame).expect("released");
    // The stand-in maps 4 MiB alone: what cannot be a frame is allocated in the usual way.
    let usual = gpu.memory_alloc(context, 2 << 20).expect("memory");
    let small = gpu.memory_alloc(context, 100).expect("memory");
    for memory in [usual, small] {
        assert_ne!(memory, whole);
        let refused = gpu.memory_export(context, memory);
        assert_eq!(code(refused), CuResult::NotSupported);
        gpu.memory_free(context, memory).expect("freed");
    }
    gpu.memory_free(context, whole).expect("freed");
    assert!(gpu.memory_free(context, whole).is_err());
    assert!(gpu.memory_export(context, whole).is_err());
}
