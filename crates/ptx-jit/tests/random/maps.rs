//! Random tensor maps: of memory that the program may touch, and hostile ones.

use mica_ptx_ops::tensor_map::{BYTES, MOST_RANK, PIECE, Shape, TensorMap};

use super::program::Pick;

/// Maps of each block: of what is read, of what is written, of images that are read, and one that may be hostile.
pub(crate) const MAPS: usize = 4;
/// Bytes that the first three maps reach from their beginnings.
pub(crate) const REACH: u64 = 1024;

/// The memory that a map is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Texels,
    Boxes,
}

/// A map before it is known where memory is.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(crate) piece: Piece,
    /// With the distance from the beginning of the piece as its address.
    map: TensorMap,
    /// Bytes that are changed afterwards. None of the address, which is another one in each run.
    changes: Vec<(usize, u8)>,
}

impl Draft {
    /// The bytes of the map, of a piece at an address.
    pub(crate) fn encode(&self, piece: u64) -> [u8; BYTES] {
        let map = TensorMap {
            address: piece.wrapping_add(self.map.address),
            ..self.map
        };
        let mut bytes = map.encode();
        for (at, change) in &self.changes {
            bytes[*at] ^= change;
        }
        bytes
    }
}

/// All maps of a block; the last one is as wild as bytes can say where it is `hostile`.
pub(crate) fn maps(hostile: bool, pick: Pick<'_>) -> Vec<Draft> {
    (0..MAPS)
        .map(|number| match number {
            0 => tiled(Piece::Texels, pick),
            1 => tiled(Piece::Boxes, pick),
            2 => images(pick),
            _ => last(hostile, pick),
        })
        .collect()
}

fn last(hostile: bool, pick: Pick<'_>) -> Draft {
    let mut draft = match pick(3) {
        0 => tiled(Piece::Texels, pick),
        1 => tiled(Piece::Boxes, pick),
        _ => images(pick),
    };
    if !hostile {
        return draft;
    }
    // Behind the memory, round the address space, before it.
    let far = [
        0,
        16,
        REACH,
        1 << 20,
        1 << 40,
        u64::MAX - 15,
        u64::MAX - 1023,
    ];
    draft.map.address = (draft.map.address).wrapping_add(far[pick(far.len())]);
    for _ in 0..pick(5) {
        let at = pick(BYTES);
        if !(16..24).contains(&at) {
            draft.changes.push((at, pick(256) as u8));
        }
    }
    draft
}

/// Elements, their bytes and a row of them: whole pieces, not more than the pattern has.
fn row(pick: Pick<'_>) -> (TensorMap, u64) {
    let mut map = TensorMap {
        shape: Shape::Tiled([1; MOST_RANK]),
        data_type: pick(13) as u8,
        rank: 2,
        swizzle: pick(4) as u8,
        fills_nan: pick(2) == 1,
        address: 0,
        dims: [1; MOST_RANK],
        strides: [0; MOST_RANK - 1],
        element_strides: [1; MOST_RANK],
    };
    map.fills_nan &= map.element().is_some_and(|ty| ty.is_float());
    let pieces = 1 + pick(4) as u64;
    if map.swizzle > 0 && pieces * PIECE > map.span() {
        map.swizzle = 3;
    }
    (map, pieces * PIECE / map.element_bytes())
}

/// Rows that lie 16 to 64 bytes apart.
fn tiled(piece: Piece, pick: Pick<'_>) -> Draft {
    let (mut map, columns) = row(pick);
    let mut sizes = [1; MOST_RANK];
    (sizes[0], sizes[1]) = (columns as u32, 1 + pick(8) as u32);
    map.shape = Shape::Tiled(sizes);
    map.address = 256 * pick(3) as u64;
    (map.dims[0], map.dims[1]) = (
        1 + pick(512 / map.element_bytes() as usize) as u64 / 2,
        1 + pick(8) as u64,
    );
    map.strides[0] = PIECE * (1 + pick(4) as u64);
    map.element_strides[1] = 1 + pick(3) as u32;
    Draft {
        piece,
        map,
        changes: Vec::new(),
    }
}

/// Two images of up to eight pixels.
fn images(pick: Pick<'_>) -> Draft {
    let (mut map, channels) = row(pick);
    let mut corner = || [pick(5) as i32 - 2, 0, 0];
    let (lower, upper) = (corner(), corner());
    map.rank = 3;
    map.shape = Shape::Im2col(lower, upper, channels as u32, 1 + pick(24) as u32);
    map.dims[..3].copy_from_slice(&[channels, 1 + pick(8) as u64, 1 + pick(2) as u64]);
    map.strides[..2].copy_from_slice(&[64, 512]);
    map.element_strides[1] = 1 + pick(2) as u32;
    Draft {
        piece: Piece::Texels,
        map,
        changes: Vec::new(),
    }
}
