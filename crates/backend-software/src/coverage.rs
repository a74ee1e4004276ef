//! Which lines of a module's code launches have reached.

use std::collections::HashSet;

use mica_coverage::ModuleMap;
use mica_ptx::ast::{Inst, Module, Op, Space};
use mica_ptx_ops::device_runtime;

use crate::core::Core;
use crate::grid::Grid;
use crate::module::Module as Loaded;

/// Host bytes that [`map_of`] takes at most, names of files aside.
pub(crate) fn most_bytes(module: &Module) -> u64 {
    let of = |body: usize| 512 + 64 * body as u64;
    module.functions.iter().map(|f| of(f.body.len())).sum()
}

/// The lines of a module: of the source where `.loc` names them, else of the text, whose file has this name.
pub(crate) fn map_of(module: &Module, text_name: &str) -> ModuleMap {
    let mut map = ModuleMap::default();
    let toolkit = |file: u32| match module.file_name(file) {
        Some(name) => mica_ptx::ast::is_toolkit_header(name),
        None => true,
    };
    for function in &module.functions {
        let runtime = function.name.starts_with(device_runtime::INTERNAL)
            || function.name.starts_with(device_runtime::PREFIX);
        if !function.defined || runtime {
            // Its index stands for the function.
            map.add_function(&function.name, function.is_kernel, std::iter::empty());
            continue;
        }
        if function.body.iter().all(|inst| inst.loc.is_none()) {
            let file = map.file(text_name);
            let lines = function
                .body
                .iter()
                .map(|inst| [Some((file, inst.line)), None]);
            map.add_function(&function.name, function.is_kernel, lines);
            continue;
        }
        // What the toolkit's headers are made of is no code of the program: it is at its call.
        let places = |inst: &Inst| {
            let own = inst.loc.map(|loc| (loc.file, loc.line));
            let call = inst.loc.and_then(|loc| loc.inlined_at);
            [own, call].map(|line| line.filter(|(file, line)| *line != 0 && !toolkit(*file)))
        };
        let stay = function.body.iter().filter(|inst| stays(&inst.op));
        let anchored: HashSet<(u32, u32)> = stay.flat_map(places).flatten().collect();
        let mut number = |(file, line): (u32, u32)| {
            let name = module.file_name(file).unwrap_or_default();
            (map.file(name), line)
        };
        let lines: Vec<_> = (function.body.iter())
            .map(|inst| {
                let stays = stays(&inst.op);
                let counts = |line: &(u32, u32)| stays || !anchored.contains(line);
                places(inst).map(|line| line.filter(counts).map(&mut number))
            })
            .collect();
        map.add_function(&function.name, function.is_kernel, lines.into_iter());
    }
    map
}

/// Whether a compiler leaves an instruction where its line was written. Arithmetic is moved before branches: the address
/// of a store in one branch of an `if` is often computed before the `if`, which must not count as that branch. So a line
/// is reached by its arithmetic only if it has nothing else.
fn stays(op: &Op) -> bool {
    match op {
        Op::Ld { space, .. } => !matches!(space, Space::Param | Space::Const),
        Op::St { .. } | Op::StAsync { .. } | Op::Atom(_) => true,
        Op::Bra { .. } | Op::BrxIdx { .. } | Op::Call { .. } | Op::Exit | Op::Trap => true,
        Op::Bar { .. }
        | Op::BarRed { .. }
        | Op::BarWarp { .. }
        | Op::BarCluster { .. }
        | Op::WgmmaWait => true,
        Op::Fence { .. } | Op::FenceProxy { .. } | Op::Mbarrier { .. } => true,
        Op::Vote { .. } | Op::Match { .. } | Op::Shfl { .. } | Op::Redux { .. } => true,
        Op::CpAsync { .. } | Op::CpAsyncBulk(_) | Op::CpReduceAsyncBulk(_) => true,
        Op::LdMatrix { .. } | Op::StMatrix { .. } | Op::Mma(_) | Op::Wgmma(_) => true,
        Op::WmmaLoad(_) | Op::WmmaStore(_) | Op::WmmaMma(_) => true,
        Op::Sust(_) | Op::Sured(_) => true,
        _ => false,
    }
}

impl Core {
    /// A module was loaded: all its kernels are part of the report, whether they are launched or not.
    pub(crate) fn begin_coverage(&self, module: &Loaded) {
        if let (Some(log), Some(map)) = (&self.coverage, &module.coverage) {
            log.changed(map);
        }
    }

    /// Notes what a launch has reached whose last block is over, before anybody who waits for it hears of that.
    pub(crate) fn end_coverage(&self, grid: &Grid) {
        let (Some(log), Some(map)) = (&self.coverage, &grid.module.coverage) else {
            return;
        };
        let executable = &grid.module.executable;
        executable.take_reached(grid.kernel, &mut |function, instruction| {
            map.reach(function, instruction);
        });
        map.launched(grid.name());
        log.changed(map);
    }
}
