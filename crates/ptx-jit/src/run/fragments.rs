//! Matrices of a whole warp: products with the widest registers of the processor, tiles and fragments by rows of memory.
//!
//! Owns what all 32 lanes do alike. Each function answers `None`, and has changed nothing, where lanes differ, an address
//! is refused or somebody is told of each access: [`super::members`] then does the same lane by lane.

use mica_ptx::ast::{AddrBase, Address, Layout, Op, Operand, RegId, Space, WmmaLoad, WmmaStore};
use mica_ptx_ops::matrix::{Fragment, MmaPlan, WarpRegister, memory_bit_offset, tile_places};

use super::collective::env_of;
use super::env::Env;
use super::multiply::Kind;
use super::whole_warp::Row;
use crate::unit::Class;

/// Bytes of the largest matrix: 32 by 16 halves, 16 by 16 words.
const MOST_BYTES: usize = 1024;
/// Rows, or columns, of the longest one.
const MOST_LINES: usize = 32;

/// `D = A * B + C` for a whole warp, as [`MmaPlan::run_rows`].
pub(super) fn product(
    plan: &MmaPlan,
    a: &[WarpRegister],
    b: &[WarpRegister],
    c: &[WarpRegister],
    out: &mut [WarpRegister],
) {
    match Kind::of_processor() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has these instructions.
        Kind::Avx512 => unsafe { product_avx512(plan, a, b, c, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has these instructions.
        Kind::Avx2 => unsafe { product_avx2(plan, a, b, c, out) },
        Kind::Plain => plan.run_rows(a, b, c, out),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn product_avx512(
    plan: &MmaPlan,
    a: &[WarpRegister],
    b: &[WarpRegister],
    c: &[WarpRegister],
    out: &mut [WarpRegister],
) {
    plan.run_rows_by(a, b, c, out, |sum, x, y| x.mul_add(y, sum));
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn product_avx2(
    plan: &MmaPlan,
    a: &[WarpRegister],
    b: &[WarpRegister],
    c: &[WarpRegister],
    out: &mut [WarpRegister],
) {
    plan.run_rows_by(a, b, c, out, |sum, x, y| x.mul_add(y, sum));
}

impl Row<'_, '_> {
    /// `ldmatrix`, `stmatrix`, `wmma.load` and `wmma.store`.
    pub(super) fn matrix_memory(&self, op: &Op) -> Option<()> {
        let kernel = self.d.k;
        if self.lanes != 32 || kernel.memcheck || kernel.monitor {
            return None;
        }
        match op {
            Op::LdMatrix {
                trans,
                space,
                dst,
                addr,
                ..
            } => self.load_tiles(*trans, *space, dst, addr),
            Op::StMatrix {
                trans,
                space,
                src,
                addr,
                ..
            } => self.store_tiles(*trans, *space, src, addr),
            Op::WmmaLoad(x) => self.load_fragment(x),
            Op::WmmaStore(x) => self.store_fragment(x),
            _ => None,
        }
    }

    /// The address that each lane gives; `None` where it is not in a register.
    fn addresses(&self, addr: &Address) -> Option<WarpRegister> {
        let AddrBase::Reg(r) = addr.base else {
            return None;
        };
        let is_narrow = self.site.uses.contains(&(r, Class::B32));
        let base = self.load(Operand::Reg(r))?;
        Some(base.map(|address| {
            // Narrow addresses wrap, as in compiled code.
            let address = match is_narrow {
                true => i64::from(address as u32 as i32) as u64,
                false => address,
            };
            address.wrapping_add_signed(addr.offset)
        }))
    }

    /// The rows of all tiles in memory: lane `8m + r` gives row `r` of tile `m`.
    fn tile_rows(
        &self,
        space: Space,
        addr: &Address,
        count: usize,
        is_write: bool,
    ) -> Option<[u64; 32]> {
        let addresses = self.addresses(addr)?;
        let mut e = env_of(self.d, self.site, self.first);
        let mut hosts = [0; 32];
        for lane in 0..8 * count {
            e.thread = self.first + lane as u32;
            hosts[lane] = e.host_at(space, addresses[lane], 16, 16, is_write).ok()?;
        }
        Some(hosts)
    }

    fn load_tiles(
        &self,
        trans: bool,
        space: Space,
        dst: &[Option<RegId>],
        addr: &Address,
    ) -> Option<()> {
        let hosts = self.tile_rows(space, addr, dst.len(), false)?;
        for (dst, hosts) in dst.iter().zip(hosts.as_chunks::<8>().0) {
            let Some(dst) = dst else { continue };
            // SAFETY: 16 bytes of each row are checked.
            let rows = hosts.map(|host| unsafe { (host as *const [u16; 8]).read_unaligned() });
            let words: [u64; 32] = std::array::from_fn(|lane| {
                let [low, high] = tile_places(lane as u32, trans);
                let at =
                    |(row, col): (u32, u32)| u64::from(rows[row as usize & 7][col as usize & 7]);
                at(low) | at(high) << 16
            });
            self.store(*dst, |lane| words[lane]);
        }
        Some(())
    }

    fn store_tiles(
        &self,
        trans: bool,
        space: Space,
        src: &[Operand],
        addr: &Address,
    ) -> Option<()> {
        let hosts = self.tile_rows(space, addr, src.len(), true)?;
        let mut tiles = [[[0_u16; 8]; 8]; 4];
        for (tile, src) in tiles.iter_mut().zip(src) {
            for (lane, word) in self.load(*src)?.into_iter().enumerate() {
                let [low, high] = tile_places(lane as u32, trans);
                tile[low.0 as usize & 7][low.1 as usize & 7] = word as u16;
                tile[high.0 as usize & 7][high.1 as usize & 7] = (word >> 16) as u16;
            }
        }
        for (tile, hosts) in tiles.iter().take(src.len()).zip(hosts.as_chunks::<8>().0) {
            for (row, host) in tile.iter().zip(hosts) {
                // SAFETY: 16 bytes of each row are checked.
                unsafe { (*host as *mut [u16; 8]).write_unaligned(*row) };
            }
        }
        Some(())
    }

    fn load_fragment(&self, x: &WmmaLoad) -> Option<()> {
        let plan = self.site.fragment.as_deref()?;
        match plan.ty.bits() {
            8 => self.load_elements::<1>(plan, x),
            16 => self.load_elements::<2>(plan, x),
            32 => self.load_elements::<4>(plan, x),
            64 => self.load_elements::<8>(plan, x),
            _ => None,
        }
    }

    /// Loads a matrix with elements of `SIZE` bytes.
    fn load_elements<const SIZE: usize>(&self, plan: &Fragment, x: &WmmaLoad) -> Option<()> {
        let lines = self.lines(plan, x.space, &x.addr, (x.layout, x.stride), false)?;
        let mut bytes = [0; MOST_BYTES];
        lines.read::<SIZE>(&mut bytes);
        for (r, dst) in x.dst.iter().enumerate() {
            let mut words = [0; 32];
            for_each_element(plan, r, |lane, shift, place| {
                let mut element = [0; 8];
                element[..SIZE].copy_from_slice(&bytes[place * SIZE..][..SIZE]);
                words[lane] |= u64::from_le_bytes(element) << shift;
            });
            self.store(*dst, |lane| words[lane]);
        }
        Some(())
    }

    fn store_fragment(&self, x: &WmmaStore) -> Option<()> {
        let plan = self.site.fragment.as_deref()?;
        match plan.ty.bits() {
            8 => self.store_elements::<1>(plan, x),
            16 => self.store_elements::<2>(plan, x),
            32 => self.store_elements::<4>(plan, x),
            64 => self.store_elements::<8>(plan, x),
            _ => None,
        }
    }

    /// Stores a matrix with elements of `SIZE` bytes.
    fn store_elements<const SIZE: usize>(&self, plan: &Fragment, x: &WmmaStore) -> Option<()> {
        let lines = self.lines(plan, x.space, &x.addr, (x.layout, x.stride), true)?;
        let mut bytes = [0; MOST_BYTES];
        for (r, src) in x.src.iter().enumerate() {
            let words = self.load(*src)?;
            for_each_element(plan, r, |lane, shift, place| {
                let element = (words[lane] >> shift).to_le_bytes();
                bytes[place * SIZE..][..SIZE].copy_from_slice(&element[..SIZE]);
            });
        }
        lines.write::<SIZE>(&bytes);
        Some(())
    }

    /// Where the lines of a matrix are in memory, if all lanes name the same matrix.
    fn lines(
        &self,
        fragment: &Fragment,
        space: Space,
        addr: &Address,
        (layout, stride): (Layout, Option<Operand>),
        is_write: bool,
    ) -> Option<Lines> {
        let (rows, cols, bits) = (fragment.rows, fragment.cols, fragment.ty.bits());
        let is_row = layout == Layout::Row;
        let (count, length) = if is_row { (rows, cols) } else { (cols, rows) };
        if bits < 8 || space == Space::Local {
            return None;
        }
        let stride = match stride {
            Some(stride) => u64::from(same(&self.load(stride)?)? as u32),
            None => u64::from(length),
        };
        let base = same(&self.addresses(addr)?)?;
        let e: Env<'_> = env_of(self.d, self.site, self.first);
        let (line_bytes, align) = (length * bits / 8, bits / 8);
        let mut hosts = [0; MOST_LINES];
        for (line, host) in hosts.iter_mut().enumerate().take(count as usize) {
            let (row, col) = if is_row { (line, 0) } else { (0, line) };
            let bit = memory_bit_offset(layout, stride, row as u32, col as u32, bits);
            let address = base.wrapping_add(bit / 8);
            *host = e
                .host_at(space, address, line_bytes, align, is_write)
                .ok()?;
        }
        Some(Lines {
            hosts,
            count: count as usize,
            length: length as usize,
            is_row,
        })
    }
}

/// The rows, or the columns, of a matrix in memory, all of them checked.
struct Lines {
    hosts: [u64; MOST_LINES],
    count: usize,
    /// Elements of a line.
    length: usize,
    is_row: bool,
}

impl Lines {
    /// Where an element of a line lies in a matrix of rows, in bytes.
    fn place<const SIZE: usize>(&self, line: usize, at: usize) -> usize {
        SIZE * match self.is_row {
            true => line * self.length + at,
            false => at * self.count + line,
        }
    }

    /// Reads elements of `SIZE` bytes into rows.
    fn read<const SIZE: usize>(&self, to: &mut [u8; MOST_BYTES]) {
        for (line, host) in self.hosts[..self.count].iter().enumerate() {
            for at in 0..self.length {
                let from = (*host as *const [u8; SIZE]).wrapping_add(at);
                // SAFETY: the whole line is checked.
                let element = unsafe { from.read() };
                to[self.place::<SIZE>(line, at)..][..SIZE].copy_from_slice(&element);
            }
        }
    }

    /// Writes them.
    fn write<const SIZE: usize>(&self, from: &[u8; MOST_BYTES]) {
        for (line, host) in self.hosts[..self.count].iter().enumerate() {
            for at in 0..self.length {
                let element = &from[self.place::<SIZE>(line, at)..][..SIZE];
                let to = (*host as *mut [u8; SIZE]).wrapping_add(at);
                let element = element.try_into().unwrap_or([0; SIZE]);
                // SAFETY: the whole line is checked.
                unsafe { to.write(element) };
            }
        }
    }
}

/// The value that all lanes have.
fn same(row: &WarpRegister) -> Option<u64> {
    row.iter().all(|value| *value == row[0]).then_some(row[0])
}

/// Gives lane, bit in the register and place in the matrix of each element of register `r`.
#[inline(always)]
fn for_each_element(fragment: &Fragment, r: usize, mut each: impl FnMut(usize, usize, usize)) {
    let width = fragment.ty.bits() as usize;
    let per = (fragment.per_lane / fragment.registers) as usize;
    let lanes = fragment.places.chunks_exact(fragment.per_lane as usize);
    for (lane, places) in lanes.enumerate() {
        for (i, place) in places[r * per..][..per].iter().enumerate() {
            each(lane & 31, i * width, usize::from(*place));
        }
    }
}
