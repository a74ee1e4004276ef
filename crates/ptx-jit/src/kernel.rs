//! One kernel: its plan, and the versions compiled so far.

use cranelift_codegen::isa::OwnedTargetIsa;
use mica_kernel::{Dim3, LaunchFacts};
use mica_ptx::ast::{FloatUnOp, FuncId, Module, Op, Precision, ScalarType};
use mica_ptx_ops::layout::ModuleLayout;
use std::sync::Arc;

use crate::code::Code;
use crate::coverage::Coverage;
use crate::emit::{Source, is_wide};
use crate::plan::{Plan, Spread};
use crate::scratch;
use crate::slot::Slot;
use crate::uniformity::Uniformity;
use crate::unit::{BlockId, Class, Place, Reg, Step, Term, WARP};
use crate::{CodeCache, CompileError, Width};

pub(crate) struct Kernel {
    pub(crate) module: Arc<Module>,
    pub(crate) layout: Arc<ModuleLayout>,
    pub(crate) plan: Plan,
    pub(crate) memcheck: bool,
    pub(crate) monitor: bool,
    monitor_own: bool,
    pub(crate) recheck: bool,
    pub(crate) checks: bool,
    pub(crate) coverage: Coverage,
    /// By diverge site.
    pub(crate) spreads: Vec<Spread>,
    isa: Arc<OwnedTargetIsa>,
    has_fma: bool,
    wide: bool,
    quick: bool,
    /// Where code is kept, and under what name.
    code_cache: Option<(Arc<dyn CodeCache>, String)>,
    /// Threads per group that suit the kernel.
    lanes: u32,
    /// Whether groups are whole warps where blocks have such.
    warps: bool,
    /// For 1, 4, 8, 16 and 32 lanes; then for 4 to 32 where the proof holds.
    versions: [Slot<Result<Code, CompileError>>; 9],
}

impl Kernel {
    #[allow(clippy::too_many_arguments, reason = "one caller, all of them needed")]
    pub(crate) fn new(
        module: Arc<Module>,
        layout: Arc<ModuleLayout>,
        func: FuncId,
        isa: Arc<OwnedTargetIsa>,
        has_fma: bool,
        width: Width,
        most_lanes: u32,
        (memcheck, monitor, monitor_own): (bool, bool, bool),
        recheck: bool,
        coverage: bool,
        checks: bool,
        code_cache: Option<(Arc<dyn CodeCache>, String)>,
    ) -> Result<Kernel, CompileError> {
        let plan = Plan::build(&module, &layout, func)?;
        let quick = crate::limit::pressure(&plan, &module)?;
        let spreads = plan.spreads(&module);
        // Blocks are looked at first: where none can be wide, nothing has to be measured.
        let wide = width != Width::Bits128
            && plan.graph.rpo.iter().any(|b| is_wide(&module, &plan, *b))
            && !(monitor && monitor_own)
            && width.is_wide(code_cache.as_ref().map(|s| &*s.0));
        let costs = LaneCosts::of(&module, &plan, wide);
        let lanes = suitable_lanes(&plan, &costs).min(most_lanes).min(16);
        let lanes = if memcheck || quick { 1 } else { lanes };
        let coverage = match coverage {
            true => Coverage::of(&plan.unit),
            false => Coverage::default(),
        };
        // Collectives of checked kernels are the dispatcher's, which tells of them.
        let one_by_one = memcheck || (monitor && monitor_own) || quick || !has_vector_code(&plan);
        let warps = !one_by_one && most_lanes as usize == WARP && costs.suits_warps();
        Ok(Kernel {
            module,
            layout,
            plan,
            memcheck,
            monitor,
            monitor_own,
            recheck,
            checks,
            coverage,
            spreads,
            isa,
            has_fma,
            wide: wide && !quick,
            quick,
            code_cache,
            lanes,
            warps,
            versions: Default::default(),
        })
    }

    /// Whether a launch needs no checks for the accesses that the proof speaks of.
    pub(crate) fn proves(&self, launch: &LaunchFacts<'_>) -> bool {
        (self.lanes > 1 || self.warps)
            && self.plan.proof.is_useful()
            && self.plan.proof.holds(launch)
    }

    /// Slots of live memory that its blocks need: one for each instruction that can fault.
    pub(crate) fn live_slots(&self) -> usize {
        match self.monitor && !self.monitor_own {
            true => self.plan.slow.len(),
            false => 0,
        }
    }

    /// Compiles what blocks of this shape need.
    pub(crate) fn ready(&self, block: Dim3, proven: bool) -> Result<(), String> {
        match self.version(self.choose_lanes(block, proven), proven) {
            Ok(_) => Ok(()),
            Err(e) => Err(e.to_string()),
        }
    }

