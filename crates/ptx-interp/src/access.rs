//! Reading and writing memory that was checked: plain, ordered, atomic.
//!
//! The only place that touches kernel memory. Every access is a host atomic of its size, because
//! blocks on other host threads may touch the same bytes at the same time.

use crate::address::Place;
use crate::machine::{Machine, Stop};
use mica_ptx::ast::{Address, Atom, AtomOp, Operand, Order, ScalarType, Sem, Space};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

/// Runs `$body` with `$cell` an atomic of `$bytes` bytes at `$host`, and `$int` its integer.
///
/// To be used where `host` is inside the arena and a multiple of `bytes`.
macro_rules! with_cell {
    ($host:expr, $bytes:expr, $cell:ident: $int:ident => $body:expr) => {{
        macro_rules! arm {
            ($atomic:ty, $width:ty) => {{
                type $int = $width;
                // SAFETY: inside the arena and aligned by the caller's check; atomics may race.
                let $cell = unsafe { <$atomic>::from_ptr($host as *mut $width) };
                $body
            }};
        }
        match $bytes {
            1 => arm!(AtomicU8, u8),
            2 => arm!(AtomicU16, u16),
            4 => arm!(AtomicU32, u32),
            _ => arm!(AtomicU64, u64),
        }
    }};
}

/// Reads 1, 2, 4 or 8 bytes.
///
/// # Safety
/// `host` must be inside the arena and a multiple of `bytes`.
pub(crate) unsafe fn read(host: u64, bytes: u32) -> u64 {
    with_cell!(host, bytes, cell: Word => {
        let word: Word = cell.load(Ordering::Relaxed);
        u64::from(word)
    })
}

/// Writes 1, 2, 4 or 8 bytes.
///
/// # Safety
/// `host` must be inside the arena and a multiple of `bytes`.
pub(crate) unsafe fn write(host: u64, bytes: u32, bits: u64) {
    with_cell!(host, bytes, cell: Word => cell.store(bits as Word, Ordering::Relaxed));
}

/// Replaces 1, 2, 4 or 8 bytes by a function of them, atomically; returns what was there.
///
/// # Safety
/// `host` must be inside the arena and a multiple of `bytes`.
pub(crate) unsafe fn update(host: u64, bytes: u32, f: impl Fn(u64) -> u64) -> u64 {
    let (set, get) = (Ordering::SeqCst, Ordering::SeqCst);
    with_cell!(host, bytes, cell: Word => {
        let mut old = cell.load(Ordering::Relaxed);
        loop {
            let new = f(u64::from(old)) as Word;
            match cell.compare_exchange_weak(old, new, set, get) {
                Ok(old) => break u64::from(old),
                Err(now) => old = now,
            }
        }
    })
}

/// Copies bytes one machine word at a time.
///
/// # Safety
/// Both ranges must be inside the arena.
pub(crate) unsafe fn copy(to: u64, from: u64, bytes: u64) {
    let mut done = 0;
    while done < bytes {
        let step = step_of(to | from, done, bytes);
        // SAFETY: within both ranges, and aligned because the step divides both addresses.
        let bits = unsafe { read(from + done, step) };
        // SAFETY: as above.
        unsafe { write(to + done, step, bits) };
        done += u64::from(step);
    }
}

/// The widest access at `base + done` that is aligned and does not pass `bytes`.
fn step_of(base: u64, done: u64, bytes: u64) -> u32 {
    [8u32, 4, 2]
        .into_iter()
        .find(|&s| (base | done).is_multiple_of(u64::from(s)) && bytes - done >= u64::from(s))
        .unwrap_or(1)
}

/// Sets bytes to zero.
///
/// # Safety
/// The range must be inside the arena.
pub(crate) unsafe fn zero(to: u64, bytes: u64) {
    for i in 0..bytes {
        // SAFETY: within the range.
        unsafe { write(to + i, 1, 0) };
    }
}

/// Whether a vector is one access, which other blocks see whole or not at all: where it has an order, as on a GPU.
/// Single-pass scans rely on it. Vectors of sixteen bytes are two accesses here.
fn is_whole(order: Order, elements: usize, total: u32) -> bool {
    order != Order::Weak && elements > 1 && total <= 8
}

