//! What the device must know of a module before it runs: kernels, globals, stack frames.
//!
//! Owns the translation of the syntax tree into [`KernelInfo`] and [`GlobalInfo`], and the shape of
//! a function's local frame. The interpreter and the compiler both use it, so that a module looks
//! the same to the device whichever of them runs it. Refuses modules whose initializers or symbols
//! cannot be placed.
//!
//! Address conventions that go with it:
//! - `.global`, `.const` and generic addresses are host addresses inside the arena;
//! - a `.shared` address is an offset from the block's shared memory, so that it fits 32 bits;
//! - a `.local` address is an offset from the thread's local memory;
//! - the address of a kernel's parameter is its offset in the parameter block, that of a device
//!   function's parameter is a `.local` address (PTX copies it to the stack).

use mica_kernel::{Dim3, GlobalInfo, KernelInfo, ParamInfo};
use mica_ptx::ast::{
    AddrBase, Address, FuncId, Function, Linkage, Module, Op, Operand, Reloc, RelocTarget,
    ScalarType, Space, VarId,
};
use mica_ptx::visit::Ref;

use crate::calls::CallGraph;

/// Why a module cannot be laid out.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LayoutError {
    /// A variable is declared `.extern` and defined nowhere in the module.
    #[error("`{name}` (line {line}) is declared extern and defined nowhere")]
    UnresolvedVariable {
        /// Its name.
        name: String,
        /// Line of the declaration.
        line: u32,
    },
    /// A variable is declared `.extern` larger than it is defined.
    #[error("`{name}` (line {line}) is declared with {size} bytes and defined with {room}")]
    TooSmall {
        /// Its name.
        name: String,
        /// Line of the declaration.
        line: u32,
        /// Bytes of the declaration.
        size: u64,
        /// Bytes of the definition.
        room: u64,
    },
    /// An initializer holds an address in a form that cannot be filled in.
    #[error("the initializer of `{name}` (line {line}) holds {what}, which is not supported")]
    Initializer {
        /// The variable.
        name: String,
        /// Line of the declaration.
        line: u32,
        /// What it holds.
        what: &'static str,
    },
    /// Addresses are 32 bits wide.
    #[error("the module asks for {bits}-bit addresses; only 64 are supported")]
    AddressSize {
        /// `.address_size`.
        bits: u32,
    },
}

impl LayoutError {
    /// Line of the PTX text that it is about, 1 where that is the whole text.
    pub fn line(&self) -> u32 {
        match self {
            LayoutError::UnresolvedVariable { line, .. }
            | LayoutError::TooSmall { line, .. }
            | LayoutError::Initializer { line, .. } => *line,
            LayoutError::AddressSize { .. } => 1,
        }
    }
}

/// Kernels, globals and frames of a module.
#[derive(Clone, Debug, Default)]
pub struct ModuleLayout {
    /// The device's facts about each kernel.
    pub kernels: Vec<KernelInfo>,
    /// The function of each kernel.
    pub kernel_functions: Vec<FuncId>,
    /// The device's facts about each global variable.
    pub globals: Vec<GlobalInfo>,
    /// For each variable of the module its index in `globals`, where it is one.
    pub global_of_var: Vec<Option<usize>>,
    /// The local frame of each function.
    pub frames: Vec<Frame>,
    /// Who calls whom.
    pub calls: CallGraph,
}

/// One function's frame in local memory. All areas are 16-byte aligned or better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// `.local` variables.
    pub locals: u64,
    /// `.param` variables declared in the body.
    pub call_params: u64,
    /// Parameters (device functions only).
    pub params: u64,
    /// Return parameters (device functions only).
    pub returns: u64,
    /// Whole size, a multiple of 16.
    pub size: u64,
    /// Alignment of the frame.
    pub align: u64,
}

impl Frame {
    /// The frame of a function.
    pub fn of(function: &Function) -> Frame {
        let align = u64::from(function.local_align).max(16).next_power_of_two();
        let mut end = 0u64;
        let mut area = |bytes: u64| {
            let start = end;
            end = (end + bytes).next_multiple_of(16);
            start
        };
        let locals = area(function.local_bytes);
        let call_params = area(u64::from(function.call_param_bytes));
        let own = |bytes: u32| {
            if function.is_kernel {
                0
            } else {
                u64::from(bytes)
            }
        };
        let params = area(own(function.param_bytes));
        let returns = area(own(function.return_bytes));
        Frame {
            locals,
            call_params,
            params,
            returns,
            size: end.next_multiple_of(align),
            align,
        }
    }

