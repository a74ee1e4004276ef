//! Host memory that kernels may reach: `host_register`.
//!
//! A kernel can only reach the arena, so host memory must appear there a second time. That is
//! possible for memory that has a file (pass its descriptor), and for shared mappings, which the
//! system can duplicate. Private memory (`malloc`, the stack) cannot be mapped twice on Linux, and
//! is refused with a sentence that says so; the engine gives programs memfd-backed pinned memory.

use std::os::fd::BorrowedFd;

use mica_cuda_abi::CuResult;
use mica_gpu::{Access, GpuError, HostSpan, Result};

use super::{DeviceMemory, Kind, Live};
use crate::arena::PAGE;
use crate::error::{invalid_value, out_of_memory, system};

/// Whether whole pages of host memory can appear in the arena too; `offset` is where they lie in a file that is given.
fn check_pages(host: u64, (first, mapped): (u64, u64), offset: Option<u64>) -> Result<()> {
    match offset {
        Some(offset) if offset % PAGE != host - first => Err(invalid_value(format!(
            "host address {host:#x} and file offset {offset:#x} differ within their page"
        ))),
        None if !is_one_shared_mapping(first, mapped) => Err(GpuError::new(
            CuResult::NotSupported,
            format!(
                "{host:#x} is private host memory, which cannot appear in the device's address \
                 space; register shared memory, or pass the file behind it"
            ),
        )),
        _ => Ok(()),
    }
}

impl DeviceMemory {
    /// Makes host memory visible in the arena, at an address if one is wanted.
    ///
    /// # Safety
    /// The span stays mapped until [`DeviceMemory::unregister`] returns.
    pub(crate) unsafe fn register(
        &self,
        owner: u64,
        span: HostSpan,
        file: Option<(BorrowedFd<'_>, u64)>,
        wanted: Option<u64>,
    ) -> Result<u64> {
        let host = span.as_ptr() as u64;
        if span.is_empty() || host == 0 {
            return Err(invalid_value("registering no memory"));
        }
        let first = host & !(PAGE - 1);
        let Some(end) = host.checked_add(span.len()) else {
            return Err(invalid_value("the span wraps around"));
        };
        let mapped = end.next_multiple_of(PAGE) - first;
        let inside = host - first;
        check_pages(host, (first, mapped), file.map(|(_, offset)| offset))?;
        let mut books = self.books();
        let taken = match wanted {
            None => books.space.take_next(mapped, PAGE),
            Some(at) => {
                let pages = at.wrapping_sub(inside);
                let is_free = pages.is_multiple_of(PAGE) && books.space.take_at(pages, mapped);
                is_free.then_some(pages)
            }
        };
        let pages = taken.ok_or_else(|| out_of_memory("no address space for registered memory"))?;
        let done = match file {
            Some((file, offset)) => {
                self.arena
                    .map_file(pages, mapped, file, offset - inside, Access::ReadWrite)
            }
            // SAFETY: one shared mapping (checked above) that the caller keeps alive.
            None => unsafe { self.arena.duplicate(pages, first, mapped) }
                .map_err(|error| system("duplicating registered host memory", &error)),
        };
        if let Err(error) = done {
            // A failed duplicate may have lost its place; that address space is not used again.
            if file.is_some() {
                books.space.give(pages, mapped);
            }
            return Err(error);
        }
        books.live.insert(
            pages + inside,
            Live {
                bytes: span.len(),
                owner: Some(owner),
                kind: Kind::Registered { pages, mapped },
                access: Access::ReadWrite,
            },
        );
        Ok(pages + inside)
    }

    /// Ends [`DeviceMemory::register`].
    pub(crate) fn unregister(&self, owner: u64, address: u64) -> Result<()> {
        let (_pins, mut books) = self.books_to_unmap();
        match books.live.get(&address).copied() {
            Some(live)
                if live.owner == Some(owner) && matches!(live.kind, Kind::Registered { .. }) =>
            {
                self.drop_range(&mut books, address, live);
                Ok(())
            }
            _ => Err(GpuError::new(
                CuResult::HostMemoryNotRegistered,
                format!("{address:#x} is not registered host memory"),
            )),
        }
    }
}

/// Whether the pages are one shared, writable mapping of this process.
fn is_one_shared_mapping(first: u64, bytes: u64) -> bool {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else {
        return false;
    };
    maps.lines().any(|line| {
        let mut words = line.split_ascii_whitespace();
        let (Some(range), Some(flags)) = (words.next(), words.next()) else {
            return false;
        };
        let Some((start, end)) = range.split_once('-') else {
            return false;
        };
        let (Ok(start), Ok(end)) = (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16))
        else {
            return false;
        };
        start <= first && first + bytes <= end && flags.starts_with("rw") && flags.ends_with('s')
    })
}
