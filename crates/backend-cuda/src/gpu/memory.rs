//! Device memory, registered host memory, frames and their mappings.

use mica_cuda_abi::{CuResult, PointerAttribute, host_register_flags};
use mica_gpu::{Access, ContextId, DevicePtr, FrameId, HostSpan, Result};

use super::known_ranges;
use super::places::Places;
use super::{Address, Context, CudaGpu, Frame, frame_kind, invalid, lock, stale};
use crate::driver::{AccessDescriptor, Raw, answer};

impl CudaGpu {
    pub(super) fn alloc(&self, context: ContextId, bytes: u64) -> Result<DevicePtr> {
        let context = self.context(context)?;
        if let Some(address) = self.alloc_framed(&context, bytes) {
            return Ok(address);
        }
        let mut address = 0;
        // SAFETY: writes one address.
        self.call(&context, "cuMemAlloc", || unsafe {
            (self.driver.functions.memory_alloc)(&mut address, bytes as usize)
        })?;
        Ok(DevicePtr(address))
    }

    pub(super) fn free(&self, context: ContextId, address: DevicePtr) -> Result<()> {
        let context = self.context(context)?;
        if address.0 == 0 {
            return Ok(());
        }
        let framed = lock(&context.framed).remove(&address.0);
        if let Some(frame) = framed {
            return self.drop_framed(address.0, frame);
        }
        let _gone = known_ranges::giving_back();
        // SAFETY: the driver checks the address.
        self.call(&context, "cuMemFree", || unsafe {
            (self.driver.functions.memory_free)(address.0)
        })
    }

    pub(super) fn range(&self, context: ContextId, address: DevicePtr) -> Result<(DevicePtr, u64)> {
        let context = self.context(context)?;
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: writes two numbers; the driver checks the address.
        self.call(&context, "cuMemGetAddressRange", || unsafe {
            (self.driver.functions.memory_range)(&mut base, &mut bytes, address.0)
        })?;
        Ok((DevicePtr(base), bytes as u64))
    }

    /// Whether the driver keeps what is at an address of the current context in managed memory.
    pub(super) fn is_managed(&self, address: u64) -> bool {
        const IS_MANAGED: u32 = 8;
        let mut managed = 0_u32;
        // SAFETY: writes one number; unknown addresses are refused.
        let code = unsafe {
            let ask = self.driver.functions.pointer_attribute;
            ask((&raw mut managed).cast(), IS_MANAGED, address)
        };
        code == 0 && managed != 0
    }

    /// Refuses a range that is not the driver's own memory. With heterogeneous memory management the
    /// driver takes an unknown address for one of this process's own and follows it.
    pub(super) fn check_range(
        &self,
        context: &Context,
        start: DevicePtr,
        bytes: u64,
    ) -> Result<()> {
        /// Mappings a range may span; the driver judges what is longer.
        const MOST_MAPPINGS: usize = 4096;
        let functions = &self.driver.functions;
        let beyond = || {
            invalid(format!(
                "{bytes} bytes at {:#x} are not all memory",
                start.0
            ))
        };
        let end = start.0.checked_add(bytes).ok_or_else(beyond)?;
        if known_ranges::holds(context.raw, start.0, end) {
            return Ok(());
        }
        let asked = known_ranges::asking();
        self.enter(context)?;
        let mut at = start.0;
        for _ in 0..MOST_MAPPINGS {
            let mut kind = 0_u32;
            // SAFETY: writes one number; unknown addresses are refused.
            let code = unsafe {
                let kind = (&raw mut kind).cast();
                (functions.pointer_attribute)(kind, PointerAttribute::MemoryType as u32, at)
            };
            if code == CuResult::InvalidValue as u32 {
                return Err(beyond());
            }
            self.judge(context, "cuPointerGetAttribute", code)?;
            let (mut base, mut length) = (0, 0);
            // SAFETY: writes two numbers; unknown addresses are refused.
            let code = unsafe { (functions.memory_range)(&mut base, &mut length, at) };
            let next = base.saturating_add(length as u64);
            // Variables of modules may have no range of their own: the driver checks those.
            if code == 0 && next >= end && base <= at {
                known_ranges::remember(asked, context.raw, base, next);
            }
            if code != 0 || next >= end || next <= at {
                return Ok(());
            }
            at = next;
        }
        Ok(())
    }

