//! Code: libraries, modules, kernels and functions.
//!
//! A library is an image that the program handed over; a module is a library in one context. An image
//! travels to the worker when a context first needs something of it, and the answer lists every
//! kernel and variable, so look-ups are answered here. A kernel and a function are one thing: which
//! context a launch means is decided by its stream.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_void};
use std::sync::atomic::AtomicI32;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, OnceLock};

use mica_cuda_abi::{CuResult, Handle};
use mica_fatbin::{Region, locate};
use mica_wire::session::{KernelLayout, LoadedModule, ModuleBind, ModuleUnload};

use super::context::{Context, any_context, current};
use super::handles::{Kind, Object};
use super::link;
use super::memory::{Allocation, AllocationKind};
use super::state::{State, state};
use super::support::{
    Answer, Code, bad_handle, driver, entries, invalid, lock, put, put_opt, string,
};
use crate::log;

/// An image.
pub(super) type Library = Object<LibraryState>;
/// A library in a context.
pub(super) type Module = Object<ModuleState>;
/// A kernel.
pub(super) type Function = Object<FunctionState>;

pub(super) struct LibraryState {
    pub(super) number: u64,
    image: Mutex<Arc<[u8]>>,
    functions: Mutex<HashMap<String, &'static Function>>,
    modules: Mutex<Vec<&'static Module>>,
}

pub(super) struct ModuleState {
    library: &'static Library,
    context: &'static Context,
    epoch: u64,
    /// Whether the program made it, and not a library's look-up.
    is_owned: bool,
}

/// A library as the worker has loaded it.
pub(super) struct Loaded {
    pub(super) module: u64,
    kernels: HashMap<String, u32>,
    layouts: Vec<KernelLayout>,
    /// Variables by name: index, address, bytes.
    globals: Mutex<HashMap<String, (u32, u64, u64)>>,
}

/// Where a kernel is in one life of a context.
pub(super) struct Resolved {
    pub(super) epoch: u64,
    pub(super) module: u64,
    pub(super) kernel: u32,
}

pub(super) struct FunctionState {
    pub(super) library: &'static Library,
    pub(super) name: CString,
    layout: OnceLock<KernelLayout>,
    resolved: AtomicPtr<Resolved>,
    /// Dynamic shared memory the program has asked to be allowed; −1 for the default.
    pub(super) dynamic_limit: AtomicI32,
    carveout: AtomicI32,
    cluster: [AtomicI32; 5],
}

impl Kind for LibraryState {
    const MAGIC: u64 = 0x4d49_4341_4c49_4231;
}
impl Kind for ModuleState {
    const MAGIC: u64 = 0x4d49_4341_4d4f_4431;
}
impl Kind for FunctionState {
    const MAGIC: u64 = 0x4d49_4341_4655_4e31;
}

/// Reads the program's memory up to the end of a page.
fn read_memory(address: u64, into: &mut [u8]) -> usize {
    const PAGE: u64 = 4096;
    if address < PAGE {
        return 0;
    }
    let len = (into.len() as u64).min(PAGE - address % PAGE) as usize;
    // SAFETY: the program says that an image is here, and a page is readable as a whole.
    unsafe { std::ptr::copy_nonoverlapping(address as *const u8, into.as_mut_ptr(), len) };
    len
}

