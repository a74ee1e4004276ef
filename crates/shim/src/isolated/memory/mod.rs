//! Linear device memory, and the map of everything that has an address.
//!
//! The map answers where a pointer leads: which allocation, on which side, at which address on the
//! other. Copies need it to tell pinned memory from pageable, pointer queries answer from it.

pub(crate) mod advice;
pub(crate) mod arrays;
pub(crate) mod copied;
pub(crate) mod host_memory;
pub(crate) mod ipc;
pub(crate) mod registered;
pub(crate) mod slabs;
pub(crate) mod tensor_maps;
pub(crate) mod vmm;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, RwLock};

use mica_cuda_abi::{CuResult, Handle, PointerAttribute};
use mica_wire::session::{MemoryAlloc, MemoryFree, SharedHostMemory};

use crate::isolated::context::{Context, current};
use crate::isolated::state::state;
use crate::isolated::support::{Answer, Code, driver, entries, invalid, put, put_opt, read, write};

/// What an allocation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AllocationKind {
    /// `cuMemAlloc`.
    Device,
    /// In stream order, from a pool.
    Pool,
    /// Memory of a graph.
    Graph,
    /// `cuMemHostAlloc`.
    Pinned,
    /// `cuMemHostRegister`.
    Registered,
    /// `cuMemAllocManaged`.
    Managed,
    /// A variable of a module.
    Global,
    /// A variable of a module that the driver keeps in managed memory (`managed_variables`).
    ManagedGlobal,
    /// Memory of another program.
    Imported,
    /// Reserved addresses, with or without memory.
    Reserved,
}

/// Something that has addresses.
pub(crate) struct Allocation {
    pub(crate) kind: AllocationKind,
    /// First address on the device.
    pub(crate) device: u64,
    /// First address in this process, 0 for none.
    pub(crate) host: u64,
    pub(crate) bytes: u64,
    pub(crate) context: &'static Context,
    pub(crate) epoch: u64,
    pub(crate) id: u64,
    /// Flags it was made with.
    pub(crate) flags: u32,
    /// Pool it came from.
    pub(crate) pool: u64,
    /// Milliseconds after the program's first call; 0 where nobody asks.
    pub(crate) made_ms: u64,
    /// Holds the mapping.
    pub(crate) shared: Option<SharedHostMemory>,
}

impl Allocation {
    /// A plain piece of device memory in the present life of a context.
    pub(crate) fn new(
        kind: AllocationKind,
        device: u64,
        bytes: u64,
        context: &'static Context,
        id: u64,
    ) -> Self {
        Self {
            kind,
            device,
            host: 0,
            bytes,
            context,
            epoch: context.epoch(),
            id,
            flags: 0,
            pool: 0,
            made_ms: crate::isolated::check::made_ms(),
            shared: None,
        }
    }

    /// Whether the host can follow its pointers.
    pub(crate) fn is_host(&self) -> bool {
        self.host != 0
    }

    /// Whether so many bytes from a device address inside it are its own; what is only reserved is the worker's to check.
    pub(crate) fn has_run(&self, address: u64, bytes: u64) -> bool {
        self.kind == AllocationKind::Reserved || bytes <= self.bytes - (address - self.device)
    }
}

type ByAddress = RwLock<BTreeMap<u64, Arc<Allocation>>>;

/// All allocations of the process.
#[derive(Default)]
pub(crate) struct MemoryMap {
    by_device: ByAddress,
    by_host: ByAddress,
}

fn holding(
    map: &ByAddress,
    address: u64,
    start: impl Fn(&Allocation) -> u64,
) -> Option<Arc<Allocation>> {
    let map = read(map);
    let (_, found) = map
        .range((Bound::Unbounded, Bound::Included(address)))
        .next_back()?;
    (address - start(found) < found.bytes.max(1)).then(|| Arc::clone(found))
}

/// Takes out of a map what begins at an address and is one of `kinds`.
fn take_from(map: &ByAddress, address: u64, kinds: &[AllocationKind]) -> Option<Arc<Allocation>> {
    let mut map = write(map);
    map.get(&address)
        .filter(|found| kinds.contains(&found.kind))?;
    map.remove(&address)
}