    /// Compiles the scalar version or a vector version, once.
    pub(crate) fn version(&self, lanes: u32, proven: bool) -> &Result<Code, CompileError> {
        let proven = proven && lanes > 1;
        self.versions[slot(lanes, proven)].get_or_init(|| {
            let src = Source {
                module: &self.module,
                layout: &self.layout,
                plan: &self.plan,
                memcheck: self.memcheck,
                monitor: self.monitor,
                monitor_own: self.monitor_own,
                recheck: self.recheck,
                coverage: self.coverage.is_on(),
                checks: self.checks,
                has_fma: self.has_fma,
                proven,
                quick: self.quick,
                broadcasts: !self.quick && crate::patch::supported(&**self.isa),
                wide: self.wide,
            };
            let Some((cache, name)) = &self.code_cache else {
                return Code::compile(&self.isa, &src, lanes as usize).map(|c| c.0);
            };
            let func = self.plan.unit.roots[0].func;
            let proven = if proven { " proven" } else { "" };
            let bits = if self.wide { 256 } else { 128 };
            let key = format!(
                "{name} {} {lanes}{proven} {bits}",
                self.module.func(func).name
            );
            if let Some(kept) = cache.load(&key)
                && let Some(code) = Code::from_bytes(&kept)
            {
                return code;
            }
            let (code, bytes) = Code::compile(&self.isa, &src, lanes as usize)?;
            cache.save(&key, &bytes);
            Ok(code)
        })
    }

    /// Asked for before every call of compiled code, so what exists is found without more ado.
    #[inline]
    pub(crate) fn code(&self, lanes: u32, proven: bool) -> Option<&Code> {
        let made = self.versions[slot(lanes, proven)].get();
        made.unwrap_or_else(|| self.version(lanes, proven))
            .as_ref()
            .ok()
    }

    /// Versions that exist now, with the lanes that each one has.
    pub(crate) fn with_lanes(&self) -> impl Iterator<Item = (u32, &Code)> {
        let lanes = [1, 4, 8, 16, 32, 4, 8, 16, 32];
        let versions = self.versions.iter().zip(lanes);
        versions.filter_map(|(v, lanes)| Some((lanes, v.get()?.as_ref().ok()?)))
    }

    /// Versions that exist now.
    pub(crate) fn compiled(&self) -> impl Iterator<Item = &Code> {
        self.with_lanes().map(|(_, code)| code)
    }

    pub(crate) fn scratch_bytes(&self, threads: u32) -> usize {
        scratch::FRAMES as usize
            + threads.div_ceil(32) as usize * self.plan.frame_bytes as usize
            + 64
    }

    /// Whether threads run one by one, so that the order of a block's threads can be chosen.
    pub(crate) fn is_ordered(&self, schedule: u64) -> bool {
        self.monitor && self.monitor_own && schedule != 0
    }

    /// How many threads run together in blocks of this shape: groups must lie in one row.
    pub(crate) fn choose_lanes(&self, block: Dim3, proven: bool) -> u32 {
        let mut lanes = if self.warps { WARP as u32 } else { self.lanes };
        while lanes > 1 {
            let one_row = block.y * block.z == 1;
            let fits = if one_row {
                block.x >= lanes
            } else {
                block.x.is_multiple_of(lanes)
            };
            if fits && self.code(lanes, proven).is_some() {
                return lanes;
            }
            lanes = match lanes {
                32 => self.lanes,
                8.. => lanes / 2,
                _ => 1,
            };
        }
        1
    }

    /// PTX line and source line of an instruction.
    pub(crate) fn line(&self, place: Place) -> (u32, u32) {
        let inst = self.plan.unit.inst(&self.module, place);
        (inst.line, inst.loc.map_or(0, |l| l.line))
    }

    /// Bytes that one execution of a memory instruction touches.
    pub(crate) fn access_bytes(&self, place: Place) -> u32 {
        match &self.plan.unit.inst(&self.module, place).op {
            Op::Ld { ty, dst, .. } => ty.bytes() * dst.len() as u32,
            Op::St { ty, src, .. } => ty.bytes() * src.len() as u32,
            Op::Atom(a) => a.ty.bytes() * a.src.len() as u32,
            _ => 0,
        }
    }
}

/// The place of a version among a kernel's versions.
fn slot(lanes: u32, proven: bool) -> usize {
    let i = match lanes {
        1 => return 0,
        4 => 1,
        8 => 2,
        16 => 3,
        _ => 4,
    };
    if proven { i + 4 } else { i }
}

/// Most steps of a kernel that is compiled for whole warps. CUB's onesweep radix sort has over 6000, 600 of them collectives:
/// thread by thread each of those costs 32 turns of the dispatcher.
const MOST_WARP_STEPS: u32 = 12_000;

/// What decides how many lanes run together.
#[derive(Default)]
struct LaneCosts {
    /// All steps.
    steps: u32,
    /// Uses of varying registers of 64 bits.
    pairs: u32,
    /// Steps with varying registers.
    vector: u32,
    /// Those of them that run lane by lane.
    scalarized: u32,
    /// Collectives of a warp.
    collectives: u32,
    /// Whether a loop divides vectors.
    divides: bool,
}

