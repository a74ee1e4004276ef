//! What is uploaded over a slow wire is not sent twice, and is never anything but what the program meant.

mod common;

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use common::{Bench, bench};
use mica_tunnel::{HEADER_BYTES, Header, Kind, PieceFolder};
use mica_wire::session::*;

const PIECE: usize = CHUNK_BYTES;
/// Bytes that a program uploads here.
const WEIGHTS: usize = 12 << 20;
/// What is sent before the far end has said what it has, and besides.
const MOST_AGAIN: u64 = 8 << 20;
/// Much slower than hashing, also by a test build on a busy machine.
const SLOW: u64 = 10 << 20;
const HASHED: u8 = 8;
const KNOWN: u8 = 16;

/// Bytes that no compression shrinks.
fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed * 2 + 1;
    (0..bytes)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        })
        .collect()
}

fn keeping(folder: &Path, most_bytes: u64) -> Bench {
    let mut bench = bench(256 << 20);
    let pieces = PieceFolder::new(folder.join("pieces"), most_bytes);
    bench.caches.pieces = Some(pieces);
    bench
}

/// A program that uploads data and reads it back; how many bytes were sent, and left out.
fn upload(bench: &Bench, bytes_per_second: u64, data: &[u8]) -> (u64, u64) {
    let through = bench.through_at(bytes_per_second);
    let client = &through.client;
    let new = client.call(&ContextCreate { flags: 0 }).unwrap();
    let (context, stream, bytes) = (new.context, new.default_stream, data.len() as u64);
    let address = client.call(&MemoryAlloc { context, bytes }).unwrap().value;
    client.write(stream, address, data).unwrap();
    let mut back = vec![0; data.len()];
    client.read(stream, address, &mut back).unwrap();
    assert!(back == data, "other bytes came");
    let stats = through.stats.clone();
    through.end();
    (
        stats.sent_bytes.load(Relaxed),
        stats.saved_bytes.load(Relaxed),
    )
}

#[test]
fn a_second_start_sends_no_weights_again_over_a_slow_wire() {
    let folder = tempfile::tempdir().unwrap();
    let b = keeping(folder.path(), 64 << 20);
    let weights = noise(WEIGHTS, 1);
    let (sent, saved) = upload(&b, SLOW, &weights);
    assert!(sent > WEIGHTS as u64 && saved == 0, "{sent} {saved}");
    let (sent, saved) = upload(&b, SLOW, &weights);
    assert!(sent < MOST_AGAIN, "{sent} bytes were sent again");
    assert!(saved > WEIGHTS as u64 - MOST_AGAIN, "{saved}");
    // Other data is sent.
    let (sent, saved) = upload(&b, SLOW, &noise(WEIGHTS, 2));
    assert!(sent > WEIGHTS as u64 && saved == 0, "{sent} {saved}");
    // Over a fast wire, where hashing seldom pays, the data is the same in any case.
    upload(&b, u64::MAX, &weights);
    b.assert_clean();
}

#[test]
fn what_is_damaged_or_gone_is_sent_again() {
    let folder = tempfile::tempdir().unwrap();
    let b = keeping(folder.path(), 64 << 20);
    let weights = noise(WEIGHTS, 3);
    upload(&b, SLOW, &weights);
    let path = folder.path().join("pieces/pieces");
    let mut kept = fs::read(&path).unwrap();
    assert_eq!(kept.len() % PIECE, 0);
    for piece in kept.chunks_mut(PIECE).step_by(3) {
        piece[PIECE / 2] ^= 1;
    }
    fs::write(&path, &kept[..kept.len() / 2]).unwrap();
    let (sent, saved) = upload(&b, SLOW, &weights);
    assert!(saved > 0 && sent > WEIGHTS as u64 / 2, "{sent} {saved}");
    // It was kept again.
    let (sent, _) = upload(&b, SLOW, &weights);
    assert!(sent < MOST_AGAIN, "{sent}");
    b.assert_clean();
}

#[test]
fn a_folder_that_cannot_be_used_costs_nothing_but_the_saving() {
    let folder = tempfile::tempdir().unwrap();
    let b = keeping(folder.path(), 64 << 20);
    fs::write(folder.path().join("pieces"), "a file").unwrap();
    let weights = noise(WEIGHTS, 4);
    for _ in 0..2 {
        let (sent, saved) = upload(&b, SLOW, &weights);
        assert!(sent > WEIGHTS as u64 && saved == 0, "{sent} {saved}");
    }
    b.assert_clean();
}

