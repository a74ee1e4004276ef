//! The kernels that are committed as PTX, loaded into a virtual GPU when first needed.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use mica::{Kernel, Module, Vgpu};

use crate::{Error, Result};

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        /// Every PTX file by its name in `kernels/list.txt`.
        const FILES: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../kernels/", $name, ".ptx")))),*
        ];
    };
}
files!(
    "gemm.f32",
    "gemm.f16",
    "gemm.bf16",
    "gemm.i8",
    "pack.f32",
    "pack.f16",
    "pack.bf16",
    "pack.i8",
    "int4.i8",
    "int4_weights.f32",
    "int4_weights.f16",
    "int4_weights.bf16",
    "gemm_software.f32",
    "gemm_mma.f32",
    "gemm_mma.f16",
    "gemm_mma.bf16",
    "gemm_mma.i8",
    "gemm_mma.i4",
    "gemm_wgmma.f16",
    "gemm_wgmma.bf16",
    "gemm_wgmma.i8",
    "rows.f32",
    "rows.f16",
    "rows.bf16",
    "rows_wide.f32",
    "rows_wide.f16",
    "rows_wide.bf16",
    "attention.f32",
    "attention_software.f32",
    "attention_mma.f16",
    "attention_mma.bf16",
    "attention_paged.f16",
    "attention_paged.bf16",
    "attention_wgmma.f16",
    "attention_wgmma.bf16",
    "attention_back_wgmma.f16",
    "attention_back_wgmma.bf16",
    "conv.f32",
    "conv.f16",
    "conv.bf16",
    "conv_wgmma.f16",
    "conv_wgmma.bf16",
);

fn text(file: &str) -> Option<&'static str> {
    let found = FILES.iter().find(|(name, _)| *name == file);
    found.map(|(_, text)| *text)
}

/// The hash of a file's sources, which its first line has: another kernel has another one.
pub(crate) fn source_hash(file: &str) -> &'static str {
    let first = text(file).and_then(|text| text.lines().next());
    first.and_then(|line| line.rsplit(' ').next()).unwrap_or("")
}

/// What distinguishes this set of kernels for products from another: parts of their hashes.
pub(crate) fn all_hash() -> String {
    let files = FILES.iter().map(|(name, _)| *name);
    let hashes = files.filter(|name| name.starts_with("gemm"));
    let hashes = hashes.map(|name| source_hash(name).get(..4).unwrap_or(""));
    hashes.collect()
}

#[derive(Default)]
struct Loaded {
    /// By file; `None` where the virtual GPU's policy forbids the code.
    modules: HashMap<String, Option<Module>>,
    /// By file and name.
    kernels: HashMap<(String, String), Kernel>,
}

/// What a virtual GPU has loaded.
pub(crate) struct Kernels {
    vgpu: Vgpu,
    loaded: Mutex<Loaded>,
}

impl Kernels {
    pub(crate) fn new(vgpu: &Vgpu) -> Self {
        Self {
            vgpu: vgpu.clone(),
            loaded: Mutex::default(),
        }
    }

    /// A kernel of a committed file.
    pub(crate) fn get(&self, file: &str, name: &str) -> Result<Kernel> {
        self.made(file, name, || text(file).unwrap_or_default().to_owned())
    }

    /// A kernel of a text that is made when it is not loaded yet.
    pub(crate) fn made(
        &self,
        file: &str,
        name: &str,
        make: impl FnOnce() -> String,
    ) -> Result<Kernel> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (file.to_owned(), name.to_owned());
        if let Some(kernel) = loaded.kernels.get(&key) {
            return Ok(kernel.clone());
        }
        let module = match loaded.modules.get(file) {
            Some(module) => module.clone(),
            None => {
                let module = Some(self.vgpu.load_ptx(&make())?);
                loaded.modules.insert(file.to_owned(), module.clone());
                module
            }
        };
        let Some(module) = module else {
            let message = format!("the virtual GPU's policy forbids the code of {file}");
            return Err(Error::argument("load", message));
        };
        let kernel = module.kernel(name)?;
        loaded.kernels.insert(key, kernel.clone());
        Ok(kernel)
    }

    /// Whether the virtual GPU takes a file: its policy may forbid tensor cores or a number format.
    ///
    /// # Errors
    /// Anything but the policy keeps the file from being loaded.
    pub(crate) fn allows(&self, file: &str) -> Result<bool> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = loaded.modules.get(file) {
            return Ok(module.is_some());
        }
        let module = permitted(self.vgpu.load_ptx(text(file).unwrap_or_default()))?;
        let allowed = module.is_some();
        loaded.modules.insert(file.to_owned(), module);
        Ok(allowed)
    }

    /// Whether a file can be loaded: one whose functions an older software GPU does not have cannot.
    pub(crate) fn is_loadable(&self, file: &str) -> bool {
        if self.allows(file).is_ok_and(|allowed| allowed) {
            return true;
        }
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        // Not asked again.
        loaded.modules.entry(file.to_owned()).or_insert(None);
        false
    }

    /// Whether the virtual GPU allows tensor cores, asked with one instruction.
    pub(crate) fn allows_tensor_cores(&self) -> Result<bool> {
        Ok(permitted(self.vgpu.load_ptx(PROBE))?.is_some())
    }
}

/// `None` for a module that the virtual GPU's policy forbids.
fn permitted(module: mica::Result<Module>) -> Result<Option<Module>> {
    match module {
        Ok(module) => Ok(Some(module)),
        Err(error) if error.code() == Some(mica::CuResult::NotPermitted) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

const PROBE: &str = "
.version 7.0
.target sm_80
.address_size 64
.visible .entry probe()
{
    .reg .b32 %r<4>;
    .reg .f32 %f<5>;
    mov.b32 %r1, 0;
    mov.f32 %f1, 0f00000000;
    mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f1, %f2, %f3, %f4}, {%r1, %r1}, {%r1}, {%f1, %f1, %f1, %f1};
    ret;
}
";

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};
    use std::collections::BTreeSet;
    use std::path::Path;

    /// A source and all files that it includes, in the order of their names.
    fn sources(folder: &Path, source: &str) -> BTreeSet<String> {
        let mut files = BTreeSet::new();
        let mut open = vec![source.to_owned()];
        while let Some(file) = open.pop() {
            let text = std::fs::read_to_string(folder.join(&file)).unwrap();
            let names = (text.lines()).filter_map(|line| line.strip_prefix("#include \""));
            let names = names.map(|name| name.trim_end_matches('"').to_owned());
            open.extend(names.filter(|name| !files.contains(name)));
            files.insert(file);
        }
        files
    }

    /// As `xtask/src/kernels.rs` makes the first line.
    #[test]
    fn committed_ptx_is_made_from_the_sources_beside_it() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
        let list = std::fs::read_to_string(folder.join("list.txt")).unwrap();
        let lines: Vec<_> = list.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            lines.len(),
            FILES.len(),
            "each line of list.txt is embedded"
        );
        for line in lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            let mut hash = Sha256::new();
            hash.update(line.as_bytes());
            for file in sources(&folder, words[1]) {
                hash.update(std::fs::read(folder.join(file)).unwrap());
            }
            let digest: String = (hash.finalize().iter())
                .map(|byte| format!("{byte:02x}"))
                .collect();
            assert_eq!(
                source_hash(words[0]),
                digest,
                "{} is older than its source: run `cargo xtask kernels`",
                words[0]
            );
        }
    }
}