impl LaneCosts {
    fn of(module: &Module, plan: &Plan, wide: bool) -> Self {
        let unit = &plan.unit;
        let mut costs = Self::default();
        let in_loop = in_loops(plan);
        for &b in &plan.graph.rpo {
            let block = &unit.blocks[b as usize];
            let narrow = in_loop[b as usize] && !(wide && is_wide(module, plan, b));
            for s in &block.steps {
                costs.steps += 1;
                let Step::Inst(i) = s else { continue };
                let place = Place {
                    instance: block.instance,
                    inst: *i,
                };
                let op = &unit.inst(module, place).op;
                let mut varying = false;
                crate::liveness::visit_step(unit, module, block.instance, *s, &mut |r, _| {
                    if plan.uniformity(r) == Uniformity::Varying {
                        varying = true;
                        costs.pairs += u32::from(unit.regs[r as usize] == Class::B64);
                    }
                });
                if varying {
                    costs.vector += 1;
                    costs.divides |= narrow && is_divider(op);
                    costs.scalarized += u32::from(is_scalarized(op));
                }
            }
            costs.steps += u32::from(matches!(block.term, Term::Sync { .. }));
            costs.collectives += u32::from(plan.inline[b as usize]);
        }
        costs
    }

    /// Whether a group should be a warp: its collectives are done on the spot then, while elsewhere each costs as
    /// much as a hundred instructions. More than eight vectors of a value would not fit beside it anyway.
    fn suits_warps(&self) -> bool {
        self.collectives > 0 && self.steps <= MOST_WARP_STEPS
    }
}

/// Most vectors of varying values alive at a block's start.
fn register_pressure(plan: &Plan) -> u32 {
    let unit = &plan.unit;
    let vectors = |r: Reg| match (plan.uniformity(r), unit.regs[r as usize]) {
        (Uniformity::Varying, Class::Pred) => 0,
        (Uniformity::Varying, Class::B64) => 2,
        (Uniformity::Varying, _) => 1,
        _ => 0,
    };
    let alive = |b: &BlockId| plan.live_in[*b as usize].iter().map(vectors).sum();
    plan.graph.rpo.iter().map(alive).max().unwrap_or(0)
}

/// Whether there is vector code for everything in the kernel.
fn has_vector_code(plan: &Plan) -> bool {
    !plan.unit.has_calls() && !plan.unit.regs.contains(&Class::B128)
}

/// How many lanes to run together: more hide latency and share scalar work, until registers run
/// out or the code grows too long.
fn suitable_lanes(plan: &Plan, costs: &LaneCosts) -> u32 {
    if !has_vector_code(plan) || costs.steps > 6000 {
        return 1;
    }
    if costs.scalarized * 2 > costs.vector || costs.pairs * 2 > costs.vector || costs.steps > 1500 {
        return 4;
    }
    match register_pressure(plan) {
        0..=3 => 16,
        // Two vectors of everything do not fit beside temporaries, and the divider gains nothing by a
        // second chain.
        6..=7 if costs.divides => 4,
        4..=7 => 8,
        8..=MOST_KEPT_IN_REGISTERS => 4,
        // Nearly all is in memory whatever is chosen, and two chains hide each other's latency.
        _ => 8,
    }
}

/// Vectors of which a fair part stays in registers.
const MOST_KEPT_IN_REGISTERS: u32 = 32;

/// By block, whether a loop comes back to it.
fn in_loops(plan: &Plan) -> Vec<bool> {
    let mut found = vec![false; plan.unit.blocks.len()];
    for &h in &plan.graph.rpo {
        if plan.graph.is_header[h as usize] {
            for b in plan.graph.loop_body(h) {
                found[b as usize] = true;
            }
        }
    }
    found
}

/// Whether vector code keeps the divider busy with the instruction.
fn is_divider(op: &Op) -> bool {
    match op {
        Op::FloatUn { op, ty, .. } => {
            let slow = matches!(op, FloatUnOp::Rsqrt | FloatUnOp::Sqrt | FloatUnOp::Rcp);
            slow && *ty == ScalarType::F32
        }
        Op::FloatDiv { ty, prec, .. } => {
            *ty == ScalarType::F32 && matches!(prec, Precision::Ieee(_))
        }
        _ => false,
    }
}

/// Whether vector code does the instruction lane by lane.
fn is_scalarized(op: &Op) -> bool {
    match op {
        Op::FloatBin { ty, .. } | Op::Fma { ty, .. } | Op::FloatDiv { ty, .. } => {
            !matches!(ty, ScalarType::F32 | ScalarType::F64)
        }
        Op::Prmt { .. } | Op::Call { .. } => true,
        _ => false,
    }
}
