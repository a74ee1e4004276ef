//! Modules, variables, functions and what is declared in them.

use super::{FuncId, Inst, InstIndex, ProtoId, RegId, ScalarType, Space, VarId};

/// One parsed PTX module.
#[derive(Clone, Debug, Default)]
pub struct Module {
    /// `.version major.minor`.
    pub version: (u16, u16),
    /// `.target`.
    pub target: Target,
    /// `.address_size` in bits, 32 or 64 (Mica's backends accept 64 only).
    pub address_bits: u32,
    /// Every variable of every scope, in order of declaration.
    pub vars: Vec<Variable>,
    /// Every function and kernel, defined or only declared.
    pub functions: Vec<Function>,
    /// Every `.callprototype`.
    pub prototypes: Vec<Prototype>,
    /// `.file` entries, for source lines.
    pub files: Vec<SourceFile>,
    /// Every instruction or feature that was parsed but that no backend can run.
    pub unsupported: Vec<Unsupported>,
    /// Bytes of static shared memory at offset 0 that several functions share; see
    /// [`Function::shared_bytes`].
    pub common_shared_bytes: u32,
    /// Bytes at offset 0 of every kernel's shared memory that are the system's: 0, or
    /// [`RESERVED_SHARED_BYTES`](super::RESERVED_SHARED_BYTES) if the module asks where they are.
    pub reserved_shared_bytes: u32,
}

/// `.target sm_90a, debug`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// The number after `sm_`, such as 75 or 90.
    pub sm: u32,
    /// `a` or `f` for architecture- or family-specific code.
    pub suffix: Option<char>,
    /// The module was compiled with `-G`.
    pub debug: bool,
    /// `texmode_independent`: samplers are named apart from textures.
    pub texmode_independent: bool,
}

/// `.file index "name"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// The number `.loc` refers to.
    pub index: u32,
    /// The path as the compiler wrote it.
    pub name: String,
}

/// Something that was understood but cannot be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// The full opcode or directive.
    pub what: String,
    /// The function it is in.
    pub function: Option<String>,
    /// Line of the PTX text, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
}

/// Who may see a symbol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each variant carries its PTX name")]
pub enum Linkage {
    /// Only this module.
    #[default]
    Internal,
    Visible,
    Extern,
    Weak,
    Common,
}

impl Linkage {
    /// The directive that gives it, with its dot; empty for names of one module only.
    pub const fn directive(self) -> &'static str {
        match self {
            Linkage::Internal => "",
            Linkage::Visible => ".visible",
            Linkage::Extern => ".extern",
            Linkage::Weak => ".weak",
            Linkage::Common => ".common",
        }
    }
}

/// A variable in any state space except registers.
#[derive(Clone, Debug)]
pub struct Variable {
    /// Its name in the text (nested scopes may reuse one).
    pub name: String,
    /// Where it lives. Kernel and function parameters, and `.param` variables declared in a body
    /// to pass arguments, have [`Space::Param`].
    pub space: Space,
    /// Element type.
    pub ty: ScalarType,
    /// Elements per vector, 1 for scalars (`.v4 .f32` has 4).
    pub vector: u8,
    /// Array dimensions, outermost first; empty for scalars. An unsized `[]` first one is 0
    /// (unless the initializer gave its length).
    pub dims: Vec<u64>,
    /// Alignment in bytes, a power of two.
    pub align: u32,
    /// Size in bytes; 0 for an unsized extern array.
    pub size: u64,
    /// Who may see it.
    pub linkage: Linkage,
    /// Initial contents; `None` means zeros (or nothing, for shared and local).
    pub init: Option<Initializer>,
    /// The function it was declared in.
    pub owner: Option<FuncId>,
    /// Where it starts:
    /// - a kernel's parameter: in the launch's parameter buffer;
    /// - a device function's parameter or return parameter: in its parameter area
    ///   ([`Function::param_bytes`], [`Function::return_bytes`], counted apart);
    /// - a `.param` variable of a body: in [`Function::call_param_bytes`];
    /// - `.local`: in the function's frame, [`Function::local_bytes`];
    /// - `.shared` with a size: in the block's shared memory, one place for all kernels of the
    ///   module; an unsized extern one (dynamic shared memory) starts at the running kernel's
    ///   [`Function::dynamic_shared_offset`];
    /// - `.global` and `.const`: 0 (the loader places them).
    pub offset: u64,
    /// `.managed`: visible to the host by unified addressing.
    pub managed: bool,
    /// Line of the declaration.
    pub line: u32,
}

