//! Any bytes as a snapshot of a virtual GPU: as a whole file, and as its objects and its memory with the right hashes. Refused or
//! read, never a panic, and what is read is written as it was.
#![no_main]

use std::fs::File;
use std::os::unix::fs::FileExt;

use libfuzzer_sys::fuzz_target;
use mica_snapshot::fuzzing::{read_all, read_objects, seal};
use mica_snapshot::{DeviceFacts, Manifest, Part, ProgramFacts};

fn file() -> File {
    // SAFETY: the name is a C string; the descriptor is nobody else's.
    unsafe {
        let fd = libc::memfd_create(c"snapshot".as_ptr(), libc::MFD_CLOEXEC);
        std::os::fd::FromRawFd::from_raw_fd(fd)
    }
}

fn manifest() -> Manifest {
    let part = Part {
        at: 0,
        bytes: 0,
        blake3: String::new(),
    };
    Manifest {
        mica: "1".into(),
        protocol: 9,
        made_at_seconds: 0,
        vgpu: "a".into(),
        device: DeviceFacts {
            name: String::new(),
            compute_capability: (8, 0),
            memory_bytes: 0,
            address_space: (1 << 44, 1 << 40),
        },
        program: ProgramFacts { pid: 1, session: 1 },
        contexts: 0,
        modules: 0,
        allocations: 0,
        memory_bytes: 0,
        session: part.clone(),
        memory: part,
    }
}

fuzz_target!(|bytes: &[u8]| {
    let whole = file();
    if whole.write_all_at(bytes, 0).is_ok() {
        let _ = read_all(&whole);
    }
    let _ = read_objects(bytes);
    let Some((first, rest)) = bytes.split_first_chunk::<2>() else {
        return;
    };
    let split = usize::from(u16::from_le_bytes(*first)).min(rest.len());
    let (objects, memory) = rest.split_at(split);
    let sealed = file();
    if seal(&sealed, &manifest(), objects, memory).is_ok() {
        let _ = read_all(&sealed);
    }
});
