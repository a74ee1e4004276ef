//! Which calls put work on the GPU, and whether direct mode holds them at its gate: the one place that says so.
//!
//! Whatever names or implies a stream could, and so could whatever launches or copies: each of those must be in one of
//! the two lists here, so an entry point that a new CUDA release adds cannot be forgotten. Outside them are the loading
//! of code and the making of contexts, which copy what they load.

use crate::{Class, DefaultStream, ENTRY_POINTS, EntryPoint};

/// What a call does about the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Waits for its turn, if it is large enough to be worth one.
    Gated,
    /// Passes, for the reason given.
    Passes(&'static str),
    /// Submits nothing: no stream is involved.
    None,
}

impl EntryPoint {
    /// What it does about the gate.
    pub fn work(&self) -> Work {
        let name = self.legacy_symbol();
        if GATED.binary_search(&name).is_ok() {
            return Work::Gated;
        }
        match PASSES.binary_search_by_key(&name, |(passes, _)| passes) {
            Ok(at) => Work::Passes(PASSES[at].1),
            Err(_) => Work::None,
        }
    }

    /// Whether it could put work on a stream, going by its class, its variants and its name.
    pub fn could_submit(&self) -> bool {
        let per_thread = |entry: &&EntryPoint| entry.stream == DefaultStream::PerThread;
        let mut variants = ENTRY_POINTS.iter().filter(per_thread);
        matches!(self.class, Class::Launches | Class::Copies)
            || self.symbol.contains("Async")
            || variants.any(|entry| entry.legacy_symbol() == self.legacy_symbol())
    }
}

/// Held until it is the virtual GPU's turn.
pub(crate) const GATED: &[&str] = &[
    "cuGraphLaunch",
    "cuGraphUpload",
    "cuLaunch",
    "cuLaunchCooperativeKernel",
    "cuLaunchCooperativeKernelMultiDevice",
    "cuLaunchGrid",
    "cuLaunchGridAsync",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuMemBatchDecompressAsync",
    "cuMemDiscardAndPrefetchBatchAsync",
    "cuMemDiscardBatchAsync",
    "cuMemMapArrayAsync",
    "cuMemPrefetchAsync",
    "cuMemPrefetchAsync_v2",
    "cuMemPrefetchBatchAsync",
    "cuMemcpy",
    "cuMemcpy2D",
    "cuMemcpy2DAsync",
    "cuMemcpy2DAsync_v2",
    "cuMemcpy2DUnaligned",
    "cuMemcpy2DUnaligned_v2",
    "cuMemcpy2D_v2",
    "cuMemcpy3D",
    "cuMemcpy3DAsync",
    "cuMemcpy3DAsync_v2",
    "cuMemcpy3DBatchAsync",
    "cuMemcpy3DBatchAsync_v2",
    "cuMemcpy3DPeer",
    "cuMemcpy3DPeerAsync",
    "cuMemcpy3DWithAttributesAsync",
    "cuMemcpy3D_v2",
    "cuMemcpyAsync",
    "cuMemcpyAtoA",
    "cuMemcpyAtoA_v2",
    "cuMemcpyAtoD",
    "cuMemcpyAtoD_v2",
    "cuMemcpyAtoH",
    "cuMemcpyAtoHAsync",
    "cuMemcpyAtoHAsync_v2",
    "cuMemcpyAtoH_v2",
    "cuMemcpyBatchAsync",
    "cuMemcpyBatchAsync_v2",
    "cuMemcpyDtoA",
    "cuMemcpyDtoA_v2",
    "cuMemcpyDtoD",
    "cuMemcpyDtoDAsync",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoD_v2",
    "cuMemcpyDtoH",
    "cuMemcpyDtoHAsync",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoA",
    "cuMemcpyHtoAAsync",
    "cuMemcpyHtoAAsync_v2",
    "cuMemcpyHtoA_v2",
    "cuMemcpyHtoD",
    "cuMemcpyHtoDAsync",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyHtoD_v2",
    "cuMemcpyPeer",
    "cuMemcpyPeerAsync",
    "cuMemcpyWithAttributesAsync",
    "cuMemsetD16",
    "cuMemsetD16Async",
    "cuMemsetD16_v2",
    "cuMemsetD2D16",
    "cuMemsetD2D16Async",
    "cuMemsetD2D16_v2",
    "cuMemsetD2D32",
    "cuMemsetD2D32Async",
    "cuMemsetD2D32_v2",
    "cuMemsetD2D8",
    "cuMemsetD2D8Async",
    "cuMemsetD2D8_v2",
    "cuMemsetD32",
    "cuMemsetD32Async",
    "cuMemsetD32_v2",
    "cuMemsetD8",
    "cuMemsetD8Async",
    "cuMemsetD8_v2",
];

