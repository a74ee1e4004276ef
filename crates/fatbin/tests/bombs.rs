//! Compressed code that becomes far larger than its container says: refused, with little memory taken.

mod counting;

use counting::{ALONE, counted};
use mica_fatbin::{DEFAULT_PAYLOAD_LIMIT, Error, Image};

const LZ4: u64 = 0x2000;
const ZSTD: u64 = 0x8000;
const BLOCK: usize = 128 << 10;
const MIB: u64 = 1 << 20;

/// A fatbin with one entry of PTX that claims to be `size` bytes long.
fn fatbin(flag: u64, data: &[u8], size: u64) -> Vec<u8> {
    let len = data.len() as u32;
    let mut entry = vec![0; 64];
    entry[0] = 1;
    entry[4..8].copy_from_slice(&64_u32.to_le_bytes());
    entry[8..12].copy_from_slice(&len.to_le_bytes());
    entry[16..20].copy_from_slice(&len.to_le_bytes());
    entry[28..32].copy_from_slice(&80_u32.to_le_bytes());
    entry[40..48].copy_from_slice(&flag.to_le_bytes());
    entry[56..64].copy_from_slice(&size.to_le_bytes());
    entry.extend(data);
    let mut image = 0xba55_ed50_u32.to_le_bytes().to_vec();
    image.extend([1, 0, 16, 0]);
    image.extend((entry.len() as u64).to_le_bytes());
    image.extend(entry);
    image
}

/// The beginning of a zstd frame with a window of 2 to the power of `log` bytes.
fn frame(log: u8) -> Vec<u8> {
    vec![0x28, 0xb5, 0x2f, 0xfd, 0, (log - 10) << 3]
}

/// The header of a block: kind 1 repeats one byte `size` times, kind 2 is compressed.
fn block(kind: u32, size: usize, last: bool) -> [u8; 3] {
    let [a, b, c, _] = (u32::from(last) | kind << 1 | (size as u32) << 3).to_le_bytes();
    [a, b, c]
}

/// `count` blocks of four bytes, each of which becomes 128 KiB.
fn repeated(log: u8, count: usize) -> Vec<u8> {
    let mut bytes = frame(log);
    for n in 0..count {
        bytes.extend(block(1, BLOCK, n + 1 == count));
        bytes.push(b'a');
    }
    bytes
}

/// One compressed block of 2048 sequences: a literal, then a match of 131,074 bytes. The specification of zstd
/// allows a block 128 KiB.
fn long_matches(log: u8) -> Vec<u8> {
    let count = 2048_u16;
    // Literals: one byte repeated. Sequences: all three codes are given once.
    let mut content = (1 | 1 << 2 | count << 4).to_le_bytes().to_vec();
    content.extend([b'a', 0x80 | (count >> 8) as u8, count as u8, 0x54, 1, 0, 52]);
    content.extend(vec![0xff; usize::from(count) * 2]);
    content.push(1);
    let mut bytes = frame(log);
    bytes.extend(block(2, content.len(), true));
    bytes.extend(content);
    bytes
}

/// The result of decompressing an image's only entry, and the most bytes that were held meanwhile.
fn decompress(image: &[u8]) -> (Result<usize, Error>, u64) {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let image = Image::parse(image).unwrap();
    let (result, peak, _) = counted(|| image.entries[0].payload(DEFAULT_PAYLOAD_LIMIT));
    (result.map(|bytes| bytes.len()), peak)
}

fn assert_refused(name: &str, data: &[u8], size: u64, most: u64) {
    let (result, peak) = decompress(&fatbin(ZSTD, data, size));
    assert!(
        matches!(result, Err(Error::Decompress { .. })),
        "{name}: {result:?}"
    );
    assert!(peak < most, "{name}: {} bytes held {peak}", data.len());
}

#[test]
fn a_zstd_frame_with_a_large_window_is_not_decoded_as_a_whole() {
    // 16 KiB that become 512 MiB; the container says 100 bytes.
    for log in [30, 40] {
        assert_refused("large window", &repeated(log, 4096), 100, MIB);
    }
    assert_refused("usual window", &repeated(23, 4096), 100, 24 * MIB);
    assert_refused("small window", &repeated(17, 4096), 100, 2 * MIB);
}

#[test]
fn a_zstd_block_of_long_matches_is_not_executed_to_its_end() {
    // 4 KiB that become 256 MiB.
    for log in [17, 23, 30] {
        assert_refused("long matches", &long_matches(log), 100, 2 * MIB);
    }
}

#[test]
fn a_zstd_frame_that_is_as_large_as_it_says_is_decoded() {
    // Windows of up to 8 MiB are usual whatever the content; larger ones come with larger content.
    for (log, count) in [(17, 1), (23, 1), (23, 100), (24, 80), (20, 100)] {
        let size = (count * BLOCK) as u64;
        let (result, peak) = decompress(&fatbin(ZSTD, &repeated(log, count), size));
        assert_eq!(result.unwrap() as u64, size, "window of 2^{log}");
        assert!(peak < 4 * size + MIB, "window of 2^{log}: {peak}");
    }
}

#[test]
fn an_lz4_block_takes_no_more_than_it_says() {
    // A token, a literal, a distance of 1, and a length in bytes of 255: 1 MiB that becomes 255 MiB.
    let mut bomb = vec![0x1f, b'a', 1, 0];
    bomb.extend(vec![0xff; 1 << 20]);
    bomb.extend([0, 0x50]);
    bomb.extend(b"aaaaa");
    let (result, peak) = decompress(&fatbin(LZ4, &bomb, 100));
    assert!(
        matches!(result, Err(Error::Decompress { .. })),
        "{result:?}"
    );
    assert!(peak < MIB, "{peak}");
    let (result, peak) = decompress(&fatbin(LZ4, &bomb[..64], 1 << 29));
    assert!(
        matches!(result, Err(Error::Decompress { .. })),
        "{result:?}"
    );
    assert!(peak < MIB, "{peak}");
}
