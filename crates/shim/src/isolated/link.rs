//! `cuLink*`: several texts of PTX become one.
//!
//! Texts are joined under one header: the highest version and target of all. A declaration of
//! something that another text defines is left out. Of containers the best PTX is taken; machine code
//! cannot be linked here and is refused. Programs of several compilation units (`nvcc -rdc=true`) are
//! linked in the same way when they are loaded.

use std::ffi::{c_char, c_void};
use std::sync::Mutex;

use mica_cuda_abi::{CuResult, Handle};
use mica_fatbin::{Image, MAX_IMAGE_BYTES};

use super::context::current;
use super::handles::{Kind, Object};
use super::state::{State, state};
use super::support::{
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

/// `CU_JIT_INPUT_*`.
const PTX: u32 = 1;
const FATBIN: u32 = 2;
const LIBRARY: u32 = 4;
/// `CUjit_option` numbers of the logs' sizes.
const INFO_BYTES: u32 = 4;
const ERROR_BYTES: u32 = 6;
const INFO: u32 = 3;
const ERROR: u32 = 5;

/// Answers the options that ask for something: logs are empty, or say to look elsewhere.
///
/// # Safety
/// The program's lists, `count` long.
pub(super) unsafe fn answer_options(
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
    let value = |wanted: u32| {
        all.iter()
            .find(|(option, _)| *option == wanted)
            .map(|(_, value)| *value)
    };
    for (text, size) in [(INFO, INFO_BYTES), (ERROR, ERROR_BYTES)] {
        let (Some(buffer), Some(room)) = (value(text), value(size)) else {
            continue;
        };
        let message: &[u8] = match failed && text == ERROR {
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

/// A text without comments.
fn without_comments(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        let (before, from) = rest.split_at(at);
        clean.push_str(before);
        let (skip, keep) = if from.starts_with("//") {
            (from.find('\n').unwrap_or(from.len()), "")
        } else if from.starts_with("/*") {
            (from.find("*/").map_or(from.len(), |end| end + 2), " ")
        } else {
            (1, "/")
        };
        clean.push_str(keep);
        rest = &from[skip..];
    }
    clean.push_str(rest);
    clean
}

/// Top-level statements: up to a `;` outside of braces, or a closing brace.
fn statements(text: &str) -> Vec<&str> {
    let (mut all, mut start, mut depth, mut quoted) = (Vec::new(), 0, 0_usize, false);
    let mut has_equals = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'=' if depth == 0 => has_equals = true,
            b'{' => depth += 1,
            b'}' => {
                depth = depth.saturating_sub(1);
                // The braces of an initializer are followed by a semicolon.
                if depth == 0 && !has_equals {
                    all.push(&text[start..=at]);
                    start = at + 1;
                }
            }
            b';' if depth == 0 => {
                all.push(&text[start..=at]);
                (start, has_equals) = (at + 1, false);
            }
            _ => {}
        }
    }
    if !text[start..].trim().is_empty() {
        all.push(&text[start..]);
    }
    all
}

/// Takes the header's lines out of a text.
fn take_header(text: &str, version: &mut (u32, u32), target: &mut (u32, String)) -> String {
    let mut body = String::with_capacity(text.len());
    for line in text.lines() {
        let words = line.trim_start();
        if let Some(rest) = words.strip_prefix(".version") {
            let mut parts = rest
                .trim()
                .split('.')
                .map(|part| part.trim().parse().unwrap_or(0));
            let found = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
            *version = (*version).max(found);
        } else if let Some(rest) = words.strip_prefix(".target") {
            let first = rest.split(',').next().unwrap_or("").trim();
            let digits: String = first.chars().filter(char::is_ascii_digit).collect();
            let number = digits.parse().unwrap_or(0);
            if number > target.0 {
                *target = (number, first.to_owned());
            }
        } else if !words.starts_with(".address_size") && !words.starts_with(".file") {
            body.push_str(line);
            body.push('\n');
        }
    }
    body
}

/// What a statement declares or defines: its name, if it is a function or a variable.
fn name_of(statement: &str) -> Option<String> {
    let head = statement.split(['{', '=', ';']).next()?;
    let is_function = head.contains(".func") || head.contains(".entry");
    let mut head = head.to_owned();
    if is_function {
        // The result's parentheses come before the name, the parameters' after it.
        let after = head
            .find(".func")
            .map(|at| at + 5)
            .or_else(|| head.find(".entry").map(|at| at + 6))?;
        let mut rest = head[after..].trim_start();
        if rest.starts_with('(') {
            rest = rest.split_once(')')?.1;
        }
        let name = rest
            .split(|c: char| c == '(' || c.is_whitespace())
            .find(|part| !part.is_empty())?;
        return Some(name.to_owned());
    }
    if !(head.contains(".global") || head.contains(".const") || head.contains(".shared")) {
        return None;
    }
    if let Some(at) = head.find('[') {
        head.truncate(at);
    }
    head.split_whitespace().next_back().map(str::to_owned)
}

/// One text of several.
pub(super) fn join(texts: &[String]) -> Answer<String> {
    let (mut version, mut target) = ((0, 0), (0, String::new()));
    let bodies: Vec<String> = texts
        .iter()
        .map(|text| take_header(&without_comments(text), &mut version, &mut target))
        .collect();
    if version == (0, 0) || target.0 == 0 {
        return Err(CuResult::InvalidPtx.into());
    }
    let all: Vec<&str> = bodies.iter().flat_map(|body| statements(body)).collect();
    let is_declaration = |statement: &str| {
        let is_function = statement.contains(".func") || statement.contains(".entry");
        statement.contains(".extern") || (is_function && !statement.contains('{'))
    };
    let defined: std::collections::HashSet<String> = all
        .iter()
        .filter(|statement| !is_declaration(statement))
        .filter_map(|statement| name_of(statement))
        .collect();
    let mut joined = format!(
        ".version {}.{}\n.target {}\n.address_size 64\n",
        version.0, version.1, target.1
    );
    let mut declared = std::collections::HashSet::new();
    let mut written = std::collections::HashSet::new();
    let [mut first, mut variables, mut rest] = [const { String::new() }; 3];
    for statement in &all {
        let name = name_of(statement);
        if !is_declaration(statement) {
            // Of weak definitions, which several texts may have, the first stands.
            let is_new = name.is_none_or(|name| written.insert(name));
            if statement.contains(".weak") && !is_new {
                continue;
            }
            // Variables come before all code, which may be of another text.
            let is_code = statement.contains(".func") || statement.contains(".entry");
            let part = if is_code { &mut rest } else { &mut variables };
            part.push_str(statement);
            part.push('\n');
            continue;
        }
        let Some(name) = name else {
            first.push_str(statement);
            first.push('\n');
            continue;
        };
        if !declared.insert(name.clone()) {
            continue;
        }
        if defined.contains(&name) {
            // Calls may come before the definition; it is declared as what it is defined as.
            if statement.contains(".func") {
                first.push_str(&statement.replace(".extern", ".visible"));
                first.push('\n');
            }
            continue;
        }
        if statement.contains(".extern") && !statement.contains(".shared") && !is_runtime(&name) {
            crate::log::line(&format!("linking: nothing defines {name}"));
            return Err(CuResult::InvalidPtx.into());
        }
        first.push_str(statement);
        first.push('\n');
    }
    joined.push_str(&first);
    joined.push_str(&variables);
    joined.push_str(&rest);
    Ok(joined)
}

/// Functions that the device brings itself.
fn is_runtime(name: &str) -> bool {
    matches!(
        name,
        "vprintf" | "malloc" | "free" | "__assertfail" | "__assert_fail"
    ) || name.starts_with("cuda")
}

unsafe fn linker_of(handle: Handle) -> Answer<&'static Linker> {
    // SAFETY: the program's handle.
    unsafe { Linker::find(handle) }.ok_or(Code(CuResult::InvalidHandle as u32))
}

