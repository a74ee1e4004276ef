//! Device attributes that isolated mode answers itself.
//!
//! The worker tells what its device says. Where that is not what this library does, the table below has the answer: one row
//! an attribute, with the reason. What is not in it is the device's own.

use mica_cuda_abi::DeviceAttribute;

/// Which devices a row is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Device {
    Any,
    /// One with a real driver.
    Driver,
    Software,
}
use Device::{Any, Driver, Software};
use DeviceAttribute as A;

/// An answer of this library.
struct Row(Device, DeviceAttribute, i32);

/// Bit of `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const FILE_DESCRIPTORS: i32 = 1;

const TABLE: &[Row] = &[
    // Served by this library: pinned memory that both sides have at one address.
    Row(Any, A::ManagedMemory, 1),
    // Both sides load and store the same memory at all times...
    Row(Software, A::ConcurrentManagedAccess, 1),
    // ...but `__managed__` variables are exchanged before launches and after waits, and a card's atomics on host memory
    // do not exclude the processor's.
    Row(Driver, A::ConcurrentManagedAccess, 0),
    // Managed memory is the host's: there is none on the device that the host could reach.
    Row(Any, A::DirectManagedMemAccessFromHost, 0),
    // Kernels reach nothing of the program's but what it has registered.
    Row(Any, A::PageableMemoryAccess, 0),
    Row(Any, A::PageableMemoryAccessUsesHostPageTables, 0),
    // The worker maps registered memory where the program has it.
    Row(Driver, A::CanUseHostPointerForRegisteredMem, 1),
    // Registered memory may be read-only, and pools are made here.
    Row(Any, A::ReadOnlyHostRegisterSupported, 1),
    Row(Any, A::MemoryPoolsSupported, 1),
    // Shared by files, between the programs of one virtual GPU.
    Row(Any, A::HandleTypePosixFileDescriptorSupported, 1),
    Row(Any, A::MempoolSupportedHandleTypes, FILE_DESCRIPTORS),
    Row(Any, A::IpcEventSupported, 1),
    // Other machines, switches and devices would reach the card past the virtual GPU.
    Row(Any, A::HandleTypeFabricSupported, 0),
    Row(Any, A::MulticastSupported, 0),
    Row(Any, A::GpuDirectRdmaSupported, 0),
    Row(Any, A::GpuDirectRdmaWithCudaVmmSupported, 0),
    Row(Any, A::GpuDirectRdmaFlushWritesOptions, 0),
    Row(Any, A::GpuDirectRdmaWritesOrdering, 0),
    Row(Any, A::DmaBufSupported, 0),
    Row(Any, A::HostAllocDmaBufSupported, 0),
    Row(Any, A::DmaBufMmapSupported, 0),
    Row(Any, A::TimelineSemaphoreInteropSupported, 0),
    Row(Any, A::HostNumaMultinodeIpcSupported, 0),
    // A virtual GPU is one device.
    Row(Any, A::CooperativeMultiDeviceLaunch, 0),
    // The calls that would use these are refused by name.
    Row(Any, A::SparseCudaArraySupported, 0),
    Row(Any, A::DeferredMappingCudaArraySupported, 0),
    Row(Any, A::MemDecompressAlgorithmMask, 0),
    Row(Any, A::MemDecompressMaximumLength, 0),
    Row(Any, A::HostNumaVirtualMemoryManagementSupported, 0),
    Row(Any, A::HostNumaMemoryPoolsSupported, 0),
    Row(Any, A::HostMemoryPoolsSupported, 0),
    Row(Any, A::HostVirtualMemoryManagementSupported, 0),
    // A hint that frames are made without.
    Row(Any, A::GenericCompressionSupported, 0),
];

/// Answers where the device is another machine's and has copies of the program's host memory: neither side sees what the
/// other writes before a launch or a wait. Programs that ask take another way; mapped memory works all the same for those
/// that wait before they look.
const COPIED: &[(DeviceAttribute, i32)] = &[
    (A::ConcurrentManagedAccess, 0),
    (A::CanMapHostMemory, 0),
    (A::HostNativeAtomicSupported, 0),
];

/// The device's attributes with this library's answers.
pub(crate) fn answer(
    attributes: &mut [Option<i32>; 256],
    has_driver: bool,
    copies_host_memory: bool,
) {
    for Row(device, number, value) in TABLE {
        let applies = match device {
            Any => true,
            Driver => has_driver,
            Software => !has_driver,
        };
        if applies {
            attributes[*number as usize] = Some(*value);
        }
    }
    for (number, value) in COPIED.iter().filter(|_| copies_host_memory) {
        attributes[*number as usize] = Some(*value);
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
                assert!(seen.insert((device as u8, *number as u32)), "{number:?}");
            }
        }
    }

    #[test]
    fn what_this_library_does_not_do_is_masked_and_the_rest_is_the_devices() {
        let mut attributes = [Some(7); 256];
        answer(&mut attributes, true, false);
        for number in [88, 89, 100, 110, 116, 124, 128, 132] {
            assert_eq!(attributes[number], Some(0), "{number}");
        }
        for number in [83, 91, 103, 115, 119, 125] {
            assert_eq!(attributes[number], Some(1), "{number}");
        }
        assert_eq!(attributes[16], Some(7));
        let mut attributes = [Some(7); 256];
        answer(&mut attributes, false, false);
        assert_eq!((attributes[89], attributes[91]), (Some(1), Some(7)));
    }

    #[test]
    fn memory_that_is_copied_to_another_machine_is_not_said_to_be_mapped() {
        for has_driver in [true, false] {
            let mut attributes = [Some(7); 256];
            answer(&mut attributes, has_driver, true);
            for number in [19, 86, 89] {
                assert_eq!(attributes[number], Some(0), "{number}");
            }
            assert_eq!(attributes[83], Some(1), "managed memory is there");
        }
    }
}
