//! Entry points of libraries, modules, kernels and functions.

use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::Relaxed;

use mica_cuda_abi::{CuResult, FunctionAttribute, Handle};

use mica_wire::session::KernelLayout;

use super::link;
use super::variables::{managed_of, variable_of};
use super::{Function, Library, Module, copy_image, new_library};
use crate::isolated::check::objects::{self, ObjectKind};
use crate::isolated::context::{Context, any_context, current};
use crate::isolated::state::{State, state};
use crate::isolated::support::{
    Answer, Code, bad_handle, driver, entries, invalid, put, put_opt, room_for, string,
};

/// The function of a handle, be it called a function or a kernel.
pub(crate) unsafe fn function_of(handle: Handle) -> Answer<&'static Function> {
    // SAFETY: the program's handle.
    unsafe { Function::find(handle) }.ok_or(Code(CuResult::InvalidHandle as u32))
}

unsafe fn library_of(handle: Handle) -> Answer<&'static Library> {
    // SAFETY: the program's handle.
    unsafe { Library::find(handle) }.ok_or(Code(CuResult::InvalidHandle as u32))
}

unsafe fn module_of(handle: Handle) -> Answer<(&'static State, &'static Module)> {
    let state = state()?;
    // SAFETY: the program's handle.
    let module = unsafe { Module::find(handle) }.ok_or(Code(CuResult::InvalidHandle as u32))?;
    if module.context.epoch() != module.epoch {
        return Err(CuResult::ContextIsDestroyed.into());
    }
    module.context.check(state)?;
    Ok((state, module))
}

/// Loads an image as a module of the current context.
pub(crate) fn load_module(image: *const c_void) -> Answer<Handle> {
    let (state, context) = current()?;
    load_copied(state, context, copy_image(image)?)
}

fn load_copied(state: &State, context: &'static Context, image: Arc<[u8]>) -> Answer<Handle> {
    let library = new_library(state, image);
    if let Err(error) = library.load(state, context) {
        library.retire();
        return Err(error);
    }
    Ok(library.module(context, true).handle())
}

fn read_file(path: &str) -> Answer<Arc<[u8]>> {
    let bytes = std::fs::read(path).map_err(|_| Code(CuResult::FileNotFound as u32))?;
    Ok(bytes.into())
}

/// Notes a module that the program itself has to unload. The runtime loads its own by other ways, as libraries or through its
/// private tables, and unloads them when it likes.
fn told(module: Handle) -> Answer<Handle> {
    let (_, context) = current()?;
    objects::made(ObjectKind::Module, module as u64, 0, context.epoch());
    Ok(module)
}

