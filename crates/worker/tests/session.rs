//! Sessions, end to end: every family of calls through a real ring.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{MODULE, bench, params};
use mica_wire::session::client::{DeviceBox, HostBox, SessionClient};
use mica_wire::session::*;

fn launch(module: u64, kernel: u32, stream: u64) -> Launch {
    Launch {
        stream,
        module,
        kernel,
        grid: [1, 1, 1],
        block: [32, 1, 1],
        dynamic_shared: 0,
        cooperative: false,
    }
}

fn code(result: Result<impl std::fmt::Debug, SessionError>) -> u32 {
    result.unwrap_err().cuda_code()
}

#[test]
fn a_program_launches_and_reads_back() {
    let b = bench(64 << 20);
    let (client, served) = b.client();
    let snapshot = client.snapshot();
    assert_eq!(
        (snapshot.name.as_str(), snapshot.vgpu.as_str()),
        ("Test GPU", "test")
    );
    assert_eq!(snapshot.total_memory, 64 << 20);
    assert_eq!(snapshot.attributes.len(), 120);
    let NewContext {
        context,
        default_stream: stream,
    } = client.call(&ContextCreate { flags: 0 }).unwrap();
    let loaded = client.module_load(context, MODULE, false).unwrap();
    assert_eq!(loaded.kernels[0].params, [(0, 8), (8, 4), (12, 4)]);
    assert_eq!(loaded.globals[0].bytes, 64);
    let address = client
        .call(&MemoryAlloc {
            context,
            bytes: 4096,
        })
        .unwrap()
        .value;
    for _ in 0..1000 {
        let add = launch(loaded.module, 1, stream);
        client.launch(&add, &params(address, 4, 2)).unwrap();
    }
    client.call(&StreamSynchronize { stream }).unwrap();
    let mut back = [0; 20];
    client.read(stream, address, &mut back).unwrap();
    assert_eq!(back[..4], 2000_u32.to_le_bytes());
    assert_eq!(back[16..], [0; 4]);
    assert_eq!(client.call(&Counters {}).unwrap().launches, 1000);
    let info = client.call(&MemoryInfo {}).unwrap();
    assert_eq!(info.limit_bytes, 64 << 20);
    assert!(info.used_bytes >= 4096);
    drop(client);
    assert_eq!(served.join().unwrap(), None);
    b.assert_clean();
}

#[test]
fn large_data_goes_both_ways_unchanged() {
    let b = bench(256 << 20);
    let (client, served) = b.client();
    let new = client.call(&ContextCreate { flags: 0 }).unwrap();
    let stream = new.default_stream;
    for bytes in [1_usize, 8192, 8193, 100_000, 1 << 20, (40 << 20) + 12345] {
        let data: Vec<u8> = (0..bytes).map(|i| (i * 31 % 251) as u8).collect();
        let request = MemoryAlloc {
            context: new.context,
            bytes: bytes as u64,
        };
        let address = client.call(&request).unwrap().value;
        client.write(stream, address, &data).unwrap();
        let mut back = vec![0; bytes];
        client.read(stream, address, &mut back).unwrap();
        assert!(back == data, "{bytes} bytes");
        let context = new.context;
        client.call(&MemoryFree { context, address }).unwrap();
    }
    drop(client);
    served.join().unwrap();
    b.assert_clean();
}

#[test]
fn boxes_with_pitches_are_staged_row_by_row() {
    let b = bench(64 << 20);
    let (client, _served) = b.client();
    let new = client.call(&ContextCreate { flags: 0 }).unwrap();
    let (context, stream) = (new.context, new.default_stream);
    let bytes = 64 * 10 * 3;
    let address = client.call(&MemoryAlloc { context, bytes }).unwrap().value;
    let mut host: Vec<u8> = (0..50 * 12 * 3).map(|i| (i % 256) as u8).collect();
    let host_box = HostBox {
        pointer: host.as_mut_ptr(),
        pitch: (50, 600),
        extent: (37, 10, 3),
    };
    let device = DeviceBox {
        place: CopyPlace::Device(address),
        pitch: (64, 640),
        offset: [0; 3],
    };
    let mut back = vec![0_u8; host.len()];
    let back_box = HostBox {
        pointer: back.as_mut_ptr(),
        ..host_box
    };
    // SAFETY: both vectors hold their boxes and outlive the calls.
    unsafe {
        client.write_box(stream, &host_box, &device).unwrap();
        client.read_box(stream, &back_box, &device).unwrap();
    }
    for z in 0..3 {
        for y in 0..10 {
            let at = z * 600 + y * 50;
            assert_eq!(back[at..at + 37], host[at..at + 37]);
            assert_eq!(back[at + 37..at + 50], [0; 13]);
        }
    }
}

