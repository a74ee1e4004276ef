//! Every function NVML exports, from its public headers of CUDA 12 and 13, its Python bindings and
//! the library itself.

/// Hands the names to a macro: those passed on untouched, and those answered here.
macro_rules! for_each_function {
    ($macro:ident) => {
        $macro! {
            forwarded {
                nvmlComputeInstanceDestroy nvmlComputeInstanceGetInfo nvmlComputeInstanceGetInfo_v2
                nvmlDeviceClearAccountingPids nvmlDeviceClearCpuAffinity nvmlDeviceClearEccErrorCounts
                nvmlDeviceClearFieldValues nvmlDeviceCreateGpuInstance
                nvmlDeviceCreateGpuInstanceWithPlacement nvmlDeviceDiscoverGpus
                nvmlDeviceFreezeNvLinkUtilizationCounter nvmlDeviceGetAPIRestriction
                nvmlDeviceGetAccountingBufferSize nvmlDeviceGetAccountingMode
                nvmlDeviceGetActiveVgpus
                nvmlDeviceGetAdaptiveClockInfoStatus nvmlDeviceGetAdaptiveTgpModeInfo_v1
                nvmlDeviceGetAddressingMode nvmlDeviceGetApplicationsClock nvmlDeviceGetArchitecture
                nvmlDeviceGetAttributes nvmlDeviceGetAttributes_v2 nvmlDeviceGetAutoBoostedClocksEnabled
                nvmlDeviceGetBAR1MemoryInfo nvmlDeviceGetBBXTimeData_v1
                nvmlDeviceGetBankRemapperStatus_v1 nvmlDeviceGetBoardId nvmlDeviceGetBoardPartNumber
                nvmlDeviceGetBrand nvmlDeviceGetBridgeChipInfo nvmlDeviceGetBusType
                nvmlDeviceGetC2cModeInfoV nvmlDeviceGetCapabilities nvmlDeviceGetClkMonStatus
                nvmlDeviceGetClock nvmlDeviceGetClockInfo nvmlDeviceGetClockOffsets
                nvmlDeviceGetComputeInstanceId nvmlDeviceGetConfComputeGpuAttestationReport
                nvmlDeviceGetConfComputeGpuCertificate nvmlDeviceGetConfComputeMemSizeInfo
                nvmlDeviceGetConfComputeProtectedMemoryUsage nvmlDeviceGetCoolerInfo
                nvmlDeviceGetCpuAffinity nvmlDeviceGetCpuAffinityWithinScope nvmlDeviceGetCreatableVgpus
                nvmlDeviceGetCurrPcieLinkGeneration nvmlDeviceGetCurrPcieLinkWidth
                nvmlDeviceGetCurrentClockFreqs nvmlDeviceGetCurrentClocksEventReasons
                nvmlDeviceGetCurrentClocksThrottleReasons nvmlDeviceGetDecoderUtilization
                nvmlDeviceGetDefaultApplicationsClock nvmlDeviceGetDefaultEccMode
                nvmlDeviceGetDetailedEccErrors nvmlDeviceGetDeviceHandleFromMigDeviceHandle
                nvmlDeviceGetDisplayActive nvmlDeviceGetDisplayMode nvmlDeviceGetDramEncryptionMode
                nvmlDeviceGetDriverModel nvmlDeviceGetDriverModel_v2
                nvmlDeviceGetEccMode nvmlDeviceGetEncoderCapacity nvmlDeviceGetEncoderSessions
                nvmlDeviceGetEncoderStats nvmlDeviceGetEncoderUtilization
                nvmlDeviceGetEnforcedPowerLimit nvmlDeviceGetFBCSessions nvmlDeviceGetFBCStats
                nvmlDeviceGetFanControlPolicy_v2 nvmlDeviceGetFanSpeed nvmlDeviceGetFanSpeedRPM
                nvmlDeviceGetFanSpeed_v2 nvmlDeviceGetFieldValues nvmlDeviceGetGpcClkMinMaxVfOffset
                nvmlDeviceGetGpcClkVfOffset nvmlDeviceGetGpuFabricInfo nvmlDeviceGetGpuFabricInfoV
                nvmlDeviceGetGpuFabricInfo_v4 nvmlDeviceGetGpuInstanceById nvmlDeviceGetGpuInstanceId
                nvmlDeviceGetGpuInstancePossiblePlacements nvmlDeviceGetGpuInstancePossiblePlacements_v2
                nvmlDeviceGetGpuInstanceProfileInfo nvmlDeviceGetGpuInstanceProfileInfoByIdV
                nvmlDeviceGetGpuInstanceProfileInfoV nvmlDeviceGetGpuInstanceRemainingCapacity
                nvmlDeviceGetGpuInstances nvmlDeviceGetGpuMaxPcieLinkGeneration
                nvmlDeviceGetGpuOperationMode nvmlDeviceGetGridLicensableFeatures
                nvmlDeviceGetGridLicensableFeatures_v2 nvmlDeviceGetGridLicensableFeatures_v3
                nvmlDeviceGetGridLicensableFeatures_v4 nvmlDeviceGetGspFirmwareMode
                nvmlDeviceGetGspFirmwareVersion nvmlDeviceGetHostVgpuMode nvmlDeviceGetHostname_v1
                nvmlDeviceGetInforomConfigurationChecksum nvmlDeviceGetInforomImageVersion
                nvmlDeviceGetInforomVersion nvmlDeviceGetIrqNum nvmlDeviceGetJpgUtilization
                nvmlDeviceGetLastBBXFlushTime nvmlDeviceGetMarginTemperature nvmlDeviceGetMaxClockInfo
                nvmlDeviceGetMaxCustomerBoostClock nvmlDeviceGetMaxMigDeviceCount
                nvmlDeviceGetMaxPcieLinkGeneration nvmlDeviceGetMaxPcieLinkWidth
                nvmlDeviceGetMemClkMinMaxVfOffset nvmlDeviceGetMemClkVfOffset
                nvmlDeviceGetMemoryAffinity nvmlDeviceGetMemoryBusWidth nvmlDeviceGetMemoryErrorCounter
                nvmlDeviceGetMemoryLimits_v1 nvmlDeviceGetMigDeviceHandleByIndex nvmlDeviceGetMigMode
                nvmlDeviceGetMinMaxClockOfPState nvmlDeviceGetMinMaxFanSpeed nvmlDeviceGetModuleId
                nvmlDeviceGetMultiGpuBoard nvmlDeviceGetNumFans nvmlDeviceGetNumGpuCores
                nvmlDeviceGetNumaNodeId nvmlDeviceGetNvLinkCapability nvmlDeviceGetNvLinkErrorCounter
                nvmlDeviceGetNvLinkInfo nvmlDeviceGetNvLinkRemoteDeviceType
                nvmlDeviceGetNvLinkRemotePciInfo nvmlDeviceGetNvLinkRemotePciInfo_v2
                nvmlDeviceGetNvLinkState nvmlDeviceGetNvLinkTelemetrySamples_v1
                nvmlDeviceGetNvLinkUtilizationControl nvmlDeviceGetNvLinkUtilizationCounter
                nvmlDeviceGetNvLinkVersion nvmlDeviceGetNvlinkBwMode nvmlDeviceGetNvlinkSupportedBwModes
                nvmlDeviceGetOfaUtilization nvmlDeviceGetP2PStatus nvmlDeviceGetPciInfoExt
                nvmlDeviceGetPcieLinkMaxSpeed nvmlDeviceGetPcieReplayCounter nvmlDeviceGetPcieSpeed
                nvmlDeviceGetPcieThroughput nvmlDeviceGetPdi nvmlDeviceGetPerformanceModes
                nvmlDeviceGetPerformanceState nvmlDeviceGetPgpuMetadataString nvmlDeviceGetPlatformInfo
                nvmlDeviceGetPowerManagementDefaultLimit nvmlDeviceGetPowerManagementLimit
                nvmlDeviceGetPowerManagementLimitConstraints nvmlDeviceGetPowerManagementMode
                nvmlDeviceGetPowerMizerMode_v1 nvmlDeviceGetPowerSource nvmlDeviceGetPowerState
                nvmlDeviceGetPowerUsage nvmlDeviceGetRemappedRows nvmlDeviceGetRemappedRows_v2
                nvmlDeviceGetRepairStatus nvmlDeviceGetRetiredPages
                nvmlDeviceGetRetiredPagesPendingStatus nvmlDeviceGetRetiredPages_v2
                nvmlDeviceGetRowRemapperHistogram nvmlDeviceGetSerial
                nvmlDeviceGetSramEccErrorStatus nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts
                nvmlDeviceGetSupportedClocksEventReasons nvmlDeviceGetSupportedClocksThrottleReasons
                nvmlDeviceGetSupportedEventTypes nvmlDeviceGetSupportedGraphicsClocks
                nvmlDeviceGetSupportedMemoryClocks nvmlDeviceGetSupportedPerformanceStates
                nvmlDeviceGetSupportedVgpus nvmlDeviceGetTargetFanSpeed nvmlDeviceGetTemperature
                nvmlDeviceGetTemperatureThreshold nvmlDeviceGetTemperatureV nvmlDeviceGetThermalSettings
                nvmlDeviceGetTopologyCommonAncestor nvmlDeviceGetTopologyNearestGpus
                nvmlDeviceGetTotalEccErrors nvmlDeviceGetTotalEnergyConsumption
                nvmlDeviceGetUnrepairableMemoryFlag_v1 nvmlDeviceGetVbiosVersion
                nvmlDeviceGetVgpuCapabilities nvmlDeviceGetVgpuHeterogeneousMode
                nvmlDeviceGetVgpuInstancesUtilizationInfo nvmlDeviceGetVgpuMetadata
                nvmlDeviceGetVgpuProcessUtilization nvmlDeviceGetVgpuProcessesUtilizationInfo
                nvmlDeviceGetVgpuSchedulerCapabilities nvmlDeviceGetVgpuSchedulerLog
                nvmlDeviceGetVgpuSchedulerLog_v2 nvmlDeviceGetVgpuSchedulerState
                nvmlDeviceGetVgpuSchedulerState_v2 nvmlDeviceGetVgpuTypeCreatablePlacements
                nvmlDeviceGetVgpuTypeSupportedPlacements nvmlDeviceGetVgpuUtilization
                nvmlDeviceGetViolationStatus nvmlDeviceGetVirtualizationMode nvmlDeviceIsMigDeviceHandle
                nvmlDeviceModifyDrainState nvmlDeviceOnSameBoard nvmlDevicePerfMetricsGetSamples_v1
                nvmlDevicePowerSmoothingActivatePresetProfile nvmlDevicePowerSmoothingSetState
                nvmlDevicePowerSmoothingUpdatePresetProfileParam nvmlDeviceQueryDrainState
                nvmlDeviceReadPRMCounters_v1 nvmlDeviceReadWritePRM_v1 nvmlDeviceRegisterEvents
                nvmlDeviceRemoveGpu nvmlDeviceRemoveGpu_v2 nvmlDeviceResetApplicationsClocks
                nvmlDeviceResetGpuLockedClocks nvmlDeviceResetMemoryLockedClocks
                nvmlDeviceResetNvLinkErrorCounters nvmlDeviceResetNvLinkUtilizationCounter
                nvmlDeviceSetAPIRestriction nvmlDeviceSetAccountingMode nvmlDeviceSetAdaptiveTgpMode_v1
                nvmlDeviceSetApplicationsClocks nvmlDeviceSetAutoBoostedClocksEnabled
                nvmlDeviceSetClockOffsets nvmlDeviceSetComputeMode
                nvmlDeviceSetConfComputeUnprotectedMemSize nvmlDeviceSetCpuAffinity
                nvmlDeviceSetDefaultAutoBoostedClocksEnabled nvmlDeviceSetDefaultFanSpeed_v2
                nvmlDeviceSetDramEncryptionMode nvmlDeviceSetDriverModel nvmlDeviceSetEccMode
                nvmlDeviceSetFanControlPolicy nvmlDeviceSetFanSpeed_v2 nvmlDeviceSetGpcClkVfOffset
                nvmlDeviceSetGpuLockedClocks nvmlDeviceSetGpuOperationMode nvmlDeviceSetHostname_v1
                nvmlDeviceSetMemClkVfOffset nvmlDeviceSetMemoryLimits_v1 nvmlDeviceSetMemoryLockedClocks
                nvmlDeviceSetMigMode nvmlDeviceSetNvLinkDeviceLowPowerThreshold
                nvmlDeviceSetNvLinkUtilizationControl nvmlDeviceSetNvlinkBwMode
                nvmlDeviceSetNvlinkBwModeAsync_v1 nvmlDeviceSetPersistenceMode
                nvmlDeviceSetPowerManagementLimit nvmlDeviceSetPowerManagementLimit_v2
                nvmlDeviceSetPowerMizerMode_v1 nvmlDeviceSetRusdSettings_v1
                nvmlDeviceSetTemperatureThreshold nvmlDeviceSetVgpuCapabilities
                nvmlDeviceSetVgpuHeterogeneousMode nvmlDeviceSetVgpuSchedulerState
                nvmlDeviceSetVgpuSchedulerState_v2 nvmlDeviceSetVirtualizationMode
                nvmlDeviceValidateInforom nvmlDeviceVgpuForceGspUnload
                nvmlDeviceWorkloadPowerProfileClearRequestedProfiles
                nvmlDeviceWorkloadPowerProfileGetCurrentProfiles
                nvmlDeviceWorkloadPowerProfileGetProfilesInfo
                nvmlDeviceWorkloadPowerProfileSetRequestedProfiles
                nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1 nvmlEventSetCreate nvmlEventSetFree
                nvmlEventSetGetContextCount_v1 nvmlEventSetGetContextData_v1
                nvmlEventSetGetContextInfo_v1 nvmlEventSetGetGpuOperationalEventContextLegacyXid_v1
                nvmlEventSetRegisterGpuOperationalEvents_v1 nvmlEventSetWait nvmlEventSetWait_v2
                nvmlEventSetWait_v3 nvmlGetBlacklistDeviceCount nvmlGetBlacklistDeviceInfoByIndex
                nvmlGetExcludedDeviceCount nvmlGetExcludedDeviceInfoByIndex nvmlGetVgpuCompatibility
                nvmlGetVgpuDriverCapabilities nvmlGetVgpuVersion nvmlGpmMetricsGet nvmlGpmMigSampleGet
                nvmlGpmQueryDeviceSupport nvmlGpmQueryIfStreamingEnabled nvmlGpmSampleAlloc
                nvmlGpmSampleFree nvmlGpmSampleGet nvmlGpmSetStreamingEnabled
                nvmlGpuInstanceCreateComputeInstance nvmlGpuInstanceCreateComputeInstanceWithPlacement
                nvmlGpuInstanceDestroy nvmlGpuInstanceGetActiveVgpus
                nvmlGpuInstanceGetComputeInstanceById
                nvmlGpuInstanceGetComputeInstancePossiblePlacements
                nvmlGpuInstanceGetComputeInstanceProfileInfo
                nvmlGpuInstanceGetComputeInstanceProfileInfoV
                nvmlGpuInstanceGetComputeInstanceRemainingCapacity nvmlGpuInstanceGetComputeInstances
                nvmlGpuInstanceGetCreatableVgpus nvmlGpuInstanceGetInfo
                nvmlGpuInstanceGetVgpuHeterogeneousMode nvmlGpuInstanceGetVgpuSchedulerLog
                nvmlGpuInstanceGetVgpuSchedulerLog_v2 nvmlGpuInstanceGetVgpuSchedulerState
                nvmlGpuInstanceGetVgpuSchedulerState_v2 nvmlGpuInstanceGetVgpuTypeCreatablePlacements
                nvmlGpuInstanceSetVgpuHeterogeneousMode nvmlGpuInstanceSetVgpuSchedulerState
                nvmlGpuInstanceSetVgpuSchedulerState_v2 nvmlInternalGetExportTable nvmlSetVgpuVersion
                nvmlSystemEventSetCreate nvmlSystemEventSetFree nvmlSystemEventSetWait
                nvmlSystemGetCPER_v1 nvmlSystemGetConfComputeCapabilities
                nvmlSystemGetConfComputeGpusReadyState nvmlSystemGetConfComputeKeyRotationThresholdInfo
                nvmlSystemGetConfComputeSettings nvmlSystemGetConfComputeState nvmlSystemGetDriverBranch
                nvmlSystemGetHicVersion nvmlSystemGetNvlinkBwMode nvmlSystemGetTopologyGpuSet
                nvmlSystemRegisterEvents nvmlSystemSetConfComputeGpusReadyState
                nvmlSystemSetConfComputeKeyRotationThresholdInfo nvmlSystemSetNvlinkBwMode
                nvmlUnitGetCount nvmlUnitGetDevices nvmlUnitGetFanSpeedInfo nvmlUnitGetHandleByIndex
                nvmlUnitGetLedState nvmlUnitGetPsuInfo nvmlUnitGetTemperature nvmlUnitGetUnitInfo
                nvmlUnitSetLedState nvmlVgpuInstanceClearAccountingPids
                nvmlVgpuInstanceGetAccountingMode nvmlVgpuInstanceGetAccountingPids
                nvmlVgpuInstanceGetAccountingStats nvmlVgpuInstanceGetEccMode
                nvmlVgpuInstanceGetEncoderCapacity nvmlVgpuInstanceGetEncoderSessions
                nvmlVgpuInstanceGetEncoderStats nvmlVgpuInstanceGetFBCSessions
                nvmlVgpuInstanceGetFBCStats nvmlVgpuInstanceGetFbUsage nvmlVgpuInstanceGetFrameRateLimit
                nvmlVgpuInstanceGetGpuInstanceId nvmlVgpuInstanceGetGpuPciId
                nvmlVgpuInstanceGetLicenseInfo nvmlVgpuInstanceGetLicenseInfo_v2
                nvmlVgpuInstanceGetLicenseStatus nvmlVgpuInstanceGetMdevUUID nvmlVgpuInstanceGetMetadata
                nvmlVgpuInstanceGetPlacementId nvmlVgpuInstanceGetRuntimeStateSize
                nvmlVgpuInstanceGetType nvmlVgpuInstanceGetUUID nvmlVgpuInstanceGetVmDriverVersion
                nvmlVgpuInstanceGetVmID nvmlVgpuInstanceSetEncoderCapacity nvmlVgpuTypeGetBAR1Info
                nvmlVgpuTypeGetCapabilities nvmlVgpuTypeGetClass nvmlVgpuTypeGetDeviceID
                nvmlVgpuTypeGetFbReservation nvmlVgpuTypeGetFrameRateLimit
                nvmlVgpuTypeGetFramebufferSize nvmlVgpuTypeGetGpuInstanceProfileId
                nvmlVgpuTypeGetGspHeapSize nvmlVgpuTypeGetLicense nvmlVgpuTypeGetMaxInstances
                nvmlVgpuTypeGetMaxInstancesPerGpuInstance nvmlVgpuTypeGetMaxInstancesPerVm
                nvmlVgpuTypeGetName nvmlVgpuTypeGetNumDisplayHeads nvmlVgpuTypeGetResolution
            }
            answered {
                nvmlInit nvmlInit_v2 nvmlInitWithFlags nvmlShutdown nvmlErrorString
                nvmlSystemGetDriverVersion nvmlSystemGetNVMLVersion nvmlSystemGetCudaDriverVersion
                nvmlSystemGetCudaDriverVersion_v2 nvmlSystemGetProcessName nvmlDeviceGetCount
                nvmlDeviceGetCount_v2 nvmlDeviceGetHandleByIndex nvmlDeviceGetHandleByIndex_v2
                nvmlDeviceGetHandleByUUID nvmlDeviceGetHandleByUUIDV nvmlDeviceGetHandleByPciBusId
                nvmlDeviceGetHandleByPciBusId_v2 nvmlDeviceGetHandleBySerial nvmlDeviceGetIndex
                nvmlDeviceGetName nvmlDeviceGetUUID nvmlDeviceGetPciInfo nvmlDeviceGetPciInfo_v2
                nvmlDeviceGetPciInfo_v3 nvmlDeviceGetMinorNumber nvmlDeviceGetCudaComputeCapability
                nvmlDeviceGetComputeMode nvmlDeviceGetPersistenceMode nvmlDeviceGetMemoryInfo
                nvmlDeviceGetMemoryInfo_v2 nvmlDeviceGetUtilizationRates
                nvmlDeviceGetComputeRunningProcesses nvmlDeviceGetComputeRunningProcesses_v2
                nvmlDeviceGetComputeRunningProcesses_v3 nvmlDeviceGetGraphicsRunningProcesses
                nvmlDeviceGetGraphicsRunningProcesses_v2 nvmlDeviceGetGraphicsRunningProcesses_v3
                nvmlDeviceGetMPSComputeRunningProcesses nvmlDeviceGetMPSComputeRunningProcesses_v2
                nvmlDeviceGetMPSComputeRunningProcesses_v3 nvmlDeviceGetProcessUtilization
                nvmlDeviceGetProcessesUtilizationInfo nvmlDeviceGetRunningProcessDetailList
                nvmlDeviceGetAccountingPids nvmlDeviceGetAccountingStats
                nvmlDeviceGetAccountingStats_v2 nvmlDeviceGetDynamicPstatesInfo nvmlDeviceGetSamples
            }
        }
    };
}
pub(crate) use for_each_function;
