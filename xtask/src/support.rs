//! `docs/SUPPORT.md`: what each entry point of the driver comes to, from the one table in `cuda-abi`.

use std::fmt::Write as _;

use anyhow::{Context, Result, bail};
use mica_cuda_abi::{Direct, ENTRY_POINTS, EntryPoint, Isolated};

use crate::command::root;

/// Functions that belong together, by how their names begin; the first that fits counts. Where isolated
/// mode refuses all or some of a family, why.
const FAMILIES: &[(&str, &[&str], &str)] = &[
    (
        "Start, versions, errors, look-up",
        &[
            "cuInit",
            "cuDriver",
            "cuGetError",
            "cuGetProc",
            "cuGetExport",
        ],
        "",
    ),
    ("Primary contexts", &["cuDevicePrimaryCtx"], ""),
    (
        "Memory pools",
        &[
            "cuDeviceGetDefaultMemPool",
            "cuDeviceGetMemPool",
            "cuDeviceSetMemPool",
            "cuMemPool",
            "cuMemGetDefaultMemPool",
            "cuMemGetMemPool",
            "cuMemSetMemPool",
            "cuMemAllocAsync",
            "cuMemAllocFromPool",
            "cuMemFreeAsync",
        ],
        "",
    ),
    (
        "Resources and green contexts",
        &[
            "cuDevResource",
            "cuDevSm",
            "cuGreenCtx",
            "cuCtxFromGreen",
            "cuCtxGetDevResource",
            "cuDeviceGetDevResource",
            "cuStreamGetGreen",
            "cuStreamGetDevResource",
            "cuCtxRecordEvent",
            "cuCtxWaitEvent",
        ],
        "A virtual GPU's share is the daemon's to divide; parts of multiprocessors (green contexts) are not offered.",
    ),
    (
        "Asynchronous notifications",
        &["cuDeviceRegisterAsync", "cuDeviceUnregisterAsync"],
        "The worker has no such news.",
    ),
    (
        "Devices",
        &["cuDevice"],
        "Cliques, fabric and NvSci describe hardware that a virtual GPU does not show.",
    ),
    (
        "Contexts",
        &["cuCtx"],
        "The first version of cuCtxCreate is for 32-bit programs of CUDA 2.",
    ),
    (
        "Modules",
        &["cuModule"],
        "Texture and surface references were removed with CUDA 12.",
    ),
    ("Libraries and kernels", &["cuLibrary", "cuKernel"], ""),
    ("Linking at run time", &["cuLink"], ""),
    (
        "Functions",
        &["cuFunc", "cuParam"],
        "Launches in the style of CUDA 3 (cuFuncSetBlockShape, cuParamSet) are gone from all headers in use.",
    ),
    (
        "Launches",
        &["cuLaunch"],
        "Launches in the style of CUDA 3 are gone from all headers in use; a virtual GPU is one device.",
    ),
    ("Occupancy", &["cuOccupancy"], ""),
    (
        "Copies",
        &["cuMemcpy"],
        "First versions are for 32-bit programs of CUDA 2. Copies between arrays on the device go through cuMemcpy2D and 3D.",
    ),
    (
        "Fills",
        &["cuMemset"],
        "First versions are for 32-bit programs of CUDA 2.",
    ),
    (
        "Pinned, mapped and registered host memory",
        &["cuMemHost", "cuMemAllocHost", "cuMemFreeHost"],
        "First versions are for 32-bit programs of CUDA 2. On the software GPU registered memory has an address of its own on the device; memory that a file or other processes share, and ranges that share some of their pages, are not registered.",
    ),
    (
        "Managed memory",
        &[
            "cuMemAllocManaged",
            "cuMemAdvise",
            "cuMemPrefetch",
            "cuMemRange",
            "cuMemDiscard",
        ],
        "Nothing moves, so nothing is discarded or prefetched in batches.",
    ),
    (
        "Virtual memory",
        &[
            "cuMemAddress",
            "cuMemCreate",
            "cuMemRelease",
            "cuMemMap",
            "cuMemUnmap",
            "cuMemSetAccess",
            "cuMemGetAccess",
            "cuMemGetAllocation",
            "cuMemRetain",
            "cuMemExport",
            "cuMemImport",
            "cuMemGetHandle",
        ],
        "Allocations cannot be mapped into sparse arrays or shared as anything but file descriptors.",
    ),
    (
        "Decompression on the device",
        &["cuMemBatchDecompress"],
        "An engine of Blackwell GPUs.",
    ),
    (
        "Device memory",
        &["cuMem", "cuPointer"],
        "First versions are for 32-bit programs of CUDA 2.",
    ),
    ("Memory and events of other processes", &["cuIpc"], ""),
    (
        "Arrays",
        &["cuArray", "cuMipmapped"],
        "Sparse arrays, planes and levels of mipmaps are not on the software GPU.",
    ),
    (
        "Texture and surface objects",
        &["cuTexObject", "cuSurfObject"],
        "Views of a resource are not kept.",
    ),
    (
        "Texture and surface references",
        &["cuTexRef", "cuSurfRef"],
        "Removed from CUDA with version 12; objects take their place.",
    ),
    (
        "Tensor maps",
        &["cuTensorMap"],
        "A map in memory of the program is opaque, so only the device could put another address into it.",
    ),
    (
        "Multicast",
        &["cuMulticast"],
        "Needs several GPUs behind a switch; a virtual GPU is one.",
    ),
    (
        "Capture",
        &[
            "cuStreamBegin",
            "cuStreamEnd",
            "cuStreamIsCapturing",
            "cuStreamGetCapture",
            "cuStreamUpdateCapture",
            "cuThreadExchange",
        ],
        "Capture for graphics and recapture into a graph are not offered.",
    ),
    (
        "Waits for values in memory",
        &["cuStreamWaitValue", "cuStreamBatchMemOp"],
        "The first versions are refused, as by a driver without the option for them.",
    ),
    (
        "Streams",
        &["cuStream"],
        "The first versions of writes of values are refused, as by a driver without the option for them.",
    ),
    (
        "Graphics",
        &[
            "cuGL",
            "cuEGL",
            "cuVDPAU",
            "cuGraphics",
            "cuEventCreateFromEGL",
        ],
        "A worker has no display.",
    ),
    ("Events", &["cuEvent"], ""),
    (
        "Graphs",
        &["cuGraph", "cuUserObject"],
        "Batch and external-semaphore nodes, and attributes of newer nodes, are not carried to the worker yet. Conditional nodes need an NVIDIA GPU.",
    ),
    (
        "External memory and semaphores",
        &[
            "cuImport",
            "cuExternal",
            "cuDestroyExternal",
            "cuSignalExternal",
            "cuWaitExternal",
        ],
        "Memory of another process would pass the session's handles and its limit.",
    ),
    ("Profiling", &["cuProfiler"], ""),
    (
        "Checkpoints, core dumps, logs",
        &["cuCheckpoint", "cuCoredump", "cuLogs"],
        "They concern the process that owns the GPU, which is the worker.",
    ),
    (
        "Logical endpoints",
        &["cuLogicalEndpoint"],
        "They describe fabrics of several GPUs.",
    ),
    ("Others", &["cu"], ""),
];