    /// # Safety
    /// The span stays mapped until it is unregistered.
    pub(super) unsafe fn register(&self, context: ContextId, span: HostSpan) -> Result<DevicePtr> {
        // SAFETY: our contract is the callee's.
        unsafe { self.register_in(&*self.context(context)?, span) }
    }

    /// Registered host memory by its device address; `None` if the bytes are no part of one.
    pub(super) fn host_at(
        &self,
        context: &Context,
        address: DevicePtr,
        bytes: u64,
    ) -> Option<HostSpan> {
        let registered = lock(&context.registered);
        let (start, (host, length)) = registered.range(..=address.0).next_back()?;
        let offset = address.0 - start;
        let is_inside = offset.checked_add(bytes)? <= *length;
        let pointer = (*host as *mut u8).wrapping_add(offset as usize);
        // SAFETY: what is registered is mapped until it is unregistered, and whoever unregisters it has waited for what
        // uses it, by the contract of `host_register`.
        is_inside.then(|| unsafe { HostSpan::new(pointer, bytes) })
    }

    /// Registers host memory with a context that is at hand.
    ///
    /// # Safety
    /// The span stays mapped until it is unregistered, or the context has ended.
    pub(super) unsafe fn register_in(
        &self,
        context: &Context,
        span: HostSpan,
    ) -> Result<DevicePtr> {
        const PORTABLE_AND_MAPPED: u32 =
            host_register_flags::PORTABLE | host_register_flags::DEVICEMAP;
        let host = span.as_ptr();
        let functions = &self.driver.functions;
        // SAFETY: the span is mapped, by our contract.
        self.call(context, "cuMemHostRegister", || unsafe {
            (functions.host_register)(host.cast(), span.len() as usize, PORTABLE_AND_MAPPED)
        })?;
        let mut address = 0;
        // SAFETY: writes one address of memory just registered.
        let mapped = self.call(context, "cuMemHostGetDevicePointer", || unsafe {
            (functions.host_address)(&mut address, host.cast(), 0)
        });
        if let Err(error) = mapped {
            // SAFETY: registered above.
            unsafe { (functions.host_unregister)(host.cast()) };
            return Err(error);
        }
        lock(&context.registered).insert(address, (host as Address, span.len()));
        Ok(DevicePtr(address))
    }

    /// # Safety
    /// The span stays mapped as long as the context lives.
    pub(super) unsafe fn pin_host(&self, context: ContextId, span: HostSpan) -> Result<()> {
        // SAFETY: our contract; the end of the context ends the registration.
        match unsafe { self.register(context, span) } {
            // By another context, for all of them.
            Err(error) if error.code == CuResult::HostMemoryAlreadyRegistered => Ok(()),
            other => other.map(drop),
        }
    }

    pub(super) fn unpin_host(&self, context: ContextId, span: HostSpan) -> Result<()> {
        let known = self.context(context)?;
        let wanted = span.as_ptr() as Address;
        let found = lock(&known.registered)
            .iter()
            .find_map(|(device, (host, _))| (*host == wanted).then_some(*device));
        let device =
            found.ok_or_else(|| invalid("this host memory is not pinned by this context"))?;
        self.unregister(context, DevicePtr(device))
    }

    pub(super) fn unregister(&self, context: ContextId, address: DevicePtr) -> Result<()> {
        let context = self.context(context)?;
        let host = lock(&context.registered).remove(&address.0);
        let (host, _) = host
            .ok_or_else(|| invalid(format!("no host memory is registered at {:#x}", address.0)))?;
        let _gone = known_ranges::giving_back();
        // SAFETY: registered by us, and once.
        self.call(&context, "cuMemHostUnregister", || unsafe {
            (self.driver.functions.host_unregister)(host as Raw)
        })
    }

    /// Frames belong to the device, not to a context, but the driver likes to have one.
    pub(super) fn without_context(
        &self,
        name: &'static str,
        call: impl FnOnce() -> u32,
    ) -> Result<()> {
        match self.contexts.any() {
            Some(context) => self.call(&context, name, call),
            None => answer(name, call()),
        }
    }

    pub(super) fn reserve(&self, bytes: u64, align: u64) -> Result<DevicePtr> {
        match self
            .with_places(|places| places.take(bytes, align))
            .flatten()
        {
            Some(at) => Ok(DevicePtr(at)),
            None => self.reserve_near(bytes, align, 0),
        }
    }

