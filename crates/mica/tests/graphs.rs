//! Graphs from Rust, embedded and behind a worker's session.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{PTX, embedded, on_both};
use mica::{Graph, Grid};

#[test]
fn a_captured_graph_runs_each_time_it_is_launched() {
    on_both(64 << 20, |vgpu| {
        let vadd = vgpu.load_ptx(PTX).unwrap().kernel("vadd").unwrap();
        let x = vgpu.upload(&[1.0_f32; 1000]).unwrap();
        let sum = vgpu.alloc::<f32>(1000).unwrap();
        let mut copy = vgpu.alloc::<f32>(1000).unwrap();
        let stream = vgpu.stream().unwrap();
        let seen = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&seen);
        let graph = stream
            .capture(|| {
                let grid = Grid::covering(1000, 256);
                stream.launch(&vadd, grid, (&x, &sum, &sum, 1000_u32))?;
                copy.copy_from_buffer(&stream, &sum)?;
                stream.fill(copy.slice_mut(..10)?, 7.0)?;
                copy.slice_mut(10..12)?.copy_from(&stream, &[8.0, 9.0])?;
                stream.call_each(move || {
                    counter.fetch_add(1, Ordering::SeqCst);
                })
            })
            .unwrap();
        assert_eq!(graph.len(), 5);
        assert_eq!(sum.to_vec().unwrap(), [0.0; 1000], "nothing has run yet");
        let ready = graph.instantiate().unwrap();
        ready.upload(&stream).unwrap();
        for _ in 0..3 {
            ready.launch(&stream).unwrap();
        }
        stream.synchronize().unwrap();
        assert_eq!(sum.to_vec().unwrap(), [3.0; 1000]);
        let copied = copy.to_vec().unwrap();
        assert_eq!(
            copied[..13].to_vec(),
            [
                7.0, 7.0, 7.0, 7.0, 7.0, 7.0, 7.0, 7.0, 7.0, 7.0, 8.0, 9.0, 3.0
            ]
        );
        assert_eq!(seen.load(Ordering::SeqCst), 3);
        // The module goes with the last who uses it, not before.
        drop(vadd);
        ready.launch(&stream).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(sum.to_vec().unwrap()[999], 4.0);
        assert_eq!(vgpu.statistics().unwrap().launches, 4);
    });
}

#[test]
fn streams_join_a_capture_by_events() {
    on_both(64 << 20, |vgpu| {
        let vadd = vgpu.load_ptx(PTX).unwrap().kernel("vadd").unwrap();
        let (one, two) = (vgpu.stream().unwrap(), vgpu.stream().unwrap());
        let (fork, join) = (vgpu.event().unwrap(), vgpu.event().unwrap());
        let mut a = vgpu.alloc::<f32>(64).unwrap();
        let mut b = vgpu.alloc::<f32>(64).unwrap();
        let mut c = vgpu.alloc::<f32>(64).unwrap();
        let graph = one
            .capture(|| {
                fork.record(&one)?;
                two.wait_for(&fork)?;
                one.fill(&mut a, 1.0)?;
                two.fill(&mut b, 2.0)?;
                join.record(&two)?;
                one.wait_for(&join)?;
                one.launch(&vadd, Grid::new(1, 64), (&a, &b, &mut c, 64_u32))
            })
            .unwrap();
        assert_eq!(graph.len(), 3);
        // Captures are over: both streams work again.
        two.fill(&mut b, 5.0).unwrap();
        two.synchronize().unwrap();
        let ready = graph.instantiate().unwrap();
        ready.launch(&two).unwrap();
        two.synchronize().unwrap();
        assert_eq!(c.to_vec().unwrap(), [3.0; 64]);
    });
}

#[test]
fn what_a_capture_cannot_hold_is_refused_and_ends_it() {
    let vgpu = embedded(64 << 20);
    let (one, two) = (vgpu.stream().unwrap(), vgpu.stream().unwrap());
    let mut buffer = vgpu.alloc::<u32>(16).unwrap();
    let refused = |what: &str, result: mica::Result<Graph>| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(what), "{what}: {error}");
    };
    refused("a wait cannot be a part", one.capture(|| one.synchronize()));
    refused(
        "a copy to the host cannot",
        one.capture(|| buffer.download(&one)),
    );
    refused("runs once", one.capture(|| one.call(|| {})));
    refused("already", one.capture(|| one.capture(|| Ok(()))));
    let default = vgpu.default_stream();
    refused("the default stream", default.capture(|| Ok(())));
    let event = vgpu.event().unwrap();
    event.record(&two).unwrap();
    refused(
        "outside of its capture",
        one.capture(|| one.wait_for(&event)),
    );
    refused(
        "1 nodes of other streams are not joined",
        one.capture(|| {
            event.record(&one)?;
            two.wait_for(&event)?;
            two.fill(&mut buffer, 1)
        }),
    );
    // Both streams are as before.
    one.fill(&mut buffer, 3).unwrap();
    two.synchronize().unwrap();
    one.synchronize().unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [3; 16]);
    // A function that panics leaves no capture behind.
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        one.capture(|| -> mica::Result<()> { panic!("on purpose") })
    }));
    assert!(panicked.is_err());
    one.synchronize().unwrap();
}