/// Writes the document.
pub(crate) fn write() -> Result<()> {
    std::fs::write(path(), text()).context("docs/SUPPORT.md cannot be written")
}

/// Fails if the document is not what the table says.
pub(crate) fn check() -> Result<()> {
    let held = std::fs::read_to_string(path()).unwrap_or_default();
    if held != text() {
        bail!("docs/SUPPORT.md is not what crates/cuda-abi says: run `cargo xtask support`");
    }
    Ok(())
}

fn path() -> std::path::PathBuf {
    root().join("docs/SUPPORT.md")
}

fn family(entry: &EntryPoint) -> usize {
    let fits = |prefixes: &[&str]| prefixes.iter().any(|prefix| entry.base.starts_with(prefix));
    FAMILIES
        .iter()
        .position(|(_, prefixes, _)| fits(prefixes))
        .unwrap_or(FAMILIES.len() - 1)
}

fn isolated(entry: &EntryPoint) -> &'static str {
    match entry.isolated() {
        Isolated::Local => "local",
        Isolated::Posted => "posted",
        Isolated::Synchronous => "synchronous",
        Isolated::Refused => "refused (801)",
    }
}

fn direct(entry: &EntryPoint) -> &'static str {
    match entry.direct() {
        Direct::Charged => "charged",
        Direct::Gated => "gated",
        Direct::Observed => "observed",
        Direct::Shown => "the vGPU's",
        Direct::Forwarded => "forwarded",
    }
}

