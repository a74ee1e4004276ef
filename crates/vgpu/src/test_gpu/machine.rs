//! What the device does: memory, copies, kernels.

use mica_cuda_abi::CuResult;
use mica_gpu::*;

use super::{Memory, State, Work, missing, no};

impl State {
    pub(super) fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Ends a context and everything of it.
    pub(super) fn drop_context(&mut self, id: u64) -> Result<()> {
        let gone = self.contexts.remove(&id);
        gone.ok_or(no(CuResult::InvalidContext, "no context"))?;
        self.streams.retain(|_, c| *c != id);
        self.events.retain(|_, c| *c != id);
        self.textures.retain(|_, c| *c != id);
        let modules: Vec<u64> = (self.modules.iter().filter(|(_, (c, _))| *c == id))
            .map(|(module, _)| *module)
            .collect();
        for module in modules {
            drop_module(self, module);
        }
        let freed: u64 = (self.arrays.values().filter(|(c, _, _)| *c == id))
            .map(|(_, data, _)| data.len() as u64)
            .sum();
        self.arrays.retain(|_, (c, _, _)| *c != id);
        self.in_use -= freed;
        let owned = std::mem::take(&mut self.memory);
        for (address, (len, memory)) in owned {
            match memory {
                // The owner is in the address: see `memory_alloc`.
                Memory::Owned(data) if address >> 44 == id => self.in_use -= data.len() as u64,
                Memory::Host(_) if address >> 44 == id => {}
                other => {
                    self.memory.insert(address, (len, other));
                }
            }
        }
        Ok(())
    }

    pub(super) fn context_of(&self, stream: StreamId) -> Result<u64> {
        let context = *self.streams.get(&stream.0).ok_or(missing("no stream"))?;
        let state = self.contexts.get(&context).ok_or(missing("no context"))?;
        state.fault.clone().map_or(Ok(context), Err)
    }

    pub(super) fn submit(&mut self, stream: StreamId, work: Work) -> Result<()> {
        let context = self.context_of(stream)?;
        let state = self
            .contexts
            .get_mut(&context)
            .ok_or(missing("no context"))?;
        if state.held() || !state.queue.is_empty() {
            state.queue.push(work);
        } else {
            work(self);
        }
        Ok(())
    }

    pub(super) fn run_queue(&mut self, context: u64) {
        while let Some(state) = self.contexts.get_mut(&context) {
            if state.held() || state.queue.is_empty() {
                return;
            }
            let work = state.queue.remove(0);
            work(self);
        }
    }

    pub(super) fn find(&self, address: u64) -> Option<(u64, &Memory)> {
        let (start, (len, memory)) = self.memory.range(..=address).next_back()?;
        (address - start < *len).then_some((address - start, memory))
    }

    pub(super) fn read(&self, address: u64, bytes: &mut [u8]) -> Option<()> {
        match self.find(address)? {
            (at, Memory::Owned(data)) => {
                bytes.copy_from_slice(data.get(at as usize..at as usize + bytes.len())?);
            }
            (at, Memory::Host(span)) => {
                (at + bytes.len() as u64 <= span.len()).then_some(())?;
                let from = span.as_ptr().wrapping_add(at as usize);
                // SAFETY: registered spans are valid until unregistered.
                unsafe { std::ptr::copy(from, bytes.as_mut_ptr(), bytes.len()) };
            }
        }
        Some(())
    }

    pub(super) fn write(&mut self, address: u64, bytes: &[u8]) -> Option<()> {
        let (at, memory) = self.find(address)?;
        if let Memory::Host(span) = memory {
            (at + bytes.len() as u64 <= span.len()).then_some(())?;
            let to = span.as_ptr().wrapping_add(at as usize);
            // SAFETY: registered spans are valid until unregistered.
            unsafe { std::ptr::copy(bytes.as_ptr(), to, bytes.len()) };
            return Some(());
        }
        let start = address - at;
        if let Some((_, Memory::Owned(data))) = self.memory.get_mut(&start) {
            data.get_mut(at as usize..at as usize + bytes.len())?
                .copy_from_slice(bytes);
        }
        Some(())
    }

    pub(super) fn get_row(&self, place: Place, at: u64, bytes: &mut [u8]) -> Option<()> {
        match place {
            Place::Device(address) => self.read(address.0 + at, bytes),
            Place::Host(span) => {
                (at + bytes.len() as u64 <= span.len()).then_some(())?;
                let from = span.as_ptr().wrapping_add(at as usize);
                // SAFETY: spans are valid until the copy is done.
                unsafe { std::ptr::copy(from, bytes.as_mut_ptr(), bytes.len()) };
                Some(())
            }
            Place::Array(array) => {
                let data = &self.arrays.get(&array.0)?.1;
                bytes.copy_from_slice(data.get(at as usize..at as usize + bytes.len())?);
                Some(())
            }
        }
    }

    pub(super) fn put_row(&mut self, place: Place, at: u64, bytes: &[u8]) -> Option<()> {
        match place {
            Place::Device(address) => self.write(address.0 + at, bytes),
            Place::Host(span) => {
                (at + bytes.len() as u64 <= span.len()).then_some(())?;
                let to = span.as_ptr().wrapping_add(at as usize);
                // SAFETY: spans are valid until the copy is done.
                unsafe { std::ptr::copy(bytes.as_ptr(), to, bytes.len()) };
                Some(())
            }
            Place::Array(array) => {
                let data = &mut self.arrays.get_mut(&array.0)?.1;
                data.get_mut(at as usize..at as usize + bytes.len())?
                    .copy_from_slice(bytes);
                Some(())
            }
        }
    }

