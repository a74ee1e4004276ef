//! Modules, kernels and variables.

use std::sync::Arc;

use mica_gpu::{KernelDescription, ModuleInfo};
use mica_vgpu::RawAttribute;
use zerocopy::IntoBytes;

use crate::backend::LaunchCall;
use crate::launch::{Grid, KernelParams, pack};
use crate::vgpu::Vgpu;
use crate::{Error, Result};

#[derive(Debug)]
struct Loaded {
    vgpu: Vgpu,
    handle: u64,
    info: ModuleInfo,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let _ = self.vgpu.backend.module_unload(self.handle);
    }
}

/// Loaded code; unloaded when it and its kernels are dropped.
#[derive(Clone, Debug)]
pub struct Module {
    loaded: Arc<Loaded>,
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let list: Vec<&str> = names.take(8).collect();
    match list.is_empty() {
        true => "none".into(),
        false => list.join(", "),
    }
}

impl Module {
    pub(crate) fn new(vgpu: &Vgpu, image: &[u8]) -> Result<Self> {
        let (handle, info) = vgpu.backend.module_load(image)?;
        let vgpu = vgpu.clone();
        let loaded = Arc::new(Loaded { vgpu, handle, info });
        Ok(Self { loaded })
    }

    /// A kernel by its (mangled) name.
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        let kernels = &self.loaded.info.kernels;
        match kernels.iter().position(|kernel| kernel.name == name) {
            Some(index) => Ok(Kernel {
                loaded: Arc::clone(&self.loaded),
                index,
            }),
            None => Err(Error::NotFound {
                kind: "kernel",
                name: name.into(),
                has: names(kernels.iter().map(|kernel| kernel.name.as_str())),
            }),
        }
    }

    /// Names of all kernels.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        let kernels = self.loaded.info.kernels.iter();
        kernels.map(|kernel| kernel.name.as_str())
    }

    /// A variable by its (mangled) name.
    pub fn global(&self, name: &str) -> Result<Global> {
        let globals = &self.loaded.info.globals;
        let known = globals.iter().find(|global| global.name == name).cloned();
        let found = match known {
            None => (self.loaded.vgpu.backend).module_global(self.loaded.handle, name)?,
            known => known,
        };
        match found {
            Some(global) => Ok(Global {
                loaded: Arc::clone(&self.loaded),
                address: global.address.0,
                bytes: global.bytes,
            }),
            None => Err(Error::NotFound {
                kind: "variable",
                name: name.into(),
                has: names(globals.iter().map(|global| global.name.as_str())),
            }),
        }
    }
}

/// A kernel of a module.
#[derive(Clone, Debug)]
pub struct Kernel {
    loaded: Arc<Loaded>,
    index: usize,
}

impl Kernel {
    fn description(&self) -> &KernelDescription {
        &self.loaded.info.kernels[self.index]
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.description().name
    }

    /// Most threads per block.
    pub fn max_threads(&self) -> u32 {
        self.description().max_threads
    }

    /// Static shared memory per block.
    pub fn static_shared_bytes(&self) -> u32 {
        self.description().static_shared
    }

    /// Blocks of this shape that fit on one multiprocessor.
    pub fn occupancy(&self, threads: u32, shared_bytes: u64) -> Result<u32> {
        let backend = &self.loaded.vgpu.backend;
        backend.occupancy(self.loaded.handle, self.index(), threads, shared_bytes)
    }

    /// Bytes of each parameter.
    pub fn param_sizes(&self) -> impl Iterator<Item = usize> {
        let params = self.description().params.iter();
        params.map(|param| param.size as usize)
    }

    pub(crate) fn vgpu(&self) -> &Vgpu {
        &self.loaded.vgpu
    }

    pub(crate) fn pack(&self, params: &impl KernelParams) -> Result<Vec<u8>> {
        let is_own = |vgpu: &Vgpu| Arc::ptr_eq(&vgpu.backend, &self.vgpu().backend);
        pack(self.name(), &self.description().params, params, is_own)
    }

    /// A launch of it.
    pub(crate) fn call<'c>(
        &self,
        stream: u64,
        grid: Grid,
        attributes: &'c [RawAttribute],
        params: &'c [u8],
    ) -> LaunchCall<'c> {
        LaunchCall {
            stream,
            module: self.loaded.handle,
            kernel: self.index(),
            grid: grid.blocks,
            block: grid.threads,
            dynamic_shared: grid.shared_bytes,
            cooperative: grid.cooperative,
            attributes,
            params,
        }
    }

    fn index(&self) -> u32 {
        self.index as u32
    }
}

/// A variable of a module.
#[derive(Clone, Debug)]
pub struct Global {
    loaded: Arc<Loaded>,
    address: u64,
    bytes: u64,
}

impl Global {
    pub(crate) fn vgpu(&self) -> &Vgpu {
        &self.loaded.vgpu
    }

    /// Its address.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size.
    pub fn size_bytes(&self) -> u64 {
        self.bytes
    }

    fn check(&self, bytes: usize) -> Result<()> {
        if bytes as u64 <= self.bytes {
            return Ok(());
        }
        let has = self.bytes;
        Err(Error::Argument(format!(
            "{bytes} bytes do not fit a variable of {has}"
        )))
    }

    /// Writes values to its start.
    pub fn write<T: crate::Plain>(&self, values: &[T]) -> Result<()> {
        let bytes = values.as_bytes();
        self.check(bytes.len())?;
        let backend = &self.loaded.vgpu.backend;
        backend.write(backend.default_stream(), self.address, bytes)
    }

    /// Reads values from its start.
    pub fn read<T: crate::Plain>(&self, values: &mut [T]) -> Result<()> {
        let bytes = values.as_mut_bytes();
        self.check(bytes.len())?;
        let backend = &self.loaded.vgpu.backend;
        backend.read(backend.default_stream(), self.address, bytes)
    }
}