/// What stands above the tables.
const HEADER: &str = "# Supported driver functions\n\n\
 Written by `cargo xtask support` from the table of entry points in `crates/cuda-abi`; do not edit.\n\n\
 **Isolated mode:** *local* is answered in the program; *posted* goes to the worker without waiting, and an\n\
 error comes late; *synchronous* waits for the worker, at least the first time; *refused* answers\n\
 `CUDA_ERROR_NOT_SUPPORTED` (801) and names the call in the log (`MICA_LOG`). A function that is served may\n\
 still refuse a flag or a kind of argument, with the code a driver has for it.\n\n\
 **Direct mode:** *charged* counts against the memory limit; *gated* waits for the virtual GPU's turn;\n\
 *observed* is noted and goes on; *the vGPU's* answers what the virtual GPU has; *forwarded* is the real\n\
 driver's own answer.\n\n\
 A function with several versions has a line for each; variants for a thread's own default stream\n\
 (`_ptds`, `_ptsz`) are served as the one they belong to. Versions are those of CUDA: 12040 is 12.4.\n\n";

fn text() -> String {
    let mut text = String::from(HEADER);
    let entries: Vec<&EntryPoint> = ENTRY_POINTS
        .iter()
        .filter(|entry| !entry.symbol.ends_with("_ptds") && !entry.symbol.ends_with("_ptsz"))
        .collect();
    let served = entries.iter().filter(is_served).count();
    let _ = writeln!(
        text,
        "{} functions, {served} of them served in isolated mode.\n",
        entries.len()
    );
    let families: Vec<(usize, Vec<&EntryPoint>)> = (0..FAMILIES.len())
        .map(|number| {
            let of = entries.iter().filter(|entry| family(entry) == number);
            (number, of.copied().collect())
        })
        .filter(|(_, of): &(usize, Vec<_>)| !of.is_empty())
        .collect();
    text.push_str("| family | functions | served isolated | refused, why |\n|---|---|---|---|\n");
    for (number, of) in &families {
        let (name, _, why) = FAMILIES[*number];
        let served = of.iter().filter(is_served).count();
        let why = if served < of.len() { why } else { "" };
        let _ = writeln!(text, "| {name} | {} | {served} | {why} |", of.len());
    }
    for (number, of) in &families {
        text.push_str(&section(FAMILIES[*number].0, of));
    }
    text
}

fn is_served(entry: &&&EntryPoint) -> bool {
    entry.isolated() != Isolated::Refused
}

/// The functions of one family, a row each.
fn section(name: &str, entries: &[&EntryPoint]) -> String {
    let mut text =
        format!("\n## {name}\n\n| function | since | isolated | direct |\n|---|---|---|---|\n");
    for entry in entries {
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} |",
            entry.symbol,
            entry.version,
            isolated(entry),
            direct(entry)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_up_to_date() {
        check().unwrap();
    }

    #[test]
    fn every_family_with_refusals_says_why() {
        for entry in ENTRY_POINTS {
            let (name, _, why) = FAMILIES[family(entry)];
            let refused = entry.isolated() == Isolated::Refused;
            assert!(!refused || !why.is_empty(), "{name}: {}", entry.symbol);
        }
    }
}
