//! Writes a library that adds the names of a driver newer than Mica to Mica's own `libcuda.so.1`.
//!
//! A program that links to such a name, or looks it up with `dlsym`, would not find it in Mica's
//! library. This one defines each of them and needs Mica's, so the loader finds both in the order of the
//! search: first the new names here, then everything else there. A function here is one jump through a
//! slot; at first that leads to Mica's library, which looks the name up in the driver it has loaded.
//!
//! ```text
//!   stub:   jmp *slot            entry:  name ──► "cuNewThing"
//!   first:  lea r11, entry               slot ──► first
//!           jmp *resolver        resolver ──► MICA_SHIM_RESOLVE, bound by the loader
//! ```
//!
//! Owns the bytes of that file and nothing else; for 64-bit x86 only, as is Mica's library.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const PAGE: u64 = 0x1000;
const HEADER_BYTES: u64 = 64;
const SEGMENT_BYTES: u64 = 56;
const SECTION_BYTES: u64 = 64;
const SYMBOL_BYTES: u64 = 24;
const RELOCATION_BYTES: u64 = 24;
const STUB_BYTES: u64 = 32;
const ENTRY_BYTES: u64 = 16;
/// What stands before the names in the symbol table: nothing, the resolver, the mark.
const FIRST_NAME: u64 = 3;

const RESOLVER: &str = "MICA_SHIM_RESOLVE";
const MARK: &str = "MICA_SHIM_MARKER";
const SONAME: &str = "libcuda.so.1";

/// Bytes with numbers in the machine's order.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn put(&mut self, numbers: &[(u64, usize)]) {
        for (value, bytes) in numbers {
            self.0.extend_from_slice(&value.to_le_bytes()[..*bytes]);
        }
    }

    fn words(&mut self, words: &[u64]) {
        words.iter().for_each(|word| self.put(&[(*word, 8)]));
    }

    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn fill_to(&mut self, length: u64) {
        self.0.resize(length as usize, 0);
    }
}

/// Strings, each ended by a zero.
#[derive(Default)]
struct Strings(Bytes);

impl Strings {
    fn add(&mut self, text: &[u8]) -> u64 {
        let at = self.0.len();
        self.0.0.extend_from_slice(text);
        self.0.0.push(0);
        at
    }
}

/// The hash the loader looks names up by.
fn hash(name: &str) -> u64 {
    let mut sum = 0_u32;
    for byte in name.bytes() {
        sum = (sum << 4).wrapping_add(byte.into());
        let high = sum & 0xF000_0000;
        sum = (sum ^ (high >> 24)) & !high;
    }
    sum.into()
}

/// Where each part of the file, and of memory, lies: the same numbers.
struct Layout {
    symbols: u64,
    hashes: u64,
    relocations: u64,
    strings: u64,
    code: u64,
    data: u64,
    resolver: u64,
    entries: u64,
    sections: u64,
}

const SEGMENTS: u64 = 5;
const DYNAMIC_WORDS: u64 = 2 * 13;

impl Layout {
    fn of(names: u64, string_bytes: u64) -> Self {
        let count = FIRST_NAME + names;
        let symbols = HEADER_BYTES + SEGMENTS * SEGMENT_BYTES;
        let hashes = symbols + count * SYMBOL_BYTES;
        let relocations = (hashes + 4 * (2 + buckets(names) + count)).next_multiple_of(8);
        let strings = relocations + (1 + 2 * names) * RELOCATION_BYTES;
        let code = (strings + string_bytes).next_multiple_of(PAGE);
        let data = (code + names * STUB_BYTES).next_multiple_of(PAGE);
        let resolver = data + 8 * DYNAMIC_WORDS;
        let entries = resolver + 8;
        Self {
            symbols,
            hashes,
            relocations,
            strings,
            code,
            data,
            resolver,
            entries,
            sections: entries + names * ENTRY_BYTES,
        }
    }
}

