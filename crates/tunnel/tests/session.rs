//! A program's session through a tunnel, with a worker on a device made of vectors.

mod common;

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use common::bench;
use mica_tunnel::BlobCache;
use mica_wire::session::*;

const MODULE: &[u8] = b"fill 8 4 4\nadd 8 4 4\nfault\nblock\nglobal counter 64\n";

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

fn params(address: u64, count: u32, value: u32) -> Vec<u8> {
    let mut bytes = address.to_le_bytes().to_vec();
    bytes.extend(count.to_le_bytes());
    bytes.extend(value.to_le_bytes());
    bytes
}

#[test]
fn a_program_launches_and_reads_back_through_a_wall() {
    let b = bench(64 << 20);
    let through = b.through();
    let client = &through.client;
    assert_eq!(client.snapshot().name, "Test GPU");
    let new = client.call(&ContextCreate { flags: 0 }).unwrap();
    let (context, stream) = (new.context, new.default_stream);
    let module = client.module_load(context, MODULE, false).unwrap().module;
    let bytes = 4096;
    let address = client.call(&MemoryAlloc { context, bytes }).unwrap().value;
    for _ in 0..20_000 {
        let add = launch(module, 1, stream);
        client.launch(&add, &params(address, 4, 2)).unwrap();
    }
    client.synchronize(stream).unwrap();
    let mut back = [0; 20];
    client.read(stream, address, &mut back).unwrap();
    assert_eq!(back[..4], 40_000_u32.to_le_bytes());
    assert_eq!(client.call(&Counters {}).unwrap().launches, 20_000);
    through.end();
    b.assert_clean();
}

#[test]
fn large_data_goes_both_ways_unchanged() {
    let b = bench(256 << 20);
    let through = b.through();
    let client = &through.client;
    let new = client.call(&ContextCreate { flags: 0 }).unwrap();
    let stream = new.default_stream;
    for bytes in [1_usize, 8193, 100_000, (40 << 20) + 12345] {
        let data: Vec<u8> = (0..bytes).map(|i| (i * 31 % 251) as u8).collect();
        let (context, bytes) = (new.context, bytes as u64);
        let address = client.call(&MemoryAlloc { context, bytes }).unwrap().value;
        client.write(stream, address, &data).unwrap();
        let mut back = vec![0; data.len()];
        client.read(stream, address, &mut back).unwrap();
        assert!(back == data, "{bytes} bytes");
        client.call(&MemoryFree { context, address }).unwrap();
    }
    through.end();
    b.assert_clean();
}

#[test]
fn pinned_memory_is_copied_by_copy_calls() {
    let b = bench(256 << 20);
    let through = b.through();
    let client = &through.client;
    let new = client.call(&ContextCreate { flags: 0 }).unwrap();
    let (context, stream) = (new.context, new.default_stream);
    let bytes = (3 << 20) + 4096_u64;
    let address = client.call(&MemoryAlloc { context, bytes }).unwrap().value;
    let pinned = [(); 2].map(|()| client.host_alloc(context, bytes, false).unwrap());
    let slice = |index: usize| {
        // SAFETY: the mapping is this long, and the device is idle when the bytes are touched.
        unsafe { std::slice::from_raw_parts_mut(pinned[index].as_ptr(), bytes as usize) }
    };
    for (at, byte) in slice(0).iter_mut().enumerate() {
        *byte = (at * 7 % 253) as u8;
    }
    let (there, first, second) = (
        CopyPlace::Device(address),
        CopyPlace::Device(pinned[0].device()),
        CopyPlace::Device(pinned[1].device()),
    );
    for (dst, src) in [(there, first), (second, there)] {
        let area = CopyBox::linear(dst, src, bytes);
        client.post(&Copy { stream, area }, &[]).unwrap();
    }
    client.synchronize(stream).unwrap();
    assert!(slice(0) == slice(1));
    // A fill of pinned memory is seen after the wait, too.
    let fill = Fill {
        stream,
        address: pinned[1].device() + 8,
        pitch: 0,
        value: 0xab,
        element_bytes: 1,
        width: 1000,
        height: 1,
    };
    client.post(&fill, &[]).unwrap();
    client.synchronize(stream).unwrap();
    assert!(slice(1)[8..1008].iter().all(|byte| *byte == 0xab));
    assert_eq!(slice(1)[1008], slice(0)[1008]);
    for memory in pinned {
        client.host_free(context, memory).unwrap();
    }
    through.end();
    b.assert_clean();
}

#[test]
fn memory_that_kernels_use_in_place_is_equal_at_launches_and_waits() {
    let b = bench(64 << 20);
    let through = b.through();
    let client = &through.client;
    let new = client.call(&ContextCreate { flags: 0 }).unwrap();
    let (context, stream) = (new.context, new.default_stream);
    let module = client.module_load(context, MODULE, false).unwrap().module;
    for is_managed in [false, true] {
        let memory = client.host_alloc(context, 8192, is_managed).unwrap();
        let word = memory.as_ptr().cast::<u32>();
        for round in 1..5_u32 {
            // SAFETY: the first word of the mapping; the device is idle.
            unsafe { word.write(round * 1000) };
            let add = launch(module, 1, stream);
            let params = params(memory.device(), 1, round);
            client.launch(&add, &params).unwrap();
            client.synchronize(stream).unwrap();
            // SAFETY: as above.
            assert_eq!(unsafe { word.read() }, round * 1001, "{is_managed}");
        }
        client.host_free(context, memory).unwrap();
    }
    through.end();
    b.assert_clean();
}

