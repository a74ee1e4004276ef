use std::fs::File;
use std::os::unix::fs::FileExt;

use super::*;

fn session() -> SavedSession {
    SavedSession {
        tables: vec![SavedTable {
            salt: 7,
            generations: vec![0, 3],
            free: vec![1],
        }],
        contexts: vec![SavedContext {
            handle: 1,
            default_stream: 2,
            limits: vec![(0, 1024)],
        }],
        modules: vec![SavedModule {
            handle: 3,
            context: 1,
            image: b".version 7.0".to_vec(),
            variables: vec![Span {
                address: 0x4000,
                bytes: 3,
            }],
            attributes: vec![((0, 8), 65536)],
            ..SavedModule::default()
        }],
        allocations: vec![SavedAllocation {
            context: 1,
            address: 0x20_0000,
            bytes: BLOCK_BYTES + 5,
        }],
        ..SavedSession::default()
    }
}

fn port() -> SavedPort {
    SavedPort {
        position: 4096,
        unfinished: vec![(2, vec![1; 40_000])],
        ..SavedPort::default()
    }
}

/// The memory of `session()`: some that can be packed, some that cannot, and zeros.
fn contents() -> [Vec<u8>; 3] {
    let mut state = 5_u64;
    let noise = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    });
    let even = (0..BLOCK_BYTES).map(|n| (n / 1000) as u8).collect();
    [even, noise.take(5).collect(), vec![0; 3]]
}

fn manifest(session: Part, memory: Part) -> Manifest {
    Manifest {
        mica: "1".into(),
        protocol: 9,
        made_at_seconds: 3,
        vgpu: "train".into(),
        device: DeviceFacts {
            name: "a GPU".into(),
            compute_capability: (8, 0),
            memory_bytes: 1 << 30,
            address_space: (1 << 40, 1 << 40),
        },
        program: ProgramFacts { pid: 4, session: 5 },
        contexts: 1,
        modules: 1,
        allocations: 1,
        memory_bytes: BLOCK_BYTES + 8,
        session,
        memory,
    }
}

fn write(file: &File) {
    let mut writer = Writer::new(file).unwrap();
    let session = writer.session(&session(), &port()).unwrap();
    for block in contents() {
        writer.block(&block).unwrap();
    }
    let memory = writer.memory();
    writer.finish(&manifest(session, memory)).unwrap();
}

fn read(file: &File) -> Result<()> {
    let snapshot = Snapshot::open(file)?;
    let (saved, its_port) = snapshot.session()?;
    let mut blocks = snapshot.blocks()?;
    for block in contents() {
        let mut bytes = vec![1; block.len()];
        blocks.next(&mut bytes)?;
        if bytes != block {
            // What is wrong is found by the hash at the end at the latest.
            return blocks
                .finish()
                .and(Err(SnapshotError::NotASnapshot("unnoticed")));
        }
    }
    blocks.finish()?;
    assert_eq!((saved, its_port), (session(), port()));
    Ok(())
}

#[test]
fn what_is_written_is_read_and_zeros_and_repetitions_take_little() {
    let file = tempfile::tempfile().unwrap();
    write(&file);
    read(&file).unwrap();
    let snapshot = Snapshot::open(&file).unwrap();
    assert_eq!(snapshot.manifest().vgpu, "train");
    assert!(file.metadata().unwrap().len() < 200_000);
    assert!(Writer::new(&file).is_err(), "nothing is written over");
}

#[test]
fn a_writer_that_died_leaves_no_snapshot() {
    let file = tempfile::tempfile().unwrap();
    let mut writer = Writer::new(&file).unwrap();
    writer.session(&session(), &port()).unwrap();
    writer.block(&contents()[1]).unwrap();
    drop(writer);
    let text = Snapshot::open(&file).unwrap_err().to_string();
    assert!(text.contains("not complete"), "{text}");
    let empty = tempfile::tempfile().unwrap();
    assert!(Snapshot::open(&empty).is_err());
}

