//! What can be run: everything is decided here, before the first block.

use crate::address::ParamHome;
use mica_ptx::ast::{FuncId, Inst, Module, Op, ParamPlace, Space, VarId};
use mica_ptx_ops::layout::LayoutError;
use mica_ptx_ops::matrix::wgmma::WgmmaPlan;
use mica_ptx_ops::matrix::{Fragment, MmaPlan, wmma_fragment};
use mica_ptx_ops::support::{STORED, unsupported};
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
    #[error(transparent)]
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
    wgmma: HashMap<(FuncId, u32), WgmmaPlan>,
    fragments: HashMap<(FuncId, u32), Fragment>,
    param_homes: Vec<ParamHome>,
}

impl Plans {
    /// Checks the module and works out what matrix instructions need.
    pub(crate) fn new(module: &Module) -> Result<Plans, UnsupportedError> {
        if let Some(first) = unsupported(module).into_iter().next() {
            return Err(UnsupportedError::Feature {
                what: first.what,
                line: first.line,
                function: first.function,
            });
        }
        let mut plans = Plans {
            param_homes: param_homes(module),
            ..Plans::default()
        };
        for (index, function) in module.functions.iter().enumerate() {
            for (pc, inst) in function.body.iter().enumerate() {
                plans.note((FuncId(index as u32), pc as u32), inst);
            }
        }
        Ok(plans)
    }

    pub(crate) fn mma(&self, function: FuncId, pc: u32) -> Option<&MmaPlan> {
        self.mma.get(&(function, pc))
    }

    pub(crate) fn wgmma(&self, function: FuncId, pc: u32) -> Option<&WgmmaPlan> {
        self.wgmma.get(&(function, pc))
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

    fn note(&mut self, key: (FuncId, u32), inst: &Inst) {
        let plan = match &inst.op {
            Op::Mma(mma) => MmaPlan::mma(mma),
            Op::WmmaMma(mma) => MmaPlan::wmma(mma),
            _ => None,
        };
        let fragment = match &inst.op {
            Op::WmmaLoad(load) => wmma_fragment(load.shape, load.matrix, load.ty),
            Op::WmmaStore(store) => wmma_fragment(store.shape, STORED, store.ty),
            _ => None,
        };
        if let Op::Wgmma(inst) = &inst.op {
            self.wgmma
                .extend(WgmmaPlan::of(inst).map(|plan| (key, plan)));
        }
        self.mma.extend(plan.map(|plan| (key, plan)));
        self.fragments
            .extend(fragment.map(|fragment| (key, fragment)));
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
