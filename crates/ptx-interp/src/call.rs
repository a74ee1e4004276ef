//! Calls, returns, and the functions that the device provides.
//!
//! A call's frame lies in the thread's local memory: locals, `.param` variables of the body,
//! parameters and return parameters, as `mica_ptx_ops::layout::Frame` says.

use crate::access::{copy, write};
use crate::machine::{Flow, Machine, Stop};
use crate::state::{Frame, Status};
use mica_kernel::{FaultKind, KernelLaunch};
use mica_ptx::ast::{CallArg, Callee, FuncId, Param, ParamPlace, Space};
use mica_ptx_ops::multiply::{MULTIPLY, MULTIPLY_ADD};
use mica_ptx_ops::provided::MOST_ARGUMENTS;

/// Slots of registers that all frames of a thread may have together: a block of 1024 threads has 1 GiB of them. The threads of
/// a cluster, of which all blocks are kept at a time, share that of one block.
const MOST_REGISTERS: usize = 1 << 17;
/// Frames of a thread, shared likewise.
const MOST_FRAMES: usize = 100_000;

const MARK: u64 = 0x4d69_6361_0000_0000;

/// The value that stands for a function's address: no address of the arena, and not null.
pub(crate) fn function_value(id: FuncId) -> u64 {
    MARK | (u64::from(id.0) + 1) << 4
}

