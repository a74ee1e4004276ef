//! Looking up entry points: by symbol, and as `cuGetProcAddress` does.

use crate::Direct;

/// Which stream a call without an explicit one means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultStream {
    /// The legacy stream, which synchronizes with all others.
    Legacy,
    /// The calling thread's own.
    PerThread,
}

/// What a call does, as far as limits care.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// May take device memory.
    Allocates,
    /// May give device memory back.
    Frees,
    /// Submits kernels, graphs or host functions.
    Launches,
    /// Copies or sets memory.
    Copies,
    /// Waits for submitted work, or asks whether it is done.
    Synchronizes,
    /// Makes, ends or chooses contexts.
    Context,
    /// Builds graphs or captures streams.
    Graph,
    /// Other stream and event calls.
    Stream,
    /// Code: modules, libraries, functions.
    Module,
    /// Other memory calls.
    Memory,
    /// Only answers a question.
    Query,
    /// Everything else.
    Other,
}

/// One exported function of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryPoint {
    /// The exported symbol: `cuMemcpyHtoD_v2_ptds`.
    pub symbol: &'static str,
    /// The name `cuGetProcAddress` knows it by: `cuMemcpyHtoD`.
    pub base: &'static str,
    /// CUDA version this variant appeared in: 7000 is CUDA 7.0.
    pub version: u32,
    /// Its default stream.
    pub stream: DefaultStream,
    /// What it does.
    pub class: Class,
    /// One letter for each argument; see [`for_each_entry_point`](crate::for_each_entry_point).
    pub args: &'static str,
}

macro_rules! define {
    ($(($symbol:ident, $base:ident, $version:literal, $stream:ident, $class:ident, $args:literal))*) => {
        /// Every entry point by number, in the order of [`ENTRY_POINTS`].
        #[repr(u16)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(non_camel_case_types, missing_docs, reason = "the names are CUDA's own")]
        pub enum Symbol {
            $($symbol),*
        }

        /// Every entry point, sorted by symbol.
        pub const ENTRY_POINTS: &[EntryPoint] = &[
            $(EntryPoint {
                symbol: stringify!($symbol),
                base: stringify!($base),
                version: $version,
                stream: DefaultStream::$stream,
                class: Class::$class,
                args: $args,
            }),*
        ];
    };
}
for_each_entry_point!(define);

impl Symbol {
    /// The entry point's facts.
    pub fn entry(self) -> &'static EntryPoint {
        &ENTRY_POINTS[self as usize]
    }
}

/// Number of the entry point with this exported symbol.
pub fn find_symbol(symbol: &str) -> Option<usize> {
    ENTRY_POINTS
        .binary_search_by(|entry| entry.symbol.cmp(symbol))
        .ok()
}

/// All variants of a base name, in no particular order.
pub fn variants(base: &str) -> impl Iterator<Item = (usize, &'static EntryPoint)> {
    // Variants share a prefix, so they lie together but for longer names between them.
    let start = ENTRY_POINTS.partition_point(|entry| entry.symbol < base);
    let end = start + ENTRY_POINTS[start..].partition_point(|entry| entry.symbol.starts_with(base));
    (start..end)
        .map(|number| (number, &ENTRY_POINTS[number]))
        .filter(move |(_, entry)| entry.base == base)
}

/// The variant `cuGetProcAddress(base, cuda_version, flags)` means: the newest not newer than the
/// version asked for. A per-thread variant is given where one is asked for and exists.
pub fn resolve(base: &str, cuda_version: u32, stream: DefaultStream) -> Option<usize> {
    let newest = |wanted: DefaultStream| {
        variants(base)
            .filter(|(_, entry)| entry.stream == wanted && entry.version <= cuda_version)
            .max_by_key(|(_, entry)| (entry.version, entry.symbol.len()))
            .map(|(number, _)| number)
    };
    match stream {
        DefaultStream::PerThread => newest(stream).or_else(|| newest(DefaultStream::Legacy)),
        DefaultStream::Legacy => newest(stream),
    }
}

