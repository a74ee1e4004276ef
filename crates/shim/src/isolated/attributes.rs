//! Device attributes that isolated mode answers itself.
//!
//! The worker tells what its device says. Where that is not what this library does, the table below has the answer: one row
//! an attribute, with the reason. What is not in it is the device's own. Names are those of `cuda.h`.

/// `CUdevice_attribute` numbers.
mod number {
    pub(super) const MANAGED_MEMORY: usize = 83;
    pub(super) const PAGEABLE_MEMORY_ACCESS: usize = 88;
    pub(super) const CONCURRENT_MANAGED_ACCESS: usize = 89;
    pub(super) const CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: usize = 91;
    pub(super) const COOPERATIVE_MULTI_DEVICE_LAUNCH: usize = 96;
    pub(super) const PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES: usize = 100;
    pub(super) const DIRECT_MANAGED_MEM_ACCESS_FROM_HOST: usize = 101;
    pub(super) const HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: usize = 103;
    pub(super) const GENERIC_COMPRESSION_SUPPORTED: usize = 107;
    pub(super) const GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED: usize = 110;
    pub(super) const SPARSE_CUDA_ARRAY_SUPPORTED: usize = 112;
    pub(super) const READ_ONLY_HOST_REGISTER_SUPPORTED: usize = 113;
    pub(super) const TIMELINE_SEMAPHORE_INTEROP_SUPPORTED: usize = 114;
    pub(super) const MEMORY_POOLS_SUPPORTED: usize = 115;
    pub(super) const GPU_DIRECT_RDMA_SUPPORTED: usize = 116;
    pub(super) const GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS: usize = 117;
    pub(super) const GPU_DIRECT_RDMA_WRITES_ORDERING: usize = 118;
    pub(super) const MEMPOOL_SUPPORTED_HANDLE_TYPES: usize = 119;
    pub(super) const DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED: usize = 121;
    pub(super) const DMA_BUF_SUPPORTED: usize = 124;
    pub(super) const IPC_EVENT_SUPPORTED: usize = 125;
    pub(super) const HANDLE_TYPE_FABRIC_SUPPORTED: usize = 128;
    pub(super) const MULTICAST_SUPPORTED: usize = 132;
    pub(super) const MEM_DECOMPRESS_ALGORITHM_MASK: usize = 136;
    pub(super) const MEM_DECOMPRESS_MAXIMUM_LENGTH: usize = 137;
    pub(super) const HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: usize = 141;
    pub(super) const HOST_NUMA_MEMORY_POOLS_SUPPORTED: usize = 142;
    pub(super) const HOST_NUMA_MULTINODE_IPC_SUPPORTED: usize = 143;
    pub(super) const HOST_MEMORY_POOLS_SUPPORTED: usize = 144;
    pub(super) const HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: usize = 145;
    pub(super) const HOST_ALLOC_DMA_BUF_SUPPORTED: usize = 146;
    pub(super) const DMA_BUF_MMAP_SUPPORTED: usize = 152;
}

/// Which devices a row is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Device {
    Any,
    /// One with a real driver.
    Driver,
    Software,
}
use Device::{Any, Driver, Software};

/// An answer of this library.
struct Row(Device, usize, i32);

/// Bit of `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const FILE_DESCRIPTORS: i32 = 1;

