//! Modules: loading, what they hold, launching their kernels.

use std::ffi::{CStr, CString, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use mica_cuda_abi::{CuResult, FunctionAttribute, JitOption, LaunchAttributeRecord, LaunchConfig};
use mica_gpu::{
    ClusterQuestion, ContextId, DevicePtr, GlobalDescription, GpuError, KernelDescription, Launch,
    LaunchAttribute, ModuleId, ModuleInfo, ParamLayout, Result, StreamId,
};

use super::known_ranges;
use super::last_launch::LaunchEnds;
use super::saved::stateful;
use super::{Address, Context, CudaGpu, image, invalid, stale};
use crate::driver::{Raw, answer};

/// Shared memory a kernel may have without being allowed more.
const SHARED_WITHOUT_OPT_IN: u32 = 48 * 1024;
/// Parameters passed without allocating.
const FEW_PARAMS: usize = 32;
/// Kernels of a module that are all loaded with it. A library has thousands of them, and a program uses few.
const FEW_KERNELS: usize = 16;

/// `cuFuncGetParamInfo`.
type ParameterOf = unsafe extern "C" fn(Raw, usize, *mut usize, *mut usize) -> u32;

/// The parameters of a kernel, by the driver's own account.
fn parameters(kernel: Raw, parameter: ParameterOf) -> Result<Vec<ParamLayout>> {
    let mut params = Vec::new();
    loop {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: writes two numbers; past the last parameter the driver refuses.
        let code = unsafe { parameter(kernel, params.len(), &mut offset, &mut size) };
        if code == CuResult::InvalidValue as u32 {
            return Ok(params);
        }
        answer("cuFuncGetParamInfo", code)?;
        params.push(ParamLayout {
            offset: offset as u32,
            size: size as u32,
        });
    }
}

/// A loaded module.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) context: Arc<Context>,
    raw: Address,
    kernels: Vec<Kernel>,
    /// Names that may be variables, and whether the image says that they are managed.
    names: Vec<(String, bool)>,
    info: OnceLock<ModuleInfo>,
    /// What its kernels keep in the driver alone, in words.
    pub(super) stateful: Option<&'static str>,
}

#[derive(Debug)]
struct Kernel {
    raw: Address,
    name: String,
    params: Vec<ParamLayout>,
    params_bytes: usize,
    /// Dynamic shared memory that it may have.
    allowed_shared: AtomicU32,
}

impl CudaGpu {
    pub(super) fn module(&self, id: ModuleId) -> Result<Arc<Module>> {
        self.modules.get(id.0).ok_or_else(|| stale("module", id.0))
    }

    pub(super) fn load(&self, context: ContextId, image: &[u8]) -> Result<ModuleId> {
        let context = self.context(context)?;
        let bytes = image::checked(image)?;
        let raw = self.load_raw(&context, &bytes)?;
        let (major, minor) = self.properties.compute_capability;
        let module = self.kernels(&context, raw).map(|kernels| Module {
            context: context.clone(),
            raw: raw as Address,
            kernels,
            names: image::possible_globals(image, major * 10 + minor),
            info: OnceLock::new(),
            stateful: match self.own_space() {
                Some(_) => stateful(&image::missing_functions(image, major * 10 + minor)),
                None => None,
            },
        });
        match module {
            Ok(module) => {
                self.load_few(&module);
                Ok(ModuleId(self.modules.add(Arc::new(module))))
            }
            Err(error) => {
                // SAFETY: loaded above and known to nobody.
                unsafe { (self.driver.functions.module_unload)(raw) };
                Err(error)
            }
        }
    }

    /// Loads the kernels of a small module, each of which takes some 40 µs. Where the driver loads a kernel while others run,
    /// all that waits for the default stream afterwards waits for them too, but for the driver's own synchronous copies.
    fn load_few(&self, module: &Module) {
        let Some(load) = self.driver.functions.function_load else {
            return;
        };
        if module.kernels.len() > FEW_KERNELS || self.enter(&module.context).is_err() {
            return;
        }
        for kernel in &module.kernels {
            // One that cannot be loaded is refused when it is used.
            // SAFETY: the driver's own handle, in its module's context.
            let _ = unsafe { load(kernel.raw as Raw) };
        }
    }

