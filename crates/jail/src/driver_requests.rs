//! The requests (`ioctl`) that the driver of an NVIDIA card makes for a compute program.
//!
//! A list of names and numbers, as NVIDIA publishes them with its open kernel modules. *Recorded* requests were seen on
//! an H200 (driver 580) while PyTorch, CuPy and JAX ran; the others are what those need at their end, for managed
//! memory, and for memory that two workers share. A request that is not listed is refused, by name for instance:
//!
//! - `IOCTL_XFER_CMD` (211), an envelope around any other request, which no filter could look into;
//! - `RM_I2C_ACCESS`, `RM_ACCESS_REGISTRY`, `RM_CONFIG_*`, `SET_NUMA_STATUS`: settings of the whole card;
//! - `UVM_TOOLS_*`: reading and writing the memory of another process, counting its faults;
//! - `UVM_TEST_*` (200 and above), peer access, dma-buf export: a worker has one card and no peers.
//!
//! A filter sees a request's number and not what its argument points to, so the commands of `RM_CONTROL` and the
//! classes of `RM_ALLOC` are the kernel driver's own matter.

/// A request of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverRequest {
    /// Name in the driver's headers.
    pub name: &'static str,
    /// Which file it is made on, and its number there.
    pub number: Number,
}

/// How a request is numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// On `/dev/nvidiactl` and `/dev/nvidia0`: read and write, type `F`, this number, and any size of its parameters,
    /// which changes from one driver to the next and which the driver compares itself.
    Manager(u8),
    /// On `/dev/nvidia-uvm`: the whole request.
    Managed(u32),
}

/// Direction, type and number of a request, without the size.
const WITHOUT_SIZE: u32 = 0xc000_ffff;
/// Read and write, type `F`.
const MANAGER: u32 = 0xc000_4600;

const fn manager(number: u8, name: &'static str) -> DriverRequest {
    let number = Number::Manager(number);
    DriverRequest { name, number }
}

const fn managed(number: u32, name: &'static str) -> DriverRequest {
    let number = Number::Managed(number);
    DriverRequest { name, number }
}

/// Every request that a worker may make.
pub const DRIVER_REQUESTS: &[DriverRequest] = &[
    // Recorded.
    manager(0x27, "RM_ALLOC_MEMORY"),
    manager(0x29, "RM_FREE"),
    manager(0x2a, "RM_CONTROL"),
    manager(0x2b, "RM_ALLOC"),
    manager(0x4e, "RM_MAP_MEMORY"),
    manager(0x5e, "RM_UPDATE_DEVICE_MAPPING_INFO"),
    manager(0xc8, "CARD_INFO"),
    manager(0xc9, "REGISTER_FD"),
    manager(0xce, "ALLOC_OS_EVENT"),
    manager(0xd2, "CHECK_VERSION_STR"),
    manager(0xd6, "SYS_PARAMS"),
    manager(0xd7, "NUMA_INFO"),
    manager(0xda, "WAIT_OPEN_COMPLETE"),
    managed(0x17, "UVM_CREATE_RANGE_GROUP"),
    managed(0x18, "UVM_DESTROY_RANGE_GROUP"),
    managed(0x19, "UVM_REGISTER_GPU_VASPACE"),
    managed(0x1b, "UVM_REGISTER_CHANNEL"),
    managed(0x21, "UVM_MAP_EXTERNAL_ALLOCATION"),
    managed(0x22, "UVM_FREE"),
    managed(0x25, "UVM_REGISTER_GPU"),
    managed(0x27, "UVM_PAGEABLE_MEM_ACCESS"),
    managed(0x41, "UVM_MAP_DYNAMIC_PARALLELISM_REGION"),
    managed(0x44, "UVM_ALLOC_SEMAPHORE_POOL"),
    managed(0x48, "UVM_VALIDATE_VA_RANGE"),
    managed(0x49, "UVM_CREATE_EXTERNAL_RANGE"),
    managed(0x4b, "UVM_MM_INITIALIZE"),
    managed(0x3000_0001, "UVM_INITIALIZE"),
    // The end of what the requests above begin.
    manager(0x4f, "RM_UNMAP_MEMORY"),
    manager(0xcf, "FREE_OS_EVENT"),
    managed(0x1a, "UVM_UNREGISTER_GPU_VASPACE"),
    managed(0x1c, "UVM_UNREGISTER_CHANNEL"),
    managed(0x26, "UVM_UNREGISTER_GPU"),
    managed(0x42, "UVM_UNMAP_EXTERNAL"),
    managed(0x45, "UVM_CLEAN_UP_ZOMBIE_RESOURCES"),
    managed(0x3000_0002, "UVM_DEINITIALIZE"),
    // Older drivers, events of the driver, memory of one card that two workers share.
    manager(0x34, "RM_DUP_OBJECT"),
    manager(0x35, "RM_SHARE"),
    manager(0x41, "RM_IDLE_CHANNELS"),
    manager(0x4a, "RM_VID_HEAP_CONTROL"),
    manager(0x52, "RM_GET_EVENT_DATA"),
    manager(0x54, "RM_ALLOC_CONTEXT_DMA2"),
    manager(0x57, "RM_MAP_MEMORY_DMA"),
    manager(0x58, "RM_UNMAP_MEMORY_DMA"),
    manager(0xd1, "STATUS_CODE"),
    manager(0xd4, "ATTACH_GPUS_TO_FD"),
    // Managed memory: advice, moving it, sparse ranges.
    managed(0x1f, "UVM_SET_RANGE_GROUP"),
    managed(0x28, "UVM_PREVENT_MIGRATION_RANGE_GROUPS"),
    managed(0x29, "UVM_ALLOW_MIGRATION_RANGE_GROUPS"),
    managed(0x2a, "UVM_SET_PREFERRED_LOCATION"),
    managed(0x2b, "UVM_UNSET_PREFERRED_LOCATION"),
    managed(0x2c, "UVM_ENABLE_READ_DUPLICATION"),
    managed(0x2d, "UVM_DISABLE_READ_DUPLICATION"),
    managed(0x2e, "UVM_SET_ACCESSED_BY"),
    managed(0x2f, "UVM_UNSET_ACCESSED_BY"),
    managed(0x33, "UVM_MIGRATE"),
    managed(0x35, "UVM_MIGRATE_RANGE_GROUP"),
    managed(0x36, "UVM_ENABLE_SYSTEM_WIDE_ATOMICS"),
    managed(0x37, "UVM_DISABLE_SYSTEM_WIDE_ATOMICS"),
    managed(0x46, "UVM_PAGEABLE_MEM_ACCESS_ON_GPU"),
    managed(0x4a, "UVM_MAP_EXTERNAL_SPARSE"),
    managed(0x50, "UVM_DISCARD"),
];