const TABLE: &[Row] = &[
    // Served by this library: pinned memory that both sides have at one address.
    Row(Any, number::MANAGED_MEMORY, 1),
    // Both sides load and store the same memory at all times...
    Row(Software, number::CONCURRENT_MANAGED_ACCESS, 1),
    // ...but `__managed__` variables are exchanged before launches and after waits, and a card's atomics on host memory
    // do not exclude the processor's.
    Row(Driver, number::CONCURRENT_MANAGED_ACCESS, 0),
    // Managed memory is the host's: there is none on the device that the host could reach.
    Row(Any, number::DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, 0),
    // Kernels reach nothing of the program's but what it has registered.
    Row(Any, number::PAGEABLE_MEMORY_ACCESS, 0),
    Row(Any, number::PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, 0),
    // The worker maps registered memory where the program has it.
    Row(Driver, number::CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1),
    // Registered memory may be read-only, and pools are made here.
    Row(Any, number::READ_ONLY_HOST_REGISTER_SUPPORTED, 1),
    Row(Any, number::MEMORY_POOLS_SUPPORTED, 1),
    // Shared by files, between the programs of one virtual GPU.
    Row(Any, number::HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1),
    Row(
        Any,
        number::MEMPOOL_SUPPORTED_HANDLE_TYPES,
        FILE_DESCRIPTORS,
    ),
    Row(Any, number::IPC_EVENT_SUPPORTED, 1),
    // Other machines, switches and devices would reach the card past the virtual GPU.
    Row(Any, number::HANDLE_TYPE_FABRIC_SUPPORTED, 0),
    Row(Any, number::MULTICAST_SUPPORTED, 0),
    Row(Any, number::GPU_DIRECT_RDMA_SUPPORTED, 0),
    Row(Any, number::GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 0),
    Row(Any, number::GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, 0),
    Row(Any, number::GPU_DIRECT_RDMA_WRITES_ORDERING, 0),
    Row(Any, number::DMA_BUF_SUPPORTED, 0),
    Row(Any, number::HOST_ALLOC_DMA_BUF_SUPPORTED, 0),
    Row(Any, number::DMA_BUF_MMAP_SUPPORTED, 0),
    Row(Any, number::TIMELINE_SEMAPHORE_INTEROP_SUPPORTED, 0),
    Row(Any, number::HOST_NUMA_MULTINODE_IPC_SUPPORTED, 0),
    // A virtual GPU is one device.
    Row(Any, number::COOPERATIVE_MULTI_DEVICE_LAUNCH, 0),
    // The calls that would use these are refused by name.
    Row(Any, number::SPARSE_CUDA_ARRAY_SUPPORTED, 0),
    Row(Any, number::DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED, 0),
    Row(Any, number::MEM_DECOMPRESS_ALGORITHM_MASK, 0),
    Row(Any, number::MEM_DECOMPRESS_MAXIMUM_LENGTH, 0),
    Row(
        Any,
        number::HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        0,
    ),
    Row(Any, number::HOST_NUMA_MEMORY_POOLS_SUPPORTED, 0),
    Row(Any, number::HOST_MEMORY_POOLS_SUPPORTED, 0),
    Row(Any, number::HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0),
    // A hint that frames are made without.
    Row(Any, number::GENERIC_COMPRESSION_SUPPORTED, 0),
];

/// The device's attributes with this library's answers.
pub(super) fn answer(attributes: &mut [Option<i32>; 256], has_driver: bool) {
    for Row(device, number, value) in TABLE {
        let applies = match device {
            Any => true,
            Driver => has_driver,
            Software => !has_driver,
        };
        if applies {
            attributes[*number] = Some(*value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_attribute_has_two_answers_for_one_device() {
        let mut seen = std::collections::HashSet::new();
        for Row(device, number, _) in TABLE {
            let devices = match device {
                Any => vec![Driver, Software],
                one => vec![*one],
            };
            for device in devices {
                assert!(seen.insert((device as u8, *number)), "{number}");
            }
        }
    }

    #[test]
    fn what_this_library_does_not_do_is_masked_and_the_rest_is_the_devices() {
        let mut attributes = [Some(7); 256];
        answer(&mut attributes, true);
        for number in [88, 89, 100, 110, 116, 124, 128, 132] {
            assert_eq!(attributes[number], Some(0), "{number}");
        }
        for number in [83, 91, 103, 115, 119, 125] {
            assert_eq!(attributes[number], Some(1), "{number}");
        }
        assert_eq!(attributes[16], Some(7));
        let mut attributes = [Some(7); 256];
        answer(&mut attributes, false);
        assert_eq!((attributes[89], attributes[91]), (Some(1), Some(7)));
    }
}
