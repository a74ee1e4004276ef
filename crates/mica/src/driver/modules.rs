//! Modules: what they hold, by the driver's own account, and launches of their kernels.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mica_cuda_abi::{CuResult, LaunchAttributeRecord, LaunchConfig};
use mica_gpu::{DevicePtr, GlobalDescription, KernelDescription, ModuleInfo, ParamLayout};
use mica_vgpu::RawAttribute;

use super::functions::{Raw, check};
use super::{Driven, cannot};
use crate::backend::LaunchCall;
use crate::{Error, Result};

/// `CU_JIT_ERROR_LOG_BUFFER` and its size.
const ERROR_LOG: [c_uint; 2] = [5, 6];
/// Attributes of a function, as cuda.h numbers them.
const MAX_THREADS: c_uint = 0;
const SHARED_BYTES: c_uint = 1;
const MAX_DYNAMIC_SHARED: c_uint = 8;
/// Dynamic and static shared memory that a kernel may have without being allowed more.
const SHARED_WITHOUT_OPT_IN: u32 = 48 << 10;

struct Function {
    raw: usize,
    params: Vec<ParamLayout>,
    static_shared: u32,
    allowed_shared: u32,
}

/// What is loaded, by the driver's handle of the module.
#[derive(Default)]
pub(super) struct Modules(Mutex<HashMap<u64, Vec<Function>>>);

impl Modules {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Vec<Function>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn function(&self, module: u64, kernel: u32) -> Result<Raw> {
        let modules = self.lock();
        let function = modules.get(&module).and_then(|m| m.get(kernel as usize));
        function.map_or_else(|| cannot("use an unloaded module"), |f| Ok(f.raw as Raw))
    }
}

