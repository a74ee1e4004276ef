//! Code: libraries, modules, kernels and functions.
//!
//! A library is an image that the program handed over; a module is a library in one context. An image
//! travels to the worker when a context first needs something of it, and the answer lists every
//! kernel and variable, so look-ups are answered here. A kernel and a function are one thing: which
//! context a launch means is decided by its stream.

pub(crate) mod calls;
pub(crate) mod link;
pub(crate) mod managed_variables;
pub(crate) mod variables;

use std::collections::{HashMap, HashSet};
use std::ffi::{CString, c_void};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr};
use std::sync::{Arc, Mutex, OnceLock};

use mica_cuda_abi::{CuResult, DeviceAttribute};
use mica_fatbin::{Region, locate};
use mica_ptx::DeclarationKind;
use mica_wire::session::{
    KernelAttribute, KernelDescription, KernelLayout, KernelSetAttribute, LoadedModule,
    ModuleUnload,
};

use crate::isolated::context::Context;
use crate::isolated::handles::{Kind, Object};
use crate::isolated::memory::{Allocation, AllocationKind};
use crate::isolated::state::{State, state};
use crate::isolated::support::{Answer, Code, invalid, lock};
use crate::log;

/// An image.
pub(crate) type Library = Object<LibraryState>;
/// A library in a context.
pub(crate) type Module = Object<ModuleState>;
/// A kernel.
pub(crate) type Function = Object<FunctionState>;

pub(crate) struct LibraryState {
    pub(crate) number: u64,
    image: Mutex<Arc<[u8]>>,
    functions: Mutex<HashMap<String, &'static Function>>,
    modules: Mutex<Vec<&'static Module>>,
    /// Variables that both sides use, once somebody has asked.
    managed: OnceLock<HashSet<String>>,
}

pub(crate) struct ModuleState {
    pub(crate) library: &'static Library,
    pub(crate) context: &'static Context,
    pub(crate) epoch: u64,
    /// Whether the program made it, and not a library's look-up.
    pub(crate) is_owned: bool,
}

/// A library as the worker has loaded it.
pub(crate) struct Loaded {
    pub(crate) module: u64,
    kernels: HashMap<String, u32>,
    pub(crate) layouts: Vec<KernelLayout>,
    /// Variables by name: index, address, bytes.
    pub(crate) globals: Mutex<HashMap<String, (u32, u64, u64)>>,
    /// Names of those that the driver keeps in managed memory.
    pub(crate) managed: HashSet<String>,
}

/// Where a kernel is in one life of a context.
pub(crate) struct Resolved {
    pub(crate) epoch: u64,
    pub(crate) module: u64,
    pub(crate) kernel: u32,
}

pub(crate) struct FunctionState {
    pub(crate) library: &'static Library,
    pub(crate) name: CString,
    layout: OnceLock<KernelLayout>,
    /// The whole layout, once the worker has told it, where the first one was not.
    complete: OnceLock<KernelLayout>,
    /// Attributes that the program has set, for contexts that do not have them yet.
    settings: Mutex<Vec<(u32, i32)>>,
    /// What the worker has answered about it.
    pub(crate) answers: Mutex<Answers>,
    resolved: AtomicPtr<Resolved>,
    /// Dynamic shared memory the program has asked to be allowed; −1 for the default.
    pub(crate) dynamic_limit: AtomicI32,
    pub(crate) carveout: AtomicI32,
    pub(crate) cluster: [AtomicI32; 5],
    /// Whether the program had it as a kernel of a library, and so knows it as one.
    pub(crate) is_kernel: AtomicBool,
}

/// What the worker has answered about a kernel. Libraries ask the same before every launch. A new attribute may
/// change any of it.
#[derive(Default)]
pub(crate) struct Answers {
    /// Attributes by number.
    pub(crate) attributes: HashMap<u32, i32>,
    /// Blocks on a multiprocessor by threads and dynamic shared memory.
    pub(crate) occupancy: HashMap<(u32, u64), u32>,
    /// Clusters by the encoded question.
    pub(crate) clusters: HashMap<Vec<u8>, i32>,
}