impl Variable {
    /// Whether this is the `extern __shared__` array whose size the launch gives.
    pub fn is_dynamic_shared(&self) -> bool {
        self.space == Space::Shared && self.linkage == Linkage::Extern
    }
}

/// Flattened contents of an initialized variable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Initializer {
    /// The leading bytes; the rest of the variable is zero.
    pub bytes: Vec<u8>,
    /// Addresses to be added once symbols have been placed.
    pub relocs: Vec<Reloc>,
}

/// An address within an initializer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reloc {
    /// Where in the variable.
    pub offset: u64,
    /// Bytes to write (8, or 1 when `byte` is given, or 4).
    pub size: u32,
    /// Whose address.
    pub target: RelocTarget,
    /// Added to the address.
    pub addend: i64,
    /// `generic(sym)`: a generic address rather than one within the symbol's space.
    pub generic: bool,
    /// `mask(sym)`: which byte of the address, 0 the lowest.
    pub byte: Option<u8>,
}

/// What a relocation points at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum RelocTarget {
    Var(VarId),
    Func(FuncId),
}

/// A `.reg` declaration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Register {
    /// Its name in the text, such as `%r12`.
    pub name: String,
    /// Its type.
    pub ty: ScalarType,
}

/// A kernel (`.entry`) or device function (`.func`).
#[derive(Clone, Debug, Default)]
pub struct Function {
    /// Its symbol.
    pub name: String,
    /// Whether it is a kernel.
    pub is_kernel: bool,
    /// Who may see it.
    pub linkage: Linkage,
    /// Whether a body was given (`false` for prototypes such as `vprintf`).
    pub defined: bool,
    /// Parameters in order.
    pub params: Vec<Param>,
    /// Return parameters (at most one from nvcc).
    pub returns: Vec<Param>,
    /// Size of the parameter area.
    pub param_bytes: u32,
    /// Size of the return area.
    pub return_bytes: u32,
    /// Size of the area of `.param` variables declared in the body.
    pub call_param_bytes: u32,
    /// Size of the `.local` frame.
    pub local_bytes: u64,
    /// Alignment of the `.local` frame.
    pub local_align: u32,
    /// For a kernel: bytes of static shared memory a block needs (its own variables and, when it
    /// can reach a function that uses them, the common ones).
    pub shared_bytes: u32,
    /// For a kernel: where dynamic shared memory begins (`shared_bytes` rounded up to the
    /// alignment of the module's dynamic arrays, at least 16).
    pub dynamic_shared_offset: u32,
    /// Whether the kernel can reach a use of a dynamic shared array.
    pub uses_dynamic_shared: bool,
    /// Directives such as `.maxntid`.
    pub directives: Directives,
    /// Registers, indexed by [`RegId`].
    pub regs: Vec<Register>,
    /// Every variable declared in the body.
    pub locals: Vec<VarId>,
    /// Instructions.
    pub body: Vec<Inst>,
    /// Labels in order of appearance.
    pub labels: Vec<Label>,
    /// Line of the declaration.
    pub line: u32,
}

/// A label and where it points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Its name in the text.
    pub name: String,
    /// The instruction it stands before.
    pub target: InstIndex,
}

/// A parameter, return parameter, or parameter of a prototype.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Its name (`_` in prototypes).
    pub name: String,
    /// Element type.
    pub ty: ScalarType,
    /// Size in bytes.
    pub size: u32,
    /// Alignment in bytes.
    pub align: u32,
    /// Offset in the parameter (or return) area.
    pub offset: u32,
    /// Where the body finds it.
    pub place: ParamPlace,
    /// `.ptr` attributes of a kernel's pointer parameter: the space and the alignment promised.
    pub pointer: Option<(Space, u32)>,
}

/// Where a function's body finds a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamPlace {
    /// In `.param` space.
    Var(VarId),
    /// In a register (`.func f (.reg .u32 x)`).
    Reg(RegId),
    /// Nowhere: this is a prototype.
    None,
}