impl Number {
    /// The bits of a request that are compared, and their value.
    pub(crate) fn compared(self) -> (u32, u32) {
        match self {
            Number::Manager(number) => (WITHOUT_SIZE, MANAGER | u32::from(number)),
            Number::Managed(request) => (u32::MAX, request),
        }
    }
}

/// The listed request that this number is, if it is one.
pub fn driver_request(request: u32) -> Option<&'static DriverRequest> {
    DRIVER_REQUESTS.iter().find(|listed| {
        let (mask, value) = listed.number.compared();
        request & mask == value
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests of PyTorch, CuPy and JAX on an H200, without those of Python itself.
    const RECORDED: [u32; 27] = [
        0x17,
        0x18,
        0x19,
        0x1b,
        0x21,
        0x22,
        0x25,
        0x27,
        0x3000_0001,
        0x41,
        0x44,
        0x48,
        0x49,
        0x4b,
        0xc004_46c9,
        0xc008_46da,
        0xc010_46ce,
        0xc030_462b,
        0xc038_4627,
        0xc230_46d7,
        0xc008_46d6,
        0xc010_4629,
        0xc020_462a,
        0xc028_465e,
        0xc038_464e,
        0xc048_46d2,
        0xc900_46c8,
    ];

    #[test]
    fn every_recorded_request_is_listed() {
        for request in RECORDED {
            assert!(driver_request(request).is_some(), "{request:#x}");
        }
    }

    #[test]
    fn requests_for_other_processes_the_whole_card_and_tests_are_not() {
        for request in [
            0x3e,        // UVM_TOOLS_READ_PROCESS_MEMORY
            0x3f,        // UVM_TOOLS_WRITE_PROCESS_MEMORY
            0x38,        // UVM_TOOLS_INIT_EVENT_TRACKER
            0x1d,        // UVM_ENABLE_PEER_ACCESS
            0xc8,        // UVM_TEST_*
            0xff,        // UVM_TEST_*
            0xc010_46d3, // IOCTL_XFER_CMD
            0xc010_464d, // RM_ACCESS_REGISTRY
            0xc010_4639, // RM_I2C_ACCESS
            0xc010_4633, // RM_CONFIG_SET
            0xc010_46d8, // SET_NUMA_STATUS
            0xc010_46d9, // EXPORT_TO_DMABUF_FD
            0x0000_462a, // RM_CONTROL in neither direction
            0xc020_472a, // another type
            0x1_0017,
        ] {
            assert_eq!(driver_request(request), None, "{request:#x}");
        }
    }

    #[test]
    fn no_request_is_listed_twice() {
        for (index, listed) in DRIVER_REQUESTS.iter().enumerate() {
            let others = &DRIVER_REQUESTS[..index];
            assert!(
                others
                    .iter()
                    .all(|o| o.number != listed.number && o.name != listed.name),
                "{listed:?}"
            );
        }
    }
}
