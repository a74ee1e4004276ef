//! Damaged containers: whatever the bytes, an answer and no panic.

use mica_fatbin::{Cubin, Image, locate};

/// A small generator, so that a failure repeats.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

fn exercise(bytes: &[u8]) {
    if let Ok(image) = Image::parse(bytes) {
        let _ = image.describe();
        let _ = image.select_ptx(80);
        for entry in image.entries.iter().take(8) {
            if let Ok(payload) = entry.payload(1 << 20) {
                let _ = Cubin::parse(&payload);
            }
        }
    }
    let _ = Cubin::parse(bytes);
    let memory = |address: u64, into: &mut [u8]| {
        let rest = usize::try_from(address)
            .ok()
            .and_then(|a| bytes.get(a..))
            .unwrap_or(&[]);
        let n = rest.len().min(into.len());
        into[..n].copy_from_slice(&rest[..n]);
        n
    };
    let _ = locate(&memory, 0);
}

#[test]
fn damaged_containers_never_panic() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut seeds = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        seeds.push(std::fs::read(entry.unwrap().path()).unwrap());
    }
    seeds.sort();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for round in 0..3000 {
        let mut bytes = seeds[round % seeds.len()].clone();
        for _ in 0..1 + random.below(6) {
            if bytes.is_empty() {
                break;
            }
            // Headers are at the front: damage there reaches further.
            let reach = if random.below(2) == 0 {
                bytes.len().min(256)
            } else {
                bytes.len()
            };
            let at = random.below(reach);
            match random.below(5) {
                0 => bytes[at] = random.next() as u8,
                1 => bytes[at] ^= 1 << random.below(8),
                2 => bytes.truncate(at),
                3 => {
                    let end = (at + 4).min(bytes.len());
                    bytes[at..end].fill(0xff);
                }
                _ => {
                    let copy = bytes[at..(at + 16).min(bytes.len())].to_vec();
                    let to = random.below(bytes.len());
                    bytes.splice(to..to, copy);
                }
            }
        }
        exercise(&bytes);
    }
}
