//! Shapes and parameters of launches.

use mica_gpu::ParamLayout;

use crate::buffer::{DeviceBuffer, Plain};
use crate::module::Global;
use crate::{Error, Result};

/// The shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks.
    pub blocks: [u32; 3],
    /// Threads per block.
    pub threads: [u32; 3],
    /// Dynamic shared memory per block.
    pub shared_bytes: u32,
    /// All blocks are resident at once, so that they can wait for each other.
    pub cooperative: bool,
}

impl Grid {
    /// So many blocks of so many threads.
    pub fn new(blocks: u32, threads: u32) -> Self {
        Self::of([blocks, 1, 1], [threads, 1, 1])
    }

    /// Blocks and threads in three dimensions.
    pub fn of(blocks: [u32; 3], threads: [u32; 3]) -> Self {
        Self {
            blocks,
            threads,
            shared_bytes: 0,
            cooperative: false,
        }
    }

    /// Enough blocks of `threads` for one thread per item, at least one.
    pub fn covering(items: usize, threads: u32) -> Self {
        let blocks = items.div_ceil(threads.max(1) as usize).max(1);
        Self::new(u32::try_from(blocks).unwrap_or(u32::MAX), threads)
    }

    /// The same with dynamic shared memory.
    pub fn shared(mut self, bytes: u32) -> Self {
        self.shared_bytes = bytes;
        self
    }

    /// The same, with all blocks resident at once.
    pub fn cooperative(mut self) -> Self {
        self.cooperative = true;
        self
    }
}

/// A value that a kernel can be given.
pub trait KernelParam {
    /// Its bytes, as the kernel reads them.
    fn put(&self, bytes: &mut Vec<u8>);
}

/// A parameter whose size its type says; what [`crate::kernels!`] takes.
pub trait SizedParam: KernelParam {
    /// How many bytes it has.
    const BYTES: usize;
}

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl KernelParam for $type {
            fn put(&self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }
        }
        impl SizedParam for $type {
            const BYTES: usize = size_of::<$type>();
        }
    )*};
}
numbers!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

impl<T: Plain> KernelParam for &DeviceBuffer<T> {
    fn put(&self, bytes: &mut Vec<u8>) {
        self.address().put(bytes);
    }
}

impl<T: Plain> KernelParam for &mut DeviceBuffer<T> {
    fn put(&self, bytes: &mut Vec<u8>) {
        self.address().put(bytes);
    }
}

impl KernelParam for &Global {
    fn put(&self, bytes: &mut Vec<u8>) {
        self.address().put(bytes);
    }
}

impl<T: Plain> SizedParam for &DeviceBuffer<T> {
    const BYTES: usize = 8;
}

impl<T: Plain> SizedParam for &mut DeviceBuffer<T> {
    const BYTES: usize = 8;
}

impl SizedParam for &Global {
    const BYTES: usize = 8;
}

impl<T: Plain> SizedParam for ByValue<T> {
    const BYTES: usize = size_of::<T>();
}

/// A struct passed by value.
#[derive(Clone, Copy, Debug)]
pub struct ByValue<T: Plain>(pub T);

impl<T: Plain> KernelParam for ByValue<T> {
    fn put(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.0.as_bytes());
    }
}

/// All parameters of a kernel: a tuple of up to twelve, or none.
pub trait KernelParams {
    /// Each parameter's bytes, in order.
    fn each(&self, take: &mut dyn FnMut(&dyn KernelParam));
}

macro_rules! tuples {
    ($($name:ident)*) => {
        impl<$($name: KernelParam),*> KernelParams for ($($name,)*) {
            #[allow(non_snake_case, unused_variables, reason = "one macro for all lengths")]
            fn each(&self, take: &mut dyn FnMut(&dyn KernelParam)) {
                let ($($name,)*) = self;
                $(take($name);)*
            }
        }
    };
}
tuples!();
tuples!(A);
tuples!(A B);
tuples!(A B C);
tuples!(A B C D);
tuples!(A B C D E);
tuples!(A B C D E F);
tuples!(A B C D E F G);
tuples!(A B C D E F G H);
tuples!(A B C D E F G H I);
tuples!(A B C D E F G H I J);
tuples!(A B C D E F G H I J K);
tuples!(A B C D E F G H I J K L);

/// Lays parameters out as the kernel wants them.
pub(crate) fn pack(
    kernel: &str,
    layout: &[ParamLayout],
    params: &impl KernelParams,
) -> Result<Vec<u8>> {
    let end = layout.iter().map(|p| p.offset + p.size).max();
    let mut block = vec![0; end.unwrap_or(0) as usize];
    let mut index = 0;
    let mut wrong = None;
    let mut bytes = Vec::new();
    params.each(&mut |param| {
        bytes.clear();
        param.put(&mut bytes);
        if let Some(place) = layout.get(index) {
            if bytes.len() == place.size as usize {
                let at = place.offset as usize;
                block[at..at + bytes.len()].copy_from_slice(&bytes);
            } else {
                wrong.get_or_insert((index, place.size, bytes.len()));
            }
        }
        index += 1;
    });
    if index != layout.len() {
        return Err(Error::Argument(format!(
            "kernel {kernel} takes {} parameters, {index} were given",
            layout.len()
        )));
    }
    match wrong {
        None => Ok(block),
        Some((index, wants, got)) => Err(Error::Argument(format!(
            "parameter {index} of kernel {kernel} has {wants} bytes, {got} were given"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_go_where_the_kernel_wants_them() {
        let layout = [(0, 1), (8, 8), (16, 4)].map(|(offset, size)| ParamLayout { offset, size });
        let block = pack("k", &layout, &(7_u8, 1_u64, 2.0_f32)).unwrap();
        assert_eq!(block.len(), 20);
        assert_eq!((block[0], block[8]), (7, 1));
        assert_eq!(block[16..20], 2.0_f32.to_le_bytes());
    }

    #[test]
    fn wrong_counts_and_sizes_are_named() {
        let layout = [ParamLayout { offset: 0, size: 4 }];
        let few = pack("k", &layout, &()).unwrap_err().to_string();
        assert!(few.contains("takes 1 parameters, 0"), "{few}");
        let size = pack("k", &layout, &(1_u64,)).unwrap_err().to_string();
        assert!(
            size.contains("parameter 0 of kernel k has 4 bytes, 8"),
            "{size}"
        );
    }

    #[test]
    fn grids_cover_their_items() {
        assert_eq!(Grid::covering(1000, 256).blocks, [4, 1, 1]);
        assert_eq!(Grid::covering(1024, 256).blocks, [4, 1, 1]);
        assert_eq!(Grid::covering(0, 256).blocks, [1, 1, 1]);
    }
}