#[test]
fn no_changed_or_missing_byte_goes_unnoticed() {
    let file = tempfile::tempfile().unwrap();
    write(&file);
    let length = file.metadata().unwrap().len();
    let places = (0..64)
        .chain((64..length).step_by(997))
        .chain(length - 300..length);
    for at in places {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        for bit in [1, 0x80] {
            file.write_all_at(&[byte[0] ^ bit], at).unwrap();
            let text = read(&file).unwrap_err().to_string();
            assert_ne!(text, "unnoticed", "byte {at}");
        }
        file.write_all_at(&byte, at).unwrap();
    }
    read(&file).unwrap();
    for left in [0, 8, 63, 64, 65, length / 2, length - 1, length + 1] {
        file.set_len(left).unwrap();
        assert!(read(&file).is_err(), "{left} of {length} bytes");
        file.set_len(0).unwrap();
        write(&file);
    }
}

#[test]
fn another_version_is_told_by_its_number() {
    let file = tempfile::tempfile().unwrap();
    write(&file);
    file.write_all_at(&9_u32.to_le_bytes(), 8).unwrap();
    let text = Snapshot::open(&file).unwrap_err().to_string();
    assert!(
        text.contains("version 9") && text.contains(&format!("version {VERSION}")),
        "{text}"
    );
}

#[test]
fn a_check_takes_as_long_as_the_file_whatever_it_says_of_the_memory() {
    let claims = |bytes: u64, blocks: usize| {
        let saved = SavedSession {
            allocations: vec![SavedAllocation {
                context: 1,
                address: 0x20_0000,
                bytes,
            }],
            ..SavedSession::default()
        };
        let file = tempfile::tempfile().unwrap();
        let part = || Part {
            at: 0,
            bytes: 0,
            blake3: String::new(),
        };
        let objects = fuzzing::objects(&saved, &SavedPort::default());
        let memory = vec![write::form::ZEROS; blocks];
        fuzzing::seal(&file, &manifest(part(), part()), &objects, &memory).unwrap();
        let began = std::time::Instant::now();
        let checked = Snapshot::open(&file).unwrap().check();
        (checked, began.elapsed())
    };
    // A byte of the file for each 4 MiB: to fill them all would take a quarter of an hour.
    let blocks = 1 << 20;
    let (checked, took) = claims(blocks as u64 * BLOCK_BYTES, blocks);
    checked.unwrap();
    assert!(took < std::time::Duration::from_secs(20), "{took:?}");
    let (checked, _) = claims(u64::MAX, 100);
    assert!(checked.is_err(), "its blocks are missing");
}

#[test]
fn objects_that_take_much_more_memory_than_bytes_are_refused_before_they_do() {
    let empty = SavedPort {
        unfinished: vec![(0, Vec::new()); 1 << 20],
        ..SavedPort::default()
    };
    let file = tempfile::tempfile().unwrap();
    let mut writer = Writer::new(&file).unwrap();
    let part = writer.session(&session(), &empty).unwrap();
    let memory = writer.memory();
    writer.finish(&manifest(part, memory)).unwrap();
    let snapshot = Snapshot::open(&file).unwrap();
    let (most, left) = snapshot.session_room();
    assert!(most < 32 << 20 && left < most, "{most}");
    let text = snapshot.session().unwrap_err().to_string();
    assert!(text.contains("more memory"), "{text}");
}

#[test]
fn more_objects_than_are_read_back_are_not_written() {
    let file = tempfile::tempfile().unwrap();
    let large = SavedPort {
        blobs: vec![(0, vec![0; MOST_SESSION_BYTES as usize])],
        ..SavedPort::default()
    };
    let written = Writer::new(&file).unwrap().session(&session(), &large);
    let text = written.unwrap_err().to_string();
    assert!(text.contains("read back"), "{text}");
}