    /// Bytes that a chain of calls grows by at most: ends are multiples of 16, and the frame starts
    /// at its own alignment.
    pub fn most_bytes(&self) -> u64 {
        self.size + self.align - 16
    }
}

impl ModuleLayout {
    /// Lays out a module.
    ///
    /// # Errors
    /// See [`LayoutError`].
    pub fn new(module: &Module) -> Result<ModuleLayout, LayoutError> {
        if module.address_bits != 64 {
            return Err(LayoutError::AddressSize {
                bits: module.address_bits,
            });
        }
        let frames: Vec<Frame> = module.functions.iter().map(Frame::of).collect();
        let mut layout = ModuleLayout {
            calls: CallGraph::new(module, &frames),
            frames,
            ..ModuleLayout::default()
        };
        layout.place_globals(module)?;
        for (id, function) in module.kernels() {
            let info = kernel_info(module, id, function, &layout.calls);
            layout.kernels.push(info);
            layout.kernel_functions.push(id);
        }
        Ok(layout)
    }

    /// The index of a variable in `BlockContext::globals`.
    pub fn global(&self, var: VarId) -> Option<usize> {
        self.global_of_var.get(var.index()).copied().flatten()
    }

    /// The kernel of a name.
    pub fn kernel(&self, name: &str) -> Option<usize> {
        self.kernels.iter().position(|k| k.name == name)
    }

    fn place_globals(&mut self, module: &Module) -> Result<(), LayoutError> {
        self.global_of_var = vec![None; module.vars.len()];
        for (i, var) in module.vars.iter().enumerate() {
            if !matches!(var.space, Space::Global | Space::Const | Space::Tex) {
                continue;
            }
            if var.linkage == Linkage::Extern {
                continue;
            }
            self.global_of_var[i] = Some(self.globals.len());
            self.globals.push(GlobalInfo {
                name: var.name.clone(),
                size: var.size,
                align: var.align.max(1),
                constant: var.space == Space::Const,
                init: var
                    .init
                    .as_ref()
                    .map(|x| x.bytes.clone())
                    .unwrap_or_default(),
                relocations: Vec::new(),
                function_relocations: Vec::new(),
                visible: var.linkage != Linkage::Internal,
            });
        }
        for (i, var) in module.vars.iter().enumerate() {
            let placed = matches!(var.space, Space::Global | Space::Const | Space::Tex);
            if placed && var.linkage == Linkage::Extern {
                let defined = self.globals.iter().position(|g| g.name == var.name);
                let unresolved = || LayoutError::UnresolvedVariable {
                    name: var.name.clone(),
                    line: var.line,
                };
                let defined = defined.ok_or_else(unresolved)?;
                let room = self.globals[defined].size;
                if var.size > room {
                    return Err(LayoutError::TooSmall {
                        name: var.name.clone(),
                        line: var.line,
                        size: var.size,
                        room,
                    });
                }
                self.global_of_var[i] = Some(defined);
            }
        }
        for (i, var) in module.vars.iter().enumerate() {
            if let (Some(init), Some(global)) = (&var.init, self.global_of_var[i]) {
                for reloc in whole_addresses(&init.relocs) {
                    self.relocate(module, VarId(i as u32), global, &reloc)?;
                }
            }
        }
        Ok(())
    }

    fn relocate(
        &mut self,
        module: &Module,
        var: VarId,
        global: usize,
        reloc: &Reloc,
    ) -> Result<(), LayoutError> {
        let variable = module.var(var);
        let refuse = |what| LayoutError::Initializer {
            name: variable.name.clone(),
            line: variable.line,
            what,
        };
        if reloc.byte.is_some() {
            return Err(refuse("a single byte of an address"));
        }
        if reloc.size != 8 {
            return Err(refuse("an address narrower than 64 bits"));
        }
        // A relocation needs bytes to be patched, even past the initializer's last element.
        let info = &mut self.globals[global];
        let end =
            usize::try_from(reloc.offset + 8).map_err(|_| refuse("an address out of range"))?;
        if info.init.len() < end {
            info.init.resize(end, 0);
        }
        match reloc.target {
            RelocTarget::Func(id) => {
                info.function_relocations
                    .push((reloc.offset, module.func(id).name.clone()));
            }
            RelocTarget::Var(target) => match (self.global_of_var[target.index()], target) {
                (Some(index), _) => {
                    self.globals[global]
                        .relocations
                        .push((reloc.offset, index, reloc.addend));
                }
                (None, target) => {
                    let target = module.var(target);
                    if target.space != Space::Shared || reloc.generic {
                        return Err(refuse("the address of a variable with no fixed place"));
                    }
                    let value = target.offset.wrapping_add_signed(reloc.addend);
                    info.init[end - 8..end].copy_from_slice(&value.to_le_bytes());
                }
            },
        }
        Ok(())
    }
}

