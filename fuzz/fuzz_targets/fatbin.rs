//! Any bytes as a container: an answer without a panic, within the memory allowed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mica_fatbin::{Cubin, Image, locate};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(image) = Image::parse(bytes) {
        let _ = image.describe();
        for cc in [75, 80, 90, 120] {
            let _ = (image.select_ptx(cc), image.select_cubin(cc));
        }
        for entry in image.entries.iter().take(16) {
            if let Ok(payload) = entry.payload(1 << 20) {
                assert!(payload.len() <= (1 << 20).max(bytes.len()));
                let _ = Cubin::parse(&payload);
            }
        }
    }
    let _ = Cubin::parse(bytes);
    let memory = |address: u64, into: &mut [u8]| {
        let rest = usize::try_from(address).ok().and_then(|a| bytes.get(a..)).unwrap_or(&[]);
        let n = rest.len().min(into.len());
        into[..n].copy_from_slice(&rest[..n]);
        n
    };
    if let Ok(regions) = locate(&memory, 0) {
        assert!(!regions.is_empty());
    }
});
