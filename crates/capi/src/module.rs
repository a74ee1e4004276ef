//! Modules, kernels and launches.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use mica::{Grid, KernelParam, KernelParams};

use crate::handles::{get, insert, mica_kernel, mica_module, mica_stream, mica_vgpu, remove};
use crate::pointers::{Out, slice, text};
use crate::status::{Failure, Result, call, mica_status};
use crate::stream::stream_of;
use crate::vgpu::Vgpu;

/// What a module handle stands for.
pub(crate) struct Module {
    pub(crate) vgpu: Arc<Vgpu>,
    pub(crate) module: mica::Module,
}

/// What a kernel handle stands for.
pub(crate) struct Kernel {
    vgpu: Arc<Vgpu>,
    kernel: mica::Kernel,
}

/// The shape of a launch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mica_grid {
    /// Blocks in each dimension.
    pub blocks: [u32; 3],
    /// Threads of a block in each dimension.
    pub threads: [u32; 3],
    /// Dynamic shared memory of a block in bytes.
    pub shared_bytes: u32,
    /// Not 0: all blocks are resident at once, so that they can wait for each other.
    pub cooperative: u32,
}

/// One parameter of a kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mica_param {
    /// The value; for a buffer its address (`mica_buffer_address`).
    pub data: *const c_void,
    /// Bytes of the value: as many as the kernel declares.
    pub bytes: usize,
}

/// Parameters as C gives them: their number and sizes are known when the program runs.
struct Given<'a>(Vec<Value<'a>>);
struct Value<'a>(&'a [u8]);

impl KernelParam for Value<'_> {
    fn put(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.0);
    }
}

impl KernelParams for Given<'_> {
    fn each(&self, take: &mut dyn FnMut(&dyn KernelParam)) {
        self.0.iter().for_each(|value| take(value));
    }
}

/// Most bytes of a parameter; CUDA's limit for all parameters together is 32764.
const MOST_BYTES: usize = 32764;

/// Loads PTX text, which ends with a NUL.
///
/// # Safety
/// `ptx` is null or a text; `module` is null or leads to room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mica_module_load(
    vgpu: *mut mica_vgpu,
    ptx: *const c_char,
    module: *mut *mut mica_module,
) -> mica_status {
    call(|| {
        let vgpu = get("vgpu", vgpu)?;
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new("module", module) }?;
        // SAFETY: the caller's promise.
        let ptx = unsafe { text("ptx", ptx) }?;
        let module = vgpu.vgpu.load_ptx(ptx)?;
        out.set(insert(Module { vgpu, module }));
        Ok(())
    })
}

/// Frees the module; its code is unloaded when its kernels are freed too.
#[unsafe(no_mangle)]
pub extern "C" fn mica_module_free(module: *mut mica_module) -> mica_status {
    call(|| remove("module", module))
}

/// A kernel of a module by its (mangled) name.
///
/// # Safety
/// `name` is null or a text; `kernel` is null or leads to room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mica_module_kernel(
    module: *mut mica_module,
    name: *const c_char,
    kernel: *mut *mut mica_kernel,
) -> mica_status {
    call(|| {
        let module = get("module", module)?;
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new("kernel", kernel) }?;
        // SAFETY: the caller's promise.
        let name = unsafe { text("name", name) }?;
        let vgpu = Arc::clone(&module.vgpu);
        let kernel = module.module.kernel(name)?;
        out.set(insert(Kernel { vgpu, kernel }));
        Ok(())
    })
}

/// Frees the kernel.
#[unsafe(no_mangle)]
pub extern "C" fn mica_kernel_free(kernel: *mut mica_kernel) -> mica_status {
    call(|| remove("kernel", kernel))
}

/// Launches a kernel in the order of a stream (null: the default one). The number and the sizes of the parameters are
/// compared with what the kernel declares. What goes wrong while the kernel runs is reported by later calls.
///
/// # Safety
/// `grid` and `params` are null or lead to what their types say, each `data` to so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mica_launch(
    kernel: *mut mica_kernel,
    grid: *const mica_grid,
    params: *const mica_param,
    count: usize,
    stream: *mut mica_stream,
) -> mica_status {
    call(|| {
        let kernel = get("kernel", kernel)?;
        let stream = stream_of(&kernel.vgpu, stream)?;
        // SAFETY: the caller's promise.
        let shape = unsafe { slice("grid", grid, 1) }?[0];
        // SAFETY: the caller's promise.
        let params = unsafe { slice("params", params, count) }?;
        let values = params.iter().enumerate().map(|(index, param)| {
            if param.bytes > MOST_BYTES {
                return Err(Failure::Argument(format!(
                    "parameter {index} has {} bytes, more than {MOST_BYTES}",
                    param.bytes
                )));
            }
            let name = format!("data of parameter {index}");
            // SAFETY: the caller's promise.
            let data = unsafe { slice(&name, param.data.cast::<u8>(), param.bytes) }?;
            Ok(Value(data))
        });
        let given = Given(values.collect::<Result<_>>()?);
        let grid = Grid {
            shared_bytes: shape.shared_bytes,
            cooperative: shape.cooperative != 0,
            ..Grid::of(shape.blocks, shape.threads)
        };
        Ok(stream.launch(&kernel.kernel, grid, given)?)
    })
}
