//! What a module contains, for people.

use std::borrow::Cow;
use std::fmt;

use crate::ast::{FuncId, Function, Linkage, Module, Op, Param, ScalarType, Space, Unsupported};
use crate::names::readable;

/// A summary of a module; its `Display` is what `mica ptx` prints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// `.version`.
    pub version: (u16, u16),
    /// `sm_80`.
    pub target: String,
    /// 32 or 64.
    pub address_bits: u32,
    /// Kernels in order.
    pub kernels: Vec<FunctionDescription>,
    /// Device functions with a body.
    pub functions: Vec<FunctionDescription>,
    /// Functions that are only declared, such as `vprintf`.
    pub externs: Vec<String>,
    /// Module variables with a name the host can look up.
    pub globals: Vec<GlobalDescription>,
    /// Source files that `.loc` lines name.
    pub files: Vec<String>,
    /// What no backend can run.
    pub unsupported: Vec<Unsupported>,
}

/// One kernel or function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionDescription {
    /// Its symbol.
    pub name: String,
    /// Parameters in order.
    pub params: Vec<ParamDescription>,
    /// Bytes of all parameters.
    pub param_bytes: u32,
    /// Registers the text uses, by type, most first. A virtual machine's registers: a GPU or a
    /// CPU will use fewer.
    pub registers: Vec<(&'static str, usize)>,
    /// Bytes of static shared memory (kernels only).
    pub shared_bytes: u32,
    /// Whether it can use dynamic shared memory (kernels only).
    pub dynamic_shared: bool,
    /// Bytes of local memory in its frame.
    pub local_bytes: u64,
    /// Instructions.
    pub instructions: usize,
    /// Barriers (`bar`, `barrier`).
    pub barriers: usize,
    /// Functions it calls directly.
    pub calls: Vec<String>,
    /// Whether it calls through pointers.
    pub indirect_calls: bool,
    /// Launch bounds and other directives, as text.
    pub directives: Vec<String>,
}

/// One parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamDescription {
    /// Its name.
    pub name: String,
    /// `.u64`, or `.b8[24]` for structures.
    pub ty: String,
    /// Where it starts.
    pub offset: u32,
    /// Its size in bytes.
    pub size: u32,
}

/// One module variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GlobalDescription {
    /// Its name.
    pub name: String,
    /// `global`, `const` or `shared`.
    pub space: &'static str,
    /// Its size in bytes.
    pub size: u64,
    /// Whether the module gives it initial contents.
    pub initialized: bool,
}

/// Sums up a module.
pub fn describe(module: &Module) -> Description {
    let suffix = module.target.suffix.map(String::from).unwrap_or_default();
    let defined = |kernels: bool| {
        let all = module.functions.iter();
        all.filter(move |f| f.defined && f.is_kernel == kernels)
            .map(|f| function(module, f))
    };
    let visible = module.vars.iter().filter(|v| v.owner.is_none());
    Description {
        version: module.version,
        target: format!("sm_{}{suffix}", module.target.sm),
        address_bits: module.address_bits,
        kernels: defined(true).collect(),
        functions: defined(false).collect(),
        externs: module
            .functions
            .iter()
            .filter(|f| !f.defined)
            .map(|f| f.name.clone())
            .collect(),
        globals: visible
            .map(|v| GlobalDescription {
                name: v.name.clone(),
                space: match v.space {
                    Space::Const => "const",
                    Space::Shared if v.linkage == Linkage::Extern => "dynamic shared",
                    Space::Shared => "shared",
                    _ if v.managed => "managed",
                    _ => "global",
                },
                size: v.size,
                initialized: v.init.is_some(),
            })
            .collect(),
        files: module.files.iter().map(|f| f.name.clone()).collect(),
        unsupported: module.unsupported.clone(),
    }
}

fn param(p: &Param) -> ParamDescription {
    let ty = if p.size == p.ty.bytes() {
        p.ty.to_string()
    } else {
        format!("{}[{}]", p.ty, p.size / p.ty.bytes().max(1))
    };
    ParamDescription {
        name: p.name.clone(),
        ty,
        offset: p.offset,
        size: p.size,
    }
}

fn function(module: &Module, f: &Function) -> FunctionDescription {
    let mut calls: Vec<FuncId> = Vec::new();
    let mut indirect_calls = false;
    let mut barriers = 0;
    for inst in &f.body {
        match &inst.op {
            Op::Call {
                callee: crate::ast::Callee::Direct(id),
                ..
            } => calls.push(*id),
            Op::Call { .. } => indirect_calls = true,
            Op::Bar { .. } | Op::BarRed { .. } => barriers += 1,
            _ => {}
        }
    }
    calls.sort_unstable();
    calls.dedup();
    FunctionDescription {
        name: f.name.clone(),
        params: f.params.iter().map(param).collect(),
        param_bytes: f.param_bytes,
        registers: registers(f),
        shared_bytes: f.shared_bytes,
        dynamic_shared: f.uses_dynamic_shared,
        local_bytes: f.local_bytes,
        instructions: f.body.len(),
        barriers,
        calls: calls
            .iter()
            .map(|id| module.func(*id).name.clone())
            .collect(),
        indirect_calls,
        directives: directives(f),
    }
}