    /// With an address that the driver takes as a hint; 0 for none.
    pub(super) fn reserve_near(&self, bytes: u64, align: u64, hint: u64) -> Result<DevicePtr> {
        let mut address = 0;
        // SAFETY: writes one address.
        self.without_context("cuMemAddressReserve", || unsafe {
            let reserve = self.driver.functions.address_reserve;
            reserve(&mut address, bytes as usize, align as usize, hint, 0)
        })?;
        Ok(DevicePtr(address))
    }

    pub(super) fn reserve_at(&self, wanted: DevicePtr, bytes: u64) -> Result<()> {
        let taken = || {
            let what = format!(
                "{bytes} bytes of address space at {:#x} are not free",
                wanted.0
            );
            mica_gpu::GpuError::new(CuResult::OutOfMemory, what)
        };
        let take = |places: &mut Places| {
            let is_inside = places.contains(wanted.0);
            is_inside.then(|| places.take_at(wanted.0, bytes))
        };
        match self.with_places(take).flatten() {
            Some(true) => return Ok(()),
            Some(false) => return Err(taken()),
            None => {}
        }
        let given = self.reserve_near(bytes, 0, wanted.0)?;
        if given == wanted {
            return Ok(());
        }
        self.unreserve(given, bytes)?;
        Err(taken())
    }

    pub(super) fn unreserve(&self, address: DevicePtr, bytes: u64) -> Result<()> {
        let give = |places: &mut Places| {
            let is_inside = places.contains(address.0);
            is_inside.then(|| places.give(address.0, bytes))
        };
        if self.with_places(give).flatten().is_some() {
            return Ok(());
        }
        self.free_reserved(address, bytes)
    }

    /// Gives address space back to the driver.
    pub(super) fn free_reserved(&self, address: DevicePtr, bytes: u64) -> Result<()> {
        // SAFETY: the driver checks the range.
        self.without_context("cuMemAddressFree", || unsafe {
            (self.driver.functions.address_free)(address.0, bytes as usize)
        })
    }

    pub(super) fn make_frame(&self, bytes: u64) -> Result<FrameId> {
        let frame = self.new_frame(bytes)?;
        Ok(FrameId(self.frames.add(frame)))
    }

    pub(super) fn new_frame(&self, bytes: u64) -> Result<Frame> {
        let mut raw = 0;
        let kind = frame_kind(self.ordinal, self.handle_types);
        // SAFETY: reads one description, writes one handle.
        self.without_context("cuMemCreate", || unsafe {
            (self.driver.functions.frame_create)(&mut raw, bytes as usize, &kind, 0)
        })?;
        Ok(Frame { raw, bytes })
    }

    pub(super) fn release_frame(&self, id: FrameId) -> Result<()> {
        let removed = self.frames.remove(id.0);
        self.end_frame(removed.ok_or_else(|| stale("frame", id.0))?)
    }

    /// Releases a frame that is in no table any more.
    pub(super) fn end_frame(&self, frame: Frame) -> Result<()> {
        // SAFETY: made by us, released once.
        self.without_context("cuMemRelease", || unsafe {
            (self.driver.functions.frame_release)(frame.raw)
        })
    }

    pub(super) fn map_frame(&self, address: DevicePtr, id: FrameId) -> Result<()> {
        let frame = self.frames.get(id.0).ok_or_else(|| stale("frame", id.0))?;
        self.map_at(address, frame)
    }

    pub(super) fn map_at(&self, address: DevicePtr, frame: Frame) -> Result<()> {
        // SAFETY: the driver checks that the range is reserved and free.
        self.without_context("cuMemMap", || unsafe {
            (self.driver.functions.frame_map)(address.0, frame.bytes as usize, 0, frame.raw, 0)
        })
    }

    pub(super) fn unmap(&self, address: DevicePtr, bytes: u64) -> Result<()> {
        let _gone = known_ranges::giving_back();
        // SAFETY: the driver checks that the range covers whole mappings.
        self.without_context("cuMemUnmap", || unsafe {
            (self.driver.functions.frame_unmap)(address.0, bytes as usize)
        })
    }

    pub(super) fn set_access(&self, address: DevicePtr, bytes: u64, access: Access) -> Result<()> {
        let descriptor = AccessDescriptor {
            location: frame_kind(self.ordinal, 0).location,
            flags: match access {
                Access::None => 0,
                Access::Read => 1,
                Access::ReadWrite => 3,
            },
        };
        // SAFETY: reads one description; the driver checks the range.
        self.without_context("cuMemSetAccess", || unsafe {
            (self.driver.functions.frame_access)(address.0, bytes as usize, &descriptor, 1)
        })
    }
}