/// Questions of one kind that are remembered for a kernel.
pub(crate) const MOST_ANSWERS: usize = 1024;

impl Kind for LibraryState {
    const MAGIC: u64 = 0x4d49_4341_4c49_4231;
}
impl Kind for ModuleState {
    const MAGIC: u64 = 0x4d49_4341_4d4f_4431;
}
impl Kind for FunctionState {
    const MAGIC: u64 = 0x4d49_4341_4655_4e31;
}

/// Copies the image that a pointer of the program leads to.
pub(crate) fn copy_image(image: *const c_void) -> Answer<Arc<[u8]>> {
    if image.is_null() {
        return invalid();
    }
    let regions = locate(&crate::image::read_memory, image as u64).map_err(|error| {
        log::line(&format!("an image cannot be read: {error}"));
        Code(CuResult::InvalidImage as u32)
    })?;
    let bytes = |region: &Region| {
        crate::image::bytes_of(region).ok_or_else(|| {
            let len = region.len;
            log::line(&format!(
                "an image says that it has {len} bytes, which are not all in memory"
            ));
            Code(CuResult::InvalidImage as u32)
        })
    };
    let Some(first) = regions.first() else {
        return Err(CuResult::InvalidImage.into());
    };
    if regions.len() > 1 {
        let state = state()?;
        let images: Vec<&[u8]> = regions.iter().map(bytes).collect::<Answer<_>>()?;
        let texts: Vec<String> = images
            .iter()
            .filter_map(|image| link::ptx_of(state, image))
            .collect();
        if texts.is_empty() {
            return Err(CuResult::NoBinaryForGpu.into());
        }
        return Ok(link::join(&texts)?.into_bytes().into());
    }
    let first = bytes(first)?;
    let is_binary = [0x50, 0xb1, 0x7f, b'!'].contains(first.first().unwrap_or(&0));
    let has_version = || first.windows(8).any(|word| word == b".version");
    if !is_binary && !has_version() {
        return Err(CuResult::InvalidImage.into());
    }
    Ok(first.into())
}

/// Variables of a text that both sides use.
fn managed_names(text: &str) -> HashSet<String> {
    let outline = mica_ptx::outline(text.as_bytes()).unwrap_or_default();
    let managed = |kind| matches!(kind, DeclarationKind::Variable { managed: true, .. });
    let declared = outline.declarations.into_iter();
    declared
        .filter(|declared| managed(declared.kind))
        .map(|declared| declared.name)
        .collect()
}

/// A library of an image.
pub(crate) fn new_library(state: &State, image: Arc<[u8]>) -> &'static Library {
    Object::leak(LibraryState {
        number: state.number(),
        image: Mutex::new(image),
        functions: Mutex::default(),
        modules: Mutex::default(),
        managed: OnceLock::new(),
    })
}

impl Library {
    /// Whether a variable is one that both sides use, as its text says.
    pub(crate) fn is_managed(&self, state: &State, name: &str) -> bool {
        let names = self.managed.get_or_init(|| {
            let image = Arc::clone(&lock(&self.image));
            let text = link::ptx_of(state, &image).unwrap_or_default();
            managed_names(&text)
        });
        names.contains(name)
    }