/// Copies the image that a pointer of the program leads to.
fn copy_image(image: *const c_void) -> Answer<Arc<[u8]>> {
    if image.is_null() {
        return invalid();
    }
    let regions = locate(&read_memory, image as u64).map_err(|error| {
        log::line(&format!("an image cannot be read: {error}"));
        Code(CuResult::InvalidImage as u32)
    })?;
    let bytes = |region: &Region| {
        // SAFETY: the image's own headers say that it is so long.
        unsafe { std::slice::from_raw_parts(region.address as *const u8, region.len as usize) }
    };
    let Some(first) = regions.first() else {
        return Err(CuResult::InvalidImage.into());
    };
    if regions.len() > 1 {
        let state = state()?;
        let texts: Vec<String> = regions
            .iter()
            .filter_map(|region| link::ptx_of(state, bytes(region)))
            .collect();
        if texts.is_empty() {
            return Err(CuResult::NoBinaryForGpu.into());
        }
        return Ok(link::join(&texts)?.into_bytes().into());
    }
    let first = bytes(first);
    let is_binary = [0x50, 0xb1, 0x7f, b'!'].contains(first.first().unwrap_or(&0));
    let has_version = || first.windows(8).any(|word| word == b".version");
    if !is_binary && !has_version() {
        return Err(CuResult::InvalidImage.into());
    }
    Ok(first.into())
}

/// A library of an image.
pub(super) fn new_library(state: &State, image: Arc<[u8]>) -> &'static Library {
    Object::leak(LibraryState {
        number: state.number(),
        image: Mutex::new(image),
        functions: Mutex::default(),
        modules: Mutex::default(),
    })
}

impl Library {
    /// Loads it into a context, once for each of the context's lives.
    pub(super) fn load(&self, state: &State, context: &'static Context) -> Answer<Arc<Loaded>> {
        let mut all = lock(&context.loaded);
        if let Some(loaded) = all.get(&self.number) {
            return Ok(Arc::clone(loaded));
        }
        let image = Arc::clone(&lock(&self.image));
        let answer = state.client.module_load(context.wire(), &image, false);
        let loaded = Arc::new(Loaded::new(context.checked(answer)?));
        for (_, address, bytes) in lock(&loaded.globals).values() {
            let id = state.number();
            let made = Allocation::new(AllocationKind::Global, *address, *bytes, context, id);
            state.memory.insert(made);
        }
        all.insert(self.number, Arc::clone(&loaded));
        Ok(loaded)
    }

    /// The kernel with a name.
    fn function(
        &'static self,
        state: &State,
        context: &'static Context,
        name: &str,
    ) -> Answer<&'static Function> {
        if let Some(function) = lock(&self.functions).get(name) {
            return Ok(function);
        }
        let loaded = self.load(state, context)?;
        let Some(index) = loaded.kernels.get(name) else {
            return Err(CuResult::NotFound.into());
        };
        let layout = loaded.layouts[*index as usize].clone();
        let mut functions = lock(&self.functions);
        let function = functions.entry(name.to_owned()).or_insert_with(|| {
            Object::leak(FunctionState {
                library: self,
                name: CString::new(name).unwrap_or_default(),
                layout: OnceLock::from(layout),
                resolved: AtomicPtr::new(std::ptr::null_mut()),
                dynamic_limit: AtomicI32::new(-1),
                carveout: AtomicI32::new(-1),
                cluster: Default::default(),
            })
        });
        Ok(function)
    }

    /// It as a module of a context.
    fn module(&'static self, context: &'static Context, is_owned: bool) -> &'static Module {
        let mut modules = lock(&self.modules);
        let same = |module: &&&'static Module| {
            module.epoch == context.epoch() && std::ptr::eq(module.context, context)
        };
        if let Some(module) = modules.iter().find(same) {
            return module;
        }
        let module = Object::leak(ModuleState {
            library: self,
            context,
            epoch: context.epoch(),
            is_owned,
        });
        modules.push(module);
        module
    }

    fn unload(&self, state: &State) -> Answer {
        self.retire();
        for (_, function) in lock(&self.functions).drain() {
            function.retire();
        }
        *lock(&self.image) = Arc::new([]);
        let mut result = Ok(());
        let mut contexts: Vec<&'static Context> = vec![state.primary];
        contexts.extend(super::context::peek());
        for module in lock(&self.modules).drain(..) {
            module.retire();
            contexts.push(module.context);
        }
        for context in contexts {
            let Some(loaded) = lock(&context.loaded).remove(&self.number) else {
                continue;
            };
            for (_, address, _) in lock(&loaded.globals).values() {
                state.memory.take(*address, &[AllocationKind::Global]);
            }
            let unloaded = state.client.call(&ModuleUnload {
                module: loaded.module,
            });
            state.print_output();
            if let Err(error) = context.checked(unloaded) {
                result = Err(error);
            }
        }
        result
    }
}