const ASKS: &str = "only asks or sets what a stream is";
const CAPTURES: &str = "what is captured runs nowhere yet";
const GRAPHICS: &str = "orders against graphics, runs nothing";
const HOST: &str = "runs on the host";
const NOTIFIES: &str = "calls back when the driver has news";
const ORDERS: &str = "orders streams, runs nothing";
const POOLS: &str = "memory in a stream's order, runs nothing; charged";
const WAITS: &str = "waits for what was submitted";
const WORD: &str = "a word of memory that somebody may be waiting for";

/// Passes, and why.
const PASSES: &[(&str, &str)] = &[
    ("cuDeviceRegisterAsyncNotification", NOTIFIES),
    ("cuDeviceUnregisterAsyncNotification", NOTIFIES),
    ("cuEventRecord", ORDERS),
    ("cuEventRecordWithFlags", ORDERS),
    ("cuGLMapBufferObjectAsync", GRAPHICS),
    ("cuGLMapBufferObjectAsync_v2", GRAPHICS),
    ("cuGLMapBufferObject_v2", GRAPHICS),
    ("cuGLUnmapBufferObjectAsync", GRAPHICS),
    (
        "cuGraphInstantiateWithParams",
        "its upload is small; charged",
    ),
    ("cuGraphicsMapResources", GRAPHICS),
    ("cuGraphicsUnmapResources", GRAPHICS),
    ("cuLaunchHostFunc", HOST),
    ("cuLaunchHostFunc_v2", HOST),
    ("cuMemAllocAsync", POOLS),
    ("cuMemAllocFromPoolAsync", POOLS),
    ("cuMemFreeAsync", POOLS),
    ("cuSignalExternalSemaphoresAsync", WORD),
    ("cuStreamAddCallback", HOST),
    (
        "cuStreamAttachMemAsync",
        "says who uses managed memory, runs nothing",
    ),
    ("cuStreamBatchMemOp", WORD),
    ("cuStreamBatchMemOp_v2", WORD),
    ("cuStreamBeginCapture", CAPTURES),
    ("cuStreamBeginCaptureToCig", CAPTURES),
    ("cuStreamBeginCaptureToGraph", CAPTURES),
    ("cuStreamBeginCapture_v2", CAPTURES),
    ("cuStreamBeginRecaptureToGraph", CAPTURES),
    ("cuStreamCopyAttributes", ASKS),
    ("cuStreamEndCapture", CAPTURES),
    ("cuStreamEndCaptureToCig", CAPTURES),
    ("cuStreamGetAttribute", ASKS),
    ("cuStreamGetCaptureInfo", ASKS),
    ("cuStreamGetCaptureInfo_v2", ASKS),
    ("cuStreamGetCaptureInfo_v3", ASKS),
    ("cuStreamGetCtx", ASKS),
    ("cuStreamGetCtx_v2", ASKS),
    ("cuStreamGetDevResource", ASKS),
    ("cuStreamGetDevice", ASKS),
    ("cuStreamGetFlags", ASKS),
    ("cuStreamGetId", ASKS),
    ("cuStreamGetPriority", ASKS),
    ("cuStreamIsCapturing", ASKS),
    ("cuStreamQuery", WAITS),
    ("cuStreamSetAttribute", ASKS),
    ("cuStreamSynchronize", WAITS),
    ("cuStreamUpdateCaptureDependencies", CAPTURES),
    ("cuStreamUpdateCaptureDependencies_v2", CAPTURES),
    ("cuStreamWaitEvent", ORDERS),
    ("cuStreamWaitValue32", WORD),
    ("cuStreamWaitValue32_v2", WORD),
    ("cuStreamWaitValue64", WORD),
    ("cuStreamWaitValue64_v2", WORD),
    ("cuStreamWriteValue32", WORD),
    ("cuStreamWriteValue32_v2", WORD),
    ("cuStreamWriteValue64", WORD),
    ("cuStreamWriteValue64_v2", WORD),
    ("cuWaitExternalSemaphoresAsync", WORD),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::find_symbol;

    #[test]
    fn everything_that_could_submit_work_is_in_one_list() {
        let passes: Vec<&str> = PASSES.iter().map(|(name, _)| *name).collect();
        assert!(passes.is_sorted() && GATED.is_sorted());
        for name in GATED.iter().chain(&passes) {
            let number = find_symbol(name).unwrap_or_else(|| panic!("{name} does not exist"));
            assert!(
                ENTRY_POINTS[number].could_submit(),
                "{name} need not be listed"
            );
        }
        for entry in ENTRY_POINTS.iter().filter(|entry| entry.could_submit()) {
            let name = entry.legacy_symbol();
            assert!(
                GATED.contains(&name) != passes.contains(&name),
                "{}: say in crates/cuda-abi/src/work.rs whether it passes the gate",
                entry.symbol
            );
        }
    }

    #[test]
    fn what_launches_or_copies_passes_only_if_it_runs_on_the_host() {
        for entry in ENTRY_POINTS {
            if matches!(entry.class, Class::Launches | Class::Copies) {
                let work = entry.work();
                assert!(
                    work == Work::Gated || work == Work::Passes(HOST),
                    "{}",
                    entry.symbol
                );
            }
        }
    }
}