/// The best PTX of an image for this device.
pub(super) fn ptx_of(state: &State, image: &[u8]) -> Option<String> {
    let (major, minor) = state.client.snapshot().compute_capability;
    let image = Image::parse(image).ok()?;
    let entry = image.select_ptx(major * 10 + minor)?;
    let text = entry.payload(MAX_IMAGE_BYTES).ok()?;
    String::from_utf8(text.into_owned()).ok()
}

fn add(linker: &Linker, kind: u32, bytes: &[u8]) -> Answer {
    if !matches!(kind, PTX | FATBIN | LIBRARY) {
        return not_supported("linking machine code");
    }
    match ptx_of(state()?, bytes) {
        Some(text) => {
            lock(&linker.texts).push(text);
            Ok(())
        }
        None if kind == PTX => Err(CuResult::InvalidPtx.into()),
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

    #[test]
    fn texts_become_one_with_the_highest_header() {
        let a = ".version 7.0\n.target sm_70\n.address_size 64\n.extern .func (.param .b32 r) twice(.param .b32 x);\n.visible .entry k() { call.uni (r), twice, (x); ret; }";
        let b = "// two\n.version 7.8\n.target sm_80\n.address_size 64\n.visible .func (.param .b32 r) twice(.param .b32 x) { /* body; */ ret; }\n.global .u32 t[2] = {1, 2};";
        let joined = join(&[a.into(), b.into()]).unwrap();
        assert!(joined.starts_with(".version 7.8\n.target sm_80\n"));
        assert_eq!(joined.matches(".version").count(), 1);
        assert!(!joined.contains(".extern"));
        assert!(joined.contains("t[2] = {1, 2};"));
        assert_eq!(joined.matches("twice(").count(), 2);
    }

    #[test]
    fn what_nobody_defines_is_an_error() {
        let a = ".version 7.0\n.target sm_70\n.extern .func gone();\n";
        assert!(join(&[a.into()]).is_err());
    }

    #[test]
    fn names_are_found() {
        assert_eq!(
            name_of(".visible .func (.param .b32 r) f (.param .b32 x) {").as_deref(),
            Some("f")
        );
        assert_eq!(name_of(".visible .entry k(").as_deref(), Some("k"));
        assert_eq!(
            name_of(".extern .global .align 4 .u32 v[4];").as_deref(),
            Some("v")
        );
        assert_eq!(name_of(".pragma \"x\";"), None);
    }
}