impl Loaded {
    fn new(loaded: LoadedModule) -> Self {
        let kernels = loaded.kernels.iter().enumerate();
        let globals = loaded.globals.into_iter().enumerate();
        let global = |(index, global): (usize, mica_wire::session::GlobalLayout)| {
            (global.name, (index as u32, global.address, global.bytes))
        };
        Self {
            module: loaded.module,
            kernels: kernels
                .map(|(index, kernel)| (kernel.name.clone(), index as u32))
                .collect(),
            globals: Mutex::new(globals.map(global).collect()),
            layouts: loaded.kernels,
        }
    }
}

impl Function {
    /// What a launch needs to know of it.
    #[inline]
    pub(super) fn layout(&self) -> Answer<&KernelLayout> {
        self.layout
            .get()
            .ok_or(Code(CuResult::InvalidHandle as u32))
    }

    /// Where it is in a context's present life.
    #[inline]
    pub(super) fn resolve(
        &'static self,
        state: &State,
        context: &'static Context,
    ) -> Answer<&'static Resolved> {
        let resolved = self.resolved.load(Acquire);
        // SAFETY: null, or leaked by `find_again`.
        if let Some(resolved) = unsafe { resolved.as_ref() }
            && resolved.epoch == context.epoch()
        {
            return Ok(resolved);
        }
        self.find_again(state, context)
    }

    #[cold]
    fn find_again(
        &'static self,
        state: &State,
        context: &'static Context,
    ) -> Answer<&'static Resolved> {
        let epoch = context.epoch();
        let loaded = self.library.load(state, context)?;
        let name = self.name.to_str().unwrap_or("");
        let kernel = *loaded
            .kernels
            .get(name)
            .ok_or(Code(CuResult::NotFound as u32))?;
        // Leaked: another thread may be reading it, and there is one for each life of a context.
        let resolved: &'static Resolved = Box::leak(Box::new(Resolved {
            epoch,
            module: loaded.module,
            kernel,
        }));
        let pointer = std::ptr::from_ref(resolved).cast_mut();
        self.resolved.store(pointer, Release);
        Ok(resolved)
    }

    /// Most dynamic shared memory that a launch may ask for.
    pub(super) fn most_dynamic(&self, state: &State) -> u32 {
        let set = self
            .dynamic_limit
            .load(std::sync::atomic::Ordering::Relaxed);
        if set >= 0 {
            return set as u32;
        }
        let fixed = self.layout.get().map_or(0, |layout| layout.static_shared);
        let default = state.attribute(8).unwrap_or(48 << 10) as u32;
        default.saturating_sub(fixed)
    }
}