/// Addresses that are given byte by byte, as members of packed structures are, as the eight bytes they are.
fn whole_addresses(relocs: &[Reloc]) -> Vec<Reloc> {
    let mut whole = Vec::with_capacity(relocs.len());
    let mut rest = relocs;
    while let Some((first, others)) = rest.split_first() {
        let is_next = |(at, reloc): (u8, &Reloc)| {
            let expected = Reloc {
                byte: Some(at),
                offset: first.offset + u64::from(at),
                ..*first
            };
            *reloc == expected
        };
        let run = rest.get(..8).unwrap_or_default();
        if run.len() == 8 && (0..).zip(run).all(is_next) {
            whole.push(Reloc {
                size: 8,
                byte: None,
                ..*first
            });
            rest = &rest[8..];
        } else {
            whole.push(*first);
            rest = others;
        }
    }
    whole
}

fn kernel_info(module: &Module, id: FuncId, function: &Function, calls: &CallGraph) -> KernelInfo {
    let directives = &function.directives;
    let product = |d: [u32; 3]| d.iter().fold(1u32, |p, &x| p.saturating_mul(x.max(1)));
    KernelInfo {
        name: function.name.clone(),
        params: function
            .params
            .iter()
            .map(|p| ParamInfo {
                offset: p.offset,
                size: p.size,
            })
            .collect(),
        params_len: function.param_bytes,
        static_shared: if function.uses_dynamic_shared {
            function.dynamic_shared_offset
        } else {
            function.shared_bytes
        },
        local_bytes: u32::try_from(calls.depth(id)).unwrap_or(u32::MAX),
        recursive: calls.is_open_ended(id),
        registers: register_estimate(function),
        required_block: directives
            .reqntid
            .map(|[x, y, z]| Dim3 {
                x,
                y: y.max(1),
                z: z.max(1),
            })
            .unwrap_or_default(),
        max_threads: directives
            .maxntid
            .or(directives.reqntid)
            .map_or(1024, |d| product(d).clamp(1, 1024)),
        required_cluster: directives
            .reqnctapercluster
            .map(|[x, y, z]| Dim3 {
                x: x.max(1),
                y: y.max(1),
                z: z.max(1),
            })
            .unwrap_or_default(),
        params_addressed: takes_parameter_address(module, id, function),
    }
}

/// Virtual registers far outnumber what an allocator would need; a quarter of their words is
/// within a factor of two for what nvcc emits, and the directive bounds it.
fn register_estimate(function: &Function) -> u32 {
    let words: u32 = function
        .regs
        .iter()
        .filter(|r| r.ty != ScalarType::Pred)
        .map(|r| r.ty.bits().div_ceil(32))
        .sum();
    let limit = function.directives.maxnreg.unwrap_or(255).clamp(16, 255);
    (words / 4).clamp(16, limit)
}

fn takes_parameter_address(module: &Module, id: FuncId, function: &Function) -> bool {
    let own = |var: VarId| {
        let variable = module.var(var);
        variable.space == Space::Param
            && variable.owner == Some(id)
            && function
                .params
                .iter()
                .any(|p| p.place == mica_ptx::ast::ParamPlace::Var(var))
    };
    let operand = |o: &Operand| matches!(o, Operand::Var { var, .. } if own(*var));
    let address = |space: Space, a: &Address| {
        space != Space::Param && matches!(a.base, AddrBase::Var(var) if own(var))
    };
    function.body.iter().any(|inst| match &inst.op {
        Op::Ld { space, addr, .. } => address(*space, addr),
        Op::St {
            space, addr, src, ..
        } => address(*space, addr) || src.iter().any(operand),
        // Arguments are copied.
        Op::Call { .. } => false,
        op => {
            let mut found = false;
            op.visit(&mut |r| found |= matches!(r, Ref::Var(var) if own(var)));
            found
        }
    })
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
