//! `__mica_multiply_f32` and `__mica_multiply_add_f32`: the product of two small matrices of 32-bit floats, by one thread.
//!
//! No card has these functions. The software GPU provides them, as it provides `malloc`, since a processor computes
//! products with wider registers, and more of them, than vector code has. Owns what the arguments mean, and which memory a
//! call reads and writes; engines check that memory and compute.
//!
//! ```c
//! // c[i][j] = Σ a[i][k] b[k][j], or c[i][j] + Σ a[i][k] b[k][j]: sums of 256 products in the order of k, by fused multiply-adds
//! // from 0 on, which are added in turn. So a long sum is rounded less than one that is added from end to end.
//! // sizes: rows of c, its columns (both 16 bits), and the length of the sums (32 bits), the rows lowest. Distances count
//! // elements; those of b's and c's columns are 1. c overlaps neither a nor b.
//! void __mica_multiply_f32(const float *a, const float *b, float *c, uint64_t sizes,
//!                          uint64_t a_row, uint64_t a_col, uint64_t b_row, uint64_t c_row);
//! ```
//!
//! Sums that are not a number are the canonical NaN, `0x7fffffff`.

/// Arguments of a call.
pub const WORDS: usize = 8;

/// The function that writes products.
pub const MULTIPLY: &str = "__mica_multiply_f32";
/// The function that adds products.
pub const MULTIPLY_ADD: &str = "__mica_multiply_add_f32";

/// Whether a function that the device provides is one of these.
pub fn is_multiply(name: &str) -> bool {
    name == MULTIPLY || name == MULTIPLY_ADD
}

/// The most multiplications of one call: some hundred microseconds, after which a block looks whether it should stop.
pub const MOST_PRODUCTS: u64 = 1 << 24;

/// Products that are summed before the sum is added to the others.
pub const PART: u64 = 256;

/// The most elements from one row or column to the next.
const MOST_DISTANCE: u64 = 1 << 36;

/// What a sum is that is not a number.
pub const NAN: u32 = 0x7fff_ffff;

/// A matrix in memory. Distances count elements of 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Of the first element.
    pub address: u64,
    /// Rows.
    pub rows: u64,
    /// Columns.
    pub cols: u64,
    /// From one row to the next.
    pub row: u64,
    /// From one column to the next.
    pub col: u64,
}

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multiply {
    /// The first factor.
    pub a: Matrix,
    /// The second factor.
    pub b: Matrix,
    /// The sums.
    pub c: Matrix,
    /// Whether products are added to what `c` has.
    pub adds: bool,
}

impl Matrix {
    /// The address of an element.
    pub fn at(&self, row: u64, col: u64) -> u64 {
        let elements = (row.wrapping_mul(self.row)).wrapping_add(col.wrapping_mul(self.col));
        self.address.wrapping_add(elements.wrapping_mul(4))
    }

    /// Bytes from the first element to the end of the last one; 0 for a matrix of nothing.
    pub fn bytes(&self) -> u64 {
        if self.rows == 0 || self.cols == 0 {
            return 0;
        }
        4 * ((self.rows - 1) * self.row + (self.cols - 1) * self.col + 1)
    }

    /// Pieces of memory that have all elements and nothing else: addresses and bytes.
    pub fn pieces(&self) -> impl Iterator<Item = (u64, u64)> {
        let matrix = *self;
        // Along the axis of which elements are beside each other, if there is one.
        let (lines, length, by_rows) = match (self.col, self.row) {
            (1, _) => (self.rows, self.cols, true),
            (_, 1) => (self.cols, self.rows, false),
            _ => (self.rows * self.cols, 1, true),
        };
        let is_scattered = self.col != 1 && self.row != 1;
        let cols = self.cols.max(1);
        (0..lines)
            .filter(move |_| length > 0)
            .map(move |line| match (is_scattered, by_rows) {
                (true, _) => (matrix.at(line / cols, line % cols), 4),
                (false, true) => (matrix.at(line, 0), 4 * length),
                (false, false) => (matrix.at(0, line), 4 * length),
            })
    }
}

impl Multiply {
    /// The call with these arguments; `None` for sizes or distances beyond what one call takes.
    pub fn of_words(words: [u64; WORDS], adds: bool) -> Option<Self> {
        let [a, b, c, sizes, a_row, a_col, b_row, c_row] = words;
        let (rows, cols, depth) = (sizes & 0xffff, sizes >> 16 & 0xffff, sizes >> 32);
        let far = [a_row, a_col, b_row, c_row]
            .iter()
            .any(|d| *d > MOST_DISTANCE);
        if far || rows * cols > MOST_PRODUCTS || rows * cols * depth > MOST_PRODUCTS {
            return None;
        }
        // With no rows or columns the depth is not bounded by the product.
        let matrix = |address, rows, cols, row, col| Matrix {
            address,
            rows,
            cols,
            row,
            col,
        };
        Some(Self {
            a: matrix(a, rows, depth, a_row, a_col),
            b: matrix(b, depth, cols, b_row, 1),
            c: matrix(c, rows, cols, c_row, 1),
            adds,
        })
    }

    /// Whether there is anything to write.
    pub fn is_empty(&self) -> bool {
        self.c.rows == 0 || self.c.cols == 0
    }
}

/// The sum as it is stored.
pub fn stored(sum: f32) -> u32 {
    if sum.is_nan() { NAN } else { sum.to_bits() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(rows: u64, cols: u64, depth: u64) -> u64 {
        rows | cols << 16 | depth << 32
    }

    #[test]
    fn arguments_are_taken_apart() {
        let call = Multiply::of_words([16, 32, 64, sizes(3, 5, 7), 7, 1, 8, 10], true).unwrap();
        assert_eq!((call.a.rows, call.a.cols), (3, 7));
        assert_eq!((call.b.rows, call.b.cols, call.b.row), (7, 5, 8));
        assert_eq!(call.a.at(2, 6), 16 + 4 * 20);
        assert_eq!((call.a.bytes(), call.b.bytes()), (4 * 21, 4 * (6 * 8 + 5)));
        assert_eq!(call.c.bytes(), 4 * (2 * 10 + 5));
        assert!(call.adds && !call.is_empty());
    }

    #[test]
    fn pieces_are_the_elements() {
        for (row, col) in [(9, 1), (1, 9), (20, 3), (5, 1)] {
            let matrix = Matrix {
                address: 1000,
                rows: 3,
                cols: 5,
                row,
                col,
            };
            let mut found: Vec<u64> = matrix
                .pieces()
                .flat_map(|(at, bytes)| (at..at + bytes).step_by(4))
                .collect();
            let mut wanted: Vec<u64> = (0..15).map(|i| matrix.at(i / 5, i % 5)).collect();
            found.sort_unstable();
            wanted.sort_unstable();
            assert_eq!(found, wanted, "{row} {col}");
        }
    }

    #[test]
    fn too_much_for_one_call_is_refused() {
        let of = |rows, cols, depth, far| {
            Multiply::of_words([0, 0, 0, sizes(rows, cols, depth), far, 1, 1, 1], false)
        };
        assert!(of(256, 256, 256, 1).is_some());
        assert!(of(256, 256, 257, 1).is_none());
        assert!(of(65535, 65535, 65535, 1).is_none());
        assert!(of(1, 1, 1, u64::MAX).is_none());
        assert_eq!(of(0, 5, 9, 1).map(|call| call.is_empty()), Some(true));
    }
}