impl MemoryMap {
    /// Adds an allocation.
    pub(crate) fn insert(&self, allocation: Allocation) {
        crate::isolated::check::allocated(&allocation);
        let allocation = Arc::new(allocation);
        if allocation.host != 0 {
            write(&self.by_host).insert(allocation.host, Arc::clone(&allocation));
        }
        write(&self.by_device).insert(allocation.device, allocation);
    }

    /// The allocation that holds a device address.
    pub(crate) fn find_device(&self, address: u64) -> Option<Arc<Allocation>> {
        holding(&self.by_device, address, |found| found.device)
    }

    /// The allocation that holds an address of this process.
    pub(crate) fn find_host(&self, address: u64) -> Option<Arc<Allocation>> {
        holding(&self.by_host, address, |found| found.host)
    }

    /// Whether there is memory that the host can follow pointers to.
    pub(crate) fn has_host(&self) -> bool {
        !read(&self.by_host).is_empty()
    }

    /// What holds a device address, if the host has it too.
    pub(crate) fn find_host_of_device(&self, address: u64) -> Option<AllocationKind> {
        let found = self.find_device(address)?;
        found.is_host().then_some(found.kind)
    }

    /// What of these bytes of this process is the device's already.
    pub(crate) fn in_host(&self, bytes: std::ops::Range<u64>) -> Option<Arc<Allocation>> {
        let first = |(_, found): (&u64, &Arc<Allocation>)| Arc::clone(found);
        self.find_host(bytes.start)
            .or_else(|| read(&self.by_host).range(bytes).next().map(first))
    }

    /// The allocation that holds a pointer, whichever side it is meant for.
    pub(crate) fn find(&self, address: u64) -> Option<Arc<Allocation>> {
        self.find_device(address)
            .or_else(|| self.find_host(address))
    }

    /// Takes out the allocation that begins at a device address and is one of `kinds`.
    pub(crate) fn take(&self, address: u64, kinds: &[AllocationKind]) -> Option<Arc<Allocation>> {
        let found = take_from(&self.by_device, address, kinds)?;
        if found.host != 0 {
            write(&self.by_host).remove(&found.host);
        }
        Some(found)
    }

    /// As [`MemoryMap::take`], by the address in this process.
    pub(crate) fn take_host(
        &self,
        address: u64,
        kinds: &[AllocationKind],
    ) -> Option<Arc<Allocation>> {
        let found = take_from(&self.by_host, address, kinds)?;
        write(&self.by_device).remove(&found.device);
        Some(found)
    }

    /// Forgets what was made in a life of a context that is over.
    pub(crate) fn forget_epoch(&self, epoch: u64) {
        // Reserved addresses belong to the process.
        let stays = |found: &Arc<Allocation>| {
            found.epoch != epoch || found.kind == AllocationKind::Reserved
        };
        if crate::isolated::state::exiting() {
            // The runtime ends the context for the program, after the program's own destructors.
            let all = self.all().into_iter();
            let left: Vec<_> = all.filter(|found| !stays(found)).collect();
            crate::isolated::check::tell_leaks(&left);
        }
        crate::isolated::check::objects::context_over(epoch, crate::isolated::state::exiting());
        write(&self.by_device).retain(|_, found| stays(found));
        write(&self.by_host).retain(|_, found| stays(found));
    }

    /// All allocations, by device address.
    pub(crate) fn all(&self) -> Vec<Arc<Allocation>> {
        read(&self.by_device).values().map(Arc::clone).collect()
    }

    /// Bytes of a pool that are in use.
    pub(crate) fn pool_bytes(&self, pool: u64) -> u64 {
        let map = read(&self.by_device);
        let of_pool =
            |found: &&Arc<Allocation>| found.kind == AllocationKind::Pool && found.pool == pool;
        map.values().filter(of_pool).map(|found| found.bytes).sum()
    }

    /// Whether `bytes` from a device address on lie in one allocation.
    pub(crate) fn covers(&self, address: u64, bytes: u64) -> bool {
        self.find_device(address)
            .is_some_and(|found| found.has_run(address, bytes))
    }
}

/// Bytes between rows that suit every device.
const PITCH: u64 = 512;