#[test]
fn the_folder_stays_within_its_limit() {
    let folder = tempfile::tempdir().unwrap();
    let most = 4 << 20;
    let b = keeping(folder.path(), most);
    for seed in 5..8 {
        upload(&b, SLOW, &noise(WEIGHTS, seed));
        let kept = fs::metadata(folder.path().join("pieces/pieces")).unwrap();
        assert!(kept.len() <= most, "{}", kept.len());
    }
    b.assert_clean();
}

#[test]
fn pinned_memory_that_changes_meanwhile_comes_as_it_was_sent() {
    let folder = tempfile::tempdir().unwrap();
    let b = keeping(folder.path(), 64 << 20);
    let through = b.through_at(SLOW);
    let client = &through.client;
    let new = client.call(&ContextCreate { flags: 0 }).unwrap();
    let (context, stream, bytes) = (new.context, new.default_stream, 4 << 20);
    let address = client.call(&MemoryAlloc { context, bytes }).unwrap().value;
    let pinned = client.host_alloc(context, bytes, false).unwrap();
    let (dst, src) = (
        CopyPlace::Device(address),
        CopyPlace::Device(pinned.device()),
    );
    let area = CopyBox::linear(dst, src, bytes);
    let copy = Copy { stream, area };
    let wrote = |seed| {
        let data = noise(bytes as usize, seed);
        // SAFETY: the mapping is this long; whoever copies it meanwhile may take any of its states.
        unsafe { pinned.as_ptr().copy_from(data.as_ptr(), data.len()) };
        data
    };
    for round in 0..6 {
        let still = AtomicBool::new(true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while still.load(Relaxed) {
                    (0..3).for_each(|seed| drop(wrote(seed)));
                }
            });
            client.post(&copy, &[]).unwrap();
            client.synchronize(stream).unwrap();
            still.store(false, Relaxed);
        });
        let data = wrote(round % 3);
        client.post(&copy, &[]).unwrap();
        let mut back = vec![0; bytes as usize];
        client.read(stream, address, &mut back).unwrap();
        assert!(back == data, "round {round}");
    }
    assert!(through.stats.saved_bytes.load(Relaxed) > 0);
    client.host_free(context, pinned).unwrap();
    through.end();
    b.assert_clean();
}

/// A near end that says what it likes.
struct Hostile {
    wire: UnixStream,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Hostile {
    fn new(bench: &Bench) -> Self {
        let (wire, far_wire) = UnixStream::pair().unwrap();
        let timeout = Some(Duration::from_secs(20));
        wire.set_read_timeout(timeout).unwrap();
        let threads = bench.serve(far_wire);
        Self { wire, threads }
    }

    fn say(&mut self, kind: Kind, flags: u8, [a, b]: [u64; 2], record: &[u8], data: &[u8]) {
        let header = Header {
            kind,
            flags,
            slot: u16::MAX,
            call: Copy::NUMBER,
            code: record.len() as u32,
            a,
            b,
            data_bytes: (record.len() + data.len()) as u32,
        };
        // The far end may have ended the session.
        let bytes = [&header.to_bytes(), record, data].concat();
        let _ = self.wire.write_all(&bytes);
    }

    /// The next frame of a kind.
    fn hear(&mut self, kind: Kind) -> Vec<u8> {
        loop {
            let mut bytes = [0; HEADER_BYTES];
            self.wire.read_exact(&mut bytes).unwrap();
            let header = Header::parse(&bytes).unwrap();
            let mut data = vec![0; header.data_bytes as usize];
            self.wire.read_exact(&mut data).unwrap();
            if header.kind == kind {
                return data;
            }
            assert!(
                kind == Kind::Ended || header.kind != Kind::Ended,
                "{kind:?}"
            );
        }
    }

    /// A staged copy that goes nowhere: the context is none.
    fn upload(&mut self, flags: u8, data: &[u8]) {
        let (dst, src) = (
            CopyPlace::Device(4096),
            CopyPlace::Staging {
                chunk: 0,
                offset: 0,
            },
        );
        let area = CopyBox::linear(dst, src, PIECE as u64);
        let copy = Copy { stream: 1, area }.encode();
        self.say(
            Kind::Staged,
            flags,
            [0, PIECE as u64],
            copy.as_slice(),
            data,
        );
    }

    fn ask(&mut self) -> Vec<u8> {
        self.say(Kind::PiecesAsk, 0, [1 << 20, 0], &[], &[]);
        self.hear(Kind::PiecesKnown)
    }

    fn is_told(&mut self, words: &str) {
        let said = self.hear(Kind::Ended);
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains(words), "{said:?} and not {words:?}");
    }