    /// Loads it into a context, once for each of the context's lives.
    pub(crate) fn load(&self, state: &State, context: &'static Context) -> Answer<Arc<Loaded>> {
        let mut all = lock(&context.loaded);
        if let Some(loaded) = all.get(&self.number) {
            return Ok(Arc::clone(loaded));
        }
        let image = Arc::clone(&lock(&self.image));
        let exact = mica_limits::memcheck();
        let answer = state.client.module_load(context.wire(), &image, exact);
        let loaded = Arc::new(Loaded::new(context.checked(answer)?));
        let globals = lock(&loaded.globals).clone();
        for (name, (_, address, bytes)) in globals {
            let mut kind = AllocationKind::Global;
            if loaded.managed.contains(&name) {
                kind = AllocationKind::ManagedGlobal;
                let added = managed_variables::add(state, context, &name, (address, bytes));
                if let Err(error) = added {
                    loaded.forget(state);
                    let module = loaded.module;
                    context.checked(state.client.call(&ModuleUnload { module }))?;
                    return Err(error);
                }
            }
            let made = Allocation::new(kind, address, bytes, context, state.number());
            state.memory.insert(made);
        }
        all.insert(self.number, Arc::clone(&loaded));
        Ok(loaded)
    }

    /// The kernel with a name.
    pub(crate) fn function(
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
                complete: OnceLock::new(),
                settings: Mutex::default(),
                answers: Mutex::default(),
                resolved: AtomicPtr::new(std::ptr::null_mut()),
                dynamic_limit: AtomicI32::new(-1),
                carveout: AtomicI32::new(-1),
                cluster: Default::default(),
                is_kernel: AtomicBool::new(false),
            })
        });
        Ok(function)
    }

    /// It as a module of a context.
    pub(crate) fn module(
        &'static self,
        context: &'static Context,
        is_owned: bool,
    ) -> &'static Module {
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

    /// Unloads it from every context.
    pub(crate) fn unload(&self, state: &State) -> Answer {
        self.retire();
        for (_, function) in lock(&self.functions).drain() {
            function.retire();
        }
        *lock(&self.image) = Arc::new([]);
        let mut result = Ok(());
        let mut contexts: Vec<&'static Context> = vec![state.primary];
        contexts.extend(crate::isolated::context::peek());
        for module in lock(&self.modules).drain(..) {
            module.retire();
            contexts.push(module.context);
        }
        for context in contexts {
            let Some(loaded) = lock(&context.loaded).remove(&self.number) else {
                continue;
            };
            loaded.forget(state);
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
    /// Takes its variables off the map.
    fn forget(&self, state: &State) {
        let kinds = [AllocationKind::Global, AllocationKind::ManagedGlobal];
        let globals: Vec<u64> = lock(&self.globals)
            .values()
            .map(|global| global.1)
            .collect();
        for address in globals {
            state.memory.take(address, &kinds);
            managed_variables::remove(address);
        }
    }

    fn new(loaded: LoadedModule) -> Self {
        let kernels = loaded.kernels.iter().enumerate();
        let global = |(index, global): (usize, mica_wire::session::GlobalLayout)| {
            (global.name, (index as u32, global.address, global.bytes))
        };
        let managed = loaded.globals.iter().filter(|global| global.is_managed);
        let managed = managed.map(|global| global.name.clone()).collect();
        let globals = loaded.globals.into_iter().enumerate();
        Self {
            module: loaded.module,
            managed,
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
    pub(crate) fn layout(&self) -> Answer<&KernelLayout> {
        self.layout
            .get()
            .ok_or(Code(CuResult::InvalidHandle as u32))
    }

    /// Its layout with everything that the device knows of it.
    #[inline]
    pub(crate) fn complete_layout(&'static self, state: &State) -> Answer<&'static KernelLayout> {
        let layout = self.layout()?;
        if layout.is_complete {
            return Ok(layout);
        }
        match self.complete.get() {
            Some(complete) => Ok(complete),
            None => self.ask_layout(state),
        }
    }

    /// Whether all is known of it that a launch is checked against.
    #[inline]
    pub(crate) fn is_known(&self) -> bool {
        self.complete.get().is_some() || self.layout.get().is_some_and(|layout| layout.is_complete)
    }

    /// Has a driver load the kernel, as it does where a program takes a kernel's handle from a module.
    pub(crate) fn load_early(&'static self, state: &State) {
        // A kernel that cannot be loaded is refused when it is launched.
        let _ = self.complete_layout(state);
    }

    #[cold]
    fn ask_layout(&'static self, state: &State) -> Answer<&'static KernelLayout> {
        let (_, context) = crate::isolated::context::any_context()?;
        let Resolved { module, kernel, .. } = *self.resolve(state, context)?;
        let answer = state.client.call(&KernelDescription { module, kernel });
        let complete = context.checked(answer)?;
        Ok(self.complete.get_or_init(|| complete))
    }

    /// An attribute, as the driver in the worker has it.
    pub(crate) fn ask_attribute(&'static self, state: &State, attribute: u32) -> Answer<i32> {
        if let Some(known) = lock(&self.answers).attributes.get(&attribute) {
            return Ok(*known);
        }
        let (_, context) = crate::isolated::context::any_context()?;
        let Resolved { module, kernel, .. } = *self.resolve(state, context)?;
        let request = KernelAttribute {
            module,
            kernel,
            attribute,
        };
        let value = context.checked(state.client.call(&request))?.value;
        lock(&self.answers).attributes.insert(attribute, value);
        Ok(value)
    }

    /// Sets an attribute with the driver in the worker; contexts that come to know the kernel later get it then.
    pub(crate) fn send_attribute(
        &'static self,
        state: &State,
        attribute: u32,
        value: i32,
    ) -> Answer {
        let (_, context) = crate::isolated::context::any_context()?;
        let resolved = self.resolve(state, context)?;
        // Every context that knows the kernel has its settings.
        if lock(&self.settings).contains(&(attribute, value)) {
            return Ok(());
        }
        self.apply(state, context, resolved, (attribute, value))?;
        let mut settings = lock(&self.settings);
        settings.retain(|(known, _)| *known != attribute);
        settings.push((attribute, value));
        *lock(&self.answers) = Answers::default();
        Ok(())
    }

    fn apply(
        &self,
        state: &State,
        context: &'static Context,
        resolved: &Resolved,
        (attribute, value): (u32, i32),
    ) -> Answer {
        let request = KernelSetAttribute {
            module: resolved.module,
            kernel: resolved.kernel,
            attribute,
            value,
        };
        context.checked(state.client.call(&request)).map(drop)
    }

    /// Where it is in a context's present life.
    #[inline]
    pub(crate) fn resolve(
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
        let settings = lock(&self.settings).clone();
        for setting in settings {
            self.apply(state, context, resolved, setting)?;
        }
        let pointer = std::ptr::from_ref(resolved).cast_mut();
        self.resolved.store(pointer, Release);
        Ok(resolved)
    }

    /// Most dynamic shared memory that a launch may ask for.
    #[inline]
    pub(crate) fn most_dynamic(&'static self, state: &State) -> Answer<u32> {
        let most = self.most_shared(state);
        if self.dynamic_limit.load(Relaxed) >= 0 {
            return Ok(most);
        }
        let fixed = self.complete_layout(state)?.static_shared;
        Ok(most.saturating_sub(fixed))
    }

    /// The same, as far as it is known without a look at the kernel.
    #[inline]
    pub(crate) fn most_shared(&self, state: &State) -> u32 {
        let set = self.dynamic_limit.load(Relaxed);
        if set >= 0 {
            return set as u32;
        }
        let default = state.attribute(DeviceAttribute::MaxSharedMemoryPerBlock);
        default.unwrap_or(48 << 10) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn managed_variables_are_found() {
        let text = ".version 8.0\n.target sm_80\n.visible .global .attribute(.managed) .align 4 .b32 total;\n.global .attribute( .managed ) .align 8 .b8 table[16] = {1, 2}, other;\n.global .u32 plain; // .managed\n.visible .entry k() { ret; }";
        let names = managed_names(text);
        assert_eq!(names, ["total", "table", "other"].map(String::from).into());
    }
}