    pub(super) fn pitch_of(&self, place: Place, pitch: (u64, u64)) -> (u64, u64) {
        match place {
            Place::Array(array) => self.arrays.get(&array.0).map_or((0, 0), |(_, data, d)| {
                let rows = d.height.max(1);
                let row = data.len() as u64 / rows / d.depth.max(1);
                (row, row * rows)
            }),
            _ => pitch,
        }
    }

    pub(super) fn copy(&mut self, context: u64, copy: &Copy3d) {
        let src_pitch = self.pitch_of(copy.src, copy.src_pitch);
        let dst_pitch = self.pitch_of(copy.dst, copy.dst_pitch);
        let mut row = vec![0; copy.width_bytes as usize];
        for z in 0..copy.depth {
            for y in 0..copy.height {
                let at =
                    |o: (u64, u64, u64), p: (u64, u64)| o.0 + (o.1 + y) * p.0 + (o.2 + z) * p.1;
                let (src, dst) = (
                    at(copy.src_offset, src_pitch),
                    at(copy.dst_offset, dst_pitch),
                );
                let done = self
                    .get_row(copy.src, src, &mut row)
                    .and_then(|()| self.put_row(copy.dst, dst, &row));
                if done.is_none() {
                    return self.fault(context, CuResult::IllegalAddress, "a copy went wild");
                }
            }
        }
    }

    pub(super) fn fault(&mut self, context: u64, code: CuResult, what: &str) {
        if let Some(state) = self.contexts.get_mut(&context) {
            state.fault.get_or_insert_with(|| no(code, what));
            state.queue.clear();
        }
    }

    pub(super) fn kernel(&mut self, context: u64, name: &str, params: &[u8]) {
        let number = |at: usize, len: usize| {
            let mut bytes = [0; 8];
            if let Some(part) = params.get(at..at + len) {
                bytes[..len].copy_from_slice(part);
            }
            u64::from_le_bytes(bytes)
        };
        match name {
            "fill" | "add" => {
                let (address, count, value) = (number(0, 8), number(8, 4), number(12, 4) as u32);
                for index in 0..count {
                    let mut old = [0; 4];
                    let at = address.wrapping_add(index * 4);
                    let done = self.read(at, &mut old).and_then(|()| {
                        let base = if name == "add" {
                            u32::from_le_bytes(old)
                        } else {
                            0
                        };
                        self.write(at, &base.wrapping_add(value).to_le_bytes())
                    });
                    if done.is_none() {
                        return self.fault(context, CuResult::IllegalAddress, "a wild pointer");
                    }
                }
            }
            "fault" => self.fault(context, CuResult::IllegalAddress, "the fault kernel ran"),
            "block" => {
                if let Some(state) = self.contexts.get_mut(&context) {
                    state.blocked = true;
                }
            }
            _ => {}
        }
    }
}

/// The kernels and variables of a text: a kernel a line with its parameters' sizes, or the kernels of PTX.
pub(super) fn parse(text: &str, place: &mut dyn FnMut(u64) -> u64) -> Result<ModuleInfo> {
    let mut info = ModuleInfo::default();
    if let Ok(module) = mica_ptx::parse(text.as_bytes()) {
        let kernels = module.kernels().map(|(_, function)| {
            let params = function.params.iter().map(|p| ParamLayout {
                offset: p.offset,
                size: p.size,
            });
            kernel(&function.name, params.collect())
        });
        info.kernels = kernels.collect();
        return Ok(info);
    }
    let bad = || no(CuResult::InvalidPtx, "not a test module");
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let mut words = line.split_whitespace();
        let name = words.next().ok_or_else(bad)?;
        let numbers = |words: &mut dyn Iterator<Item = &str>| -> Result<Vec<u32>> {
            words.map(|w| w.parse().map_err(|_| bad())).collect()
        };
        if name == "global" {
            let name = words.next().ok_or_else(bad)?.to_owned();
            let bytes = u64::from(*numbers(&mut words)?.first().ok_or_else(bad)?);
            let address = DevicePtr(place(bytes));
            info.globals.push(GlobalDescription {
                name,
                address,
                bytes,
                is_managed: false,
            });
            continue;
        }
        let mut offset = 0_u32;
        let mut params = Vec::new();
        for size in numbers(&mut words)? {
            offset = offset.next_multiple_of(size.max(1));
            params.push(ParamLayout { offset, size });
            offset += size;
        }
        info.kernels.push(kernel(name, params));
    }
    Ok(info)
}

fn kernel(name: &str, params: Vec<ParamLayout>) -> KernelDescription {
    KernelDescription {
        name: name.into(),
        params,
        static_shared: 0,
        local_bytes: 0,
        const_bytes: 0,
        registers: 16,
        max_threads: 1024,
        ptx_version: 80,
        binary_version: 90,
        is_complete: true,
    }
}

/// Frees what a module holds.
pub(super) fn drop_module(state: &mut State, module: u64) {
    if let Some((_, info)) = state.modules.remove(&module) {
        for global in info.globals {
            if state.memory.remove(&global.address.0).is_some() {
                state.in_use -= global.bytes;
            }
        }
    }
}