driver! {
    fn library_load_data(
        out: *mut Handle, image: *const c_void, _jit: *mut u32, _jit_values: *mut *mut c_void, _jit_count: u32,
        _options: *mut u32, _option_values: *mut *mut c_void, _option_count: u32,
    ) {
        let state = state()?;
        if out.is_null() {
            return invalid();
        }
        let image = copy_image(image)?;
        put(out, new_library(state, image).handle())
    }

    fn library_load_file(
        out: *mut Handle, path: *const c_char, _jit: *mut u32, _jit_values: *mut *mut c_void, _jit_count: u32,
        _options: *mut u32, _option_values: *mut *mut c_void, _option_count: u32,
    ) {
        let state = state()?;
        let image = read_file(&string(path)?)?;
        put(out, new_library(state, image).handle())
    }

    fn library_unload(library: Handle) {
        let state = state()?;
        library_of(library)?.unload(state)
    }

    fn library_get_kernel(out: *mut Handle, library: Handle, name: *const c_char) {
        let name = string(name)?;
        let library = library_of(library)?;
        let (state, context) = any_context()?;
        let kernel = library.function(state, context, &name)?;
        kernel.is_kernel.store(true, Relaxed);
        put(out, kernel.handle())
    }

    fn library_kernel_count(out: *mut u32, library: Handle) {
        room_for(out)?;
        let library = library_of(library)?;
        let (state, context) = any_context()?;
        put(out, library.load(state, context)?.layouts.len() as u32)
    }

    fn library_enumerate(out: *mut Handle, count: u32, library: Handle) {
        room_for(out)?;
        let library = library_of(library)?;
        let (state, context) = any_context()?;
        enumerate(out, count, library, state, context, true)
    }

    fn library_get_module(out: *mut Handle, library: Handle) {
        room_for(out)?;
        let library = library_of(library)?;
        let (state, context) = current()?;
        library.load(state, context)?;
        put(out, library.module(context, false).handle())
    }

    fn library_get_global(address: *mut u64, bytes: *mut usize, library: Handle, name: *const c_char) {
        let name = string(name)?;
        let library = library_of(library)?;
        let (state, context) = current()?;
        let (at, len) = variable_of(state, context, library, &name)?;
        put_opt(address, at);
        put_opt(bytes, len as usize);
        Ok(())
    }

    fn library_get_managed(address: *mut u64, bytes: *mut usize, library: Handle, name: *const c_char) {
        let name = string(name)?;
        let library = library_of(library)?;
        let (state, context) = any_context()?;
        let (at, len) = managed_of(state, context, &*library.load(state, context)?, &name)?;
        put_opt(address, at);
        put_opt(bytes, len as usize);
        Ok(())
    }

    fn library_unified_function(out: *mut *mut c_void, library: Handle, _name: *const c_char) {
        room_for(out)?;
        library_of(library)?;
        Err(CuResult::NotFound.into())
    }

    fn kernel_get_function(out: *mut Handle, kernel: Handle) {
        room_for(out)?;
        let (state, context) = current()?;
        let function = function_of(kernel)?;
        function.resolve(state, context)?;
        function.load_early(state);
        put(out, function.handle())
    }

    fn kernel_get_library(out: *mut Handle, kernel: Handle) {
        room_for(out)?;
        put(out, function_of(kernel)?.library.handle())
    }

    fn function_name(out: *mut *const c_char, function: Handle) {
        room_for(out)?;
        put(out, function_of(function)?.name.as_ptr())
    }

    fn function_module(out: *mut Handle, function: Handle) {
        room_for(out)?;
        let (_, context) = current()?;
        put(out, function_of(function)?.library.module(context, false).handle())
    }

    fn function_param_info(function: Handle, index: usize, offset: *mut usize, bytes: *mut usize) {
        room_for(offset)?;
        let function = function_of(function)?;
        current()?;
        let layout = function.layout()?;
        let Some((at, len)) = layout.params.get(index) else {
            return invalid();
        };
        put_opt(bytes, *len as usize);
        put(offset, *at as usize)
    }

    fn function_param_count(function: Handle, out: *mut usize) {
        let function = function_of(function)?;
        current()?;
        put(out, function.layout()?.params.len())
    }

    fn function_is_loaded(out: *mut u32, function: Handle) {
        room_for(out)?;
        function_of(function)?;
        put(out, 1)
    }

    fn function_load(function: Handle) {
        let (state, context) = current()?;
        function_of(function)?.resolve(state, context).map(drop)
    }

    fn function_get_attribute(out: *mut i32, attribute: u32, function: Handle) {
        room_for(out)?;
        let state = state()?;
        put(out, attribute_of(state, function_of(function)?, attribute)?)
    }

    fn function_set_attribute(function: Handle, attribute: u32, value: i32) {
        let state = state()?;
        set_attribute(state, function_of(function)?, attribute, value)
    }

    fn kernel_get_attribute(out: *mut i32, attribute: u32, kernel: Handle, device: i32) {
        let state = crate::isolated::context::check_device(device)?;
        put(out, attribute_of(state, function_of(kernel)?, attribute)?)
    }

    fn kernel_set_attribute(attribute: u32, value: i32, kernel: Handle, device: i32) {
        let state = crate::isolated::context::check_device(device)?;
        set_attribute(state, function_of(kernel)?, attribute, value)
    }

    fn function_set_config(function: Handle, _config: u32) {
        function_of(function).map(drop)
    }

    fn kernel_set_config(kernel: Handle, _config: u32, device: i32) {
        crate::isolated::context::check_device(device)?;
        function_of(kernel).map(drop)
    }

    fn module_load(out: *mut Handle, path: *const c_char) {
        let (state, context) = current()?;
        let image = read_file(&string(path)?)?;
        put(out, told(load_copied(state, context, image)?)?)
    }

    fn module_load_data(out: *mut Handle, image: *const c_void) {
        if out.is_null() {
            return invalid();
        }
        put(out, told(load_module(image)?)?)
    }

    fn module_load_data_ex(out: *mut Handle, image: *const c_void, count: u32, options: *const u32, values: *const *mut c_void) {
        if out.is_null() {
            return invalid();
        }
        let loaded = load_module(image);
        link::answer_options(count, options, values, loaded.is_err());
        put(out, told(loaded?)?)
    }

    fn module_unload(module: Handle) {
        let (state, module) = module_of(module)?;
        if !module.is_owned {
            return bad_handle();
        }
        objects::gone(ObjectKind::Module, module.handle() as u64);
        module.library.unload(state)
    }

    fn module_get_function(out: *mut Handle, module: Handle, name: *const c_char) {
        // Unlike a library's, a module's handle is looked at first.
        let (state, module) = module_of(module)?;
        room_for(out)?;
        let name = string(name)?;
        let function = module.library.function(state, module.context, &name)?;
        function.load_early(state);
        put(out, function.handle())
    }

    fn module_function_count(out: *mut u32, module: Handle) {
        room_for(out)?;
        let (state, module) = module_of(module)?;
        put(out, module.library.load(state, module.context)?.layouts.len() as u32)
    }

    fn module_enumerate(out: *mut Handle, count: u32, module: Handle) {
        room_for(out)?;
        let (state, module) = module_of(module)?;
        enumerate(out, count, module.library, state, module.context, false)
    }

    fn module_get_global(address: *mut u64, bytes: *mut usize, module: Handle, name: *const c_char) {
        let (state, module) = module_of(module)?;
        let name = string(name)?;
        let (at, len) = variable_of(state, module.context, module.library, &name)?;
        put_opt(address, at);
        put_opt(bytes, len as usize);
        Ok(())
    }
}

