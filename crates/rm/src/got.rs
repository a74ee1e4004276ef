//! Finds and replaces one library's own slots for an imported function.
//!
//! Reads the dynamic section of a loaded library: the relocations that bind the symbol name the
//! words through which every call of that library goes. Other libraries keep theirs.

use std::ffi::{CStr, c_int, c_void};

use crate::RmError;

const DT_NULL: i64 = 0;
const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_STRSZ: i64 = 10;
const DT_PLTREL: i64 = 20;
const DT_JMPREL: i64 = 23;

/// Asks `dlinfo` for the loader's record of a library.
const RTLD_DI_LINKMAP: c_int = 2;

unsafe extern "C" {
    // Both glibc and musl have it; the crate `libc` declares it for glibc only.
    fn dlinfo(handle: *mut c_void, request: c_int, answer: *mut c_void) -> c_int;
}

/// Relocations that store a symbol's plain address: jump slot, global data, absolute.
#[cfg(target_arch = "x86_64")]
const ADDRESS_RELOCATIONS: [u32; 3] = [7, 6, 1];
#[cfg(target_arch = "aarch64")]
const ADDRESS_RELOCATIONS: [u32; 3] = [1026, 1025, 257];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ADDRESS_RELOCATIONS: [u32; 0] = [];

#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const libc::c_char,
    dynamic: *const Dyn,
    next: *mut LinkMap,
    previous: *mut LinkMap,
}

#[repr(C)]
struct Dyn {
    tag: i64,
    value: u64,
}

#[repr(C)]
struct Rela {
    offset: u64,
    info: u64,
    addend: i64,
}

/// Start and end addresses, or a table's address and length.
type Range = (usize, usize);

/// A loaded library's tables.
pub(crate) struct Image {
    base: usize,
    /// Loaded segments: start and end addresses.
    segments: Vec<Range>,
    /// Made read-only after relocation.
    relro: Option<Range>,
    symbols: usize,
    strings: usize,
    strings_bytes: usize,
    relocations: Vec<Range>,
}

impl Image {
    /// Reads the tables of the library behind a `dlopen` handle.
    ///
    /// # Safety
    /// `handle` came from `dlopen`, and the library stays loaded while the image is used.
    pub(crate) unsafe fn of_handle(handle: *mut c_void) -> Result<Self, RmError> {
        let mut map: *const LinkMap = std::ptr::null();
        // SAFETY: the handle is live by our contract; the call writes one pointer.
        let rc = unsafe { dlinfo(handle, RTLD_DI_LINKMAP, std::ptr::from_mut(&mut map).cast()) };
        if rc != 0 || map.is_null() {
            return Err(RmError::Library("dlinfo does not know the handle"));
        }
        // SAFETY: dlinfo gave the loader's own record, live while the library is.
        let (base, dynamic) = unsafe { ((*map).base, (*map).dynamic) };
        let (segments, relro) = program_headers(base);
        if dynamic.is_null() || segments.is_empty() {
            return Err(RmError::Library("it has no program headers"));
        }
        // SAFETY: the loader's record names the library's own dynamic section.
        unsafe { Self::read(base, dynamic, segments, relro) }
    }

    /// # Safety
    /// `dynamic` is the dynamic section of the library loaded at `base`.
    unsafe fn read(
        base: usize,
        mut dynamic: *const Dyn,
        segments: Vec<Range>,
        relro: Option<Range>,
    ) -> Result<Self, RmError> {
        // glibc relocates these words in place, musl does not.
        let address = |value: u64| {
            let value = value as usize;
            if value < base { base + value } else { value }
        };
        let (mut symbols, mut strings, mut strings_bytes) = (0, 0, 0);
        let (mut rela, mut rela_bytes, mut jump, mut jump_bytes) = (0, 0, 0, 0);
        let mut jump_is_rela = true;
        loop {
            // SAFETY: the section ends with DT_NULL, at which this loop stops.
            let entry = unsafe { &*dynamic };
            match entry.tag {
                DT_NULL => break,
                DT_SYMTAB => symbols = address(entry.value),
                DT_STRTAB => strings = address(entry.value),
                DT_STRSZ => strings_bytes = entry.value as usize,
                DT_RELA => rela = address(entry.value),
                DT_RELASZ => rela_bytes = entry.value as usize,
                DT_JMPREL => jump = address(entry.value),
                DT_PLTRELSZ => jump_bytes = entry.value as usize,
                DT_PLTREL => jump_is_rela = entry.value as i64 == DT_RELA,
                _ => {}
            }
            dynamic = dynamic.wrapping_add(1);
        }
        if symbols == 0 || strings == 0 {
            return Err(RmError::Library("it has no symbol table"));
        }
        let mut relocations = Vec::new();
        if jump != 0 && jump_is_rela {
            relocations.push((jump, jump_bytes / size_of::<Rela>()));
        }
        if rela != 0 {
            relocations.push((rela, rela_bytes / size_of::<Rela>()));
        }
        Ok(Self {
            base,
            segments,
            relro,
            symbols,
            strings,
            strings_bytes,
            relocations,
        })
    }

    /// Whether an address lies in the library itself.
    pub(crate) fn contains(&self, address: usize) -> bool {
        self.segments
            .iter()
            .any(|&(start, end)| (start..end).contains(&address))
    }