#[test]
fn the_quota_holds_at_the_byte_through_the_wire() {
    let b = bench(1 << 20);
    let (one, _s1) = b.client();
    let (two, _s2) = b.client();
    let c1 = one.call(&ContextCreate { flags: 0 }).unwrap().context;
    let c2 = two.call(&ContextCreate { flags: 0 }).unwrap().context;
    let bytes = (1 << 20) - 256;
    let address = one.call(&MemoryAlloc { context: c1, bytes }).unwrap().value;
    assert_eq!(
        code(two.call(&MemoryAlloc {
            context: c2,
            bytes: 257
        })),
        2
    );
    let small = two
        .call(&MemoryAlloc {
            context: c2,
            bytes: 256,
        })
        .unwrap()
        .value;
    assert_eq!(
        code(one.call(&MemoryAlloc {
            context: c1,
            bytes: 1
        })),
        2
    );
    // Refused memory harms nothing: the program goes on.
    one.call(&ContextSynchronize { context: c1 }).unwrap();
    assert_eq!(
        code(one.call(&MemoryFree {
            context: c1,
            address: small
        })),
        1
    );
    one.call(&MemoryFree {
        context: c1,
        address,
    })
    .unwrap();
    two.call(&MemoryAlloc { context: c2, bytes }).unwrap();
    assert_eq!(two.call(&MemoryInfo {}).unwrap().free_bytes, 0);
    assert_eq!(
        code(two.call(&MemoryAlloc {
            context: c2,
            bytes: u64::MAX
        })),
        2
    );
}

#[test]
fn late_errors_are_told_and_stick_where_cuda_says_so() {
    let b = bench(64 << 20);
    let (client, _served) = b.client();
    let new = client.call(&ContextCreate { flags: 0 }).unwrap();
    let (context, stream) = (new.context, new.default_stream);
    let module = client.module_load(context, MODULE, false).unwrap().module;
    // A shape error of a posted launch: told once.
    let mut wrong = launch(module, 0, stream);
    wrong.block = [2000, 1, 1];
    client.launch(&wrong, &[]).unwrap();
    assert_eq!(code(client.call(&StreamSynchronize { stream })), 1);
    client.call(&StreamSynchronize { stream }).unwrap();
    assert!(!client.late_pending());
    // A forged handle of a posted call belongs to no context: told to whoever asks first.
    client
        .post(
            &EventRecord {
                event: 12345,
                stream: 99,
            },
            &[],
        )
        .unwrap();
    assert_eq!(code(client.call(&ContextSynchronize { context })), 400);
    // A fault: told for ever, until the context is destroyed.
    client.launch(&launch(module, 2, stream), &[]).unwrap();
    for _ in 0..3 {
        assert_eq!(code(client.call(&ContextSynchronize { context })), 700);
    }
    assert!(client.late_pending());
    assert_eq!(client.take_late(context).unwrap().unwrap().code, 700);
    assert_eq!(code(client.call(&MemoryAlloc { context, bytes: 1 })), 700);
    let mut buffer = vec![0; 100_000];
    assert_eq!(code(client.read(stream, 4096, &mut buffer)), 700);
    client.call(&ContextDestroy { context }).unwrap();
    assert!(!client.late_pending());
    let fresh = client.call(&ContextCreate { flags: 0 }).unwrap();
    let context = fresh.context;
    client.call(&ContextSynchronize { context }).unwrap();
}

#[test]
fn a_wait_in_one_thread_does_not_hold_up_another() {
    let b = bench(64 << 20);
    let (client, served) = b.client();
    let new = client.call(&ContextCreate { flags: 0 }).unwrap();
    let module = client
        .module_load(new.context, MODULE, false)
        .unwrap()
        .module;
    client
        .launch(&launch(module, 3, new.default_stream), &[])
        .unwrap();
    let waiters: Vec<_> = (0..8)
        .map(|_| {
            let client = Arc::clone(&client);
            let stream = new.default_stream;
            std::thread::spawn(move || client.call(&StreamSynchronize { stream }))
        })
        .collect();
    // All while eight threads wait for a kernel that does not end.
    let other = client.call(&ContextCreate { flags: 0 }).unwrap();
    let context = other.context;
    let address = client
        .call(&MemoryAlloc { context, bytes: 64 })
        .unwrap()
        .value;
    client
        .write(other.default_stream, address, &[7; 64])
        .unwrap();
    let mut back = [0; 64];
    client
        .read(other.default_stream, address, &mut back)
        .unwrap();
    assert_eq!(back, [7; 64]);
    let cancel = Cancel {
        context: new.context,
        stream: 0,
    };
    assert_eq!(client.call(&cancel).unwrap().value, 1);
    for waiter in waiters {
        waiter.join().unwrap().unwrap();
    }
    drop(client);
    served.join().unwrap();
    b.assert_clean();
}