#[test]
fn host_functions_run_in_the_program_and_what_they_write_is_copied() {
    let b = bench(64 << 20);
    let through = b.through();
    let client = &through.client;
    let new = client.call(&ContextCreate { flags: 0 }).unwrap();
    let (context, stream) = (new.context, new.default_stream);
    let bytes = 4096;
    let address = client.call(&MemoryAlloc { context, bytes }).unwrap().value;
    let pinned = client.host_alloc(context, bytes, false).unwrap();
    client
        .post(
            &StreamCallback {
                stream,
                callback: 9,
            },
            &[],
        )
        .unwrap();
    let (dst, src) = (
        CopyPlace::Device(address),
        CopyPlace::Device(pinned.device()),
    );
    let area = CopyBox::linear(dst, src, bytes);
    client.post(&Copy { stream, area }, &[]).unwrap();
    let notice = client.next_notice(Duration::from_secs(20)).unwrap();
    assert_eq!(notice, Some(9));
    // SAFETY: the mapping is this long; the copy waits for this function.
    unsafe { pinned.as_ptr().write_bytes(0x5a, bytes as usize) };
    client.callback_done(9).unwrap();
    let mut back = vec![0; bytes as usize];
    client.read(stream, address, &mut back).unwrap();
    assert!(back.iter().all(|byte| *byte == 0x5a));
    through.end();
    b.assert_clean();
}

/// What the near end says of them is not counted as bytes that the far end must deal with.
#[test]
fn a_program_may_have_any_number_of_host_functions() {
    let b = bench(64 << 20);
    let through = b.through();
    let client = &through.client;
    let new = client.call(&ContextCreate { flags: 0 }).unwrap();
    let (context, stream) = (new.context, new.default_stream);
    let module = client.module_load(context, MODULE, false).unwrap().module;
    let bytes = 1 << 20;
    let memory = client.host_alloc(context, bytes, true).unwrap();
    let add = launch(module, 1, stream);
    let params = params(memory.device(), 1, 1);
    // Each function changes all of the memory: together more than the far end lets be under way.
    for round in 0..48_u64 {
        client.launch(&add, &params).unwrap();
        let callback = StreamCallback {
            stream,
            callback: round,
        };
        client.post(&callback, &[]).unwrap();
        let notice = client.next_notice(Duration::from_secs(20)).unwrap();
        assert_eq!(notice, Some(round));
        // SAFETY: the mapping is this long, and the stream waits for this function.
        unsafe { memory.as_ptr().write_bytes(round as u8, bytes as usize) };
        client.callback_done(round).unwrap();
        // What the function has written goes with the word of its end, not with the next call.
        std::thread::sleep(Duration::from_millis(30));
        client.synchronize(stream).unwrap();
    }
    // SAFETY: the device is idle.
    assert_eq!(unsafe { memory.as_ptr().add(9).read() }, 47);
    client.host_free(context, memory).unwrap();
    through.end();
    b.assert_clean();
}

#[test]
fn errors_of_posted_calls_come_late_and_are_not_lost() {
    let b = bench(64 << 20);
    let through = b.through();
    let client = &through.client;
    let new = client.call(&ContextCreate { flags: 0 }).unwrap();
    let stream = new.default_stream;
    let nothing = launch(12345, 0, stream);
    client.launch(&nothing, &[]).unwrap();
    let told = client.call(&StreamSynchronize { stream }).unwrap_err();
    assert!(matches!(told, SessionError::Refused { .. }), "{told}");
    through.end();
    b.assert_clean();
}

#[test]
fn a_second_start_sends_no_module_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut b = bench(64 << 20);
    b.caches.images = Some(BlobCache::new(folder.path().to_owned(), 64 << 20));
    let mut image = MODULE.to_vec();
    image.resize(300_000, b'\n');
    let mut sent = Vec::new();
    for _ in 0..2 {
        let through = b.through();
        let new = through.client.call(&ContextCreate { flags: 0 }).unwrap();
        let loaded = through.client.module_load(new.context, &image, false);
        assert_eq!(loaded.unwrap().kernels.len(), 4);
        sent.push(through.stats.sent_bytes.load(Relaxed));
        through.end();
    }
    assert!(sent[0] > 300_000 && sent[1] < 4096, "{sent:?}");
    b.assert_clean();
}

#[test]
fn a_cut_wire_ends_the_session_with_an_error_and_frees_everything() {
    let b = bench(64 << 20);
    let through = b.through();
    let client = &through.client;
    let new = client.call(&ContextCreate { flags: 0 }).unwrap();
    let context = new.context;
    let bytes = 1 << 20;
    client.call(&MemoryAlloc { context, bytes }).unwrap();
    through.wire.shutdown(std::net::Shutdown::Both).unwrap();
    let began = std::time::Instant::now();
    let error = loop {
        match client.call(&Ping {}) {
            Ok(_) => assert!(began.elapsed() < Duration::from_secs(20)),
            Err(error) => break error,
        }
    };
    assert_eq!(error.cuda_code(), 46, "{error}");
    through.end();
    b.assert_clean();
}