/// All functions of a module.
pub(crate) fn functions_of(module: Handle) -> Answer<Vec<Handle>> {
    // SAFETY: a handle of the program, which is looked up.
    let (state, module) = unsafe { module_of(module)? };
    let loaded = module.library.load(state, module.context)?;
    let function = |layout: &KernelLayout| {
        let function = module
            .library
            .function(state, module.context, &layout.name)?;
        Ok(function.handle())
    };
    loaded.layouts.iter().map(function).collect()
}

unsafe fn enumerate(
    out: *mut Handle,
    count: u32,
    library: &'static Library,
    state: &State,
    context: &'static Context,
    as_kernels: bool,
) -> Answer {
    let loaded = library.load(state, context)?;
    for (index, layout) in loaded.layouts.iter().enumerate().take(count as usize) {
        let function = library.function(state, context, &layout.name)?;
        if as_kernels {
            function.is_kernel.store(true, Relaxed);
        }
        // SAFETY: the program says that there is room for `count` handles.
        unsafe { out.add(index).write(function.handle()) };
    }
    Ok(())
}

/// Where a setting of a function's cluster is kept.
fn cluster_setting(function: &Function, attribute: FunctionAttribute) -> &AtomicI32 {
    let first = FunctionAttribute::ClusterSizeMustBeSet as usize;
    &function.cluster[attribute as usize - first]
}