    /// The words that hold the address of the imported function `name`.
    ///
    /// # Safety
    /// The library is still loaded.
    pub(crate) unsafe fn slots(&self, name: &str) -> Vec<*mut usize> {
        let mut slots = Vec::new();
        for &(table, count) in &self.relocations {
            for index in 0..count {
                let entry = (table as *const Rela).wrapping_add(index);
                // SAFETY: the dynamic section says the table has `count` entries.
                let (offset, info, addend) =
                    unsafe { ((*entry).offset, (*entry).info, (*entry).addend) };
                let slot = self.base.wrapping_add(offset as usize);
                let matches = ADDRESS_RELOCATIONS.contains(&(info as u32))
                    && addend == 0
                    && slot.is_multiple_of(align_of::<usize>())
                    && self.contains(slot)
                    // SAFETY: the index comes from the library's own relocation.
                    && unsafe { self.imports(info >> 32, name) };
                if matches && !slots.contains(&(slot as *mut usize)) {
                    slots.push(slot as *mut usize);
                }
            }
        }
        slots
    }

    /// Whether symbol `index` is the undefined symbol `name`.
    ///
    /// # Safety
    /// `index` comes from a relocation of this library, which is still loaded.
    unsafe fn imports(&self, index: u64, name: &str) -> bool {
        let symbol = (self.symbols as *const libc::Elf64_Sym).wrapping_add(index as usize);
        // SAFETY: relocations name only symbols of the table.
        let (text, section) = unsafe { ((*symbol).st_name as usize, (*symbol).st_shndx) };
        if index == 0 || section != 0 || text + name.len() >= self.strings_bytes {
            return false;
        }
        // SAFETY: the offset lies in the string table, which ends with a zero.
        let found = unsafe { CStr::from_ptr((self.strings + text) as *const libc::c_char) };
        found.to_bytes() == name.as_bytes()
    }

    /// Writes a slot and gives what it held, making its page writable for the moment if the loader
    /// has protected it.
    ///
    /// # Safety
    /// `slot` came from [`Image::slots`], and `value` is a function of the slot's type that lives as
    /// long as the library.
    pub(crate) unsafe fn replace(&self, slot: *mut usize, value: usize) -> Result<usize, RmError> {
        // SAFETY: asks for a number only.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(4096) as usize;
        let start = slot as usize & !(page - 1);
        let protected = self
            .relro
            .is_some_and(|(from, to)| start >= from & !(page - 1) && start < to & !(page - 1));
        let protect = |protection: c_int| {
            // SAFETY: the page belongs to the library's relocated data, readable throughout.
            match unsafe { libc::mprotect(start as *mut c_void, page, protection) } {
                0 => Ok(()),
                _ => Err(RmError::System {
                    operation: "mprotect of the library's slot",
                    errno: crate::observer::errno(),
                }),
            }
        };
        if protected {
            protect(libc::PROT_READ | libc::PROT_WRITE)?;
        }
        // SAFETY: an aligned word inside the library's writable data. Atomic, as another thread may
        // be calling through it.
        let word = unsafe { std::sync::atomic::AtomicUsize::from_ptr(slot) };
        let before = word.swap(value, std::sync::atomic::Ordering::AcqRel);
        if protected {
            protect(libc::PROT_READ)?;
        }
        Ok(before)
    }
}

/// Leads a library's calls of an imported function to `hook`. Gives what its slot held, if that was
/// the function itself. Doing it again changes nothing.
///
/// # Safety
/// `handle` came from `dlopen`, the library stays loaded, and `hook` has the function's type.
pub(crate) unsafe fn take_over(
    handle: *mut c_void,
    name: &str,
    hook: usize,
) -> Result<Option<usize>, RmError> {
    // SAFETY: our contract is the callee's.
    let image = unsafe { Image::of_handle(handle)? };
    // SAFETY: the library is loaded.
    let slots = unsafe { image.slots(name) };
    if slots.is_empty() {
        return Err(RmError::NoIoctlSlot);
    }
    let mut original = None;
    for slot in slots {
        // SAFETY: a word of the library, found above.
        let held = unsafe { slot.read() };
        if held == hook {
            continue;
        }
        // SAFETY: the slot is for the function, whose type the hook has.
        unsafe { image.replace(slot, hook)? };
        // A slot not yet bound points back into the library, to code that would bind it and so
        // undo the patch: the caller uses its own import then.
        if held != 0 && !image.contains(held) {
            original = Some(held);
        }
    }
    Ok(original)
}

/// The segments and the read-only-after-relocation range of the library loaded at `base`.
fn program_headers(base: usize) -> (Vec<Range>, Option<Range>) {
    struct Found {
        base: usize,
        segments: Vec<Range>,
        relro: Option<Range>,
    }
    unsafe extern "C" fn look(
        info: *mut libc::dl_phdr_info,
        _bytes: libc::size_t,
        data: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes its record, and our own `Found` back.
        let (info, found) = unsafe { (&*info, &mut *data.cast::<Found>()) };
        if info.dlpi_addr as usize != found.base || info.dlpi_phdr.is_null() {
            return 0;
        }
        // SAFETY: the record says how many headers there are.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        for header in headers {
            let start = found.base.wrapping_add(header.p_vaddr as usize);
            let range = (start, start.wrapping_add(header.p_memsz as usize));
            match header.p_type {
                libc::PT_LOAD => found.segments.push(range),
                libc::PT_GNU_RELRO => found.relro = Some(range),
                _ => {}
            }
        }
        1
    }
    let mut found = Found {
        base,
        segments: Vec::new(),
        relro: None,
    };
    // SAFETY: `look` gets exactly the value it casts to, alive for the whole call.
    unsafe { libc::dl_iterate_phdr(Some(look), std::ptr::from_mut(&mut found).cast()) };
    (found.segments, found.relro)
}