/// The function of a handle, be it called a function or a kernel.
pub(super) unsafe fn function_of(handle: Handle) -> Answer<&'static Function> {
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
pub(super) fn load_module(image: *const c_void) -> Answer<Handle> {
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

fn globals_of(loaded: &Loaded, name: &str) -> Answer<(u64, u64)> {
    let found = lock(&loaded.globals).get(name).copied();
    let found = found.map(|(_, address, bytes)| (address, bytes));
    found.ok_or(Code(CuResult::NotFound as u32))
}

/// A variable that both sides use: moved to shared memory when it is first asked for.
fn managed_of(
    state: &'static State,
    context: &'static Context,
    loaded: &Loaded,
    name: &str,
) -> Answer<(u64, u64)> {
    let mut globals = lock(&loaded.globals);
    let global = globals
        .get_mut(name)
        .ok_or(Code(CuResult::NotFound as u32))?;
    let (index, address, bytes) = *global;
    if state.memory.find_host(address).is_some() {
        return Ok((address, bytes));
    }
    let shared = super::host::allocate_managed(state, context, bytes as usize)?;
    let request = ModuleBind {
        module: loaded.module,
        global: index,
        address: shared,
    };
    if let Err(error) = context.checked(state.client.call(&request)) {
        if let Some(made) = state.memory.take(shared, &[AllocationKind::Managed]) {
            super::host::release(state, &made)?;
        }
        return Err(error);
    }
    state.memory.take(address, &[AllocationKind::Global]);
    *global = (index, shared, bytes);
    Ok((shared, bytes))
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
        put(out, library.function(state, context, &name)?.handle())
    }

    fn library_kernel_count(out: *mut u32, library: Handle) {
        let library = library_of(library)?;
        let (state, context) = any_context()?;
        put(out, library.load(state, context)?.layouts.len() as u32)
    }

    fn library_enumerate(out: *mut Handle, count: u32, library: Handle) {
        let library = library_of(library)?;
        let (state, context) = any_context()?;
        enumerate(out, count, library, state, context)
    }

    fn library_get_module(out: *mut Handle, library: Handle) {
        let library = library_of(library)?;
        let (state, context) = current()?;
        library.load(state, context)?;
        put(out, library.module(context, false).handle())
    }

    fn library_get_global(address: *mut u64, bytes: *mut usize, library: Handle, name: *const c_char) {
        let name = string(name)?;
        let library = library_of(library)?;
        let (state, context) = current()?;
        let (at, len) = globals_of(&*library.load(state, context)?, &name)?;
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

    fn library_unified_function(_out: *mut *mut c_void, library: Handle, _name: *const c_char) {
        library_of(library)?;
        Err(CuResult::NotFound.into())
    }

    fn kernel_get_function(out: *mut Handle, kernel: Handle) {
        let (state, context) = current()?;
        let function = function_of(kernel)?;
        function.resolve(state, context)?;
        put(out, function.handle())
    }

    fn kernel_get_library(out: *mut Handle, kernel: Handle) {
        put(out, function_of(kernel)?.library.handle())
    }

    fn function_name(out: *mut *const c_char, function: Handle) {
        put(out, function_of(function)?.name.as_ptr())
    }

    fn function_module(out: *mut Handle, function: Handle) {
        let (_, context) = current()?;
        put(out, function_of(function)?.library.module(context, false).handle())
    }

    fn function_param_info(function: Handle, index: usize, offset: *mut usize, bytes: *mut usize) {
        let layout = function_of(function)?.layout()?;
        let Some((at, len)) = layout.params.get(index) else {
            return invalid();
        };
        put_opt(bytes, *len as usize);
        put(offset, *at as usize)
    }

    fn function_param_count(function: Handle, out: *mut usize) {
        put(out, function_of(function)?.layout()?.params.len())
    }

    fn function_is_loaded(out: *mut u32, function: Handle) {
        function_of(function)?;
        put(out, 1)
    }

    fn function_load(function: Handle) {
        let (state, context) = current()?;
        function_of(function)?.resolve(state, context).map(drop)
    }

    fn function_get_attribute(out: *mut i32, attribute: u32, function: Handle) {
        let state = state()?;
        put(out, attribute_of(state, function_of(function)?, attribute)?)
    }

    fn function_set_attribute(function: Handle, attribute: u32, value: i32) {
        let state = state()?;
        set_attribute(state, function_of(function)?, attribute, value)
    }

    fn kernel_get_attribute(out: *mut i32, attribute: u32, kernel: Handle, device: i32) {
        let state = super::context::check_device(device)?;
        put(out, attribute_of(state, function_of(kernel)?, attribute)?)
    }

    fn kernel_set_attribute(attribute: u32, value: i32, kernel: Handle, device: i32) {
        let state = super::context::check_device(device)?;
        set_attribute(state, function_of(kernel)?, attribute, value)
    }

    fn function_set_config(function: Handle, _config: u32) {
        function_of(function).map(drop)
    }

    fn kernel_set_config(kernel: Handle, _config: u32, device: i32) {
        super::context::check_device(device)?;
        function_of(kernel).map(drop)
    }

    fn module_load(out: *mut Handle, path: *const c_char) {
        let (state, context) = current()?;
        let image = read_file(&string(path)?)?;
        put(out, load_copied(state, context, image)?)
    }

    fn module_load_data(out: *mut Handle, image: *const c_void) {
        if out.is_null() {
            return invalid();
        }
        put(out, load_module(image)?)
    }

    fn module_load_data_ex(out: *mut Handle, image: *const c_void, count: u32, options: *const u32, values: *const *mut c_void) {
        if out.is_null() {
            return invalid();
        }
        let loaded = load_module(image);
        link::answer_options(count, options, values, loaded.is_err());
        put(out, loaded?)
    }

    fn module_unload(module: Handle) {
        let (state, module) = module_of(module)?;
        if !module.is_owned {
            return bad_handle();
        }
        module.library.unload(state)
    }

    fn module_get_function(out: *mut Handle, module: Handle, name: *const c_char) {
        let name = string(name)?;
        let (state, module) = module_of(module)?;
        put(out, module.library.function(state, module.context, &name)?.handle())
    }

    fn module_function_count(out: *mut u32, module: Handle) {
        let (state, module) = module_of(module)?;
        put(out, module.library.load(state, module.context)?.layouts.len() as u32)
    }

    fn module_enumerate(out: *mut Handle, count: u32, module: Handle) {
        let (state, module) = module_of(module)?;
        enumerate(out, count, module.library, state, module.context)
    }

    fn module_get_global(address: *mut u64, bytes: *mut usize, module: Handle, name: *const c_char) {
        let name = string(name)?;
        let (state, module) = module_of(module)?;
        let (at, len) = globals_of(&*module.library.load(state, module.context)?, &name)?;
        put_opt(address, at);
        put_opt(bytes, len as usize);
        Ok(())
    }
}

unsafe fn enumerate(
    out: *mut Handle,
    count: u32,
    library: &'static Library,
    state: &State,
    context: &'static Context,
) -> Answer {
    if out.is_null() {
        return invalid();
    }
    let loaded = library.load(state, context)?;
    for (index, layout) in loaded.layouts.iter().enumerate().take(count as usize) {
        let function = library.function(state, context, &layout.name)?;
        // SAFETY: the program says that there is room for `count` handles.
        unsafe { out.add(index).write(function.handle()) };
    }
    Ok(())
}

fn attribute_of(state: &State, function: &Function, attribute: u32) -> Answer<i32> {
    use std::sync::atomic::Ordering::Relaxed;
    let layout = function.layout()?;
    Ok(match attribute {
        0 => layout.max_threads as i32,
        1 => layout.static_shared as i32,
        2 => layout.const_bytes as i32,
        3 => layout.local_bytes as i32,
        4 => layout.registers as i32,
        5 => layout.ptx_version as i32,
        6 => layout.binary_version as i32,
        7 => 0,
        8 => function.most_dynamic(state) as i32,
        9 => function.carveout.load(Relaxed),
        10..=14 => function.cluster[attribute as usize - 10].load(Relaxed),
        15..=17 => 0,
        _ => return invalid(),
    })
}

fn set_attribute(state: &State, function: &Function, attribute: u32, value: i32) -> Answer {
    use std::sync::atomic::Ordering::Relaxed;
    match attribute {
        8 => {
            let most = state.client.snapshot().max_shared_per_block;
            let fixed = function.layout()?.static_shared;
            if value < 0 || value as u32 > most.saturating_sub(fixed) {
                return invalid();
            }
            function.dynamic_limit.store(value, Relaxed);
        }
        9 if (-1..=100).contains(&value) => function.carveout.store(value, Relaxed),
        11..=14 if value >= 0 => function.cluster[attribute as usize - 10].store(value, Relaxed),
        15 => {}
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
