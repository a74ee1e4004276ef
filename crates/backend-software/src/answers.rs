//! What the device answers when it is asked for an attribute.
//!
//! Limits are the ones this device enforces; where a GPU's number has no counterpart on a CPU it is
//! that of the compute capability which the device reports, so that programs which size their work by it behave.

use mica_cuda_abi::{DeviceAttribute, SOFTWARE_PCI_DOMAIN};

use crate::attributes::{
    Facts, MAX_BLOCK, MAX_GRID, MAX_THREADS, REGISTERS_PER_SM, SHARED_RESERVED, THREADS_PER_SM,
};
use crate::config::Capability;

/// An attribute.
pub(crate) fn attribute(facts: &Facts, attribute: DeviceAttribute) -> i32 {
    use DeviceAttribute::*;
    let int = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    match attribute {
        MaxThreadsPerBlock => int(MAX_THREADS),
        MaxBlockDimX => int(MAX_BLOCK[0]),
        MaxBlockDimY => int(MAX_BLOCK[1]),
        MaxBlockDimZ => int(MAX_BLOCK[2]),
        MaxGridDimX => int(MAX_GRID[0]),
        MaxGridDimY => int(MAX_GRID[1]),
        MaxGridDimZ => int(MAX_GRID[2]),
        MaxSharedMemoryPerBlock => 48 << 10,
        TotalConstantMemory => 64 << 10,
        WarpSize => 32,
        MaxPitch => i32::MAX,
        MaxRegistersPerBlock | MaxRegistersPerMultiprocessor => int(REGISTERS_PER_SM),
        ClockRate | MemoryClockRate => facts.clock_khz,
        TextureAlignment => 512,
        GpuOverlap => 1,
        MultiprocessorCount => int(facts.multiprocessors),
        // It shares the machine's memory.
        Integrated => 1,
        CanMapHostMemory => 1,
        MaximumTexture1dWidth => 131_072,
        MaximumTexture2dWidth => 131_072,
        MaximumTexture2dHeight => 65_536,
        MaximumTexture3dWidth | MaximumTexture3dHeight | MaximumTexture3dDepth => 16_384,
        MaximumTexture2dLayeredWidth | MaximumTexture2dLayeredHeight => 32_768,
        MaximumTexture2dLayeredLayers => 2048,
        SurfaceAlignment => 512,
        ConcurrentKernels => 1,
        PciBusId => int(facts.ordinal & 0xff),
        GlobalMemoryBusWidth => 128,
        L2CacheSize => facts.cache_bytes,
        MaxThreadsPerMultiprocessor => int(THREADS_PER_SM),
        AsyncEngineCount => 2,
        UnifiedAddressing => 1,
        MaximumTexture1dLayeredWidth => 32_768,
        MaximumTexture1dLayeredLayers => 2048,
        CanTex2dGather => 1,
        MaximumTexture2dGatherWidth | MaximumTexture2dGatherHeight => 32_768,
        MaximumTexture3dWidthAlternate
        | MaximumTexture3dHeightAlternate
        | MaximumTexture3dDepthAlternate => 16_384,
        PciDomainId => int(SOFTWARE_PCI_DOMAIN),
        TexturePitchAlignment => 32,
        MaximumTexturecubemapWidth | MaximumTexturecubemapLayeredWidth => 32_768,
        MaximumTexturecubemapLayeredLayers => 2046,
        MaximumSurface1dWidth => 32_768,
        MaximumSurface2dWidth => 131_072,
        MaximumSurface2dHeight => 65_536,
        MaximumSurface3dWidth | MaximumSurface3dHeight | MaximumSurface3dDepth => 16_384,
        MaximumSurface1dLayeredWidth
        | MaximumSurface2dLayeredWidth
        | MaximumSurface2dLayeredHeight => 32_768,
        MaximumSurface1dLayeredLayers | MaximumSurface2dLayeredLayers => 2048,
        MaximumSurfacecubemapWidth | MaximumSurfacecubemapLayeredWidth => 32_768,
        MaximumSurfacecubemapLayeredLayers => 2046,
        MaximumTexture1dLinearWidth => 1 << 28,
        MaximumTexture2dLinearWidth => 131_072,
        MaximumTexture2dLinearHeight => 65_000,
        MaximumTexture2dLinearPitch => 2_097_120,
        // Mipmaps are not supported.
        MaximumTexture2dMipmappedWidth
        | MaximumTexture2dMipmappedHeight
        | MaximumTexture1dMipmappedWidth => 0,
        ComputeCapabilityMajor => int(facts.capability.numbers().0),
        StreamPrioritiesSupported => 1,
        GlobalL1CacheSupported | LocalL1CacheSupported => 1,
        MaxSharedMemoryPerMultiprocessor => int(facts.capability.shared_per_sm()),
        // Managed memory, multi-GPU boards: none.
        ManagedMemory | MultiGpuBoard | MultiGpuBoardGroupId | HostNativeAtomicSupported => 0,
        SingleToDoublePrecisionPerfRatio => 2,
        ComputePreemptionSupported => 1,
        CooperativeLaunch => 1,
        ClusterLaunch | TensorMapAccessSupported => {
            int(u32::from(facts.capability == Capability::Hopper))
        }
        MaxSharedMemoryPerBlockOptin => int(facts.capability.shared_per_block() as u32),
        HostRegisterSupported => 1,
        VirtualMemoryManagementSupported => 1,
        MaxBlocksPerMultiprocessor => int(facts.blocks_per_sm),
        ReservedSharedMemoryPerBlock => int(SHARED_RESERVED),
        // Pools are the engine's, on top of this device.
        MemoryPoolsSupported => 0,
        MemSyncDomainCount => 1,
        // NUMA: no configuration, no node.
        NumaConfig => 0,
        NumaId | HostNumaId => -1,
        // What this device has not, or needs no word for.
        KernelExecTimeout
        | ComputeMode
        | EccEnabled
        | PciDeviceId
        | TccDriver
        | ComputeCapabilityMinor
        | PageableMemoryAccess
        | ConcurrentManagedAccess
        | CanUseHostPointerForRegisteredMem
        | CanUseStreamMemOpsV1
        | CanUse64BitStreamMemOpsV1
        | CanUseStreamWaitValueNorV1
        | CooperativeMultiDeviceLaunch
        | CanFlushRemoteWrites
        | PageableMemoryAccessUsesHostPageTables
        | DirectManagedMemAccessFromHost
        | HandleTypePosixFileDescriptorSupported
        | HandleTypeWin32HandleSupported
        | HandleTypeWin32KmtHandleSupported
        | GenericCompressionSupported
        | MaxPersistingL2CacheSize
        | MaxAccessPolicyWindowSize
        | GpuDirectRdmaWithCudaVmmSupported
        | SparseCudaArraySupported
        | ReadOnlyHostRegisterSupported
        | TimelineSemaphoreInteropSupported
        | GpuDirectRdmaSupported
        | GpuDirectRdmaFlushWritesOptions
        | GpuDirectRdmaWritesOrdering
        | MempoolSupportedHandleTypes
        | DeferredMappingCudaArraySupported
        | CanUse64BitStreamMemOps
        | CanUseStreamWaitValueNor
        | DmaBufSupported
        | IpcEventSupported
        | HandleTypeFabricSupported
        | UnifiedFunctionPointers
        | MulticastSupported
        | MpsEnabled
        | D3d12CigSupported
        | MemDecompressAlgorithmMask
        | MemDecompressMaximumLength
        | VulkanCigSupported
        | GpuPciDeviceId
        | GpuPciSubsystemId
        | HostNumaVirtualMemoryManagementSupported
        | HostNumaMemoryPoolsSupported
        | HostNumaMultinodeIpcSupported
        | HostMemoryPoolsSupported
        | HostVirtualMemoryManagementSupported
        | HostAllocDmaBufSupported
        | OnlyPartialHostNativeAtomicSupported
        | AtomicReductionSupported
        | LocalityDomainCount
        | MaxOversizedSharedMemoryPerBlock
        | D3d12CigStreamsSupported
        | DmaBufMmapSupported
        | LogicalEndpointUnicastSupported
        | LogicalEndpointMulticastSupported
        | LogicalEndpointCountedOpsSupported
        | LogicalEndpointUnicastAccessOnOwnerDeviceSupported
        | LocalityDomainMultiprocessorCount
        | LogicalEndpointSupportedHandleTypes
        | GpuDirectRdmaWithLocalizedMemorySupported => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_agree_with_the_limits_that_are_enforced() {
        let facts = Facts::new(2, 2048, 0);
        let of = |which| attribute(&facts, which);
        assert_eq!(of(DeviceAttribute::MaxThreadsPerBlock), 1024);
        assert_eq!(of(DeviceAttribute::MaxBlockDimZ), 64);
        assert_eq!(of(DeviceAttribute::MaxGridDimX), i32::MAX);
        assert_eq!(of(DeviceAttribute::MultiprocessorCount), 2);
        assert_eq!(of(DeviceAttribute::ComputeCapabilityMajor), 8);
        assert_eq!(of(DeviceAttribute::NumaId), -1);
    }
}
