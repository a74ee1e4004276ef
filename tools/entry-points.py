#!/usr/bin/env python3
"""Writes crates/cuda-abi/src/table.rs from installed CUDA headers: names, versions, argument kinds.

usage: tools/entry-points.py CUDA_INCLUDE_DIR > crates/cuda-abi/src/table.rs

Only facts about the interface are taken: which symbols exist, since which CUDA version, and whether an
argument is a pointer, an integer of some width, a float or a structure by value.
"""
import re
import subprocess
import sys

INCLUDE = sys.argv[1]
HEADERS = ["cuda.h", "cudaProfiler.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h"]
STUBS = """
typedef unsigned int GLuint; typedef unsigned int GLenum; typedef unsigned int VdpDevice;
typedef int VdpStatus; typedef VdpStatus VdpGetProcAddress(VdpDevice, unsigned int, void **);
typedef unsigned int VdpVideoSurface; typedef unsigned int VdpOutputSurface;
typedef void *EGLImageKHR; typedef void *EGLStreamKHR; typedef void *EGLSyncKHR; typedef int EGLint;
"""


def preprocess(headers):
    text = STUBS + "".join(f'#include "{h}"\n' for h in headers)
    command = ["gcc", "-E", "-P", "-D__CUDA_API_VERSION_INTERNAL", "-I", INCLUDE, "-I", "/tmp/mica-stubs", "-x", "c", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def fake_headers():
    import os
    for path in ["GL/gl.h", "vdpau/vdpau.h", "EGL/egl.h", "EGL/eglext.h"]:
        full = os.path.join("/tmp/mica-stubs", path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        open(full, "w").close()


HANDLES = re.compile(r"^(CU(context|module|function|library|kernel|array|mipmappedArray|texref|surfref|event|stream|"
                     r"graphicsResource|externalMemory|externalSemaphore|graph|graphNode|graphExec|memoryPool|userObject|"
                     r"graphDeviceNode|asyncCallbackHandle|greenCtx|linkState|devResourceDesc|eglStreamConnection|"
                     r"logsCallbackHandle|coredumpCallbackHandle|logicalEndpoint|checkpoint\w*|hostFn|streamCallback|occupancyB2DSize|asyncCallback|"
                     r"logsCallback|coredumpCallback|graphRecaptureCallback)|EGL\w+|VdpGetProcAddress\s*\*?)$")
WIDE = re.compile(r"^(CUdeviceptr(_v2)?|CUtexObject|CUsurfObject|CUmemGenericAllocationHandle|CUgraphConditionalHandle|"
                  r"size_t|cuuint64_t|unsigned long long|unsigned long|CUlogIterator|CUcigKeyId)$")
STRUCTS = re.compile(r"^(CUipcEventHandle|CUipcMemHandle|CUmemLocation|CUuuid|CUDA_\w+|CUmemDecompress\w+|CUeglFrame)(_v\d)?$")


def kind(param):
    """p pointer or handle, s string, d 64-bit integer, u 32-bit or smaller, f float, F double, S structure by value."""
    param = param.strip()
    if param in ("void", ""):
        return ""
    if "(*" in param or "*" in param or "[" in param:
        return "s" if re.match(r"^const char\s*\*\s*\w*$", param) else "p"
    words = [w for w in param.split() if w not in ("const", "struct")]
    ctype = " ".join(words[:-1]) if len(words) > 1 else words[0]
    if ctype == "float":
        return "f"
    if ctype == "double":
        return "F"
    if WIDE.match(ctype):
        return "d"
    if HANDLES.match(ctype):
        return "p"
    if STRUCTS.match(ctype):
        return "S"
    return "u"


def base_of(symbol):
    suffix = re.match(r"^(\w+?)(_v(\d+))?(_ptds|_ptsz)?$", symbol)
    return suffix.group(1), int(suffix.group(3) or 1), suffix.group(4) or ""


CLASSES = [
    ("Query", r"^cu(GetProcAddress|GetExportTable|DriverGet|GetError|Device(Get(?!GraphMem)|TotalMem|ComputeCap|CanAccess)|PointerGet|FuncGet|KernelGet|"
              r"Occupancy|MemGet|StreamGet(?!Ctx)|StreamIsCapturing|EventElapsed|ModuleGet|LibraryGet|ArrayGet|Array3DGet|MipmappedArrayGet|Graph\w*Get|"
              r"MemPoolGet|MemRangeGet|MemHostGet|TexRefGet|SurfRefGet|TexObjectGet|SurfObjectGet|CtxGet|IpcGet)"),
    ("Allocates", r"^cu(MemAlloc(?!Host)|MemCreate|ArrayCreate|Array3DCreate|MipmappedArrayCreate|MemPoolCreate|MemPoolImport|IpcOpenMemHandle|"
                  r"ImportExternalMemory|ExternalMemoryGet|MemImport|GraphAddMemAllocNode|CtxSetLimit|MulticastCreate)"),
    ("Frees", r"^cu(MemFree(?!Host)|MemRelease|ArrayDestroy|MipmappedArrayDestroy|MemPoolDestroy|MemPoolTrim|IpcCloseMemHandle|"
              r"DestroyExternalMemory|DeviceGraphMemTrim|MemUnmap|GraphAddMemFreeNode)"),
    ("Launches", r"^cu(Launch|GraphLaunch|GraphUpload)"),
    ("Synchronizes", r"^cu(StreamSynchronize|CtxSynchronize|EventSynchronize|StreamQuery|EventQuery)"),
    ("Copies", r"^cu(Memcpy|Memset|MemPrefetch|MemDiscard|MemBatchDecompress)"),
    ("Context", r"^cu(Init|Ctx|GLCtxCreate|DevicePrimaryCtx|GreenCtx)"),
    ("Graph", r"^cu(Graph(?!ics)|UserObject|StreamBeginCapture|StreamEndCapture|StreamBeginRecapture|StreamUpdateCapture|ThreadExchangeStreamCapture)"),
    ("Stream", r"^cu(Stream|Event|SignalExternal|WaitExternal)"),
    ("Module", r"^cu(Module|Library|Link|Func|Kernel|Param)"),
    ("Memory", r"^cu(Mem|Array|Mipmapped|Tex|Surf|Tensor|Multicast|Ipc|Pointer)"),
]


def class_of(symbol):
    for name, pattern in CLASSES:
        if re.match(pattern, symbol):
            return name
    return "Other"


fake_headers()
declared = {}
for match in re.finditer(r"\b(?:CUresult)\s+(?:CUDAAPI\s+)?(cu[A-Z]\w*)\s*\(([^;{]*?)\)\s*;", preprocess(HEADERS)):
    declared.setdefault(match.group(1), match.group(2))

# PFN_cuName_vNNNN[_ptds|_ptsz]: the version each variant appeared in.
versions = {}
typedefs = preprocess([h.replace(".h", "Typedefs.h") for h in HEADERS])
for match in re.finditer(r"PFN_(cu\w+?)_v(\d+)(_ptds|_ptsz)?\b\)", typedefs):
    versions.setdefault((match.group(1), match.group(3) or ""), set()).add(int(match.group(2)))
for match in re.finditer(r"PFN_(cu\w+?)_v(\d+)(_ptds|_ptsz)?\b", typedefs):
    versions.setdefault((match.group(1), match.group(3) or ""), set()).add(int(match.group(2)))

# The headers' names do not always follow the rule: what they are called, and in which versions.
FIXED = {
    "cuGLGetDevices_v2": 6050, "cuGLGetDevices": 4010,
    "cuGraphInstantiate": 10000, "cuGraphInstantiate_v2": 11000,
}
groups = {}
for symbol in declared:
    base, number, stream = base_of(symbol)
    groups.setdefault((base, stream), []).append((number, symbol))
rows, odd = [], []
for (base, stream), symbols in groups.items():
    symbols.sort()
    known = sorted(versions.get((base, stream), []))
    if len(known) != len(symbols):
        odd.append((base, stream, symbols, known))
    for i, (number, symbol) in enumerate(symbols):
        # With fewer versions than symbols the newest ones correspond.
        at = i - (len(symbols) - len(known))
        version = FIXED.get(symbol) or (known[at] if 0 <= at < len(known) else (known[0] if known else 0))
        params = re.sub(r"\([^()]*\)", "", declared[symbol])
        rows.append((symbol, base, version, stream, class_of(symbol), "".join(kind(p) for p in params.split(","))))
rows.sort()
for item in odd:
    print("odd:", item, file=sys.stderr)

print("//! Every public entry point of the driver. Written by `tools/entry-points.py`; do not edit.")
print()
print("/// Calls `$then! { (symbol, base, version, stream, class, args) … }` with every entry point, sorted by symbol.")
print("///")
print("/// `version` is the CUDA version the symbol appeared in (0: in no typedef), `stream` the default stream it means,")
print("/// `args` one letter an argument: `p` pointer or handle, `s` string, `d` 64-bit, `u` at most 32-bit, `f` float,")
print("/// `F` double, `S` structure by value.")
print("#[macro_export]")
print("macro_rules! for_each_entry_point {")
print("    ($then:ident) => {")
print("        $then! {")
streams = {"": "Legacy", "_ptds": "PerThread", "_ptsz": "PerThread"}
for symbol, base, version, stream, klass, args in rows:
    print(f'            ({symbol}, {base}, {version}, {streams[stream]}, {klass}, "{args}")')
print("        }")
print("    };")
print("}")