#[test]
fn host_functions_run_in_the_program_in_stream_order() {
    let b = bench(64 << 20);
    let (client, _served) = b.client();
    let new = client.call(&ContextCreate { flags: 0 }).unwrap();
    let (context, stream) = (new.context, new.default_stream);
    let address = client
        .call(&MemoryAlloc { context, bytes: 64 })
        .unwrap()
        .value;
    for callback in 1..=3 {
        client
            .post(&StreamCallback { stream, callback }, &[])
            .unwrap();
        client.write(stream, address, &[callback as u8]).unwrap();
        assert!(!client.call(&StreamQuery { stream }).unwrap().value);
        let notice = client.next_notice(Duration::from_secs(60)).unwrap();
        assert_eq!(notice, Some(callback));
        client.post(&CallbackDone { callback }, &[]).unwrap();
        client.call(&StreamSynchronize { stream }).unwrap();
        let mut byte = [0];
        client.read(stream, address, &mut byte).unwrap();
        assert_eq!(byte, [callback as u8]);
    }
    assert_eq!(client.next_notice(Duration::from_millis(1)).unwrap(), None);
}

#[test]
fn host_memory_is_shared_without_copies() {
    let b = bench(64 << 20);
    let (client, served) = b.client();
    let new = client.call(&ContextCreate { flags: 0 }).unwrap();
    let (context, stream) = (new.context, new.default_stream);
    let module = client.module_load(context, MODULE, false).unwrap().module;
    let used = b.used();
    let memory = client.host_alloc(context, 8192, false).unwrap();
    assert_eq!(b.used(), used);
    client
        .launch(
            &launch(module, 0, stream),
            &params(memory.device() + 4, 10, 0xABCD),
        )
        .unwrap();
    client.call(&StreamSynchronize { stream }).unwrap();
    // SAFETY: the memory is mapped and nobody writes to it now.
    let seen = unsafe { std::slice::from_raw_parts(memory.as_ptr().cast::<u32>(), 12) };
    assert_eq!(
        (seen[0], seen[1], seen[10], seen[11]),
        (0, 0xABCD, 0xABCD, 0)
    );
    let managed = client.host_alloc(context, 1 << 20, true).unwrap();
    assert_eq!(b.used(), used + (1 << 20));
    client.host_free(context, managed).unwrap();
    client.host_free(context, memory).unwrap();
    assert_eq!(b.used(), used);
    // A file that could be cut short is refused.
    let open = rustix::fs::memfd_create("open", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&open, 8192).unwrap();
    assert_eq!(
        code(client.host_register(context, &open, 0, 8192, false)),
        1
    );
    let sealed = create_sealed("short", 4096).unwrap();
    assert_eq!(
        code(client.host_register(context, &sealed, 0, 8192, false)),
        1
    );
    drop(client);
    served.join().unwrap();
    b.assert_clean();
}

#[test]
fn a_large_answer_comes_in_parts() {
    let b = bench(64 << 20);
    let (client, _served) = b.client();
    let context = client.call(&ContextCreate { flags: 0 }).unwrap().context;
    let mut image = String::new();
    for index in 0..3000 {
        image += &format!("kernel_with_a_long_mangled_name_{index} 8 4 4\n");
    }
    assert!(image.len() > 100_000);
    let loaded = client
        .module_load(context, image.as_bytes(), false)
        .unwrap();
    assert_eq!(loaded.kernels.len(), 3000);
    assert_eq!(
        loaded.kernels[2999].name,
        "kernel_with_a_long_mangled_name_2999"
    );
    let module = loaded.module;
    let occupancy = Occupancy {
        module,
        kernel: 0,
        block_threads: 256,
        dynamic_shared: 0,
    };
    assert_eq!(client.call(&occupancy).unwrap().value, 8);
    client.call(&ModuleUnload { module }).unwrap();
    assert_eq!(code(client.module_load(context, b"\xFF\xFE", false)), 200);
}