impl Machine<'_> {
    fn function_at(&self, value: u64) -> Option<FuncId> {
        let index = (value ^ MARK) >> 4;
        let id = FuncId(u32::try_from(index.checked_sub(1)?).ok()?);
        let known = id.index() < self.module.functions.len() && function_value(id) == value;
        known.then_some(id)
    }

    /// The index of a kernel among the module's kernels.
    fn kernel_at(&self, value: u64) -> Option<u32> {
        let id = self.function_at(value)?;
        let place = self.module.kernels().position(|(kernel, _)| kernel == id)?;
        u32::try_from(place).ok()
    }

    /// Gives a thread its first frame.
    pub(crate) fn enter_kernel(&mut self, t: usize) -> Result<(), Stop> {
        let frame = self.new_frame(t, self.kernel, 0)?;
        self.thread(t).top = frame;
        Ok(())
    }

    /// Makes room for a frame, or faults for want of stack.
    fn new_frame(&mut self, t: usize, function: FuncId, registers: usize) -> Result<Frame, Stop> {
        let areas = self.layout.frames[function.index()];
        let stack = self.state.threads[t].stack;
        let local = stack.next_multiple_of(areas.align);
        let end = local + areas.size;
        // Frames of functions without memory cost none of the stack: bound them by number.
        let blocks = (self.env.cluster_place.size as usize).max(1);
        let deepest = self.state.threads[t].callers.len() >= MOST_FRAMES / blocks;
        let count = 2 * self.module.func(function).regs.len();
        // A kernel's own are as many as its text says.
        let room = if registers == 0 {
            MOST_REGISTERS
        } else {
            MOST_REGISTERS / blocks
        };
        let crowded = count > 0 && registers + count > room;
        if end > self.env.local_stride && areas.size > 0 || deepest || crowded {
            return Err(self.stack_full(t));
        }
        let thread = self.thread(t);
        thread.registers.resize(registers + count, 0);
        thread.stack = end.max(stack);
        Ok(Frame {
            function,
            pc: 0,
            registers,
            local,
            caller_stack: stack,
        })
    }

    pub(crate) fn call(
        &mut self,
        t: usize,
        callee: &Callee,
        rets: &[CallArg],
        args: &[CallArg],
    ) -> Result<Flow, Stop> {
        let id = match callee {
            Callee::Direct(id) => *id,
            Callee::Indirect { pointer, .. } => {
                let value = self.value(t, *pointer);
                self.function_at(value)
                    .ok_or_else(|| self.fault(t, FaultKind::InvalidPc))?
            }
        };
        let function = self.module.func(id);
        if !function.defined {
            return self.provided(t, &function.name, rets, args);
        }
        if function.is_kernel || function.params.len() != args.len() {
            return Err(self.fault(t, FaultKind::InvalidPc));
        }
        // Arguments are evaluated in the caller's frame and stored into the callee's.
        let caller = self.frame(t);
        let registers = self.state.threads[t].registers.len();
        let frame = self.new_frame(t, id, registers)?;
        let thread = self.thread(t);
        thread.callers.push(caller);
        thread.top = frame;
        for (param, arg) in function.params.iter().zip(args) {
            self.pass(t, caller, *arg, param)?;
        }
        Ok(Flow::Set)
    }

    fn pass(&mut self, t: usize, caller: Frame, arg: CallArg, param: &Param) -> Result<(), Stop> {
        let callee = self.frame(t);
        let areas = self.layout.frames[callee.function.index()];
        let bytes = u64::from(param.size);
        let local = self.local_start(t);
        match (arg, param.place) {
            (CallArg::Var(var), ParamPlace::Var(_)) => {
                // Of a function that takes any arguments, one call may pass less than another.
                let bytes = bytes.min(self.module.var(var).size);
                let kernel_param = self.plans.param_home(var) == crate::address::ParamHome::Kernel;
                let from = self.variable_address_in(caller, var);
                let to = local + callee.local + areas.params + u64::from(param.offset);
                self.check_host(t, to, bytes, true)?;
                if kernel_param {
                    for i in 0..bytes {
                        let byte = self
                            .env
                            .params
                            .get((from + i) as usize)
                            .copied()
                            .unwrap_or(0);
                        // SAFETY: the range was checked.
                        unsafe { write(to + i, 1, u64::from(byte)) };
                    }
                } else {
                    self.check_host(t, local + from, bytes, false)?;
                    // SAFETY: both ranges were checked.
                    unsafe { copy(to, local + from, bytes) };
                }
            }
            (CallArg::Var(var), ParamPlace::Reg(r)) => {
                let from = self.variable_address_in(caller, var);
                let place = self.place_at(t, Space::Local, from, param.size, false)?;
                let bits = self.read_place(place, 0, param.size);
                self.set(t, r, bits);
            }
            (CallArg::Reg(_) | CallArg::Imm(_), place) => {
                let bits = match arg {
                    CallArg::Reg(r) => {
                        self.state.threads[t].registers[caller.registers + r.index()]
                    }
                    CallArg::Imm(bits) => bits,
                    _ => 0,
                };
                match place {
                    ParamPlace::Reg(r) => self.set(t, r, bits),
                    _ => {
                        let to = callee.local + areas.params + u64::from(param.offset);
                        self.write_local(t, to, param.size.min(8), bits)?;
                    }
                }
            }
            (CallArg::None, _) | (_, ParamPlace::None) => {}
        }
        Ok(())
    }

    fn write_local(&mut self, t: usize, at: u64, bytes: u32, bits: u64) -> Result<(), Stop> {
        if let crate::address::Place::Host(host) =
            self.place_at(t, Space::Local, at, bytes, true)?
        {
            // SAFETY: `place_at` checked it.
            unsafe { write(host, bytes, bits) };
        }
        Ok(())
    }

    pub(crate) fn ret(&mut self, t: usize) -> Result<Flow, Stop> {
        let Some(&caller) = self.state.threads[t].callers.last() else {
            self.thread(t).status = Status::Exited;
            return Ok(Flow::Set);
        };
        let callee = self.frame(t);
        let function = self.module.func(callee.function);
        let areas = self.layout.frames[callee.function.index()];
        // Register returns are read before their frame goes.
        let mut registers = [0u64; 8];
        for (slot, param) in registers.iter_mut().zip(&function.returns) {
            if let ParamPlace::Reg(r) = param.place {
                *slot = self.register(t, r);
            }
        }
        let thread = self.thread(t);
        thread.callers.pop();
        thread.top = caller;
        thread.registers.truncate(callee.registers);
        thread.stack = callee.caller_stack;
        let mica_ptx::ast::Op::Call { rets, .. } = &self.instruction(t).op else {
            return Err(self.fault(t, FaultKind::InvalidPc));
        };
        let local = self.local_start(t);
        for (i, (param, ret)) in function.returns.iter().zip(rets).enumerate() {
            let from = callee.local + areas.returns + u64::from(param.offset);
            match (*ret, param.place) {
                (CallArg::Var(var), ParamPlace::Var(_)) => {
                    let to = local + self.variable_address(t, var);
                    let bytes = u64::from(param.size);
                    self.check_host(t, to, bytes, true)?;
                    self.check_host(t, local + from, bytes, false)?;
                    // SAFETY: both ranges were checked.
                    unsafe { copy(to, local + from, bytes) };
                }
                (CallArg::Var(var), ParamPlace::Reg(_)) => {
                    let to = self.variable_address(t, var);
                    self.write_local(t, to, param.size.min(8), registers[i & 7])?;
                }
                (CallArg::Reg(r), ParamPlace::Reg(_)) => self.set(t, r, registers[i & 7]),
                (CallArg::Reg(r), ParamPlace::Var(_)) => {
                    let bytes = param.size.min(8);
                    let place = self.place_at(t, Space::Local, from, bytes, false)?;
                    let bits = self.read_place(place, 0, bytes);
                    self.set(t, r, bits);
                }
                _ => {}
            }
        }
        self.advance(t);
        Ok(Flow::Set)
    }

    /// The value of an argument of a provided function: a scalar of `bytes` bytes.
    fn scalar_argument(
        &mut self,
        t: usize,
        arg: Option<&CallArg>,
        bytes: u32,
    ) -> Result<u64, Stop> {
        match arg {
            Some(CallArg::Var(var)) => {
                let at = self.variable_address(t, *var);
                let place = self.place_at(t, Space::Local, at, bytes, false)?;
                Ok(self.read_place(place, 0, bytes))
            }
            Some(CallArg::Reg(r)) => Ok(self.register(t, *r)),
            Some(CallArg::Imm(bits)) => Ok(*bits),
            Some(CallArg::None) | None => Ok(0),
        }
    }

    fn provided(
        &mut self,
        t: usize,
        name: &str,
        rets: &[CallArg],
        args: &[CallArg],
    ) -> Result<Flow, Stop> {
        let mut words = [0u64; MOST_ARGUMENTS];
        let mut widths = [8; MOST_ARGUMENTS];
        if name == "__assertfail" {
            widths[2] = 4;
        }
        for (i, word) in words.iter_mut().enumerate() {
            *word = self.scalar_argument(t, args.get(i), widths[i])?;
        }
        let services = self.env.services;
        let (result, bytes) = match name {
            "vprintf" => {
                let written = services.map_or(-1, |s| s.printf(words[0], words[1]));
                (u64::from(written as u32), 4)
            }
            "malloc" => (services.map_or(0, |s| s.malloc(words[0])), 8),
            "__mica_parameter_buffer" => {
                let [function, grid, rest, block, depth, ..] = words;
                let kernel = self.kernel_at(function);
                let launch =
                    kernel.map(|kernel| KernelLaunch::of_words(kernel, [grid, rest, block, depth]));
                let made = services.zip(launch);
                (made.map_or(0, |(s, l)| s.parameter_buffer(&l)), 8)
            }
            "__mica_launch" => {
                let code = services.map_or(0, |s| s.launch(words[0], words[1]));
                (u64::from(code), 8)
            }
            "free" => {
                if let Some(services) = services {
                    services.free(words[0]);
                }
                (0, 8)
            }
            MULTIPLY | MULTIPLY_ADD => {
                self.multiply_floats(t, words, name == MULTIPLY_ADD)?;
                (0, 8)
            }
            "__assertfail" => {
                if let Some(services) = services {
                    services.assert_fail(words[0], words[1], words[2] as u32, words[3]);
                }
                return Err(self.fault(t, FaultKind::Assert));
            }
            _ => return Err(self.fault(t, FaultKind::InvalidPc)),
        };
        self.give(t, rets.first(), result, bytes)?;
        Ok(Flow::Next)
    }

    /// Hands the result of a provided function to its caller.
    fn give(&mut self, t: usize, to: Option<&CallArg>, bits: u64, bytes: u32) -> Result<(), Stop> {
        match to {
            Some(CallArg::Var(var)) => {
                let at = self.variable_address(t, *var);
                self.write_local(t, at, bytes, bits)?;
            }
            Some(CallArg::Reg(r)) => self.set(t, *r, bits),
            _ => {}
        }
        Ok(())
    }
}
