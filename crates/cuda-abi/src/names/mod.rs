//! Attributes, limits and options of the driver's interface, by the names of cuda.h.
//!
//! A number that a program or a message brings becomes one of these by `from_number`, which is checked.

macro_rules! numbers {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $number:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        #[allow(missing_docs, reason = "each variant carries the name of cuda.h")]
        pub enum $name {
            $($variant = $number,)*
        }

        impl $name {
            /// All of them, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The one with this number, if there is one.
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

mod device;

pub use device::DeviceAttribute;

numbers! {
    /// What `cuCtxSetLimit` limits (`CUlimit`, by the names of cuda.h without `CU_LIMIT_`).
    Limit {
        StackSize = 0,
        PrintfFifoSize = 1,
        MallocHeapSize = 2,
        DevRuntimeSyncDepth = 3,
        DevRuntimePendingLaunchCount = 4,
        MaxL2FetchGranularity = 5,
        PersistingL2CacheSize = 6,
        ShmemSize = 7,
        CigEnabled = 8,
        CigShmemFallbackEnabled = 9,
        PerBlockMemorySize = 10,
    }
}

numbers! {
    /// What `cuFuncGetAttribute` can be asked (`CUfunction_attribute`, by the names of cuda.h without `CU_FUNC_ATTRIBUTE_`).
    FunctionAttribute {
        MaxThreadsPerBlock = 0,
        SharedSizeBytes = 1,
        ConstSizeBytes = 2,
        LocalSizeBytes = 3,
        NumRegs = 4,
        PtxVersion = 5,
        BinaryVersion = 6,
        CacheModeCa = 7,
        MaxDynamicSharedSizeBytes = 8,
        PreferredSharedMemoryCarveout = 9,
        ClusterSizeMustBeSet = 10,
        RequiredClusterWidth = 11,
        RequiredClusterHeight = 12,
        RequiredClusterDepth = 13,
        NonPortableClusterSizeAllowed = 14,
        ClusterSchedulingPolicyPreference = 15,
        DeviceNodeUpdateSupported = 16,
        SharedMemoryMode = 17,
    }
}

numbers! {
    /// What `cuPointerGetAttribute` can be asked (`CUpointer_attribute`, by the names of cuda.h without `CU_POINTER_ATTRIBUTE_`).
    PointerAttribute {
        Context = 1,
        MemoryType = 2,
        DevicePointer = 3,
        HostPointer = 4,
        P2pTokens = 5,
        SyncMemops = 6,
        BufferId = 7,
        IsManaged = 8,
        DeviceOrdinal = 9,
        IsLegacyCudaIpcCapable = 10,
        RangeStartAddr = 11,
        RangeSize = 12,
        Mapped = 13,
        AllowedHandleTypes = 14,
        IsGpuDirectRdmaCapable = 15,
        AccessFlags = 16,
        MempoolHandle = 17,
        MappingSize = 18,
        MappingBaseAddr = 19,
        MemoryBlockId = 20,
        IsHwDecompressCapable = 21,
        LocalityDomainOrdinal = 22,
    }
}

numbers! {
    /// What can be asked of compiling and linking (`CUjit_option`, by the names of cuda.h without `CU_JIT_`).
    JitOption {
        MaxRegisters = 0,
        ThreadsPerBlock = 1,
        WallTime = 2,
        InfoLogBuffer = 3,
        InfoLogBufferSizeBytes = 4,
        ErrorLogBuffer = 5,
        ErrorLogBufferSizeBytes = 6,
        OptimizationLevel = 7,
        TargetFromCucontext = 8,
        Target = 9,
        FallbackStrategy = 10,
        GenerateDebugInfo = 11,
        LogVerbose = 12,
        GenerateLineInfo = 13,
        CacheMode = 14,
        NewSm3xOpt = 15,
        FastCompile = 16,
        GlobalSymbolNames = 17,
        GlobalSymbolAddresses = 18,
        GlobalSymbolCount = 19,
        Lto = 20,
        Ftz = 21,
        PrecDiv = 22,
        PrecSqrt = 23,
        Fma = 24,
        ReferencedKernelNames = 25,
        ReferencedKernelCount = 26,
        ReferencedVariableNames = 27,
        ReferencedVariableCount = 28,
        OptimizeUnusedDeviceVariables = 29,
        PositionIndependentCode = 30,
        MinCtaPerSm = 31,
        MaxThreadsPerBlock = 32,
        OverrideDirectiveValues = 33,
        SplitCompile = 34,
        BinaryLoaderThreadCount = 35,
    }
}

numbers! {
    /// What `cuLinkAddData` is given (`CUjitInputType`, by the names of cuda.h without `CU_JIT_INPUT_`).
    JitInputType {
        Cubin = 0,
        Ptx = 1,
        Fatbinary = 2,
        Object = 3,
        Library = 4,
        Nvvm = 5,
    }
}

numbers! {
    /// What a launch, a stream or a kernel node can be set up with (`CUlaunchAttributeID`, by the names of cuda.h without `CU_LAUNCH_ATTRIBUTE_`).
    LaunchAttributeId {
        Ignore = 0,
        AccessPolicyWindow = 1,
        Cooperative = 2,
        SynchronizationPolicy = 3,
        ClusterDimension = 4,
        ClusterSchedulingPolicyPreference = 5,
        ProgrammaticStreamSerialization = 6,
        ProgrammaticEvent = 7,
        Priority = 8,
        MemSyncDomainMap = 9,
        MemSyncDomain = 10,
        PreferredClusterDimension = 11,
        LaunchCompletionEvent = 12,
        DeviceUpdatableKernelNode = 13,
        PreferredSharedMemoryCarveout = 14,
        NvlinkUtilCentricScheduling = 16,
        PortableClusterSizeMode = 17,
        SharedMemoryMode = 18,
    }
}

numbers! {
    /// What `cuMemPoolGetAttribute` can be asked (`CUmemPool_attribute`, by the names of cuda.h without `CU_MEMPOOL_ATTR_`).
    PoolAttribute {
        ReuseFollowEventDependencies = 1,
        ReuseAllowOpportunistic = 2,
        ReuseAllowInternalDependencies = 3,
        ReleaseThreshold = 4,
        ReservedMemCurrent = 5,
        ReservedMemHigh = 6,
        UsedMemCurrent = 7,
        UsedMemHigh = 8,
        AllocationType = 9,
        ExportHandleTypes = 10,
        LocationId = 11,
        LocationType = 12,
        MaxPoolSize = 13,
        HwDecompressEnabled = 14,
        LocalityDomainId = 15,
    }
}

numbers! {
    /// What `cuMemRangeGetAttribute` can be asked (`CUmem_range_attribute`, by the names of cuda.h without `CU_MEM_RANGE_ATTRIBUTE_`).
    RangeAttribute {
        ReadMostly = 1,
        PreferredLocation = 2,
        AccessedBy = 3,
        LastPrefetchLocation = 4,
        PreferredLocationType = 5,
        PreferredLocationId = 6,
        LastPrefetchLocationType = 7,
        LastPrefetchLocationId = 8,
    }
}

numbers! {
    /// What `cuMemAdvise` can be told (`CUmem_advise`, by the names of cuda.h without `CU_MEM_ADVISE_`).
    Advice {
        SetReadMostly = 1,
        UnsetReadMostly = 2,
        SetPreferredLocation = 3,
        UnsetPreferredLocation = 4,
        SetAccessedBy = 5,
        UnsetAccessedBy = 6,
    }
}

numbers! {
    /// What `cuDeviceGetGraphMemAttribute` can be asked (`CUgraphMem_attribute`, by the names of cuda.h without `CU_GRAPH_MEM_ATTR_`).
    GraphMemAttribute {
        UsedMemCurrent = 0,
        UsedMemHigh = 1,
        ReservedMemCurrent = 2,
        ReservedMemHigh = 3,
    }
}

/// Bits of `cuStreamCreate`.
pub mod stream_flags {
    /// Not ordered against the default stream.
    pub const NON_BLOCKING: u32 = 0x1;
    /// All bits there are.
    pub const ALL: u32 = NON_BLOCKING;
}

/// Bits of `cuEventCreate`.
pub mod event_flags {
    /// Waits sleep.
    pub const BLOCKING_SYNC: u32 = 0x1;
    /// The event has no time.
    pub const DISABLE_TIMING: u32 = 0x2;
    /// Other processes may use the event.
    pub const INTERPROCESS: u32 = 0x4;
    /// All bits there are.
    pub const ALL: u32 = BLOCKING_SYNC | DISABLE_TIMING | INTERPROCESS;
}

/// Bits of `cuEventRecordWithFlags` and `cuStreamWaitEvent`, which have the same values.
pub mod event_use_flags {
    /// In a capture: a node of its own, for work outside of the graph.
    pub const EXTERNAL: u32 = 0x1;
    /// All bits there are.
    pub const ALL: u32 = EXTERNAL;
}

/// Bits of `cuMemHostAlloc`.
pub mod host_alloc_flags {
    /// Pinned for all contexts.
    pub const PORTABLE: u32 = 0x1;
    /// Mapped for the device.
    pub const DEVICEMAP: u32 = 0x2;
    /// Written by the host only.
    pub const WRITECOMBINED: u32 = 0x4;
    /// All bits there are.
    pub const ALL: u32 = PORTABLE | DEVICEMAP | WRITECOMBINED;
}

/// Bits of `cuMemHostRegister`.
pub mod host_register_flags {
    /// Pinned for all contexts.
    pub const PORTABLE: u32 = 0x1;
    /// Mapped for the device.
    pub const DEVICEMAP: u32 = 0x2;
    /// Memory of another device.
    pub const IOMEMORY: u32 = 0x4;
    /// The device only reads it.
    pub const READ_ONLY: u32 = 0x8;
    /// All bits there are.
    pub const ALL: u32 = PORTABLE | DEVICEMAP | IOMEMORY | READ_ONLY;
}

/// Values of `cuMemAllocManaged` and `cuStreamAttachMemAsync`.
pub mod mem_attach_flags {
    /// Any stream may use the memory.
    pub const GLOBAL: u32 = 0x1;
    /// Only the host uses the memory.
    pub const HOST: u32 = 0x2;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_from_outside_are_checked() {
        for attribute in DeviceAttribute::ALL {
            assert_eq!(
                DeviceAttribute::from_number(*attribute as u32),
                Some(*attribute)
            );
        }
        for unknown in [0, 159, 160, 162, u32::MAX] {
            assert_eq!(DeviceAttribute::from_number(unknown), None);
        }
        assert_eq!(Limit::from_number(2), Some(Limit::MallocHeapSize));
        assert_eq!(Limit::from_number(999), None);
    }

    #[test]
    fn numbers_are_those_of_the_interface() {
        assert_eq!(DeviceAttribute::ALL.len(), 159);
        assert_eq!(DeviceAttribute::ComputeCapabilityMajor as u32, 75);
        assert_eq!(DeviceAttribute::MaxSharedMemoryPerBlockOptin as u32, 97);
        assert_eq!(FunctionAttribute::MaxDynamicSharedSizeBytes as u32, 8);
        assert_eq!(PointerAttribute::IsManaged as u32, 8);
        assert_eq!(JitOption::ErrorLogBuffer as u32, 5);
        assert_eq!(JitInputType::Library as u32, 4);
        assert_eq!(LaunchAttributeId::Cooperative as u32, 2);
    }
}
