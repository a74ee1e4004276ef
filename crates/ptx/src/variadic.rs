//! Room for what a call passes after the last named parameter.
//!
//! A function that takes any arguments ends with `.param .b8 name[]`, and each call passes one array
//! that holds all of them. Once all calls are known the parameter is given the size of the largest,
//! so that consumers see a parameter like any other; a call may pass fewer bytes than its size.

use crate::ast::{CallArg, Callee, Module, Op, ParamPlace};
use crate::parse::MAX_PARAM_BYTES;

/// Gives each unsized last parameter of a function with a body its size.
pub(crate) fn size_last_parameters(module: &mut Module) {
    let mut direct = vec![0u32; module.functions.len()];
    let mut indirect = 0;
    for inst in module.functions.iter().flat_map(|f| &f.body) {
        let Op::Call { callee, args, .. } = &inst.op else {
            continue;
        };
        let Some(CallArg::Var(last)) = args.last() else {
            continue;
        };
        // What does not fit is left out: no function can take more.
        let bytes = module.var(*last).size.min(MAX_PARAM_BYTES) as u32;
        let largest = match callee {
            Callee::Direct(id) => &mut direct[id.index()],
            // Any function that takes any arguments may be meant.
            Callee::Indirect { .. } => &mut indirect,
        };
        *largest = bytes.max(*largest);
    }
    for (function, direct) in module.functions.iter_mut().zip(direct) {
        let is_kernel = function.is_kernel;
        if let Some(last) = function.params.last_mut()
            && let ParamPlace::Var(var) = last.place
            && last.size == 0
            && !is_kernel
        {
            last.size = direct.max(indirect);
            module.vars[var.index()].size = u64::from(last.size);
            function.param_bytes = last.offset.saturating_add(last.size);
        }
    }
}
