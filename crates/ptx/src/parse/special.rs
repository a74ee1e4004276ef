//! Special registers by name.

use crate::ast::{Dim, SpecialReg};

/// The register of a name such as `%tid` with component `x`, or `%laneid` without one.
pub(crate) fn special(name: &str, component: Option<&str>) -> Option<SpecialReg> {
    if let Some(make) = with_dimension(name) {
        return Some(match component? {
            "x" => make(Dim::X),
            "y" => make(Dim::Y),
            "z" => make(Dim::Z),
            // The fourth component always reads 0.
            "w" => SpecialReg::Zero,
            _ => return None,
        });
    }
    match component {
        Some(_) => None,
        None => plain(name),
    }
}

/// Registers that have components.
fn with_dimension(name: &str) -> Option<fn(Dim) -> SpecialReg> {
    use SpecialReg::*;
    Some(match name {
        "%tid" => Tid,
        "%ntid" => NTid,
        "%ctaid" => CtaId,
        "%nctaid" => NCtaId,
        "%clusterid" => ClusterId,
        "%nclusterid" => NClusterId,
        "%cluster_ctaid" => ClusterCtaId,
        "%cluster_nctaid" => ClusterNCtaId,
        _ => return None,
    })
}

/// Registers without components.
fn plain(name: &str) -> Option<SpecialReg> {
    use SpecialReg::*;
    Some(match name {
        "%laneid" => LaneId,
        "%warpid" => WarpId,
        "%nwarpid" => NWarpId,
        "%smid" => SmId,
        "%nsmid" => NSmId,
        "%gridid" => GridId,
        "%lanemask_eq" => LaneMaskEq,
        "%lanemask_le" => LaneMaskLe,
        "%lanemask_lt" => LaneMaskLt,
        "%lanemask_ge" => LaneMaskGe,
        "%lanemask_gt" => LaneMaskGt,
        "%clock" => Clock,
        "%clock_hi" => ClockHi,
        "%clock64" => Clock64,
        "%globaltimer" => GlobalTimer,
        "%globaltimer_lo" => GlobalTimerLo,
        "%globaltimer_hi" => GlobalTimerHi,
        "%dynamic_smem_size" => DynamicSmemSize,
        "%total_smem_size" => TotalSmemSize,
        "%aggr_smem_size" => AggrSmemSize,
        "%reserved_smem_offset_begin" => ReservedSmemBegin,
        "%reserved_smem_offset_end" => ReservedSmemEnd,
        "%reserved_smem_offset_cap" => ReservedSmemCap,
        "%reserved_smem_offset_0" => ReservedSmem(0),
        "%reserved_smem_offset_1" => ReservedSmem(1),
        "%cluster_ctarank" => ClusterCtaRank,
        "%cluster_nctarank" => ClusterNCtaRank,
        "%is_explicit_cluster" => IsExplicitCluster,
        "%current_graph_exec" => CurrentGraphExec,
        _ => {
            if let Some(n) = numbered(name, "%envreg", 32) {
                EnvReg(n)
            } else if let Some(n) = name.strip_suffix("_64").and_then(|s| numbered(s, "%pm", 8)) {
                Pm64(n)
            } else if let Some(n) = numbered(name, "%pm", 8) {
                Pm(n)
            } else {
                return None;
            }
        }
    })
}

fn numbered(name: &str, prefix: &str, count: u8) -> Option<u8> {
    let number = name.strip_prefix(prefix)?;
    let value: u8 = number.parse().ok()?;
    (value < count && number == value.to_string()).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_components_and_numbers() {
        assert_eq!(special("%tid", Some("y")), Some(SpecialReg::Tid(Dim::Y)));
        assert_eq!(special("%tid", Some("w")), Some(SpecialReg::Zero));
        assert_eq!(special("%tid", None), None);
        assert_eq!(special("%laneid", Some("x")), None);
        assert_eq!(special("%envreg31", None), Some(SpecialReg::EnvReg(31)));
        assert_eq!(special("%envreg32", None), None);
        assert_eq!(special("%pm3_64", None), Some(SpecialReg::Pm64(3)));
        assert_eq!(special("%nothing", None), None);
    }
}