/// Allocates device memory in the current context.
pub(crate) fn allocate(bytes: u64) -> Answer<u64> {
    if bytes == 0 {
        return invalid();
    }
    let (state, context) = current()?;
    crate::isolated::capture::forbid_unsafe()?;
    let is_piece = slabs::serves(state, bytes);
    let address = match is_piece {
        true => slabs::allocate(state, context, bytes)?,
        false => {
            let request = MemoryAlloc {
                context: context.wire(),
                bytes,
            };
            context.checked(state.client.call(&request))?.value
        }
    };
    let id = state.number();
    let mut made = Allocation::new(AllocationKind::Device, address, bytes, context, id);
    if is_piece {
        slabs::mark(&mut made);
    }
    state.memory.insert(made);
    Ok(address)
}

driver! {
    fn mem_alloc(out: *mut u64, bytes: usize) {
        if out.is_null() {
            return invalid();
        }
        put(out, allocate(bytes as u64)?)
    }

    fn mem_alloc_pitch(out: *mut u64, pitch: *mut usize, width: usize, height: usize, element: u32) {
        if out.is_null() || pitch.is_null() || !matches!(element, 4 | 8 | 16) || width == 0 || height == 0 {
            return invalid();
        }
        let row = (width as u64).checked_next_multiple_of(PITCH).ok_or(Code(CuResult::OutOfMemory as u32))?;
        let bytes = row.checked_mul(height as u64).ok_or(Code(CuResult::OutOfMemory as u32))?;
        put(out, allocate(bytes)?)?;
        put(pitch, row as usize)
    }

    fn mem_free(address: u64) {
        if address == 0 {
            return Ok(());
        }
        let (state, context) = current()?;
        crate::isolated::capture::forbid_unsafe()?;
        if let Some(freed) = ipc::free_pool_pointer(state, address) {
            return freed;
        }
        let kinds = [AllocationKind::Device, AllocationKind::Pool, AllocationKind::Managed, AllocationKind::Graph];
        let found = state.memory.take(address, &kinds);
        let Some(found) = found else {
            return invalid();
        };
        if found.kind == AllocationKind::Managed {
            return host_memory::release(state, &found);
        }
        if found.kind == AllocationKind::Pool && state.client.snapshot().has_driver {
            found.context.synchronize(state)?;
            crate::isolated::pools::give_idle_block(state, &found);
            return Ok(());
        }
        if slabs::is_piece(&found) {
            return slabs::free(state, &found);
        }
        if found.kind == AllocationKind::Graph {
            found.context.synchronize(state)?;
            return crate::isolated::graphs::memory::free(state, &found);
        }
        let request = MemoryFree { context: found.context.wire(), address };
        let freed = state.client.call(&request);
        state.print_output();
        context.checked(freed).map(drop)
    }

    fn mem_address_range(base: *mut u64, bytes: *mut usize, address: u64) {
        let (state, _) = current()?;
        // Nobody wants to know anything.
        if base.is_null() && bytes.is_null() {
            return Ok(());
        }
        let Some(found) = state.memory.find(address) else {
            return Err(CuResult::NotFound.into());
        };
        put_opt(base, found.device);
        put_opt(bytes, found.bytes as usize);
        Ok(())
    }

    fn pointer_attribute(out: *mut u8, attribute: u32, pointer: u64) {
        let (state, _) = current()?;
        if out.is_null() {
            return invalid();
        }
        let Some(found) = state.memory.find(pointer) else {
            return invalid();
        };
        write_attribute(out, attribute, pointer, &found)
    }

    fn pointer_attributes(count: u32, attributes: *const u32, out: *mut *mut u8, pointer: u64) {
        // Unlike for a single one, no context need be current.
        let state = state()?;
        if attributes.is_null() || out.is_null() {
            return invalid();
        }
        let found = state.memory.find(pointer);
        for index in 0..count as usize {
            let (attribute, out) = (attributes.add(index).read(), out.add(index).read());
            if out.is_null() {
                return invalid();
            }
            match &found {
                // What does not apply is zero.
                Some(found) => {
                    if write_attribute(out, attribute, pointer, found).is_err() {
                        write_nothing(out, attribute);
                    }
                }
                None => write_nothing(out, attribute),
            }
        }
        Ok(())
    }

    fn pointer_set_attribute(_value: *const u8, attribute: u32, pointer: u64) {
        let (state, _) = current()?;
        // Copies are ordered more strictly than it asks for.
        if attribute != PointerAttribute::SyncMemops as u32 || state.memory.find(pointer).is_none() {
            return invalid();
        }
        Ok(())
    }
}

