use super::*;

fn plane() -> TensorMap {
    TensorMap {
        shape: Shape::Tiled([16, 4, 1, 1, 1]),
        data_type: 6,
        rank: 2,
        swizzle: 1,
        fills_nan: false,
        address: 0x1000,
        dims: [20, 5, 1, 1, 1],
        strides: [64, 0, 0, 0],
        element_strides: [1; 5],
    }
}

fn images() -> TensorMap {
    TensorMap {
        shape: Shape::Im2col([-1, -1, 0], [-1, -1, 0], 8, 9),
        data_type: 6,
        rank: 4,
        swizzle: 0,
        fills_nan: false,
        address: 0x2000,
        dims: [8, 4, 4, 2, 1],
        strides: [16, 64, 256, 0],
        element_strides: [1, 2, 2, 1, 1],
    }
}

#[test]
fn what_is_encoded_is_decoded() {
    for map in [plane(), images()] {
        assert_eq!(map.check(), Ok(()));
        let bytes = map.encode();
        let mut read = TensorMap::decode(&bytes).expect("a map");
        read.strides[usize::from(map.rank) - 1..].fill(0);
        assert_eq!(read, map);
    }
}

#[test]
fn other_bytes_are_no_map() {
    assert_eq!(TensorMap::decode(&[0; BYTES]), None);
    assert_eq!(TensorMap::decode(&[0xff; BYTES]), None);
    let mut bytes = plane().encode();
    // A rank of nine.
    bytes[9] = 9;
    assert_eq!(TensorMap::decode(&bytes), None);
}

#[test]
fn illegal_numbers_are_named() {
    let with = |change: fn(&mut TensorMap)| {
        let mut map = plane();
        change(&mut map);
        map.check().expect_err("is refused")
    };
    assert!(with(|m| m.address = 8).contains("0x8"));
    assert!(with(|m| m.strides[0] = 40).contains("40"));
    assert!(with(|m| m.dims[1] = 0).contains("2^32"));
    assert!(with(|m| m.shape = Shape::Tiled([16, 300, 1, 1, 1])).contains("300"));
    assert!(with(|m| m.shape = Shape::Tiled([32, 4, 1, 1, 1])).contains("64 bytes"));
    assert!(with(|m| m.element_strides[0] = 9).contains("9"));
    assert!(with(|m| (m.data_type, m.fills_nan) = (0, true)).contains("NaN"));
}

#[test]
fn a_box_at_a_corner_lies_partly_outside() {
    let rows: Vec<Row> = plane().rows(&[-4, 3], &[]).collect();
    let first = Row {
        shared: 0,
        global: 0x1000 + 3 * 64,
        skipped: 8,
        inside: 24,
    };
    assert_eq!(rows[0], first);
    assert_eq!(rows[1].global, 0x1000 + 4 * 64);
    assert_eq!([rows[2].inside, rows[3].inside], [0, 0]);
    assert_eq!(rows[3].shared, 3 * 32);
    let far: Vec<Row> = plane().rows(&[i32::MAX, i32::MIN], &[]).collect();
    assert!(far.iter().all(|row| row.inside == 0));
}

#[test]
fn windows_go_along_lines_and_images() {
    // Windows of two pixels each way over four of them, from one before the first: two in a line.
    let rows: Vec<Row> = images().rows(&[0, -1, -1, 0], &[1, 1]).collect();
    let pixel = |n: u64, y: u64, x: u64| 0x2000 + n * 256 + y * 64 + x * 16;
    let want = [
        pixel(0, 0, 0),
        pixel(0, 0, 2),
        pixel(0, 2, 0),
        pixel(0, 2, 2),
        pixel(1, 0, 0),
        pixel(1, 0, 2),
        pixel(1, 2, 0),
        pixel(1, 2, 2),
        0,
    ];
    let got: Vec<u64> = rows.iter().map(|row| row.global).collect();
    assert_eq!(got, want);
    let first = images().rows(&[0, -1, -1, 0], &[0, 1]).next();
    assert_eq!(first.map(|row| row.inside), Some(0));
}

#[test]
fn pieces_are_exchanged_within_their_span() {
    let mut map = plane();
    map.swizzle = 3;
    assert_eq!(map.swizzled(0), 0);
    assert_eq!(map.swizzled(128), 128 + 16);
    assert_eq!(map.swizzled(7 * 128 + 16), 7 * 128 + 6 * 16);
    map.swizzle = 0;
    assert_eq!(map.swizzled(7 * 128 + 16), 7 * 128 + 16);
}

/// SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[test]
fn maps_with_changed_bytes_stay_within_their_box() {
    let mut state = 7;
    let mut accepted = 0;
    for turn in 0..20_000 {
        let mut bytes = if turn % 2 == 0 { plane() } else { images() }.encode();
        for _ in 0..1 + next(&mut state) % 6 {
            let at = next(&mut state) as usize % BYTES;
            bytes[at] = next(&mut state) as u8;
        }
        let Some(map) = TensorMap::decode(&bytes) else {
            continue;
        };
        accepted += 1;
        let again = TensorMap::decode(&map.encode());
        assert_eq!(again, Some(map));
        let coords: [i32; 5] = std::array::from_fn(|_| next(&mut state) as i32);
        let small = coords.map(|x| x % 8);
        let offsets = [next(&mut state) as u16 % 4, 1, 0];
        for coords in [coords, small] {
            for row in map.rows(&coords, &offsets).take(4096) {
                assert!(row.shared + map.row_bytes() <= map.bytes());
                assert!(row.skipped + row.inside <= map.row_bytes());
                let last = row.shared + map.row_bytes() - 1;
                let end = map.bytes().next_multiple_of(map.span());
                assert!(map.place(1024, last) < end && map.place(1024, row.shared) < end);
            }
        }
    }
    assert!(accepted > 1000, "{accepted} maps were accepted");
}