/// `.callprototype`: the shape of an indirect call.
#[derive(Clone, Debug, Default)]
pub struct Prototype {
    /// Its label.
    pub name: String,
    /// Return parameters.
    pub returns: Vec<Param>,
    /// Parameters.
    pub params: Vec<Param>,
    /// Size of the parameter area.
    pub param_bytes: u32,
    /// Size of the return area.
    pub return_bytes: u32,
    /// The callee does not return.
    pub noreturn: bool,
}

/// Directives between a function's head and body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directives {
    /// `.reqntid x, y, z`.
    pub reqntid: Option<[u32; 3]>,
    /// `.maxntid x, y, z`.
    pub maxntid: Option<[u32; 3]>,
    /// `.minnctapersm`.
    pub minnctapersm: Option<u32>,
    /// `.maxnctapersm`.
    pub maxnctapersm: Option<u32>,
    /// `.maxnreg`.
    pub maxnreg: Option<u32>,
    /// `.noreturn`.
    pub noreturn: bool,
    /// `.explicitcluster`.
    pub explicit_cluster: bool,
    /// `.reqnctapercluster`.
    pub reqnctapercluster: Option<[u32; 3]>,
    /// `.maxclusterrank`.
    pub maxclusterrank: Option<u32>,
    /// `.blocksareclusters`.
    pub blocks_are_clusters: bool,
    /// `.pragma` strings.
    pub pragmas: Vec<String>,
}

impl Module {
    /// A variable.
    pub fn var(&self, id: VarId) -> &Variable {
        &self.vars[id.index()]
    }

    /// A function.
    pub fn func(&self, id: FuncId) -> &Function {
        &self.functions[id.index()]
    }

    /// A prototype.
    pub fn proto(&self, id: ProtoId) -> &Prototype {
        &self.prototypes[id.index()]
    }

    /// Every defined kernel.
    pub fn kernels(&self) -> impl Iterator<Item = (FuncId, &Function)> {
        self.functions
            .iter()
            .enumerate()
            .filter(|(_, f)| f.is_kernel && f.defined)
            .map(|(i, f)| (FuncId(i as u32), f))
    }

    /// The function or kernel of a name.
    pub fn function(&self, name: &str) -> Option<(FuncId, &Function)> {
        let i = self.functions.iter().position(|f| f.name == name)?;
        Some((FuncId(i as u32), &self.functions[i]))
    }

    /// The module-scope variable of a name.
    pub fn global(&self, name: &str) -> Option<(VarId, &Variable)> {
        let i = self
            .vars
            .iter()
            .position(|v| v.owner.is_none() && v.name == name)?;
        Some((VarId(i as u32), &self.vars[i]))
    }

    /// The source file that the instruction at a line of the text came from (`.loc`).
    pub fn source_file(&self, ptx_line: u32) -> Option<&str> {
        let (file, _) = self.source_place(ptx_line)?;
        self.file_name(file)
    }

    /// The line of that file.
    pub fn source_line(&self, ptx_line: u32) -> Option<u32> {
        let (_, line) = self.source_place(ptx_line)?;
        Some(line)
    }

    /// File and line. What was inlined from a header of the toolkit (`atomicAdd`) is at its call.
    fn source_place(&self, ptx_line: u32) -> Option<(u32, u32)> {
        let all = self.functions.iter().flat_map(|f| &f.body);
        let loc = all.filter(|i| i.line == ptx_line).find_map(|i| i.loc)?;
        let own = (loc.file, loc.line);
        let is_toolkit = self.file_name(loc.file).is_some_and(is_toolkit_header);
        Some(match loc.inlined_at {
            Some(call) if is_toolkit => call,
            _ => own,
        })
    }

    /// The name of a `.file` index.
    pub fn file_name(&self, index: u32) -> Option<&str> {
        self.files
            .iter()
            .find(|f| f.index == index)
            .map(|f| f.name.as_str())
    }
}

impl Function {
    /// The type of a register.
    pub fn reg_type(&self, reg: RegId) -> ScalarType {
        self.regs[reg.index()].ty
    }
}

/// Whether a file is one of the toolkit's headers whose functions are instructions.
pub fn is_toolkit_header(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let (stem, is_header) = match name.strip_suffix(".hpp") {
        Some(stem) => (stem, true),
        None => (name, false),
    };
    is_header
        && (stem.starts_with("sm_")
            || stem.starts_with("device_")
            || stem.starts_with("math_functions")
            || stem.starts_with("cuda_"))
}