#[test]
fn graphs_events_arrays_and_frames_work_through_the_wire() {
    let b = bench(64 << 20);
    let (client, served) = b.client();
    let new = client.call(&ContextCreate { flags: 0 }).unwrap();
    let (context, stream) = (new.context, new.default_stream);
    let module = client.module_load(context, MODULE, false).unwrap().module;
    let address = client
        .call(&MemoryAlloc { context, bytes: 64 })
        .unwrap()
        .value;

    let node = |after: &[u32], call: Call, tail: &[u8]| {
        let (number, body) = call.encode();
        let mut body = body.as_slice().to_vec();
        body.extend_from_slice(tail);
        GraphNode {
            after: after.to_vec(),
            call: number,
            body,
        }
    };
    let nodes = vec![
        node(
            &[1],
            Call::Launch(launch(module, 1, 0)),
            &params(address, 2, 1),
        ),
        node(
            &[],
            Call::Write(Write { stream: 0, address }),
            &[5, 0, 0, 0, 6, 0, 0, 0],
        ),
    ];
    let graph = client
        .graph_instantiate(context, &nodes, GraphOptions::default())
        .unwrap();
    client.post(&GraphLaunch { graph, stream }, &[]).unwrap();
    let mut back = [0; 8];
    client.read(stream, address, &mut back).unwrap();
    assert_eq!(back, [6, 0, 0, 0, 7, 0, 0, 0]);
    client.graph_update(graph, &nodes[..0].to_vec(), 0).unwrap();
    client.post(&GraphLaunch { graph, stream }, &[]).unwrap();
    client.post(&GraphDestroy { graph }, &[]).unwrap();

    let disable_timing = false;
    let start = client
        .call(&EventCreate {
            context,
            disable_timing,
        })
        .unwrap()
        .value;
    let end = client
        .call(&EventCreate {
            context,
            disable_timing,
        })
        .unwrap()
        .value;
    client
        .post(
            &EventRecord {
                event: start,
                stream,
            },
            &[],
        )
        .unwrap();
    client
        .post(&EventRecord { event: end, stream }, &[])
        .unwrap();
    client
        .post(&StreamWaitEvent { stream, event: end }, &[])
        .unwrap();
    client.call(&EventSynchronize { event: end }).unwrap();
    assert!(client.call(&EventQuery { event: end }).unwrap().value);
    assert_eq!(
        client.call(&EventElapsed { start, end }).unwrap().value,
        1.5
    );
    client.post(&EventDestroy { event: start }, &[]).unwrap();
    assert_eq!(code(client.call(&EventQuery { event: start })), 400);

    let shape = ArrayShape {
        width: 8,
        height: 4,
        depth: 0,
        format: 32,
        channels: 1,
        flags: 0,
    };
    let array = client.call(&ArrayCreate { context, shape }).unwrap().value;
    let mut texels: Vec<u8> = (0..128).collect();
    let host = HostBox {
        pointer: texels.as_mut_ptr(),
        pitch: (32, 128),
        extent: (32, 4, 1),
    };
    let device = DeviceBox {
        place: CopyPlace::Array(array),
        pitch: (0, 0),
        offset: [0; 3],
    };
    let mut read = vec![0_u8; 128];
    let read_box = HostBox {
        pointer: read.as_mut_ptr(),
        ..host
    };
    // SAFETY: both vectors hold their boxes and outlive the calls.
    unsafe {
        client.write_box(stream, &host, &device).unwrap();
        client.read_box(stream, &read_box, &device).unwrap();
    }
    assert_eq!(read, texels);
    let surface = client
        .call(&SurfaceCreate { context, array })
        .unwrap()
        .value;
    client
        .call(&TextureDestroy {
            context,
            handle: surface,
        })
        .unwrap();
    assert_eq!(
        code(client.call(&TextureDestroy {
            context,
            handle: surface
        })),
        400
    );
    client.call(&ArrayDestroy { array }).unwrap();

    let bytes = 2 << 20;
    let at = client
        .call(&AddressReserve { bytes, align: 0 })
        .unwrap()
        .value;
    let frame = client.call(&FrameCreate { bytes }).unwrap().value;
    client.call(&FrameMap { address: at, frame }).unwrap();
    client
        .call(&FrameAccess {
            address: at,
            bytes,
            access: 3,
        })
        .unwrap();
    client.write(stream, at, &[9; 100]).unwrap();
    let range = client
        .call(&MemoryRange {
            context,
            address: at + 5,
        })
        .unwrap();
    assert_eq!((range.address, range.bytes), (at, bytes));
    client.call(&FrameUnmap { address: at, bytes }).unwrap();
    client.call(&FrameRelease { frame }).unwrap();
    client.call(&AddressFree { address: at, bytes }).unwrap();

    let asynchronous = MemoryAllocAsync {
        stream,
        bytes: 4096,
    };
    let address = client.call(&asynchronous).unwrap().value;
    client
        .post(&MemoryFreeAsync { stream, address }, &[])
        .unwrap();
    client.call(&ContextSynchronize { context }).unwrap();
    drop(client);
    served.join().unwrap();
    b.assert_clean();
}