impl Driven {
    pub(super) fn load_module(&self, image: &[u8]) -> Result<(u64, ModuleInfo)> {
        // PTX is text that ends with a zero.
        let mut bytes = image.to_vec();
        bytes.push(0);
        let mut log = vec![0_u8; 8192];
        let mut options = ERROR_LOG;
        // The size travels in a pointer's place, as the driver wants it.
        let mut values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
        let mut module: Raw = std::ptr::null_mut();
        // SAFETY: text ends with a zero, other images say how long they are; the log has the length passed.
        let loaded = self.call("cuModuleLoadDataEx", |f| unsafe {
            (f.module_load)(
                &mut module,
                bytes.as_ptr().cast(),
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        });
        if let Err(Error::Gpu { code, message }) = loaded {
            let text = log.split(|byte| *byte == 0).next().unwrap_or_default();
            let text = String::from_utf8_lossy(text);
            let message = match text.trim() {
                "" => message,
                text => format!("{message}: {text}"),
            };
            return Err(Error::Gpu { code, message });
        }
        loaded?;
        match self.functions_of(module) {
            Ok((functions, info)) => {
                self.modules.lock().insert(module as u64, functions);
                Ok((module as u64, info))
            }
            Err(error) => {
                // SAFETY: loaded above and known to nobody.
                let _ = self.call("cuModuleUnload", |f| unsafe { (f.module_unload)(module) });
                Err(error)
            }
        }
    }

    fn functions_of(&self, module: Raw) -> Result<(Vec<Function>, ModuleInfo)> {
        let mut count = 0;
        // SAFETY: writes one number.
        self.call("cuModuleGetFunctionCount", |f| unsafe {
            (f.module_function_count)(&mut count, module)
        })?;
        let mut raws: Vec<Raw> = vec![std::ptr::null_mut(); count as usize];
        if count > 0 {
            // SAFETY: there is room for `count` handles.
            self.call("cuModuleEnumerateFunctions", |f| unsafe {
                (f.module_functions)(raws.as_mut_ptr(), count, module)
            })?;
        }
        let (mut functions, mut info) = (Vec::new(), ModuleInfo::default());
        for raw in raws {
            let mut name = std::ptr::null();
            // SAFETY: writes one pointer to a name that lives as long as the module.
            self.call("cuFuncGetName", |f| unsafe {
                (f.function_name)(&mut name, raw)
            })?;
            if name.is_null() {
                continue;
            }
            // SAFETY: a terminated string, by the driver's word.
            let name = unsafe { CStr::from_ptr(name) };
            // The driver loads kernels when they are first used, and tells nothing of those that are not loaded.
            // SAFETY: a function of the module that was just loaded.
            self.call("cuFuncLoad", |f| unsafe { (f.function_load)(raw) })?;
            let params = self.params_of(raw)?;
            let static_shared = self.function_attribute(raw, SHARED_BYTES)?;
            info.kernels.push(KernelDescription {
                name: name.to_string_lossy().into_owned(),
                params: params.clone(),
                static_shared,
                local_bytes: 0,
                const_bytes: 0,
                registers: 0,
                max_threads: self.function_attribute(raw, MAX_THREADS)?,
                ptx_version: 0,
                binary_version: 0,
                is_complete: false,
            });
            functions.push(Function {
                raw: raw as usize,
                params,
                static_shared,
                allowed_shared: 0,
            });
        }
        Ok((functions, info))
    }

    fn function_attribute(&self, function: Raw, attribute: c_uint) -> Result<u32> {
        let mut value = 0;
        // SAFETY: writes one number.
        self.call("cuFuncGetAttribute", |f| unsafe {
            (f.function_attribute)(&mut value, attribute, function)
        })?;
        Ok(value.unsigned_abs())
    }

    fn params_of(&self, function: Raw) -> Result<Vec<ParamLayout>> {
        let mut params = Vec::new();
        let _entered = self.enter()?;
        loop {
            let (mut offset, mut size) = (0, 0);
            // SAFETY: writes two numbers; past the last parameter the driver refuses.
            let code = unsafe {
                (self.functions.function_parameter)(function, params.len(), &mut offset, &mut size)
            };
            if code == CuResult::InvalidValue as c_uint {
                return Ok(params);
            }
            check("cuFuncGetParamInfo", code)?;
            params.push(ParamLayout {
                offset: offset as u32,
                size: size as u32,
            });
        }
    }

    pub(super) fn unload_module(&self, module: u64) -> Result<()> {
        self.modules.lock().remove(&module);
        // SAFETY: `Module` unloads its handle once, after its kernels are gone.
        self.call("cuModuleUnload", |f| unsafe {
            (f.module_unload)(module as Raw)
        })
    }

    pub(super) fn find_global(&self, module: u64, name: &str) -> Result<Option<GlobalDescription>> {
        let Ok(c_name) = CString::new(name) else {
            return Ok(None);
        };
        let (mut address, mut bytes) = (0, 0);
        // SAFETY: writes two numbers; the name is terminated.
        let found = self.call("cuModuleGetGlobal", |f| unsafe {
            (f.module_global)(&mut address, &mut bytes, module as Raw, c_name.as_ptr())
        });
        match found {
            Ok(()) => Ok(Some(GlobalDescription {
                name: name.into(),
                address: DevicePtr(address),
                bytes: bytes as u64,
                is_managed: false,
            })),
            Err(error) if error.code() == Some(CuResult::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A kernel that may have so much dynamic shared memory, and where each of its parameters lies in the packed ones.
    pub(super) fn prepared(
        &self,
        module: u64,
        kernel: u32,
        shared: u32,
        packed: &[u8],
    ) -> Result<(Raw, Vec<*mut c_void>)> {
        let mut modules = self.modules.lock();
        let function = modules.get_mut(&module);
        let Some(function) = function.and_then(|m| m.get_mut(kernel as usize)) else {
            return cannot("launch a kernel of an unloaded module");
        };
        if shared > function.allowed_shared
            && shared + function.static_shared > SHARED_WITHOUT_OPT_IN
        {
            // SAFETY: takes numbers; the function's module is loaded.
            self.call("cuFuncSetAttribute", |f| unsafe {
                let set = f.function_set_attribute;
                set(function.raw as Raw, MAX_DYNAMIC_SHARED, shared as c_int)
            })?;
            function.allowed_shared = shared;
        }
        let start = packed.as_ptr().cast_mut();
        let places = function.params.iter();
        let params = places.map(|p| start.wrapping_add(p.offset as usize).cast());
        Ok((function.raw as Raw, params.collect()))
    }

    pub(super) fn launch_kernel(&self, launch: &LaunchCall<'_>) -> Result<()> {
        let _entered = self.enter()?;
        let shared = launch.dynamic_shared;
        let (raw, mut params) =
            self.prepared(launch.module, launch.kernel, shared, launch.params)?;
        let ([x, y, z], [a, b, c]) = (launch.grid, launch.block);
        let (stream, params) = (launch.stream as Raw, params.as_mut_ptr());
        let f = &self.functions;
        let no_extra = std::ptr::null_mut();
        if !launch.attributes.is_empty() {
            let mut records: Vec<_> = launch.attributes.iter().map(record).collect();
            if launch.cooperative {
                records.push(record(&super::cooperative()));
            }
            let config = LaunchConfig {
                grid: launch.grid,
                block: launch.block,
                shared_bytes: shared,
                stream,
                attributes: records.as_ptr().cast(),
                attribute_count: records.len() as u32,
            };
            // SAFETY: the attributes outlive the call; `pack` has made the parameters after the function's own layout.
            let code = unsafe { (f.launch_ex)(&config, raw, params, no_extra) };
            return check("cuLaunchKernelEx", code);
        }
        if launch.cooperative {
            // SAFETY: `pack` has made the parameters after the function's own layout.
            let code =
                unsafe { (f.launch_cooperative)(raw, x, y, z, a, b, c, shared, stream, params) };
            return check("cuLaunchCooperativeKernel", code);
        }
        // SAFETY: as above.
        let code = unsafe { (f.launch)(raw, x, y, z, a, b, c, shared, stream, params, no_extra) };
        check("cuLaunchKernel", code)
    }
}

fn record(attribute: &RawAttribute) -> LaunchAttributeRecord {
    LaunchAttributeRecord {
        id: attribute.id,
        pad: 0,
        value: attribute.value,
    }
}