fn buckets(names: u64) -> u64 {
    names / 2 + 1
}

/// The library's bytes: `names` beside everything that the library at `mica` exports.
pub fn library(names: &[String], mica: &Path) -> Vec<u8> {
    let mut strings = Strings::default();
    strings.add(b"");
    let needed = strings.add(mica.as_os_str().as_bytes());
    let soname = strings.add(SONAME.as_bytes());
    let all: Vec<&str> = [RESOLVER, MARK]
        .into_iter()
        .chain(names.iter().map(String::as_str))
        .collect();
    let texts: Vec<u64> = all.iter().map(|n| strings.add(n.as_bytes())).collect();
    let layout = Layout::of(names.len() as u64, strings.0.len());

    let mut file = Bytes::default();
    header(&mut file, &layout);
    symbols(&mut file, &layout, &texts);
    hashes(&mut file, &all);
    file.fill_to(layout.relocations);
    relocations(&mut file, &layout, &texts);
    file.0.extend_from_slice(&strings.0.0);
    file.fill_to(layout.code);
    for index in 0..names.len() as u64 {
        stub(&mut file, &layout, index);
    }
    file.fill_to(layout.data);
    dynamic(&mut file, &layout, needed, soname, strings.0.len());
    // The loader fills in the resolver and the entries.
    file.fill_to(layout.sections);
    sections(&mut file, &layout, strings.0.len());
    file.0
}

fn header(file: &mut Bytes, layout: &Layout) {
    const LOAD: u64 = 1;
    const DYNAMIC: u64 = 2;
    const STACK: u64 = 0x6474_E551;
    const READ: u64 = 4;
    const WRITE: u64 = 2;
    const EXECUTE: u64 = 1;
    file.0.extend_from_slice(b"\x7fELF\x02\x01\x01");
    file.fill_to(16);
    // A shared library for x86-64, with no entry point.
    file.put(&[(3, 2), (62, 2), (1, 4), (0, 8)]);
    file.words(&[HEADER_BYTES, layout.sections]);
    file.put(&[(0, 4), (HEADER_BYTES, 2), (SEGMENT_BYTES, 2), (SEGMENTS, 2)]);
    file.put(&[(SECTION_BYTES, 2), (3, 2), (0, 2)]);
    let dynamic = (layout.data, layout.data + 8 * DYNAMIC_WORDS);
    for (kind, rights, (start, end), align) in [
        (LOAD, READ, (0, layout.code), PAGE),
        (LOAD, READ | EXECUTE, (layout.code, layout.data), PAGE),
        (LOAD, READ | WRITE, (layout.data, layout.sections), PAGE),
        (DYNAMIC, READ | WRITE, dynamic, 8),
        (STACK, READ | WRITE, (0, 0), 16),
    ] {
        file.put(&[(kind, 4), (rights, 4)]);
        file.words(&[start, start, start, end - start, end - start, align]);
    }
}

fn symbols(file: &mut Bytes, layout: &Layout, texts: &[u64]) {
    const GLOBAL: u64 = 1 << 4;
    const OBJECT: u64 = 1;
    const FUNCTION: u64 = 2;
    file.fill_to(layout.symbols + SYMBOL_BYTES);
    for (number, text) in texts.iter().enumerate() {
        // Which section a symbol is in means nothing to the loader but zero: not here.
        let (kind, section, at, bytes) = match number as u64 {
            0 => (FUNCTION, 0, 0, 0),
            1 => (OBJECT, 1, layout.resolver, 4),
            name => (FUNCTION, 1, stub_at(layout, name - 2), STUB_BYTES),
        };
        file.put(&[
            (*text, 4),
            (GLOBAL | kind, 1),
            (0, 1),
            (section, 2),
            (at, 8),
            (bytes, 8),
        ]);
    }
}

