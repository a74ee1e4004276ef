//! Special registers.

use crate::machine::Machine;
use crate::state::WARP;
use mica_kernel::Dim3;
use mica_ptx::ast::{Dim, SpecialReg};

fn component(value: Dim3, dim: Dim) -> u64 {
    u64::from(match dim {
        Dim::X => value.x,
        Dim::Y => value.y,
        Dim::Z => value.z,
    })
}

impl Machine<'_> {
    /// Reads a special register. The clocks tick in nanoseconds.
    pub(crate) fn special(&self, t: usize, register: SpecialReg) -> u64 {
        let env = &self.env;
        let lane = (t % WARP) as u32;
        let time = || env.services.map_or(0, |s| s.global_timer_ns());
        let shared = || env.shared_len;
        let low = |x: u64| x & 0xffff_ffff;
        let masked = |x: u32| u64::from(x);
        match register {
            SpecialReg::Tid(d) => component(self.state.threads[t].tid, d),
            SpecialReg::NTid(d) => component(env.block, d),
            SpecialReg::CtaId(d) => component(env.ctaid, d),
            SpecialReg::NCtaId(d) => component(env.grid, d),
            SpecialReg::LaneId => u64::from(lane),
            SpecialReg::WarpId => (t / WARP) as u64,
            SpecialReg::NWarpId => self.state.threads.len().div_ceil(WARP) as u64,
            SpecialReg::SmId => u64::from(env.smid),
            SpecialReg::NSmId => u64::from(env.smid) + 1,
            SpecialReg::GridId => env.grid_id,
            SpecialReg::LaneMaskEq => masked(1 << lane),
            SpecialReg::LaneMaskLe => masked(u32::MAX >> (31 - lane)),
            SpecialReg::LaneMaskLt => masked((1 << lane) - 1),
            SpecialReg::LaneMaskGe => masked(u32::MAX << lane),
            SpecialReg::LaneMaskGt => masked((u32::MAX << lane) << 1),
            SpecialReg::Clock => low(time()),
            SpecialReg::ClockHi => time() >> 32,
            SpecialReg::Clock64 | SpecialReg::GlobalTimer => time(),
            SpecialReg::GlobalTimerLo => low(time()),
            SpecialReg::GlobalTimerHi => time() >> 32,
            SpecialReg::DynamicSmemSize => u64::from(env.dynamic_shared),
            SpecialReg::TotalSmemSize | SpecialReg::AggrSmemSize => shared(),
            SpecialReg::EnvReg(1) => env.grid_workspace >> 32,
            SpecialReg::EnvReg(2) => low(env.grid_workspace),
            SpecialReg::ClusterId(d) => component(env.cluster_place.cluster, d),
            SpecialReg::NClusterId(d) => component(env.cluster_place.clusters, d),
            SpecialReg::ClusterCtaId(d) => component(env.cluster_place.block, d),
            SpecialReg::ClusterNCtaId(d) => component(env.cluster_place.extent, d),
            SpecialReg::ClusterCtaRank => u64::from(env.cluster_place.rank),
            SpecialReg::ClusterNCtaRank => u64::from(env.cluster_place.size),
            SpecialReg::IsExplicitCluster => u64::from(env.cluster_place.is_explicit),
            SpecialReg::ReservedSmemBegin
            | SpecialReg::ReservedSmemEnd
            | SpecialReg::ReservedSmemCap
            | SpecialReg::ReservedSmem(_) => register.reserved_offset().map_or(0, u64::from),
            SpecialReg::EnvReg(_)
            | SpecialReg::Pm(_)
            | SpecialReg::Pm64(_)
            | SpecialReg::CurrentGraphExec
            | SpecialReg::Zero => 0,
        }
    }
}