/// Whether other programs can have it by `cuIpcGetMemHandle`: allocations of whole frames.
fn is_shareable(found: &Allocation) -> bool {
    let frame = state().map_or(0, |state| state.client.snapshot().frame_bytes);
    found.kind == AllocationKind::Device && frame != 0 && found.bytes.is_multiple_of(frame)
}

/// Zero of the attribute's size.
unsafe fn write_nothing(out: *mut u8, attribute: u32) {
    use PointerAttribute::*;
    // SAFETY: the program's pointer, to a value of the attribute's type.
    unsafe {
        match PointerAttribute::from_number(attribute) {
            Some(DeviceOrdinal) => out.cast::<i32>().write_unaligned(-2),
            Some(
                MemoryType
                | SyncMemops
                | IsManaged
                | IsLegacyCudaIpcCapable
                | Mapped
                | IsGpuDirectRdmaCapable
                | AccessFlags
                | IsHwDecompressCapable
                | LocalityDomainOrdinal,
            ) => out.cast::<u32>().write_unaligned(0),
            Some(P2pTokens) => out.cast::<[u64; 2]>().write_unaligned([0; 2]),
            _ => out.cast::<u64>().write_unaligned(0),
        }
    }
}

unsafe fn write_attribute(
    out: *mut u8,
    attribute: u32,
    pointer: u64,
    found: &Allocation,
) -> Answer {
    use AllocationKind::{Managed, ManagedGlobal, Pinned, Pool, Registered};
    use PointerAttribute as A;
    let Some(attribute) = A::from_number(attribute) else {
        return invalid();
    };
    let on_device = pointer.wrapping_sub(found.device) < found.bytes;
    let offset = match on_device {
        true => pointer - found.device,
        false => pointer - found.host,
    };
    let is_host_memory = matches!(found.kind, Pinned | Registered);
    // SAFETY: the program's pointer, to a value of the attribute's type.
    unsafe {
        match attribute {
            A::Context => out.cast::<Handle>().write_unaligned(found.context.handle()),
            A::MemoryType => out
                .cast::<u32>()
                .write_unaligned(if is_host_memory { 1 } else { 2 }),
            A::DevicePointer => out.cast::<u64>().write_unaligned(found.device + offset),
            A::HostPointer if found.kind == ManagedGlobal => {
                out.cast::<u64>().write_unaligned(pointer);
            }
            A::HostPointer if !found.is_host() => return invalid(),
            A::HostPointer => out.cast::<u64>().write_unaligned(found.host + offset),
            A::SyncMemops => out.cast::<u32>().write_unaligned(0),
            A::BufferId | A::MemoryBlockId => out.cast::<u64>().write_unaligned(found.id),
            A::IsManaged => out
                .cast::<u32>()
                .write_unaligned(u32::from(matches!(found.kind, Managed | ManagedGlobal))),
            A::DeviceOrdinal => out.cast::<i32>().write_unaligned(0),
            A::LocalityDomainOrdinal => out.cast::<i32>().write_unaligned(-1),
            A::IsLegacyCudaIpcCapable => out
                .cast::<u32>()
                .write_unaligned(u32::from(is_shareable(found))),
            A::IsGpuDirectRdmaCapable | A::IsHwDecompressCapable => {
                out.cast::<u32>().write_unaligned(0);
            }
            A::RangeStartAddr | A::MappingBaseAddr => {
                out.cast::<u64>().write_unaligned(found.device)
            }
            A::RangeSize | A::MappingSize => out.cast::<u64>().write_unaligned(found.bytes),
            A::Mapped => out.cast::<u32>().write_unaligned(1),
            A::AllowedHandleTypes => out.cast::<u64>().write_unaligned(0),
            // Reads and writes.
            A::AccessFlags => out.cast::<u32>().write_unaligned(3),
            A::MempoolHandle if found.kind == Pool => out.cast::<u64>().write_unaligned(found.pool),
            A::MempoolHandle => out.cast::<u64>().write_unaligned(0),
            A::P2pTokens => return invalid(),
        }
    }
    Ok(())
}

entries! {
    cuMemAlloc_v2 = mem_alloc;
    cuMemAllocPitch_v2 = mem_alloc_pitch;
    cuMemFree_v2 = mem_free;
    cuMemGetAddressRange_v2 = mem_address_range;
    cuPointerGetAttribute = pointer_attribute;
    cuPointerGetAttributes = pointer_attributes;
    cuPointerSetAttribute = pointer_set_attribute;
}