    fn load_raw(&self, context: &Context, bytes: &[u8]) -> Result<Raw> {
        let mut log = vec![0_u8; 8192];
        let mut options = [
            JitOption::ErrorLogBuffer as c_uint,
            JitOption::ErrorLogBufferSizeBytes as c_uint,
        ];
        // The size travels in a pointer's place, as the driver wants it.
        let mut values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
        let mut raw: Raw = std::ptr::null_mut();
        // SAFETY: the image is whole and ended with zeros; the log has the length passed.
        let result = self.call(context, "cuModuleLoadDataEx", || unsafe {
            (self.driver.functions.module_load)(
                &mut raw,
                bytes.as_ptr().cast(),
                options.len() as c_uint,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        });
        result.map(|()| raw).map_err(|mut error| {
            let end = log.iter().position(|b| *b == 0).unwrap_or(log.len());
            let log = String::from_utf8_lossy(&log[..end]);
            if !log.trim().is_empty() {
                error.message = format!("{}: {}", error.message, log.trim());
            }
            error
        })
    }

    /// The kernels of a module, by the driver's own account.
    fn kernels(&self, context: &Context, module: Raw) -> Result<Vec<Kernel>> {
        let functions = &self.driver.functions;
        let (Some(count_of), Some(list), Some(name_of), Some(parameter)) = (
            functions.module_function_count,
            functions.module_functions,
            functions.function_name,
            functions.function_parameter,
        ) else {
            return Err(GpuError::new(
                CuResult::CallRequiresNewerDriver,
                "loading modules needs a driver for CUDA 12.4 or newer, which lists their kernels",
            ));
        };
        let mut count = 0;
        // SAFETY: writes one number.
        self.call(context, "cuModuleGetFunctionCount", || unsafe {
            count_of(&mut count, module)
        })?;
        let mut raws: Vec<Raw> = vec![std::ptr::null_mut(); count as usize];
        if count > 0 {
            // SAFETY: there is room for `count` handles.
            self.call(context, "cuModuleEnumerateFunctions", || unsafe {
                list(raws.as_mut_ptr(), count, module)
            })?;
        }
        let mut kernels = Vec::with_capacity(raws.len());
        for raw in raws {
            let mut name = std::ptr::null();
            // SAFETY: writes one pointer to a name that lives as long as the module.
            answer("cuFuncGetName", unsafe { name_of(&mut name, raw) })?;
            if name.is_null() {
                continue;
            }
            // SAFETY: a terminated string, by the driver's word.
            let name = unsafe { CStr::from_ptr(name) }
                .to_string_lossy()
                .into_owned();
            let params = parameters(raw, parameter)?;
            let end = |p: &ParamLayout| p.offset as usize + p.size as usize;
            kernels.push(Kernel {
                raw: raw as Address,
                name,
                params_bytes: params.iter().map(end).max().unwrap_or(0),
                params,
                allowed_shared: AtomicU32::new(SHARED_WITHOUT_OPT_IN),
            });
        }
        Ok(kernels)
    }

    pub(super) fn unload(&self, id: ModuleId) -> Result<()> {
        let removed = self.modules.remove(id.0);
        let module = removed.ok_or_else(|| stale("module", id.0))?;
        // They name kernels of the module.
        self.end_rows(&module.context);
        let _gone = known_ranges::giving_back();
        // SAFETY: loaded by us and out of the table.
        self.call(&module.context, "cuModuleUnload", || unsafe {
            (self.driver.functions.module_unload)(module.raw as Raw)
        })
    }

    pub(super) fn describe(&self, id: ModuleId) -> Result<ModuleInfo> {
        let module = self.module(id)?;
        if let Some(info) = module.info.get() {
            return Ok(info.clone());
        }
        self.enter(&module.context)?;
        let mut info = ModuleInfo::default();
        for kernel in &module.kernels {
            info.kernels.push(KernelDescription {
                name: kernel.name.clone(),
                params: kernel.params.clone(),
                static_shared: 0,
                local_bytes: 0,
                const_bytes: 0,
                registers: 0,
                max_threads: 0,
                ptx_version: 0,
                binary_version: 0,
                // The driver would load each kernel to tell more: a library has thousands.
                is_complete: false,
            });
        }
        for (name, is_marked) in &module.names {
            let (mut address, mut bytes) = (0, 0);
            let Ok(c_name) = CString::new(name.as_str()) else {
                continue;
            };
            // SAFETY: writes two numbers; the name is terminated.
            let code = unsafe {
                let global = self.driver.functions.module_global;
                global(&mut address, &mut bytes, module.raw as Raw, c_name.as_ptr())
            };
            if code == 0 {
                info.globals.push(GlobalDescription {
                    name: name.clone(),
                    address: DevicePtr(address),
                    bytes: bytes as u64,
                    is_managed: *is_marked || self.is_managed(address),
                });
            }
        }
        Ok(module.info.get_or_init(|| info).clone())
    }

    pub(super) fn describe_kernel(&self, id: ModuleId, index: u32) -> Result<KernelDescription> {
        let module = self.module(id)?;
        let kernel = kernel_of(&module, index)?;
        self.enter(&module.context)?;
        let read = |number| Ok(self.function_attribute(kernel, number)?.unsigned_abs());
        Ok(KernelDescription {
            name: kernel.name.clone(),
            params: kernel.params.clone(),
            static_shared: read(FunctionAttribute::SharedSizeBytes)?,
            local_bytes: read(FunctionAttribute::LocalSizeBytes)?,
            const_bytes: read(FunctionAttribute::ConstSizeBytes)?,
            registers: read(FunctionAttribute::NumRegs)?,
            max_threads: read(FunctionAttribute::MaxThreadsPerBlock)?,
            ptx_version: read(FunctionAttribute::PtxVersion)?,
            binary_version: read(FunctionAttribute::BinaryVersion)?,
            is_complete: true,
        })
    }

    pub(super) fn attribute_of(
        &self,
        id: ModuleId,
        index: u32,
        number: FunctionAttribute,
    ) -> Result<i32> {
        let module = self.module(id)?;
        let kernel = kernel_of(&module, index)?;
        self.enter(&module.context)?;
        self.function_attribute(kernel, number)
    }

    pub(super) fn set_attribute(
        &self,
        id: ModuleId,
        index: u32,
        number: FunctionAttribute,
        value: i32,
    ) -> Result<()> {
        let module = self.module(id)?;
        let kernel = kernel_of(&module, index)?;
        // SAFETY: the driver's own handle and two numbers.
        self.call(&module.context, "cuFuncSetAttribute", || unsafe {
            (self.driver.functions.function_set_attribute)(kernel.raw as Raw, number as u32, value)
        })?;
        if number == FunctionAttribute::MaxDynamicSharedSizeBytes {
            let allowed = value.unsigned_abs().max(SHARED_WITHOUT_OPT_IN);
            kernel.allowed_shared.store(allowed, Relaxed);
        }
        Ok(())
    }

    fn function_attribute(&self, kernel: &Kernel, attribute: FunctionAttribute) -> Result<i32> {
        let mut value: c_int = 0;
        // SAFETY: writes one number; the driver's own handle.
        let mut read = || unsafe {
            (self.driver.functions.function_attribute)(
                &mut value,
                attribute as u32,
                kernel.raw as Raw,
            )
        };
        let mut code = read();
        if code == CuResult::FunctionNotLoaded as u32
            && let Some(load) = self.driver.functions.function_load
        {
            // Kernels are loaded when first needed, and have no attributes before.
            // SAFETY: the driver's own handle, in its module's context.
            answer("cuFuncLoad", unsafe { load(kernel.raw as Raw) })?;
            code = read();
        }
        answer("cuFuncGetAttribute", code)?;
        Ok(value)
    }

    /// A kernel's name, as its module has it.
    pub(super) fn kernel_name(&self, module: ModuleId, kernel: u32) -> Option<String> {
        let module = self.module(module).ok()?;
        let kernel = kernel_of(&module, kernel).ok()?;
        Some(kernel.name.clone())
    }

    pub(super) fn start_kernel(
        &self,
        stream: StreamId,
        launch: &Launch<'_>,
        attributes: &[LaunchAttribute],
    ) -> Result<()> {
        self.with_ends(stream, launch.module, |ends| {
            ends.stream.context.submitted.note_kernel(stream);
            self.start_kernel_at(ends, launch, attributes)
        })
    }

    fn start_kernel_at(
        &self,
        LaunchEnds { stream, module }: &LaunchEnds,
        launch: &Launch<'_>,
        attributes: &[LaunchAttribute],
    ) -> Result<()> {
        let functions = &self.driver.functions;
        let ([gx, gy, gz], [bx, by, bz]) = (launch.grid, launch.block);
        let (on, shared) = (stream.raw as Raw, launch.dynamic_shared);
        let attributes = self.raw_attributes(attributes)?;
        self.with_kernel_of(module, &stream.context, launch, |raw, pointers| {
            let none = std::ptr::null_mut();
            let (name, code) = if !attributes.is_empty() {
                let config = config_of(launch, on, &attributes);
                // SAFETY: as below; the attributes outlive the call.
                ("cuLaunchKernelEx", unsafe {
                    (functions.launch_ex)(&config, raw, pointers, none)
                })
            } else if launch.cooperative {
                // SAFETY: the driver's own handles; each pointer leads to as many bytes as its
                // parameter has, and the driver copies them before it returns.
                ("cuLaunchCooperativeKernel", unsafe {
                    (functions.launch_cooperative)(
                        raw, gx, gy, gz, bx, by, bz, shared, on, pointers,
                    )
                })
            } else {
                // SAFETY: as above.
                ("cuLaunchKernel", unsafe {
                    (functions.launch)(raw, gx, gy, gz, bx, by, bz, shared, on, pointers, none)
                })
            };
            self.judge(&stream.context, name, code)
        })
    }

    /// Calls `start` with the driver's handle of a launch's kernel and one pointer for each parameter. The context
    /// is current, and the kernel may have the shared memory that the launch asks for.
    pub(super) fn with_kernel<T>(
        &self,
        context: &Context,
        launch: &Launch<'_>,
        start: impl FnOnce(Raw, *mut *mut c_void) -> Result<T>,
    ) -> Result<T> {
        self.with_kernel_of(&*self.module(launch.module)?, context, launch, start)
    }

    fn with_kernel_of<T>(
        &self,
        module: &Module,
        context: &Context,
        launch: &Launch<'_>,
        start: impl FnOnce(Raw, *mut *mut c_void) -> Result<T>,
    ) -> Result<T> {
        let kernel = kernel_of(module, launch.kernel)?;
        if launch.params.len() < kernel.params_bytes {
            return Err(invalid(format!(
                "{} takes {} bytes of parameters and was given {}",
                kernel.name,
                kernel.params_bytes,
                launch.params.len()
            )));
        }
        self.enter(context)?;
        self.allow_shared(kernel, launch.dynamic_shared)?;
        // One pointer a parameter: the driver then reads exactly the sizes it has for the kernel.
        let place = |param: &ParamLayout| {
            let start = launch.params.as_ptr().wrapping_add(param.offset as usize);
            start.cast_mut().cast::<c_void>()
        };
        let mut few = [const { MaybeUninit::<*mut c_void>::uninit() }; FEW_PARAMS];
        let mut many: Vec<*mut c_void>;
        let pointers = if kernel.params.len() <= FEW_PARAMS {
            for (slot, param) in few.iter_mut().zip(&kernel.params) {
                slot.write(place(param));
            }
            // The driver reads as many as there are parameters.
            few.as_mut_ptr().cast()
        } else {
            many = kernel.params.iter().map(place).collect();
            many.as_mut_ptr()
        };
        start(kernel.raw as Raw, pointers)
    }

    /// Launch attributes as the driver takes them, with its own events.
    pub(super) fn raw_attributes(
        &self,
        attributes: &[LaunchAttribute],
    ) -> Result<Vec<LaunchAttributeRecord>> {
        let raw = |attribute: &LaunchAttribute| {
            let mut value = attribute.value;
            if let Some(event) = attribute.event {
                let event = self.event(event)?.raw as u64;
                (value[0], value[1]) = (event as u32, (event >> 32) as u32);
            }
            let (id, pad) = (attribute.id, 0);
            Ok(LaunchAttributeRecord { id, pad, value })
        };
        attributes.iter().map(raw).collect()
    }

    pub(super) fn cluster_count(&self, question: &ClusterQuestion<'_>) -> Result<u32> {
        let module = self.module(question.module)?;
        let kernel = kernel_of(&module, question.kernel)?;
        let attributes = self.raw_attributes(question.attributes)?;
        let launch = Launch {
            module: question.module,
            kernel: question.kernel,
            grid: question.grid,
            block: question.block,
            dynamic_shared: question.dynamic_shared,
            cooperative: false,
            params: &[],
        };
        let config = config_of(&launch, std::ptr::null_mut(), &attributes);
        let functions = &self.driver.functions;
        let (name, function) = match question.largest {
            true => (
                "cuOccupancyMaxPotentialClusterSize",
                functions.occupancy_cluster_size,
            ),
            false => ("cuOccupancyMaxActiveClusters", functions.occupancy_clusters),
        };
        let mut count = 0;
        // SAFETY: writes one number; the driver's own handle, and attributes that outlive the call.
        self.call(&module.context, name, || unsafe {
            function(&mut count, kernel.raw as Raw, &config)
        })?;
        Ok(count.unsigned_abs())
    }

    pub(super) fn shared_for(
        &self,
        id: ModuleId,
        index: u32,
        blocks: u32,
        threads: u32,
    ) -> Result<u64> {
        let module = self.module(id)?;
        let kernel = kernel_of(&module, index)?;
        let mut bytes = 0;
        let (blocks, threads) = (blocks as c_int, threads as c_int);
        let name = "cuOccupancyAvailableDynamicSMemPerBlock";
        // SAFETY: writes one number; the driver's own handle.
        self.call(&module.context, name, || unsafe {
            let function = self.driver.functions.occupancy_shared;
            function(&mut bytes, kernel.raw as Raw, blocks, threads)
        })?;
        Ok(bytes as u64)
    }

    /// Allows a kernel more shared memory than it may have unasked. Nothing is asked about a kernel here: the driver would
    /// load it for that. What it has without dynamic memory counts too, and the driver refuses what is too much together.
    fn allow_shared(&self, kernel: &Kernel, dynamic: u32) -> Result<()> {
        if dynamic <= kernel.allowed_shared.load(Relaxed) {
            return Ok(());
        }
        // SAFETY: the driver's own handle and two numbers.
        let code = unsafe {
            let set = self.driver.functions.function_set_attribute;
            set(
                kernel.raw as Raw,
                FunctionAttribute::MaxDynamicSharedSizeBytes as u32,
                dynamic as c_int,
            )
        };
        answer("cuFuncSetAttribute", code)?;
        kernel.allowed_shared.fetch_max(dynamic, Relaxed);
        Ok(())
    }

    pub(super) fn blocks_per_multiprocessor(
        &self,
        module: ModuleId,
        kernel: u32,
        threads: u32,
        dynamic_shared: u64,
    ) -> Result<u32> {
        let module = self.module(module)?;
        let kernel = kernel_of(&module, kernel)?;
        self.enter(&module.context)?;
        let shared = u32::try_from(dynamic_shared).unwrap_or(u32::MAX);
        // A size the kernel cannot be allowed simply fits nowhere.
        if self.allow_shared(kernel, shared).is_err() {
            return Ok(0);
        }
        let mut blocks = 0;
        // SAFETY: writes one number; the driver's own handle.
        let code = unsafe {
            let count = self.driver.functions.occupancy;
            count(
                &mut blocks,
                kernel.raw as Raw,
                threads as c_int,
                dynamic_shared as usize,
            )
        };
        self.judge(
            &module.context,
            "cuOccupancyMaxActiveBlocksPerMultiprocessor",
            code,
        )?;
        Ok(blocks.unsigned_abs())
    }
}

/// A launch as `cuLaunchKernelEx` takes it.
fn config_of(
    launch: &Launch<'_>,
    stream: Raw,
    attributes: &[LaunchAttributeRecord],
) -> LaunchConfig {
    LaunchConfig {
        grid: launch.grid,
        block: launch.block,
        shared_bytes: launch.dynamic_shared,
        stream,
        attributes: attributes.as_ptr().cast(),
        attribute_count: attributes.len() as u32,
    }
}

fn kernel_of(module: &Module, index: u32) -> Result<&Kernel> {
    let kernel = module.kernels.get(index as usize);
    kernel.ok_or_else(|| {
        let count = module.kernels.len();
        invalid(format!("kernel {index} of a module that has {count}"))
    })
}