/// Whether a name that is not in the table sounds as if it took memory or submitted work; such a
/// symbol passes the limits unseen and is reported. A newer version of what direct mode stands in front of does.
pub fn sounds_limited(name: &str) -> bool {
    const WORDS: &[&str] = &[
        "Alloc",
        "Launch",
        "MemCreate",
        "ArrayCreate",
        "CtxCreate",
        "Import",
        "PoolCreate",
        "Memcpy",
        "Memset",
        "Prefetch",
        "GraphAdd",
        "Instantiate",
    ];
    // The debugger's own interface, which programs do not call.
    let debugger = name.starts_with("cudbg");
    let hooked = |(_, entry): (usize, &EntryPoint)| {
        matches!(
            entry.direct(),
            Direct::Charged | Direct::Gated | Direct::Shown
        )
    };
    name.starts_with("cu")
        && !debugger
        && (WORDS.iter().any(|word| name.contains(word)) || variants(base(name)).any(hooked))
}

/// A symbol's name without its version and its default stream.
fn base(symbol: &str) -> &str {
    let legacy = legacy_symbol(symbol);
    match legacy.rsplit_once("_v") {
        Some((base, version)) if version.bytes().all(|digit| digit.is_ascii_digit()) => base,
        _ => legacy,
    }
}

/// The symbol of a variant for the legacy default stream.
pub(crate) fn legacy_symbol(symbol: &str) -> &str {
    symbol
        .strip_suffix("_ptds")
        .or_else(|| symbol.strip_suffix("_ptsz"))
        .unwrap_or(symbol)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(base: &str, version: u32, stream: DefaultStream) -> Option<&'static str> {
        resolve(base, version, stream).map(|number| ENTRY_POINTS[number].symbol)
    }

    #[test]
    fn the_table_is_sorted_and_numbered() {
        assert!(ENTRY_POINTS.is_sorted_by(|a, b| a.symbol < b.symbol));
        assert_eq!(Symbol::cuLaunchKernel.entry().symbol, "cuLaunchKernel");
        assert_eq!(
            find_symbol("cuMemAlloc_v2"),
            Some(Symbol::cuMemAlloc_v2 as usize)
        );
        assert_eq!(find_symbol("cuMemAlloc_v9"), None);
    }

    #[test]
    fn the_version_asked_for_is_honoured() {
        use DefaultStream::*;
        assert_eq!(
            symbol("cuCtxGetDevice", 12080, Legacy),
            Some("cuCtxGetDevice")
        );
        assert_eq!(
            symbol("cuCtxGetDevice", 13000, Legacy),
            Some("cuCtxGetDevice_v2")
        );
        assert_eq!(symbol("cuMemAlloc", 2000, Legacy), Some("cuMemAlloc"));
        assert_eq!(
            symbol("cuMemAlloc", 13000, PerThread),
            Some("cuMemAlloc_v2")
        );
        assert_eq!(
            symbol("cuMemcpyHtoD", 12000, PerThread),
            Some("cuMemcpyHtoD_v2_ptds")
        );
        assert_eq!(symbol("cuLaunchKernelEx", 11000, Legacy), None);
        assert_eq!(symbol("cuNoSuchThing", 13000, Legacy), None);
    }

    #[test]
    fn every_base_name_has_its_own_variants_only() {
        for entry in ENTRY_POINTS {
            assert!(
                variants(entry.base).any(|(_, found)| found == entry),
                "{}",
                entry.symbol
            );
        }
    }

    #[test]
    fn names_that_take_memory_are_noticed() {
        assert!(sounds_limited("cuMemAllocTiered"));
        assert!(sounds_limited("cuLaunchSwarm"));
        assert!(sounds_limited("cuMemcpyTieredAsync"));
        assert!(!sounds_limited("cuDeviceGetMood"));
        assert!(!sounds_limited("cudbgLaunchMood"));
    }

    #[test]
    fn newer_versions_of_what_is_limited_are_noticed() {
        assert!(sounds_limited("cuDevicePrimaryCtxRetain_v2"));
        assert!(sounds_limited("cuLibraryLoadData_v2"));
        assert!(sounds_limited("cuGraphUpload_v2_ptsz"));
        assert!(sounds_limited("cuMemMap_v2"));
        assert!(sounds_limited("cuMemGetInfo_v3"));
        assert!(!sounds_limited("cuCtxGetDevice_v3"));
        assert!(!sounds_limited("cuStreamGetCaptureInfo_v4_ptsz"));
    }
}
