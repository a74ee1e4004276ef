//! What can be run: everything is decided here, before the first block.

use crate::address::ParamHome;
use crate::call::PROVIDED;
use crate::matrices::{STORED, TILE_ELEMENT};
use mica_ptx::ast::{
    Callee, FuncId, Function, Geometry, Inst, MatrixTile, Module, Op, ParamPlace, Rounding,
    ScalarType, Space, VarId,
};
use mica_ptx_ops::convert::Numeric;
use mica_ptx_ops::layout::LayoutError;
use mica_ptx_ops::matrix::{Fragment, MmaPlan, wmma_fragment};
use std::collections::HashMap;

/// Why a module cannot be run.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum UnsupportedError {
    /// An instruction or feature.
    #[error("{what} (line {line}{}) is not supported", in_function(.function))]
    Feature {
        /// What it is.
        what: String,
        /// Line of the PTX text.
        line: u32,
        /// The function it is in.
        function: Option<String>,
    },
    /// The module cannot be laid out.
    #[error("the module cannot be placed")]
    Layout(#[from] LayoutError),
}

fn in_function(function: &Option<String>) -> String {
    function
        .as_ref()
        .map(|f| format!(" of `{f}`"))
        .unwrap_or_default()
}

/// What was worked out while checking.
#[derive(Debug, Default)]
pub(crate) struct Plans {
    mma: HashMap<(FuncId, u32), MmaPlan>,
    fragments: HashMap<(FuncId, u32), Fragment>,
    param_homes: Vec<ParamHome>,
}

impl Plans {
    /// Checks every function.
    pub(crate) fn new(module: &Module) -> Result<Plans, UnsupportedError> {
        if let Some(first) = module.unsupported.first() {
            return Err(UnsupportedError::Feature {
                what: format!("`{}`", first.what),
                line: first.line,
                function: first.function.clone(),
            });
        }
        let mut plans = Plans {
            param_homes: param_homes(module),
            ..Plans::default()
        };
        for (index, function) in module.functions.iter().enumerate() {
            let id = FuncId(index as u32);
            plans.check_function(module, id, function)?;
        }
        Ok(plans)
    }

    pub(crate) fn mma(&self, function: FuncId, pc: u32) -> Option<&MmaPlan> {
        self.mma.get(&(function, pc))
    }

    pub(crate) fn fragment(&self, function: FuncId, pc: u32) -> Option<&Fragment> {
        self.fragments.get(&(function, pc))
    }

    pub(crate) fn param_home(&self, var: VarId) -> ParamHome {
        self.param_homes
            .get(var.index())
            .copied()
            .unwrap_or(ParamHome::Argument)
    }

    fn check_function(
        &mut self,
        module: &Module,
        id: FuncId,
        function: &Function,
    ) -> Result<(), UnsupportedError> {
        let cluster = function.directives.reqnctapercluster.unwrap_or([1; 3]);
        if cluster.iter().any(|&n| n > 1) {
            return Err(UnsupportedError::Feature {
                what: format!("a cluster of {cluster:?} blocks"),
                line: function.line,
                function: Some(function.name.clone()),
            });
        }
        for (pc, inst) in function.body.iter().enumerate() {
            let key = (id, pc as u32);
            if let Err(what) = self.check_instruction(module, key, inst) {
                return Err(UnsupportedError::Feature {
                    what,
                    line: inst.line,
                    function: Some(function.name.clone()),
                });
            }
        }
        Ok(())
    }

    fn check_instruction(
        &mut self,
        module: &Module,
        key: (FuncId, u32),
        inst: &Inst,
    ) -> Result<(), String> {
        let refuse = |what: &str| Err(what.to_owned());
        match &inst.op {
            Op::Unsupported { opcode } => return refuse(&format!("`{opcode}`")),
            Op::CpAsyncBulkTensor(_) => return refuse("`cp.async.bulk.tensor`"),
            Op::Mma(mma) => {
                let plan = MmaPlan::mma(mma).ok_or_else(|| shape("mma", mma))?;
                self.mma.insert(key, plan);
            }
            Op::WmmaMma(mma) => {
                let plan = MmaPlan::wmma(mma).ok_or_else(|| shape("wmma.mma", mma))?;
                self.mma.insert(key, plan);
            }
            Op::WmmaLoad(load) => {
                let fragment = wmma_fragment(load.shape, load.matrix, load.ty)
                    .filter(|f| f.registers as usize == load.dst.len())
                    .ok_or_else(|| format!("`wmma.load` of this shape and {}", load.ty))?;
                self.fragments.insert(key, fragment);
            }
            Op::WmmaStore(store) => {
                let fragment = wmma_fragment(store.shape, STORED, store.ty)
                    .filter(|f| f.registers as usize == store.src.len())
                    .ok_or_else(|| format!("`wmma.store` of this shape and {}", store.ty))?;
                self.fragments.insert(key, fragment);
            }
            Op::LdMatrix { tile, ty, .. } | Op::StMatrix { tile, ty, .. }
                if *tile != MatrixTile::M8n8 || *ty != TILE_ELEMENT =>
            {
                return refuse("`ldmatrix` or `stmatrix` of tiles other than m8n8.b16");
            }
            Op::Cvt {
                dst_ty,
                src_ty,
                round,
                ..
            } => {
                if *round == Some(Rounding::Rs) {
                    return refuse("`cvt.rs`, stochastic rounding");
                }
                for ty in [dst_ty, src_ty] {
                    if Numeric::of(*ty).is_none() {
                        return refuse(&format!("`cvt` to or from {ty}"));
                    }
                }
            }
            Op::Fma { oob: true, .. } => return refuse("`fma.oob`"),
            Op::Atom(atom) if atom.ty == ScalarType::B128 => return refuse("`atom.b128`"),
            Op::Tex(tex) => {
                if tex.compare.is_some() {
                    return refuse("`tex` with depth compare");
                }
                check_geometry(tex.geom)?;
            }
            Op::Tld4(tld4) => {
                if tld4.compare.is_some() {
                    return refuse("`tld4` with depth compare");
                }
                check_geometry(tld4.geom)?;
            }
            Op::Call {
                callee: Callee::Direct(id),
                ..
            } => {
                let callee = module.func(*id);
                if !callee.defined && !PROVIDED.contains(&callee.name.as_str()) {
                    return refuse(&format!(
                        "a call of `{}`, which is not defined",
                        callee.name
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn shape(name: &str, mma: &mica_ptx::ast::Mma) -> String {
    let sparse = if mma.sparse.is_some() { ".sp" } else { "" };
    format!(
        "`{name}{sparse}.m{}n{}k{}{}{}{}{}`",
        mma.shape.m, mma.shape.n, mma.shape.k, mma.d_ty, mma.a_ty, mma.b_ty, mma.c_ty
    )
}

fn check_geometry(geom: Geometry) -> Result<(), String> {
    match geom {
        Geometry::D2Ms | Geometry::A2Ms => Err("multisampled textures".to_owned()),
        _ => Ok(()),
    }
}

fn param_homes(module: &Module) -> Vec<ParamHome> {
    let mut homes = vec![ParamHome::Argument; module.vars.len()];
    for function in &module.functions {
        let own = if function.is_kernel {
            ParamHome::Kernel
        } else {
            ParamHome::Own
        };
        for (params, home) in [
            (&function.params, own),
            (&function.returns, ParamHome::Return),
        ] {
            for param in params {
                if let ParamPlace::Var(var) = param.place
                    && module.var(var).space == Space::Param
                {
                    homes[var.index()] = home;
                }
            }
        }
    }
    homes
}
