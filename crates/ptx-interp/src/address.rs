//! From PTX addresses to host addresses, with checks.

use crate::machine::{Machine, Stop};
use crate::state::Frame;
use mica_kernel::FaultKind;
use mica_ptx::ast::{AddrBase, Address, Space, VarId};

/// Where a variable of parameter space lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParamHome {
    /// A kernel's parameter: the launch's parameter block.
    Kernel,
    /// A device function's parameter: its frame.
    Own,
    /// A return parameter: its frame.
    Return,
    /// Declared in a body to pass arguments: the caller's frame.
    Argument,
}

/// An address ready to be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A host address inside the arena, checked.
    Host(u64),
    /// An offset in the kernel's parameters, checked.
    Parameter(usize),
}

impl Machine<'_> {
    /// The address of a variable within its own space.
    pub(crate) fn variable_address(&self, t: usize, var: VarId) -> u64 {
        self.variable_address_in(self.frame(t), var)
    }

    /// The address of a variable as the function of a frame sees it.
    pub(crate) fn variable_address_in(&self, frame: Frame, var: VarId) -> u64 {
        let variable = self.module.var(var);
        let areas = self.layout.frames[frame.function.index()];
        match variable.space {
            Space::Shared | Space::SharedCluster => {
                if variable.is_dynamic_shared() {
                    u64::from(self.module.func(self.kernel).dynamic_shared_offset)
                } else {
                    variable.offset
                }
            }
            Space::Local => frame.local + areas.locals + variable.offset,
            Space::Param => {
                variable.offset
                    + match self.plans.param_home(var) {
                        ParamHome::Kernel => 0,
                        ParamHome::Own => frame.local + areas.params,
                        ParamHome::Return => frame.local + areas.returns,
                        ParamHome::Argument => frame.local + areas.call_params,
                    }
            }
            Space::Generic | Space::Global | Space::Const | Space::Tex => self
                .layout
                .global(var)
                .map_or(0, |i| self.global_address(i)),
        }
    }

    fn global_address(&self, index: usize) -> u64 {
        if self.env.globals.is_null() || index >= self.layout.globals.len() {
            return 0;
        }
        // SAFETY: the device gives one address for each of the module's globals.
        unsafe { *self.env.globals.add(index) }
    }

    pub(crate) fn local_start(&self, t: usize) -> u64 {
        self.env
            .local_base
            .wrapping_add((t as u64).wrapping_mul(self.env.local_stride))
    }

    /// A generic address from one of a space.
    pub(crate) fn to_generic(&self, t: usize, space: Space, address: u64) -> u64 {
        match space {
            Space::Shared => self.env.shared_base.wrapping_add(address),
            Space::SharedCluster => self.env.block().generic_of_shared(address),
            Space::Local => self.local_start(t).wrapping_add(address),
            Space::Param => {
                if self.function(t).is_kernel {
                    self.env.params_device.wrapping_add(address)
                } else {
                    self.local_start(t).wrapping_add(address)
                }
            }
            Space::Generic | Space::Global | Space::Const | Space::Tex => address,
        }
    }

    /// An address within a space from a generic one.
    pub(crate) fn within_space(&self, t: usize, space: Space, address: u64) -> u64 {
        match space {
            Space::SharedCluster => self.env.block().shared_of_generic(address),
            space => address.wrapping_sub(self.to_generic(t, space, 0)),
        }
    }

    /// Whether a generic address lies in a space.
    pub(crate) fn is_in_space(&self, t: usize, space: Space, address: u64) -> bool {
        let within = |start: u64, len: u64| address.wrapping_sub(start) < len;
        let env = &self.env;
        let shared = within(env.shared_base, env.shared_len);
        let locals = env
            .local_stride
            .saturating_mul(self.state.threads.len() as u64);
        let local = within(env.local_base, locals);
        let params = env.params.len() as u64;
        let param = env.params_device != 0 && within(env.params_device, params);
        match space {
            Space::Shared => shared,
            Space::SharedCluster => env.block().find_shared(address).is_some(),
            Space::Local => within(self.local_start(t), env.local_stride),
            Space::Param => param,
            Space::Const => {
                self.layout.globals.iter().enumerate().any(|(i, global)| {
                    global.constant && within(self.global_address(i), global.size)
                })
            }
            Space::Global => {
                within(env.arena_base, env.arena_len)
                    && !(shared || local || param)
                    && !self.is_in_space(t, Space::Const, address)
            }
            Space::Generic | Space::Tex => within(env.arena_base, env.arena_len),
        }
    }

    /// Evaluates `[base + offset]` and the space that it is in.
    fn effective(&self, t: usize, space: Space, address: Address) -> (Space, u64) {
        let (space, base) = match address.base {
            AddrBase::Reg(r) => {
                let own_stack = space == Space::Param && !self.function(t).is_kernel;
                (
                    if own_stack { Space::Local } else { space },
                    self.register(t, r),
                )
            }
            AddrBase::Absolute => (space, 0),
            AddrBase::Var(var) => {
                let at = self.variable_address(t, var);
                match self.module.var(var).space {
                    Space::Param if self.plans.param_home(var) == ParamHome::Kernel => {
                        if space == Space::Param {
                            (Space::Param, at)
                        } else {
                            (Space::Generic, self.to_generic(t, Space::Param, at))
                        }
                    }
                    Space::Param => (Space::Local, at),
                    // The variable knows where it is, also in a generic access.
                    own => (own, at),
                }
            }
        };
        let sum = base.wrapping_add_signed(address.offset);
        // 32-bit registers hold addresses of the narrow spaces; sums wrap within them.
        let narrow = matches!(space, Space::Shared | Space::SharedCluster | Space::Local);
        (space, if narrow { sum & 0xffff_ffff } else { sum })
    }

    /// Checks an access and finds its place.
    pub(crate) fn place(
        &self,
        t: usize,
        space: Space,
        address: Address,
        bytes: u32,
        is_write: bool,
    ) -> Result<Place, Stop> {
        let (space, at) = self.effective(t, space, address);
        self.place_at(t, space, at, bytes, is_write)
    }

    /// Checks an access at an address of a space. Its alignment is its size.
    pub(crate) fn place_at(
        &self,
        t: usize,
        space: Space,
        at: u64,
        bytes: u32,
        is_write: bool,
    ) -> Result<Place, Stop> {
        let illegal =
            |address| self.access_fault(t, FaultKind::IllegalAddress, address, bytes, is_write);
        if bytes == 0 || !at.is_multiple_of(u64::from(bytes)) {
            let kind = FaultKind::MisalignedAddress;
            return Err(self.access_fault(t, kind, at, bytes, is_write));
        }
        let fits = |len: u64| at <= len && u64::from(bytes) <= len - at;
        let host = match space {
            Space::Param => {
                if is_write || !fits(self.env.params.len() as u64) {
                    return Err(illegal(at));
                }
                return Ok(Place::Parameter(at as usize));
            }
            Space::Shared | Space::SharedCluster => {
                let place = self.shared_place(space, at);
                let inside = |(_, offset): &(u64, u64)| {
                    let len = self.env.shared_len;
                    *offset <= len && u64::from(bytes) <= len - *offset
                };
                match place.filter(inside) {
                    Some((base, offset)) => base + offset,
                    None => return Err(illegal(at)),
                }
            }
            Space::Local => {
                if !fits(self.env.local_stride) {
                    return Err(illegal(at));
                }
                self.local_start(t) + at
            }
            Space::Generic | Space::Global | Space::Const | Space::Tex => at,
        };
        self.check_host(t, host, u64::from(bytes), is_write)?;
        Ok(Place::Host(host))
    }

    /// Where the shared memory that an address is in begins, and the offset.
    fn shared_place(&self, space: Space, at: u64) -> Option<(u64, u64)> {
        match space {
            Space::SharedCluster => self.env.block().cluster_shared(at),
            _ => Some((self.env.shared_base, at)),
        }
    }

    /// Checks that a range lies in the arena (and in an allocation, when asked to be exact).
    pub(crate) fn check_host(
        &self,
        t: usize,
        host: u64,
        bytes: u64,
        is_write: bool,
    ) -> Result<(), Stop> {
        let offset = host.wrapping_sub(self.env.arena_base);
        let mut legal = offset <= self.env.arena_len && bytes <= self.env.arena_len - offset;
        if legal && self.env.memcheck {
            legal = self
                .env
                .services
                .is_none_or(|s| s.check_access(host, bytes, is_write));
        }
        if legal {
            return Ok(());
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        Err(self.access_fault(t, FaultKind::IllegalAddress, host, bytes, is_write))
    }

    /// A host address for `bytes` bytes at an instruction's address, aligned to `align`.
    pub(crate) fn range(
        &self,
        t: usize,
        space: Space,
        address: Address,
        bytes: u64,
        align: u64,
        is_write: bool,
    ) -> Result<u64, Stop> {
        let (space, at) = self.effective(t, space, address);
        self.range_at(t, space, at, bytes, align, is_write)
    }

    /// The same at an address of a space.
    pub(crate) fn range_at(
        &self,
        t: usize,
        space: Space,
        at: u64,
        bytes: u64,
        align: u64,
        is_write: bool,
    ) -> Result<u64, Stop> {
        let narrow = u32::try_from(bytes).unwrap_or(u32::MAX);
        if !at.is_multiple_of(align.max(1)) {
            let kind = FaultKind::MisalignedAddress;
            return Err(self.access_fault(t, kind, at, narrow, is_write));
        }
        let limit = match space {
            Space::Shared | Space::SharedCluster => {
                let place = self.shared_place(space, at);
                Some(place.map_or((u64::MAX, 0), |(_, offset)| (offset, self.env.shared_len)))
            }
            Space::Local => Some((at, self.env.local_stride)),
            _ => None,
        };
        if limit.is_some_and(|(at, len)| at > len || bytes > len - at) {
            let kind = FaultKind::IllegalAddress;
            return Err(self.access_fault(t, kind, at, narrow, is_write));
        }
        let host = self.to_generic(t, space, at);
        self.check_host(t, host, bytes, is_write)?;
        Ok(host)
    }
}