impl Machine<'_> {
    /// Reads at a checked place.
    pub(crate) fn read_place(&self, place: Place, offset: u32, bytes: u32) -> u64 {
        match place {
            Place::Host(host) => {
                // SAFETY: `place` checked the whole vector, of which this is an element.
                unsafe { read(host + u64::from(offset), bytes) }
            }
            Place::Parameter(at) => {
                let start = at + offset as usize;
                let mut word = [0; 8];
                for (to, from) in word
                    .iter_mut()
                    .zip(self.env.params[start..].iter())
                    .take(bytes as usize)
                {
                    *to = *from;
                }
                u64::from_le_bytes(word)
            }
        }
    }

    pub(crate) fn read_at(&self, t: usize, host: u64, bytes: u32) -> Result<u64, Stop> {
        let place = self.place_at(t, Space::Generic, host, bytes, false)?;
        Ok(self.read_place(place, 0, bytes))
    }

    pub(crate) fn load(
        &mut self,
        t: usize,
        (space, ty, order): (Space, ScalarType, Order),
        dst: &[Option<mica_ptx::ast::RegId>],
        addr: Address,
    ) -> Result<(), Stop> {
        let element = ty.bytes();
        let total = element * dst.len() as u32;
        let place = self.place(t, space, addr, total, false)?;
        let whole = is_whole(order, dst.len(), total).then(|| self.read_place(place, 0, total));
        for (i, dst) in dst.iter().enumerate() {
            let offset = i as u32 * element;
            let low = match whole {
                Some(all) => all >> (8 * offset) & (u64::MAX >> (64 - 8 * element)),
                None => self.read_place(place, offset, element.min(8)),
            };
            if let Some(r) = *dst {
                self.set_typed(t, r, ty, low);
                if element == 16 {
                    let high = self.read_place(place, offset + 8, 8);
                    self.set_high(t, r, high);
                }
            }
        }
        if matches!(order, Order::Acquire(_)) {
            fence(Ordering::SeqCst);
        }
        Ok(())
    }

    pub(crate) fn store(
        &mut self,
        t: usize,
        (space, ty, order): (Space, ScalarType, Order),
        src: &[mica_ptx::ast::Operand],
        addr: Address,
    ) -> Result<u64, Stop> {
        let element = ty.bytes();
        if matches!(order, Order::Release(_)) {
            fence(Ordering::SeqCst);
        }
        let total = element * src.len() as u32;
        let host = match self.place(t, space, addr, total, true)? {
            Place::Host(host) => host,
            Place::Parameter(_) => {
                return Err(self.fault(t, mica_kernel::FaultKind::IllegalAddress));
            }
        };
        if is_whole(order, src.len(), total) {
            let part = |(i, src): (usize, &mica_ptx::ast::Operand)| {
                let bits = self.value(t, *src) & (u64::MAX >> (64 - 8 * element));
                bits << (8 * element * i as u32)
            };
            let all = src
                .iter()
                .enumerate()
                .map(part)
                .fold(0, |all, part| all | part);
            // SAFETY: `place` checked the whole vector, its alignment too.
            unsafe { write(host, total, all) };
            return Ok(host);
        }
        for (i, src) in src.iter().enumerate() {
            let at = host + i as u64 * u64::from(element);
            let low = self.value(t, *src);
            // SAFETY: `place` checked the whole vector.
            unsafe { write(at, element.min(8), low) };
            if element == 16 {
                let high = src.reg().map_or(0, |r| self.register_high(t, r));
                // SAFETY: as above.
                unsafe { write(at + 8, 8, high) };
            }
        }
        Ok(host)
    }

    pub(crate) fn atomic(&mut self, t: usize, atom: &Atom) -> Result<(), Stop> {
        let element = atom.ty.bytes();
        let total = element * atom.src.len() as u32;
        let host = match self.place(t, atom.space, atom.addr, total, true)? {
            Place::Host(host) => host,
            Place::Parameter(_) => {
                return Err(self.fault(t, mica_kernel::FaultKind::IllegalAddress));
            }
        };
        if matches!(atom.sem, Sem::Release | Sem::AcqRel | Sem::Sc) {
            fence(Ordering::SeqCst);
        }
        // Additions of f32 flush subnormals in global memory and keep them in shared memory.
        let ftz = atom.ty == ScalarType::F32 && atom.op == AtomOp::Add && {
            !self.is_in_space(t, Space::Shared, host)
        };
        if atom.ty == ScalarType::B128 {
            self.atomic_128(t, atom, host);
            fence(Ordering::SeqCst);
            return Ok(());
        }
        let new = atom.src2.map_or(0, |o| self.value(t, o));
        for (i, src) in atom.src.iter().enumerate() {
            let operand = self.value(t, *src);
            let at = host + i as u64 * u64::from(element);
            let apply = |old| mica_ptx_ops::atomic::apply(atom.op, atom.ty, ftz, old, operand, new);
            // SAFETY: `place` checked the whole vector.
            let old = unsafe { update(at, element, apply) };
            if let Some(Some(r)) = atom.dst.get(i) {
                self.set_typed(t, *r, atom.ty, old);
            }
        }
        if let Some(mbar) = atom.mbar {
            self.complete_bytes(t, Space::SharedCluster, mbar, total)?;
        }
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// `atom.cas.b128` and `atom.exch.b128` on 16 bytes that `place` has checked.
    fn atomic_128(&mut self, t: usize, atom: &Atom, host: u64) {
        let wide = |o: Operand| {
            let high = o.reg().map_or(0, |r| self.register_high(t, r));
            u128::from(high) << 64 | u128::from(self.value(t, o))
        };
        let operand = atom.src.first().map_or(0, |o| wide(*o));
        let new = atom.src2.map_or(0, wide);
        let apply = |old| mica_ptx_ops::atomic::apply_128(atom.op, old, operand, new);
        // SAFETY: `place` checked all 16 bytes and their alignment.
        let old = unsafe { mica_kernel::update_128(host, apply) };
        if let Some(Some(r)) = atom.dst.first() {
            self.set(t, *r, old as u64);
            self.set_high(t, *r, (old >> 64) as u64);
        }
    }
}
