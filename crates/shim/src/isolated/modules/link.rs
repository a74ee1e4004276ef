//! `cuLink*`: several texts of PTX become one image ([`mica_ptx::join`]).
//!
//! Of containers the best PTX is taken; machine code cannot be linked here and is refused, but for
//! libraries: one without PTX adds nothing, and what is then missing is said by name. Programs of
//! several compilation units (`nvcc -rdc=true`) are linked in the same way when they are loaded.

use std::ffi::{c_char, c_void};
use std::sync::Mutex;

use mica_cuda_abi::{CuResult, Handle, JitInputType, JitOption};
use mica_fatbin::{Image, MAX_IMAGE_BYTES};

use crate::isolated::context::current;
use crate::isolated::handles::{Kind, Object};
use crate::isolated::state::{State, state};
use crate::isolated::support::{
    Answer, Code, driver, entries, invalid, lock, not_supported, put, put_opt, string,
};

type Linker = Object<LinkState>;

#[derive(Default)]
struct LinkState {
    texts: Mutex<Vec<String>>,
    /// What `cuLinkComplete` handed out.
    image: Mutex<Option<Box<[u8]>>>,
}

impl Kind for LinkState {
    const MAGIC: u64 = 0x4d49_4341_4c4e_4b31;
}

/// Answers the options that ask for something: logs are empty, or say to look elsewhere.
///
/// # Safety
/// The program's lists, `count` long.
pub(crate) unsafe fn answer_options(
    count: u32,
    options: *const u32,
    values: *const *mut c_void,
    failed: bool,
) {
    if options.is_null() || values.is_null() {
        return;
    }
    // SAFETY: our contract.
    let option = |index: usize| unsafe { (options.add(index).read(), values.add(index).read()) };
    let all: Vec<(u32, *mut c_void)> = (0..count as usize).map(option).collect();
    let value = |wanted: JitOption| {
        all.iter()
            .find(|(option, _)| *option == wanted as u32)
            .map(|(_, value)| *value)
    };
    use JitOption::{
        ErrorLogBuffer, ErrorLogBufferSizeBytes, InfoLogBuffer, InfoLogBufferSizeBytes,
    };
    for (text, size) in [
        (InfoLogBuffer, InfoLogBufferSizeBytes),
        (ErrorLogBuffer, ErrorLogBufferSizeBytes),
    ] {
        let (Some(buffer), Some(room)) = (value(text), value(size)) else {
            continue;
        };
        let message: &[u8] = match failed && text == ErrorLogBuffer {
            true => b"the image was refused; MICA_LOG names a file that says why",
            false => b"",
        };
        let room = room as usize;
        if buffer.is_null() || room == 0 {
            continue;
        }
        let len = message.len().min(room - 1);
        // SAFETY: the program says that there is so much room.
        unsafe {
            std::ptr::copy_nonoverlapping(message.as_ptr(), buffer.cast::<u8>(), len);
            buffer.cast::<u8>().add(len).write(0);
        }
    }
}

unsafe fn linker_of(handle: Handle) -> Answer<&'static Linker> {
    // SAFETY: the program's handle.
    unsafe { Linker::find(handle) }.ok_or(Code(CuResult::InvalidHandle as u32))
}

/// What code without CUDA's headers (Numba's, for one) calls to wait for a whole grid; NVIDIA's own is
/// in a library of machine code.
const GRID_BARRIER: &str = include_str!("grid_barrier.ptx");

/// In names of NVIDIA's device runtime, which programs with `-rdc=true` are linked with.
const DEVICE_RUNTIME: &str = "_cuda_device_runtime_cu_";

/// Functions that the device brings itself.
fn is_runtime(name: &str) -> bool {
    matches!(
        name,
        "vprintf" | "malloc" | "free" | "__assertfail" | "__assert_fail"
    ) || name.starts_with("cuda")
        || name.starts_with("__cudaCDP2")
}

/// One text of several, with the grid barrier where one of them calls it.
pub(crate) fn join(texts: &[String]) -> Answer<String> {
    // The software GPU brings a device runtime of its own; NVIDIA's works with the insides of NVIDIA's driver.
    let is_needed = |text: &&String| !text.contains(DEVICE_RUNTIME);
    let mut texts: Vec<String> = texts.iter().filter(is_needed).cloned().collect();
    if texts.iter().any(|text| text.contains("cudaCGSynchronize")) {
        texts.push(GRID_BARRIER.to_owned());
    }
    mica_ptx::join(&texts, &is_runtime).map_err(|error| {
        crate::isolated::refusals::tell(&format!("linking: {error}"));
        Code(CuResult::InvalidPtx as u32)
    })
}