    fn end(self) {
        drop(self.wire);
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

#[test]
fn a_hostile_near_end_ends_its_own_session() {
    let folder = tempfile::tempdir().unwrap();
    let b = keeping(folder.path(), 4 << 20);
    let (hash, piece) = ([7; 32], vec![9; PIECE]);
    type Say = fn(&mut Hostile, &[u8], &[u8]);
    let cases: [(&str, Say); 10] = [
        ("of no list", |near, hash, _| near.upload(KNOWN, hash)),
        ("a second question", |near, _, _| {
            near.ask();
            near.say(Kind::PiecesAsk, 0, [5, 0], &[], &[]);
        }),
        ("without its hash", |near, _, _| {
            near.upload(KNOWN, &[1; 31])
        }),
        ("wrong size", |near, hash, _| {
            near.ask();
            near.upload(KNOWN, &[hash, &[0]].concat());
        }),
        ("wrong size", |near, hash, piece| {
            near.upload(HASHED, &[&piece[1..], hash].concat());
        }),
        ("known and sent", |near, hash, _| {
            near.upload(KNOWN | HASHED, hash);
        }),
        ("was not asked for", |near, _, piece| {
            near.say(Kind::PieceData, 0, [0; 2], &[], piece);
        }),
        ("was not asked for", |near, hash, piece| {
            near.ask();
            near.upload(KNOWN, hash);
            assert_eq!(near.hear(Kind::PieceWanted), hash);
            near.say(Kind::PieceData, 0, [0; 2], &[], piece);
        }),
        ("was not asked for", |near, _, piece| {
            // What it is asked for, and shorter than a piece.
            let short = &piece[1..];
            let hash = *blake3::hash(short).as_bytes();
            near.ask();
            near.upload(KNOWN, &hash);
            assert_eq!(near.hear(Kind::PieceWanted), hash);
            near.say(Kind::PieceData, 0, [0; 2], &[], short);
        }),
        ("unknown flags", |near, hash, _| {
            near.say(Kind::Record, KNOWN, [0; 2], &[], hash);
        }),
    ];
    for (words, say) in cases {
        let mut near = Hostile::new(&b);
        near.hear(Kind::PiecesOffer);
        say(&mut near, &hash, &piece);
        near.is_told(words);
        near.end();
    }
    // One that goes away while it is asked for a piece.
    let mut near = Hostile::new(&b);
    near.ask();
    near.upload(KNOWN, &hash);
    near.hear(Kind::PieceWanted);
    let began = Instant::now();
    near.end();
    assert!(began.elapsed() < Duration::from_secs(5));
    b.assert_clean();
}

#[test]
fn a_piece_that_is_not_what_its_hash_says_is_never_used() {
    let folder = tempfile::tempdir().unwrap();
    let b = keeping(folder.path(), 64 << 20);
    let weights = noise(WEIGHTS, 9);
    let mut near = Hostile::new(&b);
    assert!(near.ask().is_empty());
    for piece in weights.chunks(PIECE) {
        let hash = *blake3::hash(piece).as_bytes();
        near.upload(HASHED, &[&noise(PIECE, 10)[..], &hash].concat());
    }
    while near.hear(Kind::PiecesKnown).len() < 8 {}
    near.end();
    let (sent, _) = upload(&b, SLOW, &weights);
    assert!(sent > WEIGHTS as u64 / 2, "{sent}");
    b.assert_clean();
}

/// Many sessions of one client at once: none is given another one's bytes in place of its own.
#[test]
fn sessions_at_once_share_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let b = keeping(folder.path(), 12 << 20);
    for round in 0..2 {
        std::thread::scope(|scope| {
            for seed in 0..3 {
                let b = &b;
                scope.spawn(move || upload(b, SLOW, &noise(WEIGHTS / 2, 20 + seed + round)));
            }
        });
    }
    b.assert_clean();
}

#[test]
fn another_clients_folder_saves_nothing() {
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let weights = noise(WEIGHTS, 30);
    for folder in &folders {
        let b = keeping(folder.path(), 64 << 20);
        let (_, saved) = upload(&b, SLOW, &weights);
        assert_eq!(saved, 0);
    }
}
