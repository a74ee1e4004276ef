//! What a recorder is told of work on a card, against the stand-in driver.

mod common;

use std::sync::Arc;

use common::{ALONE, fixture, started};
use mica_gpu::profile::{Activity, RecordLevel, Recorder};
use mica_gpu::{Copy3d, Gpu, HostSpan, Launch, ModuleOptions, Place, StreamFlags};

const PTX: &[u8] = b".version 8.0\n.target sm_90\n.visible .entry k() { ret; }\0";

#[test]
fn work_is_recorded_between_two_events_once_it_has_ended_and_costs_none_while_off() {
    let _alone = ALONE.lock();
    let fixture = fixture();
    let gpu = fixture.gpu();
    let recorder = Arc::new(Recorder::default());
    assert!(gpu.attach_recorder(&recorder));
    let (context, stream) = started(&gpu);
    // The stand-in's streams of this priority are busy until it is told otherwise.
    let busy = gpu
        .stream_create(context, StreamFlags::default(), 7)
        .expect("a stream");
    let options = ModuleOptions::default();
    let module = gpu.module_load(context, PTX, &options).expect("it loads");
    let params = [0; 12];
    let launch = Launch {
        module,
        kernel: 0,
        grid: [1; 3],
        block: [1; 3],
        dynamic_shared: 0,
        cooperative: false,
        params: &params,
    };
    gpu.launch(stream, &launch).expect("it starts");
    let before = fixture.get("fake_events");
    gpu.launch(stream, &launch).expect("it starts");
    assert_eq!(fixture.get("fake_events"), before, "no events while off");

    recorder.set_level(RecordLevel::Spans);
    gpu.launch(busy, &launch).expect("it starts");
    assert_eq!(recorder.waiting(), 0, "it runs");
    fixture.set("fake_done", 1);
    let memory = gpu.memory_alloc(context, 64).expect("memory");
    let mut host = [0_u8; 64];
    // SAFETY: the buffer outlives the copy, which the stand-in does not do.
    let span = unsafe { HostSpan::new(host.as_mut_ptr(), 64) };
    let copy = Copy3d::linear(Place::Device(memory), Place::Host(span), 64);
    gpu.copy(busy, &copy).expect("it starts");
    gpu.stream_synchronize(busy).expect("it ends");
    let taken = recorder.take(10);
    let shown: Vec<_> = (taken.spans.iter())
        .map(|span| {
            let name = &taken.names[span.name as usize].1;
            (
                span.activity,
                name.as_str(),
                span.end_ns - span.begin_ns,
                span.bytes,
            )
        })
        .collect();
    // The stand-in's events are 1.5 ms apart.
    assert_eq!(shown[0].0, Activity::Kernel);
    assert_eq!(shown[0].2, 1_500_000);
    let copied = (Activity::Copy, "host to device", 1_500_000, 64);
    assert_eq!((shown.len(), shown[1]), (2, copied));
    assert!(
        taken
            .spans
            .iter()
            .all(|span| span.queued_ns <= span.begin_ns)
    );

    // Events are used again.
    let made = fixture.get("fake_events");
    for _ in 0..10 {
        gpu.launch(stream, &launch).expect("it starts");
        gpu.stream_synchronize(stream).expect("it ends");
    }
    assert_eq!(recorder.take(100).spans.len(), 10);
    assert_eq!(fixture.get("fake_events"), made);
    gpu.context_destroy(context).expect("it ends");
}
