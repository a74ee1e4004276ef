//! What a cubin says about its kernels.
//!
//! Section `.nv.info.<kernel>` is a list of records `u8 format, u8 attribute, u16 value`; format 4
//! is followed by `value` bytes.

use std::collections::HashMap;

use crate::bytes::{u16_at, u32_at};
use crate::elf;
use crate::error::{Error, Result};

/// A cubin's kernels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cubin {
    /// The architecture, such as 90.
    pub sm: u32,
    /// Its kernels, in order of their sections.
    pub kernels: Vec<CubinKernel>,
    /// Bytes of its global variables.
    pub global_bytes: u64,
}

/// One kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CubinKernel {
    /// Its (mangled) name.
    pub name: String,
    /// Its parameters, by ordinal.
    pub params: Vec<CubinParam>,
    /// Bytes of all parameters.
    pub param_bytes: u32,
    /// Registers a thread needs, when the cubin says.
    pub registers: Option<u32>,
    /// Bytes of static shared memory.
    pub shared_bytes: u64,
    /// The most threads a block may have.
    pub max_threads: Option<u32>,
    /// The block size the kernel was compiled for.
    pub required_threads: Option<[u32; 3]>,
}

/// One parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CubinParam {
    /// Its place in the list, from 0.
    pub ordinal: u16,
    /// Where it starts.
    pub offset: u16,
    /// Its size in bytes.
    pub size: u32,
}

const FORMAT_BYTES: u8 = 4;
const ATTR_PARAM: u8 = 0x17;
const ATTR_PARAM_LARGE: u8 = 0x45;
const ATTR_PARAM_BYTES: u8 = 0x19;
const ATTR_MAX_THREADS: u8 = 0x05;
const ATTR_REQUIRED_THREADS: u8 = 0x10;
const ATTR_REGISTERS: u8 = 0x2f;
/// Bytes of an ELF symbol.
const SYMBOL: usize = 24;

const INFO: &str = ".nv.info.";
const SHARED: &str = ".nv.shared.";
const GLOBAL: &str = ".nv.global";
const GLOBAL_VALUES: &str = ".nv.global.init";
/// A kernel with more parameters does not exist: 32 KiB hold at most this many.
const MAX_PARAMS: usize = 1 << 15;

impl Cubin {
    /// Reads a cubin.
    ///
    /// # Errors
    ///
    /// When the bytes are not an ELF file of the CUDA machine, or reach past their end.
    pub fn parse(bytes: &[u8]) -> Result<Cubin> {
        let header = elf::Header::parse(bytes)?;
        if !header.is_cuda() {
            return Err(Error::BadField {
                what: "ELF machine",
                value: u16_at(bytes, 18).into(),
            });
        }
        let sections = elf::sections(bytes)?;
        let mut kernels = Vec::new();
        for section in &sections {
            let Some(name) = section.name.strip_prefix(INFO) else {
                continue;
            };
            // Device functions have the section too; only kernels state the size of parameters.
            let mut kernel = CubinKernel {
                name: name.into(),
                ..CubinKernel::default()
            };
            if read_info(section.data, &mut kernel)? {
                kernels.push(kernel);
            }
        }
        let empty = elf::nobits(bytes)?;
        let with_values = sections.iter().map(|s| (s.name, s.data.len() as u64));
        let global_bytes = with_values
            .chain(empty.iter().copied())
            .filter(|(name, _)| *name == GLOBAL || *name == GLOBAL_VALUES)
            .fold(0, |sum: u64, (_, len)| sum.saturating_add(len));
        let shared: HashMap<&str, u64> = empty
            .into_iter()
            .filter_map(|(name, len)| Some((name.strip_prefix(SHARED)?, len)))
            .collect();
        let registers = register_counts(&sections);
        for kernel in &mut kernels {
            kernel.shared_bytes = shared.get(kernel.name.as_str()).copied().unwrap_or(0);
            kernel.registers = registers.get(kernel.name.as_str()).copied();
        }
        Ok(Cubin {
            sm: header.sm(),
            kernels,
            global_bytes,
        })
    }

    /// The kernel of a name.
    pub fn kernel(&self, name: &str) -> Option<&CubinKernel> {
        self.kernels.iter().find(|k| k.name == name)
    }
}

/// Registers by function, from the records of `.nv.info`, which name symbols by number.
fn register_counts<'a>(sections: &[elf::Section<'a>]) -> HashMap<&'a str, u32> {
    let data = |name: &str| {
        sections
            .iter()
            .find(|s| s.name == name)
            .map_or(&[][..], |s| s.data)
    };
    let (symbols, names, info) = (data(".symtab"), data(".strtab"), data(".nv.info"));
    let mut counts = HashMap::new();
    let mut at = 0;
    while let Some(record) = info.get(at..at + 4) {
        let len = if record[0] == FORMAT_BYTES {
            usize::from(u16_at(record, 2))
        } else {
            0
        };
        let payload = info.get(at + 4..at + 4 + len).unwrap_or(&[]);
        if record[1] == ATTR_REGISTERS && payload.len() >= 8 {
            let symbol = (u32_at(payload, 0) as usize).saturating_mul(SYMBOL);
            let name = elf::string_at(names, u32_at(symbols, symbol));
            counts.insert(name, u32_at(payload, 4));
        }
        at += 4 + len;
    }
    counts
}

/// Reads a kernel's records; `false` when they do not describe a kernel.
fn read_info(data: &[u8], kernel: &mut CubinKernel) -> Result<bool> {
    let mut at = 0;
    let mut is_kernel = false;
    while let Some(record) = data.get(at..at + 4) {
        let (format, attribute, value) = (record[0], record[1], u16_at(record, 2));
        at += 4;
        let len = if format == FORMAT_BYTES {
            usize::from(value)
        } else {
            0
        };
        let payload = data.get(at..at + len).ok_or(Error::Truncated {
            what: "a record of a kernel's information",
            offset: at as u64,
            needed: len as u64,
        })?;
        at += len;
        match attribute {
            ATTR_PARAM if len >= 12 => kernel.params.push(CubinParam {
                ordinal: u16_at(payload, 4),
                offset: u16_at(payload, 6),
                size: u32_at(payload, 8) >> 18,
            }),
            ATTR_PARAM_LARGE if len >= 12 => kernel.params.push(CubinParam {
                ordinal: u16_at(payload, 4),
                offset: u16_at(payload, 6),
                size: u16_at(payload, 8).into(),
            }),
            ATTR_PARAM_BYTES => {
                kernel.param_bytes = value.into();
                is_kernel = true;
            }
            ATTR_MAX_THREADS if len >= 12 => {
                let dims = [u32_at(payload, 0), u32_at(payload, 4), u32_at(payload, 8)];
                kernel.max_threads = Some(dims.iter().fold(1u32, |a, b| a.saturating_mul(*b)));
            }
            ATTR_REQUIRED_THREADS if len >= 12 => {
                kernel.required_threads =
                    Some([u32_at(payload, 0), u32_at(payload, 4), u32_at(payload, 8)]);
            }
            _ => {}
        }
        if kernel.params.len() > MAX_PARAMS {
            let (value, limit) = (kernel.params.len() as u64, MAX_PARAMS as u64);
            return Err(Error::Limit {
                what: "parameters of a kernel",
                value,
                limit,
            });
        }
    }
    kernel.params.sort_by_key(|p| p.ordinal);
    Ok(is_kernel || !kernel.params.is_empty())
}
