//! Samples of textures with one float a texel, for all lanes of a group: vector code where the processor has it.

use mica_ptx_ops::texture::{Row, SAMPLES, Simple};

use super::env::{self, Env};
use super::row::{CELL, Rows};
use super::texture_row::{Lanes, again};

/// Fewest lanes of a group.
const LEAST_LANES: usize = 4;

// A row has room for the words of as many samples as are computed together, also where there are fewer lanes.
const _: () = assert!(LEAST_LANES * CELL >= 4 * SAMPLES);

/// One `tex` of a group.
pub(super) struct Floats<'a, 'k> {
    pub(super) env: &'a Env<'k>,
    pub(super) rows: &'a Rows<'a>,
    /// Where all of the texture's texels are: checked.
    pub(super) host: u64,
    pub(super) simple: &'a Simple,
    pub(super) coords: &'a [Lanes; 2],
    /// Where the four components go that are wanted.
    pub(super) results: &'a [Option<*mut u32>; 4],
    /// Where it goes whether the texels are in memory.
    pub(super) resident: Option<*mut u32>,
}

impl Floats<'_, '_> {
    /// Samples for all lanes. Components that a texel has not are 0.
    pub(super) fn sample(&self) {
        self.env.note_place();
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has it.
            unsafe { self.sample_avx2() };
            return;
        }
        self.sample_all();
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn sample_avx2(&self) {
        self.sample_all();
    }

    // No closures from here on: they would be compiled for any processor, and called.
    #[inline(always)]
    fn sample_all(&self) {
        match self.simple.is_linear {
            false => self.each::<false>(),
            true => self.each::<true>(),
        }
    }

    /// Gives samples to lanes, as many at a time as are computed together.
    #[inline(always)]
    fn each<const LINEAR: bool>(&self) {
        let lanes = self.rows.lanes;
        let mut first = 0;
        while first < lanes {
            let x = floats(&self.coords[0], first);
            let y = floats(&self.coords[1], first);
            let count = (lanes - first).min(SAMPLES);
            let lanes = Batch { first, count };
            let samples = match LINEAR {
                false => self.point(&x, &y, lanes),
                true => self.linear(&x, &y, lanes),
            };
            put(self.results[0], first, &samples);
            for none in &self.results[1..] {
                put(*none, first, &[0; SAMPLES]);
            }
            put(self.resident, first, &[u32::MAX; SAMPLES]);
            first += SAMPLES;
        }
    }

    #[inline(always)]
    fn point(&self, x: &Row<f32>, y: &Row<f32>, lanes: Batch) -> Row<u32> {
        let places = self.simple.points(x, y);
        let mut samples = [0; SAMPLES];
        self.read(lanes, [&places], [&mut samples]);
        samples
    }

    #[inline(always)]
    fn linear(&self, x: &Row<f32>, y: &Row<f32>, lanes: Batch) -> Row<u32> {
        let corners = self.simple.corners(x, y);
        let mut texels = [[0; SAMPLES]; 4];
        let [a, b, c, d] = &corners.places;
        let [to_a, to_b, to_c, to_d] = &mut texels;
        match corners.count {
            2 => self.read(lanes, [a, b], [to_a, to_b]),
            _ => self.read(lanes, [a, b, c, d], [to_a, to_b, to_c, to_d]),
        }
        corners.blend(&texels)
    }

    /// Reads the texels of each lane. What lies inside the arena may still be a hole, so the lane is noted.
    #[inline(always)]
    fn read<const N: usize>(
        &self,
        lanes: Batch,
        places: [&Row<u64>; N],
        texels: [&mut Row<u32>; N],
    ) {
        if self.env.kernel.recheck {
            self.recheck(lanes, &places);
        }
        let thread = self.env.thread + lanes.first as u32;
        // Without a count that is only known here, the loop is unrolled.
        if lanes.count == SAMPLES {
            for i in 0..SAMPLES {
                self.env.note_thread(thread + i as u32);
                for n in 0..N {
                    texels[n][i] = env::load_word(self.host + places[n][i]);
                }
            }
            return;
        }
        for i in 0..lanes.count {
            self.env.note_thread(thread + i as u32);
            for n in 0..N {
                texels[n][i] = env::load_word(self.host + places[n][i]);
            }
        }
    }

    /// Checks what is read once more ([`crate::Options::recheck`]).
    #[cold]
    fn recheck(&self, lanes: Batch, places: &[&Row<u64>]) {
        for places in places {
            for (i, place) in places.iter().enumerate().take(lanes.count) {
                again(self.env, self.rows, lanes.first + i, self.host + place, 4);
            }
        }
    }
}

/// Lanes that are sampled together.
#[derive(Clone, Copy)]
struct Batch {
    first: usize,
    count: usize,
}

/// The coordinates of lanes; anything behind the last one.
#[inline(always)]
fn floats(lanes: &Lanes, first: usize) -> Row<f32> {
    let words: Row<u32> = match lanes {
        // SAFETY: a row has room for them, as said above.
        Lanes::Row(row) => unsafe { row.add(first).cast::<Row<u32>>().read_unaligned() },
        Lanes::Number(word) => [*word; SAMPLES],
    };
    let mut floats = [0.0; SAMPLES];
    for i in 0..SAMPLES {
        floats[i] = f32::from_bits(words[i]);
    }
    floats
}

#[inline(always)]
fn put(row: Option<*mut u32>, first: usize, words: &Row<u32>) {
    if let Some(row) = row {
        // SAFETY: a row has room for them, as said above.
        unsafe { row.add(first).cast::<Row<u32>>().write_unaligned(*words) };
    }
}
