//! Shapes and parameters of launches.

use mica_gpu::{LaunchAttribute, ParamLayout};
use mica_vgpu::RawAttribute;

use crate::buffer::{DeviceBuffer, Plain};
use crate::managed::ManagedBuffer;
use crate::module::Global;
use crate::pitched::PitchedBuffer;
use crate::slice::{DeviceSlice, DeviceSliceMut};
use crate::texture::{Surface, Texture};
use crate::vgpu::Vgpu;
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
    /// Blocks of a cluster in each dimension: they share each other's shared memory. From compute capability 9.0 on.
    pub cluster: [u32; 3],
    /// Priority of this launch instead of its stream's; lower runs first.
    pub priority: Option<i32>,
    /// The kernel may begin before the one before it has ended, and waits for its results itself (`griddepcontrol.wait`).
    pub overlap: bool,
}

/// `CU_LAUNCH_ATTRIBUTE_PRIORITY`.
const PRIORITY: u32 = mica_cuda_abi::LaunchAttributeId::Priority as u32;

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
            cluster: [1; 3],
            priority: None,
            overlap: false,
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

    /// The same, in clusters of so many blocks.
    pub fn cluster(mut self, blocks: [u32; 3]) -> Self {
        self.cluster = blocks;
        self
    }

    /// The same, with a priority of its own.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = Some(priority);
        self
    }

    /// The same, begun before the kernel before it has ended.
    pub fn overlap(mut self) -> Self {
        self.overlap = true;
        self
    }

    /// What a plain launch does not have.
    pub(crate) fn attributes(&self) -> Vec<RawAttribute> {
        let mut attributes = Vec::new();
        let mut add = |id, first: &[u32]| {
            let mut value = [0; 16];
            value[..first.len()].copy_from_slice(first);
            attributes.push(RawAttribute { id, value });
        };
        if self.cluster != [1; 3] {
            add(LaunchAttribute::CLUSTER_DIMENSION, &self.cluster);
        }
        if let Some(priority) = self.priority {
            add(PRIORITY, &[priority.cast_unsigned()]);
        }
        if self.overlap {
            add(LaunchAttribute::PROGRAMMATIC_STREAM_SERIALIZATION, &[1]);
        }
        attributes
    }
}

/// A value that a kernel can be given.
pub trait KernelParam {
    /// Its bytes, as the kernel reads them.
    fn put(&self, bytes: &mut Vec<u8>);

    /// The virtual GPU whose kernels can use it; `None` for a value that all can.
    #[doc(hidden)]
    fn vgpu(&self) -> Option<&Vgpu> {
        None
    }
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

/// What a kernel gets as an address or a handle of 8 bytes.
macro_rules! references {
    ($([$($generic:tt)*] $type:ty: $address:ident;)*) => {$(
        impl<$($generic)*> KernelParam for $type {
            fn put(&self, bytes: &mut Vec<u8>) {
                self.$address().put(bytes);
            }
            fn vgpu(&self) -> Option<&Vgpu> {
                Some((**self).vgpu())
            }
        }
        impl<$($generic)*> SizedParam for $type {
            const BYTES: usize = 8;
        }
    )*};
}
references! {
    [T: Plain] &DeviceBuffer<T>: address;
    [T: Plain] &mut DeviceBuffer<T>: address;
    [T: Plain] &DeviceSlice<'_, T>: address;
    [T: Plain] &DeviceSliceMut<'_, T>: address;
    [T: Plain] &mut DeviceSliceMut<'_, T>: address;
    [T: Plain] &PitchedBuffer<T>: address;
    [T: Plain] &mut PitchedBuffer<T>: address;
    [T: Plain] &ManagedBuffer<T>: address;
    [T: Plain] &mut ManagedBuffer<T>: address;
    [] &Global: address;
    [] &Texture: handle;
    [] &Surface: handle;
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
    is_own: impl Fn(&Vgpu) -> bool,
) -> Result<Vec<u8>> {
    let end = layout.iter().map(|p| p.offset + p.size).max();
    let mut block = vec![0; end.unwrap_or(0) as usize];
    let mut index = 0;
    let mut wrong = None;
    let mut foreign = None;
    let mut bytes = Vec::new();
    params.each(&mut |param| {
        bytes.clear();
        param.put(&mut bytes);
        if param.vgpu().is_some_and(|vgpu| !is_own(vgpu)) {
            foreign.get_or_insert(index);
        }
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
    if let Some(index) = foreign {
        return Err(Error::Argument(format!(
            "parameter {index} of kernel {kernel} belongs to another virtual GPU, and the two share no memory"
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
        let block = pack("k", &layout, &(7_u8, 1_u64, 2.0_f32), |_| true).unwrap();
        assert_eq!(block.len(), 20);
        assert_eq!((block[0], block[8]), (7, 1));
        assert_eq!(block[16..20], 2.0_f32.to_le_bytes());
    }

    #[test]
    fn wrong_counts_and_sizes_are_named() {
        let layout = [ParamLayout { offset: 0, size: 4 }];
        let few = pack("k", &layout, &(), |_| true).unwrap_err().to_string();
        assert!(few.contains("takes 1 parameters, 0"), "{few}");
        let size = pack("k", &layout, &(1_u64,), |_| true)
            .unwrap_err()
            .to_string();
        assert!(
            size.contains("parameter 0 of kernel k has 4 bytes, 8"),
            "{size}"
        );
    }

    #[test]
    fn only_what_differs_from_a_plain_launch_is_an_attribute() {
        assert_eq!(Grid::new(1, 1).attributes(), []);
        let grid = Grid::new(4, 32).cluster([2, 1, 1]).priority(-1).overlap();
        let attributes = grid.attributes();
        let firsts: Vec<_> = attributes.iter().map(|a| (a.id, a.value[0])).collect();
        assert_eq!(firsts, [(4, 2), (8, u32::MAX), (6, 1)]);
    }

    #[test]
    fn grids_cover_their_items() {
        assert_eq!(Grid::covering(1000, 256).blocks, [4, 1, 1]);
        assert_eq!(Grid::covering(1024, 256).blocks, [4, 1, 1]);
        assert_eq!(Grid::covering(0, 256).blocks, [1, 1, 1]);
    }
}
