//! The rows of a box, one after the other: where each is in shared memory, and what of it lies inside of the tensor.

use super::{MOST_RANK, Shape, TensorMap};

/// A contiguous row of what is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Bytes of the rows before it.
    pub shared: u64,
    /// Address of its first byte inside of the tensor.
    pub global: u64,
    /// Bytes before that one.
    pub skipped: u64,
    /// Bytes inside of the tensor, from there on; 0 when the row lies outside.
    pub inside: u64,
}

/// Walks over the rows. Holds nothing that would have to be freed, so that a fault may leave at any row.
#[derive(Clone, Debug)]
pub struct Rows {
    map: TensorMap,
    /// Coordinates of the row, without what a window adds.
    at: [i64; MOST_RANK],
    /// Those of the first row.
    first: [i64; MOST_RANK],
    /// How far the box has been walked in each dimension.
    walked: [u64; MOST_RANK],
    offsets: [i64; MOST_RANK],
    next: u64,
    count: u64,
}

impl TensorMap {
    /// The rows of what a copy with these coordinates moves. `offsets` are those of a window's element.
    pub fn rows(&self, coords: &[i32], offsets: &[u16]) -> Rows {
        let mut first = [0; MOST_RANK];
        for (to, from) in first.iter_mut().zip(coords) {
            *to = i64::from(*from);
        }
        let mut shifts = [0; MOST_RANK];
        for (to, from) in shifts[1..].iter_mut().zip(offsets) {
            *to = i64::from(*from);
        }
        Rows {
            map: *self,
            at: first,
            first,
            walked: [0; MOST_RANK],
            offsets: shifts,
            next: 0,
            count: self.row_count(),
        }
    }
}

impl Rows {
    fn row(&self) -> Row {
        let map = &self.map;
        let size = map.element_bytes();
        let shared = self.next * map.row_bytes();
        let outside = Row {
            shared,
            global: 0,
            skipped: 0,
            inside: 0,
        };
        let mut global = map.address;
        for dim in 1..usize::from(map.rank) {
            let x = self.at[dim] + self.offsets[dim];
            if x < 0 || x as u64 >= map.dims[dim] {
                return outside;
            }
            // Where this wraps, the address is no more than wrong, and is checked as any.
            global = global.wrapping_add((x as u64).wrapping_mul(map.strides[dim - 1]));
        }
        let (start, elements) = (self.at[0], (map.row_bytes() / size) as i64);
        let begin = start.clamp(0, map.dims[0] as i64);
        let end = (start + elements).clamp(0, map.dims[0] as i64);
        if begin >= end {
            return outside;
        }
        Row {
            shared,
            global: global.wrapping_add((begin as u64).wrapping_mul(size)),
            skipped: (begin - start) as u64 * size,
            inside: (end - begin) as u64 * size,
        }
    }

    /// Goes to the next row of a box.
    fn advance_tiled(&mut self) {
        for dim in 1..usize::from(self.map.rank) {
            self.walked[dim] += 1;
            self.at[dim] += i64::from(self.map.element_strides[dim]);
            if self.walked[dim] < self.map.steps(dim) {
                return;
            }
            self.walked[dim] = 0;
            self.at[dim] = self.first[dim];
        }
    }

    /// Goes to the next window: along a line of windows, then to the next line, then to the next image.
    fn advance_window(&mut self, lower: [i32; 3], upper: [i32; 3]) {
        let images = usize::from(self.map.rank) - 1;
        for dim in 1..images {
            self.at[dim] += i64::from(self.map.element_strides[dim]);
            let last = self.map.dims[dim] as i64 - 1 + i64::from(upper[dim - 1]);
            if self.at[dim] <= last {
                return;
            }
            self.at[dim] = i64::from(lower[dim - 1]);
        }
        self.at[images] += 1;
    }
}

impl Iterator for Rows {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        if self.next >= self.count {
            return None;
        }
        let row = self.row();
        self.next += 1;
        match self.map.shape {
            Shape::Tiled(_) => self.advance_tiled(),
            Shape::Im2col(lower, upper, ..) => self.advance_window(lower, upper),
        }
        Some(row)
    }
}
