//! Boxes of bytes as programs describe them to `cuMemcpy2D` and `cuMemcpy3D`.
//!
//! Owns what their fields mean and which of them are wrong; [`crate::isolated::copies`] carries out the rest.

use mica_cuda_abi::Handle;

use super::{CopyOp, End, Place, device_place, host_place, unified_place};
use crate::isolated::memory::arrays::Array;
use crate::isolated::state::State;
use crate::isolated::support::{Answer, bad_handle, invalid};

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Memcpy2d {
    src_x: usize,
    src_y: usize,
    src_kind: u32,
    src_host: u64,
    src_device: u64,
    src_array: Handle,
    src_pitch: usize,
    dst_x: usize,
    dst_y: usize,
    dst_kind: u32,
    dst_host: u64,
    dst_device: u64,
    dst_array: Handle,
    dst_pitch: usize,
    width: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`, and `CUDA_MEMCPY3D_PEER`, which has contexts where this has reserved words.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Memcpy3d {
    src: Side3d,
    dst: Side3d,
    width: usize,
    height: usize,
    depth: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Side3d {
    x: usize,
    y: usize,
    z: usize,
    level: usize,
    kind: u32,
    host: u64,
    device: u64,
    array: Handle,
    reserved: Handle,
    pitch: usize,
    height: usize,
}

const _: () = {
    assert!(size_of::<Memcpy2d>() == 128);
    assert!(size_of::<Memcpy3d>() == 200);
};

impl Side3d {
    /// This end of a copy.
    unsafe fn end(&self, state: &State, (width, height, depth): (u64, u64, u64)) -> Answer<End> {
        const HOST: u32 = 1;
        const DEVICE: u32 = 2;
        const ARRAY: u32 = 3;
        const UNIFIED: u32 = 4;
        if self.level != 0 {
            return invalid();
        }
        let offset = [self.x as u64, self.y as u64, self.z as u64];
        if self.kind == ARRAY {
            // SAFETY: the program's handle.
            let Some(array) = (unsafe { Array::find(self.array) }) else {
                return bad_handle();
            };
            return Ok(End {
                place: Place::Array(array),
                pitch: (0, 0),
                offset,
            });
        }
        let row = match self.pitch as u64 {
            0 if height * depth <= 1 || width == 0 => width,
            0 => width + self.x as u64,
            pitch => pitch,
        };
        if row < width + self.x as u64 && height * depth > 1 {
            return invalid();
        }
        let rows = match self.height as u64 {
            0 => height + self.y as u64,
            rows => rows,
        };
        let slice = row.saturating_mul(rows);
        let inner = offset[2]
            .wrapping_mul(slice)
            .wrapping_add(offset[1].wrapping_mul(row))
            .wrapping_add(offset[0]);
        let place = match self.kind {
            HOST if self.host == 0 => return invalid(),
            HOST => host_place(state, self.host.wrapping_add(inner)),
            DEVICE => device_place(state, self.device.wrapping_add(inner))?,
            UNIFIED => unified_place(state, self.device.wrapping_add(inner))?,
            _ => return invalid(),
        };
        Ok(End {
            place,
            pitch: (row, slice),
            offset: [0; 3],
        })
    }
}

impl Memcpy3d {
    /// The copy it describes.
    ///
    /// # Safety
    /// Its handles are the program's.
    pub(crate) unsafe fn op(&self, state: &State) -> Answer<CopyOp> {
        let extent = (self.width as u64, self.height as u64, self.depth as u64);
        // SAFETY: our contract.
        let (src, dst) = unsafe { (self.src.end(state, extent)?, self.dst.end(state, extent)?) };
        Ok(CopyOp { src, dst, extent })
    }
}

impl Memcpy3d {
    /// The description of a copy, as queries want it.
    pub(crate) fn of(op: &CopyOp) -> Self {
        let side = |end: &End| {
            let (kind, host, device, array) = match end.place {
                Place::Device(address) => (2, 0, address, std::ptr::null_mut()),
                Place::Pageable(address) => (1, address, 0, std::ptr::null_mut()),
                Place::Array(array) => (3, 0, 0, array.handle()),
            };
            let [x, y, z] = end.offset.map(|part| part as usize);
            let (row, slice) = end.pitch;
            Side3d {
                x,
                y,
                z,
                level: 0,
                kind,
                host,
                device,
                array,
                reserved: std::ptr::null_mut(),
                pitch: row as usize,
                height: slice.checked_div(row).unwrap_or(0) as usize,
            }
        };
        let (width, height, depth) = op.extent;
        Self {
            src: side(&op.src),
            dst: side(&op.dst),
            width: width as usize,
            height: height as usize,
            depth: depth as usize,
        }
    }
}

impl Memcpy2d {
    /// As [`Memcpy3d::op`].
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn op(&self, state: &State) -> Answer<CopyOp> {
        let side = |x, y, kind, host, device, array, pitch| Side3d {
            x,
            y,
            z: 0,
            level: 0,
            kind,
            host,
            device,
            array,
            reserved: std::ptr::null_mut(),
            pitch,
            height: 0,
        };
        let copy = Memcpy3d {
            src: side(
                self.src_x,
                self.src_y,
                self.src_kind,
                self.src_host,
                self.src_device,
                self.src_array,
                self.src_pitch,
            ),
            dst: side(
                self.dst_x,
                self.dst_y,
                self.dst_kind,
                self.dst_host,
                self.dst_device,
                self.dst_array,
                self.dst_pitch,
            ),
            width: self.width,
            height: self.height,
            depth: 1,
        };
        // SAFETY: our caller's contract.
        unsafe { copy.op(state) }
    }
}