/// The best PTX of an image for this device.
pub(crate) fn ptx_of(state: &State, image: &[u8]) -> Option<String> {
    let (major, minor) = state.client.snapshot().compute_capability;
    let image = Image::parse(image).ok()?;
    let entry = image.select_ptx_or_newer(major * 10 + minor)?;
    let text = entry.payload(MAX_IMAGE_BYTES).ok()?;
    String::from_utf8(text.into_owned()).ok()
}

fn add(linker: &Linker, kind: u32, bytes: &[u8]) -> Answer {
    use JitInputType::{Cubin, Fatbinary, Library, Nvvm, Object, Ptx};
    let kind = match JitInputType::from_number(kind) {
        Some(kind @ (Ptx | Fatbinary | Library)) => kind,
        Some(Cubin | Object | Nvvm) | None => return not_supported("linking machine code"),
    };
    match ptx_of(state()?, bytes) {
        Some(text) => {
            lock(&linker.texts).push(text);
            Ok(())
        }
        None if kind == Ptx => Err(CuResult::InvalidImage.into()),
        None if kind == Library && bytes.starts_with(b"!<arch>\n") => {
            crate::log::line("linking: a library without PTX adds nothing");
            Ok(())
        }
        None => Err(CuResult::NoBinaryForGpu.into()),
    }
}

driver! {
    fn link_create(count: u32, options: *const u32, values: *const *mut c_void, out: *mut Handle) {
        current()?;
        answer_options(count, options, values, false);
        put(out, Object::leak(LinkState::default()).handle())
    }

    fn link_add_data(linker: Handle, kind: u32, data: *const u8, bytes: usize, _name: *const c_char, _count: u32, _options: *const u32, _values: *const *mut c_void) {
        let linker = linker_of(linker)?;
        if data.is_null() {
            return invalid();
        }
        add(linker, kind, std::slice::from_raw_parts(data, bytes))
    }

    fn link_add_file(linker: Handle, kind: u32, path: *const c_char, _count: u32, _options: *const u32, _values: *const *mut c_void) {
        let linker = linker_of(linker)?;
        let bytes = std::fs::read(string(path)?).map_err(|_| Code(CuResult::FileNotFound as u32))?;
        add(linker, kind, &bytes)
    }

    fn link_complete(linker: Handle, image: *mut *const c_void, bytes: *mut usize) {
        current()?;
        let linker = linker_of(linker)?;
        let mut text = join(&lock(&linker.texts))?.into_bytes();
        text.push(0);
        let mut slot = lock(&linker.image);
        let text = slot.insert(text.into_boxed_slice());
        put_opt(bytes, text.len());
        put(image, text.as_ptr().cast())
    }

    fn link_destroy(linker: Handle) {
        state()?;
        let linker = linker_of(linker)?;
        linker.retire();
        lock(&linker.texts).clear();
        *lock(&linker.image) = None;
        Ok(())
    }
}

entries! {
    cuLinkCreate = link_create;
    cuLinkCreate_v2 = link_create;
    cuLinkAddData = link_add_data;
    cuLinkAddData_v2 = link_add_data;
    cuLinkAddFile = link_add_file;
    cuLinkAddFile_v2 = link_add_file;
    cuLinkComplete = link_complete;
    cuLinkDestroy = link_destroy;
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

    #[test]
    fn a_grid_barrier_is_added_where_it_is_called() {
        let text = format!(
            "{HEAD}.extern .func (.param .b32 r) cudaCGSynchronize (.param .b64 h, .param .b32 f);\n.visible .entry k() {{ ret; }}"
        );
        let joined = join(&[text]).unwrap();
        assert!(joined.starts_with(".version 8.0\n.target sm_80\n"));
        assert!(joined.contains("%envreg2") && !joined.contains(".extern"));
    }

    #[test]
    fn functions_of_the_device_need_no_definition_and_others_do() {
        let of = |name| join(&[format!("{HEAD}.extern .func {name}();\n")]);
        assert!(of("vprintf").is_ok());
        assert_eq!(of("gone").unwrap_err().0, CuResult::InvalidPtx as u32);
    }
}