#[test]
fn a_graph_built_by_hand_runs_in_the_order_of_its_nodes() {
    on_both(64 << 20, |vgpu| {
        let vadd = vgpu.load_ptx(PTX).unwrap().kernel("vadd").unwrap();
        let mut a = vgpu.alloc::<f32>(32).unwrap();
        let mut b = vgpu.alloc::<f32>(32).unwrap();
        let mut c = vgpu.alloc::<f32>(32).unwrap();
        let (start, end) = (vgpu.event().unwrap(), vgpu.event().unwrap());
        let order = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&order);
        let mut graph = Graph::new(vgpu);
        let begun = graph.record(&[], &start).unwrap();
        let filled = graph.fill(&[begun], &mut a, 4.0_f32).unwrap();
        let written = graph.write(&[begun], &mut b, &[0.5; 32]).unwrap();
        let both = graph.join(&[filled, written]).unwrap();
        let added = graph
            .launch(&[both], &vadd, Grid::new(1, 32), (&a, &b, &mut c, 32_u32))
            .unwrap();
        let copied = graph
            .copy(&[added], a.slice_mut(..16).unwrap(), c.slice(..16).unwrap())
            .unwrap();
        let called = graph
            .call(&[copied], move || {
                seen.fetch_add(1, Ordering::SeqCst);
            })
            .unwrap();
        graph.record(&[called], &end).unwrap();
        // The graph keeps events, and a copy of the values.
        let stream = vgpu.stream().unwrap();
        let mut ready = graph.instantiate().unwrap();
        ready.launch(&stream).unwrap();
        stream.synchronize().unwrap();
        assert!(end.elapsed_since_ms(&start).unwrap() >= 0.0);
        let (a_now, c_now) = (a.to_vec().unwrap(), c.to_vec().unwrap());
        assert_eq!((a_now[0], a_now[16], c_now[0]), (4.5, 4.0, 4.5));
        assert_eq!(order.load(Ordering::SeqCst), 1);

        // Another count and other buffers for the same node; what is ready takes them over when it is told to.
        graph
            .set_launch(added, &vadd, Grid::new(1, 32), (&b, &b, &mut c, 8_u32))
            .unwrap();
        assert!(
            graph
                .set_launch(both, &vadd, Grid::new(1, 1), (&b, &b, &mut c, 8_u32))
                .is_err()
        );
        ready.launch(&stream).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(c.to_vec().unwrap()[0], 4.5);
        ready.update(&graph).unwrap();
        ready.launch(&stream).unwrap();
        stream.synchronize().unwrap();
        let c_now = c.to_vec().unwrap();
        assert_eq!((c_now[7], c_now[8]), (1.0, 4.5));
        assert_eq!(order.load(Ordering::SeqCst), 3);
        drop((start, end, ready));
    });
}

#[test]
fn a_graph_can_hold_another_twice() {
    let vgpu = embedded(64 << 20);
    let vadd = vgpu.load_ptx(PTX).unwrap().kernel("vadd").unwrap();
    let one = vgpu.upload(&[1.0_f32; 8]).unwrap();
    let sum = vgpu.alloc::<f32>(8).unwrap();
    let mut child = Graph::new(&vgpu);
    child
        .launch(&[], &vadd, Grid::new(1, 8), (&one, &sum, &sum, 8_u32))
        .unwrap();
    let mut graph = Graph::new(&vgpu);
    let first = graph.child(&[], &child).unwrap();
    let second = graph.child(&[first], &child).unwrap();
    graph.child(&[second], &Graph::new(&vgpu)).unwrap();
    let foreign = child.nodes().next().unwrap();
    let refused = graph.join(&[foreign]).unwrap_err().to_string();
    assert!(refused.contains("belongs to another graph"), "{refused}");
    graph
        .instantiate()
        .unwrap()
        .launch(&vgpu.default_stream())
        .unwrap();
    assert_eq!(sum.to_vec().unwrap(), [2.0; 8]);
}