fn registers(f: &Function) -> Vec<(&'static str, usize)> {
    let mut counts: Vec<(&'static str, usize)> = Vec::new();
    for r in &f.regs {
        let name = register_class(r.ty);
        match counts.iter_mut().find(|(n, _)| *n == name) {
            Some((_, count)) => *count += 1,
            None => counts.push((name, 1)),
        }
    }
    counts.sort_by_key(|(name, count)| (usize::MAX - count, *name));
    counts
}

fn register_class(ty: ScalarType) -> &'static str {
    match (ty, ty.bits()) {
        (ScalarType::Pred, _) => "predicate",
        (ScalarType::F64, _) => "f64",
        (ScalarType::F32, _) => "f32",
        (_, 8) => "8-bit",
        (_, 16) => "16-bit",
        (_, 32) => "32-bit",
        (_, 64) => "64-bit",
        _ => "128-bit",
    }
}

fn directives(f: &Function) -> Vec<String> {
    let d = &f.directives;
    let dims = |name: &str, v: Option<[u32; 3]>| v.map(|[x, y, z]| format!("{name} {x}, {y}, {z}"));
    let number = |name: &str, v: Option<u32>| v.map(|n| format!("{name} {n}"));
    let flag = |name: &str, on: bool| on.then(|| name.to_string());
    [
        dims(".reqntid", d.reqntid),
        dims(".maxntid", d.maxntid),
        number(".minnctapersm", d.minnctapersm),
        number(".maxnctapersm", d.maxnctapersm),
        number(".maxnreg", d.maxnreg),
        dims(".reqnctapercluster", d.reqnctapercluster),
        number(".maxclusterrank", d.maxclusterrank),
        flag(".explicitcluster", d.explicit_cluster),
        flag(".blocksareclusters", d.blocks_are_clusters),
        flag(".noreturn", d.noreturn),
    ]
    .into_iter()
    .flatten()
    .collect()
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.version;
        writeln!(
            f,
            "PTX {major}.{minor} for {}, {}-bit addresses",
            self.target, self.address_bits
        )?;
        for kernel in &self.kernels {
            write!(f, "\nkernel {kernel}")?;
        }
        for function in &self.functions {
            write!(f, "\nfunction {function}")?;
        }
        if !self.externs.is_empty() {
            writeln!(f, "\ndeclared only: {}", self.externs.join(", "))?;
        }
        if !self.globals.is_empty() {
            writeln!(f, "\nvariables")?;
        }
        for g in &self.globals {
            let init = if g.initialized { ", initialized" } else { "" };
            writeln!(f, "  {} ({}, {} bytes{init})", g.name, g.space, g.size)?;
        }
        if !self.unsupported.is_empty() {
            writeln!(f, "\nnot supported")?;
        }
        for u in &self.unsupported {
            let place = u.function.as_deref().map_or("the module".into(), readable);
            writeln!(f, "  line {}: {} in {place}", u.line, u.what)?;
        }
        Ok(())
    }
}

impl FunctionDescription {
    /// Its name as its author wrote it.
    pub fn readable_name(&self) -> Cow<'_, str> {
        readable(&self.name)
    }
}

impl fmt::Display for FunctionDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.readable_name())?;
        if self.readable_name() != self.name {
            writeln!(f, "  symbol: {}", self.name)?;
        }
        if !self.params.is_empty() {
            writeln!(f, "  parameters: {} bytes", self.param_bytes)?;
        }
        for p in &self.params {
            writeln!(f, "    {:>5}  {:<10} {}", p.offset, p.ty, p.name)?;
        }
        let registers: Vec<String> = self
            .registers
            .iter()
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        writeln!(f, "  instructions: {}", self.instructions)?;
        if !registers.is_empty() {
            writeln!(f, "  registers: {}", registers.join(", "))?;
        }
        if self.shared_bytes > 0 || self.dynamic_shared {
            let dynamic = if self.dynamic_shared {
                " and dynamic"
            } else {
                ""
            };
            writeln!(f, "  shared memory: {} bytes{dynamic}", self.shared_bytes)?;
        }
        if self.local_bytes > 0 {
            writeln!(f, "  local memory: {} bytes", self.local_bytes)?;
        }
        if self.barriers > 0 {
            writeln!(f, "  barriers: {}", self.barriers)?;
        }
        if !self.calls.is_empty() || self.indirect_calls {
            let through = if self.indirect_calls {
                Some("through pointers")
            } else {
                None
            };
            let calls: Vec<&str> = self
                .calls
                .iter()
                .map(String::as_str)
                .chain(through)
                .collect();
            writeln!(f, "  calls: {}", calls.join(", "))?;
        }
        if !self.directives.is_empty() {
            writeln!(f, "  directives: {}", self.directives.join("; "))?;
        }
        Ok(())
    }
}