fn hashes(file: &mut Bytes, all: &[&str]) {
    let buckets = buckets(all.len() as u64 - 2);
    let mut first = vec![0_u64; buckets as usize];
    let mut next = vec![0_u64; all.len() + 1];
    // All but the resolver, which is not defined here.
    for (number, name) in all.iter().enumerate().skip(1) {
        let bucket = (hash(name) % buckets) as usize;
        next[number + 1] = std::mem::replace(&mut first[bucket], number as u64 + 1);
    }
    file.put(&[(buckets, 4), (next.len() as u64, 4)]);
    first.iter().chain(&next).for_each(|n| file.put(&[(*n, 4)]));
}

fn relocations(file: &mut Bytes, layout: &Layout, texts: &[u64]) {
    const ADDRESS_OF_SYMBOL: u64 = 6;
    const OWN_ADDRESS: u64 = 8;
    file.words(&[layout.resolver, (1 << 32) | ADDRESS_OF_SYMBOL, 0]);
    for (index, text) in texts.iter().skip(2).enumerate() {
        let entry = layout.entries + index as u64 * ENTRY_BYTES;
        let first = stub_at(layout, index as u64) + JUMP_BYTES;
        file.words(&[entry, OWN_ADDRESS, layout.strings + text]);
        file.words(&[entry + 8, OWN_ADDRESS, first]);
    }
}

const JUMP_BYTES: u64 = 6;

fn stub_at(layout: &Layout, index: u64) -> u64 {
    layout.code + index * STUB_BYTES
}

fn stub(file: &mut Bytes, layout: &Layout, index: u64) {
    let entry = layout.entries + index * ENTRY_BYTES;
    let instruction = |file: &mut Bytes, code: &[u8], target: u64| {
        file.0.extend_from_slice(code);
        let after = file.len() + 4;
        file.put(&[(target.wrapping_sub(after), 4)]);
    };
    instruction(file, &[0xFF, 0x25], entry + 8); // jmp *slot
    instruction(file, &[0x4C, 0x8D, 0x1D], entry); // lea entry, %r11
    instruction(file, &[0xFF, 0x25], layout.resolver); // jmp *resolver
    file.fill_to(stub_at(layout, index) + STUB_BYTES);
}

fn dynamic(file: &mut Bytes, layout: &Layout, needed: u64, soname: u64, string_bytes: u64) {
    const FLAGS: u64 = 0x6FFF_FFFB;
    const NO_DELETE: u64 = 8;
    let relocation_bytes = layout.strings - layout.relocations;
    for (tag, value) in [
        (1, needed),
        (14, soname),
        (4, layout.hashes),
        (5, layout.strings),
        (6, layout.symbols),
        (10, string_bytes),
        (11, SYMBOL_BYTES),
        (7, layout.relocations),
        (8, relocation_bytes),
        (9, RELOCATION_BYTES),
        // Code that a slot leads to stays, as Mica's own library does.
        (FLAGS, NO_DELETE),
        (0, 0),
        (0, 0),
    ] {
        file.words(&[tag, value]);
    }
}

/// For tools that read libraries by sections, as `mica doctor` does.
fn sections(file: &mut Bytes, layout: &Layout, string_bytes: u64) {
    const STRINGS: u64 = 3;
    const DYNAMIC_SYMBOLS: u64 = 11;
    const IN_MEMORY: u64 = 2;
    file.fill_to(layout.sections + SECTION_BYTES);
    let symbol_bytes = layout.hashes - layout.symbols;
    for (kind, at, bytes, link, info, each) in [
        (
            DYNAMIC_SYMBOLS,
            layout.symbols,
            symbol_bytes,
            2,
            1,
            SYMBOL_BYTES,
        ),
        (STRINGS, layout.strings, string_bytes, 0, 0, 0),
    ] {
        file.put(&[(0, 4), (kind, 4)]);
        file.words(&[IN_MEMORY, at, at, bytes]);
        file.put(&[(link, 4), (info, 4)]);
        file.words(&[8, each]);
    }
}