#[test]
fn every_posted_and_quick_call_with_forged_handles_is_refused_and_the_session_lives() {
    let b = bench(64 << 20);
    let (theirs, _s2) = b.client();
    let foreign = theirs.call(&ContextCreate { flags: 0 }).unwrap();
    let (client, served) = b.client();
    for handle in [0, 1, u64::MAX, foreign.context, foreign.default_stream] {
        let (context, stream, event, address) = (handle, handle, handle, handle);
        assert!(client.call(&StreamQuery { stream }).is_err());
        assert!(client.call(&StreamSynchronize { stream }).is_err());
        assert!(client.call(&ContextDestroy { context }).is_err());
        assert!(client.call(&EventQuery { event }).is_err());
        assert!(client.call(&MemoryFree { context, address }).is_err());
        assert!(client.call(&ModuleUnload { module: handle }).is_err());
        assert!(client.call(&FrameRelease { frame: handle }).is_err());
        assert!(client.call(&ArrayDestroy { array: handle }).is_err());
        client.post(&StreamDestroy { stream }, &[]).unwrap();
        client.post(&EventDestroy { event }, &[]).unwrap();
        client
            .post(&MemoryFreeAsync { stream, address }, &[])
            .unwrap();
        client.launch(&launch(handle, 0, handle), &[]).unwrap();
        client
            .post(
                &GraphLaunch {
                    graph: handle,
                    stream,
                },
                &[],
            )
            .unwrap();
        client
            .post(&CallbackDone { callback: handle }, &[])
            .unwrap();
        client.call(&Ping {}).unwrap();
        assert!(client.late_pending());
        while client.take_late(0).unwrap().is_some() {}
    }
    let stream = foreign.default_stream;
    theirs.call(&StreamSynchronize { stream }).unwrap();
    drop(client);
    assert_eq!(served.join().unwrap(), None);
}

#[test]
fn many_threads_share_a_session() {
    let b = bench(256 << 20);
    let (client, served) = b.client();
    let new = client.call(&ContextCreate { flags: 0 }).unwrap();
    let work = |client: &SessionClient, seed: u8| {
        let context = new.context;
        let make = StreamCreate {
            context,
            non_blocking: true,
            priority: 0,
        };
        let stream = client.call(&make).unwrap().value;
        for round in 0..20_u32 {
            let bytes = u64::from(1 + round * 7000);
            let address = client.call(&MemoryAlloc { context, bytes }).unwrap().value;
            let data = vec![seed ^ round as u8; bytes as usize];
            client.write(stream, address, &data).unwrap();
            let mut back = vec![0; bytes as usize];
            client.read(stream, address, &mut back).unwrap();
            assert!(back == data);
            client.call(&MemoryFree { context, address }).unwrap();
        }
    };
    std::thread::scope(|scope| {
        for seed in 0..6 {
            let client = &client;
            scope.spawn(move || work(client, seed * 40));
        }
    });
    drop(client);
    served.join().unwrap();
    b.assert_clean();
}

#[test]
fn a_wait_for_a_word_of_nobody_is_a_late_error() {
    let b = bench(64 << 20);
    let (client, served) = b.client();
    let NewContext {
        context,
        default_stream: stream,
    } = client.call(&ContextCreate { flags: 0 }).unwrap();
    let request = MemoryAlloc { context, bytes: 64 };
    let address = client.call(&request).unwrap().value;
    let wait = |address, is_wide, flags| {
        let request = StreamWaitValue {
            stream,
            address,
            is_wide,
            value: 1,
            flags,
        };
        client.post(&request, &[]).unwrap();
        client.call(&StreamSynchronize { stream })
    };
    wait(address, false, 0).unwrap();
    wait(address + 56, true, 3).unwrap();
    assert_eq!(code(wait(address + 60, true, 0)), 1, "crooked");
    assert_eq!(code(wait(address + 64, false, 0)), 1, "behind the end");
    assert_eq!(code(wait(address, false, 4)), 1, "no such flag");
    wait(address, false, 0).unwrap();
    drop(client);
    assert_eq!(served.join().unwrap(), None);
    b.assert_clean();
}
