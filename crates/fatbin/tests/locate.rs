//! Lengths of images in a program's memory, read in small pieces.

use mica_fatbin::{Error, Image, Region, locate};

/// Memory of some regions at made-up addresses; reads stop at every 64 bytes, as at pages.
struct Fake(Vec<(u64, Vec<u8>)>);

impl mica_fatbin::Memory for Fake {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        for (start, bytes) in &self.0 {
            let Some(offset) = address.checked_sub(*start) else {
                continue;
            };
            let Some(rest) = usize::try_from(offset).ok().and_then(|o| bytes.get(o..)) else {
                continue;
            };
            let to_page_end = 64 - (address % 64) as usize;
            let n = rest.len().min(into.len()).min(to_page_end);
            into[..n].copy_from_slice(&rest[..n]);
            return n;
        }
        0
    }
}

fn data(name: &str) -> Vec<u8> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn each_format_knows_its_length() {
    for name in [
        "zstd.fatbin",
        "several.fatbin",
        "sm_90.cubin",
        "kernels.a",
        "kernels.obj",
    ] {
        let bytes = data(name);
        let mut memory = bytes.clone();
        // What follows an image in memory is not part of it.
        memory.extend([0xee; 200]);
        let found = locate(&Fake(vec![(0x1000, memory)]), 0x1000).unwrap();
        assert_eq!(
            found,
            [Region {
                address: 0x1000,
                len: bytes.len() as u64
            }],
            "{name}"
        );
    }
}

#[test]
fn text_ends_at_its_nul() {
    let mut text = b".version 8.0\n.target sm_80\n".repeat(20);
    text.push(0);
    let len = text.len() as u64;
    text.extend(b"more");
    let found = locate(&Fake(vec![(0x1008, text)]), 0x1008).unwrap();
    assert_eq!(
        found,
        [Region {
            address: 0x1008,
            len
        }]
    );

    // The page ends right after the NUL: nothing beyond is touched.
    let mut text = vec![b' '; 63];
    text.push(0);
    assert_eq!(
        locate(&Fake(vec![(0x2000, text)]), 0x2000).unwrap()[0].len,
        64
    );
}

#[test]
fn wrappers_are_followed() {
    let (a, b) = (data("zstd.fatbin"), data("lz4.fatbin"));
    let mut wrapper = Vec::new();
    wrapper.extend(0x4662_43b1u32.to_le_bytes());
    wrapper.extend(2u32.to_le_bytes());
    wrapper.extend(0x10_0000u64.to_le_bytes());
    wrapper.extend(0x30_0000u64.to_le_bytes());
    let mut list = Vec::new();
    list.extend(0x20_0000u64.to_le_bytes());
    list.extend(0u64.to_le_bytes());
    let (a_len, b_len) = (a.len() as u64, b.len() as u64);
    let memory = Fake(vec![
        (0x1000, wrapper.clone()),
        (0x10_0000, a),
        (0x20_0000, b),
        (0x30_0000, list),
    ]);
    let found = locate(&memory, 0x1000).unwrap();
    let expected = [
        Region {
            address: 0x10_0000,
            len: a_len,
        },
        Region {
            address: 0x20_0000,
            len: b_len,
        },
    ];
    assert_eq!(found, expected);
    assert!(Image::parse(&memory.0[1].1).is_ok());

    // Version 1 has a file name there instead.
    let mut memory = memory;
    memory.0[0].1[4] = 1;
    assert_eq!(locate(&memory, 0x1000).unwrap().len(), 1);
    memory.0[0].1[4] = 3;
    assert!(matches!(
        locate(&memory, 0x1000),
        Err(Error::BadField { value: 3, .. })
    ));
}

#[test]
fn bad_memory_is_an_error() {
    let nothing = Fake(Vec::new());
    assert!(matches!(
        locate(&nothing, 0x1000),
        Err(Error::Unreadable { .. })
    ));
    let short = Fake(vec![(0x1000, vec![0x50, 0xed, 0x55, 0xba, 1])]);
    assert!(matches!(
        locate(&short, 0x1000),
        Err(Error::Unreadable { .. })
    ));
    let zeros = Fake(vec![(0x1000, vec![0; 100])]);
    assert!(matches!(
        locate(&zeros, 0x1000),
        Err(Error::UnknownFormat { .. })
    ));
    let endless = Fake(vec![(0x1000, vec![b'x'; 100])]);
    assert!(matches!(
        locate(&endless, 0x1000),
        Err(Error::Unreadable { .. })
    ));
    // A list of fatbins that loops back to a huge header is refused, not copied.
    let mut huge = data("zstd.fatbin");
    huge[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(matches!(
        locate(&Fake(vec![(0x1000, huge)]), 0x1000),
        Err(Error::Limit { .. })
    ));
    assert!(locate(&nothing, u64::MAX).is_err());
}