fn attribute_of(state: &State, function: &'static Function, attribute: u32) -> Answer<i32> {
    use FunctionAttribute::*;
    let layout = function.complete_layout(state)?;
    let has_driver = state.client.snapshot().has_driver;
    let Some(attribute) = FunctionAttribute::from_number(attribute) else {
        return invalid();
    };
    Ok(match attribute {
        MaxThreadsPerBlock => layout.max_threads as i32,
        SharedSizeBytes => layout.static_shared as i32,
        ConstSizeBytes => layout.const_bytes as i32,
        LocalSizeBytes => layout.local_bytes as i32,
        NumRegs => layout.registers as i32,
        PtxVersion => layout.ptx_version as i32,
        BinaryVersion => layout.binary_version as i32,
        other if has_driver => function.ask_attribute(state, other as u32)?,
        CacheModeCa => 0,
        MaxDynamicSharedSizeBytes => function.most_dynamic(state)? as i32,
        PreferredSharedMemoryCarveout => function.carveout.load(Relaxed),
        ClusterSizeMustBeSet
        | RequiredClusterWidth
        | RequiredClusterHeight
        | RequiredClusterDepth
        | NonPortableClusterSizeAllowed => cluster_setting(function, attribute).load(Relaxed),
        ClusterSchedulingPolicyPreference | DeviceNodeUpdateSupported | SharedMemoryMode => 0,
    })
}

fn set_attribute(state: &State, function: &'static Function, attribute: u32, value: i32) -> Answer {
    use FunctionAttribute::*;
    let Some(attribute) = FunctionAttribute::from_number(attribute) else {
        return invalid();
    };
    if state.client.snapshot().has_driver {
        function.send_attribute(state, attribute as u32, value)?;
        if attribute == MaxDynamicSharedSizeBytes {
            function.dynamic_limit.store(value, Relaxed);
        }
        return Ok(());
    }
    match attribute {
        MaxDynamicSharedSizeBytes => {
            let most = state.client.snapshot().max_shared_per_block;
            let fixed = function.layout()?.static_shared;
            if value < 0 || value as u32 > most.saturating_sub(fixed) {
                return invalid();
            }
            function.dynamic_limit.store(value, Relaxed);
        }
        PreferredSharedMemoryCarveout if (-1..=100).contains(&value) => {
            function.carveout.store(value, Relaxed);
        }
        RequiredClusterWidth
        | RequiredClusterHeight
        | RequiredClusterDepth
        | NonPortableClusterSizeAllowed
            if value >= 0 =>
        {
            cluster_setting(function, attribute).store(value, Relaxed);
        }
        ClusterSchedulingPolicyPreference => {}
        _ => return invalid(),
    }
    Ok(())
}

entries! {
    cuLibraryLoadData = library_load_data;
    cuLibraryLoadFromFile = library_load_file;
    cuLibraryUnload = library_unload;
    cuLibraryGetKernel = library_get_kernel;
    cuLibraryGetKernelCount = library_kernel_count;
    cuLibraryEnumerateKernels = library_enumerate;
    cuLibraryGetModule = library_get_module;
    cuLibraryGetGlobal = library_get_global;
    cuLibraryGetManaged = library_get_managed;
    cuLibraryGetUnifiedFunction = library_unified_function;
    cuKernelGetFunction = kernel_get_function;
    cuKernelGetLibrary = kernel_get_library;
    cuKernelGetName = function_name;
    cuKernelGetParamInfo = function_param_info;
    cuKernelGetParamCount = function_param_count;
    cuKernelGetAttribute = kernel_get_attribute;
    cuKernelSetAttribute = kernel_set_attribute;
    cuKernelSetCacheConfig = kernel_set_config;
    cuFuncGetName = function_name;
    cuFuncGetModule = function_module;
    cuFuncGetParamInfo = function_param_info;
    cuFuncGetParamCount = function_param_count;
    cuFuncIsLoaded = function_is_loaded;
    cuFuncLoad = function_load;
    cuFuncGetAttribute = function_get_attribute;
    cuFuncSetAttribute = function_set_attribute;
    cuFuncSetCacheConfig = function_set_config;
    cuFuncSetSharedMemConfig = function_set_config;
    cuModuleLoad = module_load;
    cuModuleLoadData = module_load_data;
    cuModuleLoadDataEx = module_load_data_ex;
    cuModuleLoadFatBinary = module_load_data;
    cuModuleUnload = module_unload;
    cuModuleGetFunction = module_get_function;
    cuModuleGetFunctionCount = module_function_count;
    cuModuleEnumerateFunctions = module_enumerate;
    cuModuleGetGlobal_v2 = module_get_global;
}
