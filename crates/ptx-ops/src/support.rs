//! What of a module can be run, decided before anything runs.
//!
//! Owns the one list of what parses but has no implementation. The interpreter and the compiler
//! refuse a module that has any of it when the module is loaded, and `mica ptx` shows the whole
//! list. Does not repeat what the parser itself refuses.

use crate::convert::Numeric;
use crate::matrix::wgmma::WgmmaPlan;
use crate::matrix::{MmaPlan, wmma_fragment};
pub use crate::provided::is_provided;
use crate::provided::wrong_signature;
use mica_kernel::cluster::MOST_BLOCKS;
use mica_ptx::ast::{
    AtomOp, Callee, Geometry, Inst, MatrixTile, Mma, Module, Op, Rounding, ScalarType, Unsupported,
    WmmaMatrix,
};

/// The only element of `ldmatrix` and `stmatrix` tiles there is on this device.
const TILE_ELEMENT: ScalarType = ScalarType::B16;

/// The accumulator that `wmma.store` writes.
pub const STORED: WmmaMatrix = WmmaMatrix::C;

/// Everything in a module that cannot be run, in the order of the text. Empty: it can be run.
pub fn unsupported(module: &Module) -> Vec<Unsupported> {
    let mut found = module.unsupported.clone();
    for function in &module.functions {
        let note = |what: String, line: u32| Unsupported {
            what,
            function: Some(function.name.clone()),
            line,
            column: 1,
        };
        let cluster = function.directives.reqnctapercluster.unwrap_or([1; 3]);
        let blocks = cluster.iter().map(|&n| u64::from(n.max(1)));
        if blocks.fold(1, u64::saturating_mul) > MOST_BLOCKS as u64 {
            let [x, y, z] = cluster;
            found.push(note(
                format!("a cluster of {x} x {y} x {z} blocks"),
                function.line,
            ));
        }
        for inst in &function.body {
            if let Some(what) = refused(module, inst)
                && !found.iter().any(|u| u.line == inst.line && u.what == what)
            {
                found.push(note(what, inst.line));
            }
        }
    }
    found.sort_by_key(|u| u.line);
    found
}

/// Why an instruction cannot be run, if it cannot.
fn refused(module: &Module, inst: &Inst) -> Option<String> {
    match &inst.op {
        Op::Unsupported { opcode } => Some(opcode.clone()),
        Op::Mma(m) if MmaPlan::mma(m).is_none() => Some(shape("mma", m)),
        Op::WmmaMma(m) if MmaPlan::wmma(m).is_none() => Some(shape("wmma.mma", m)),
        Op::Wgmma(m) if WgmmaPlan::of(m).is_none() => Some(format!(
            "wgmma.mma_async.m{}n{}k{}{}{}{}",
            m.shape.m, m.shape.n, m.shape.k, m.d_ty, m.a_ty, m.b_ty
        )),
        Op::WmmaLoad(load) => {
            let fragment = wmma_fragment(load.shape, load.matrix, load.ty);
            fragment
                .is_none_or(|f| f.registers as usize != load.dst.len())
                .then(|| format!("wmma.load of this shape and {}", load.ty))
        }
        Op::WmmaStore(store) => {
            let fragment = wmma_fragment(store.shape, STORED, store.ty);
            fragment
                .is_none_or(|f| f.registers as usize != store.src.len())
                .then(|| format!("wmma.store of this shape and {}", store.ty))
        }
        Op::LdMatrix { tile, ty, .. } if *tile != MatrixTile::M8n8 || *ty != TILE_ELEMENT => {
            Some("ldmatrix of tiles other than m8n8.b16".into())
        }
        Op::StMatrix { tile, ty, .. } if *tile != MatrixTile::M8n8 || *ty != TILE_ELEMENT => {
            Some("stmatrix of tiles other than m8n8.b16".into())
        }
        Op::Cvt {
            round: Some(Rounding::Rs),
            ..
        } => Some("cvt.rs (stochastic rounding)".into()),
        Op::Cvt { dst_ty, src_ty, .. } => [dst_ty, src_ty]
            .into_iter()
            .find(|ty| Numeric::of(**ty).is_none())
            .map(|ty| format!("cvt to or from {ty}")),
        Op::Fma { oob: true, .. } => Some("fma.oob".into()),
        Op::Atom(atom)
            if atom.ty == ScalarType::B128 && !matches!(atom.op, AtomOp::Cas | AtomOp::Exch) =>
        {
            Some("atom.b128 of this operation".into())
        }
        Op::Tex(tex) if tex.compare.is_some() => Some("tex with depth compare".into()),
        Op::Tld4(tld4) if tld4.compare.is_some() => Some("tld4 with depth compare".into()),
        Op::Tex(tex) => multisampled(tex.geom),
        Op::Tld4(tld4) => multisampled(tld4.geom),
        Op::Call {
            callee: Callee::Direct(id),
            ..
        } => {
            let callee = module.func(*id);
            if is_provided(callee) {
                return wrong_signature(callee);
            }
            (!callee.defined)
                .then(|| format!("a call of `{}`, which is defined nowhere", callee.name))
        }
        _ => None,
    }
}

fn shape(name: &str, mma: &Mma) -> String {
    let sparse = if mma.sparse.is_some() { ".sp" } else { "" };
    format!(
        "{name}{sparse}.m{}n{}k{}{}{}{}{}",
        mma.shape.m, mma.shape.n, mma.shape.k, mma.d_ty, mma.a_ty, mma.b_ty, mma.c_ty
    )
}

fn multisampled(geom: Geometry) -> Option<String> {
    matches!(geom, Geometry::D2Ms | Geometry::A2Ms).then(|| "multisampled textures".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(body: &str) -> Vec<(u32, String)> {
        let text = format!(
            ".version 8.4\n.target sm_90\n.address_size 64\n.extern .func gone();\n\
             .visible .entry k() {{\n{body}\nret; }}"
        );
        let module = mica_ptx::parse(text.as_bytes()).expect("parses");
        unsupported(&module)
            .into_iter()
            .map(|u| (u.line, u.what))
            .collect()
    }

    #[test]
    fn everything_is_listed_with_its_line() {
        let found = names(
            ".reg .b16 %h<2>; .reg .f32 %f<4>;
             fma.rn.oob.f16 %h0, %h0, %h0, %h0;
             add.f32 %f0, %f1, %f2;
             call gone;",
        );
        let lines: Vec<u32> = found.iter().map(|f| f.0).collect();
        assert_eq!(lines, [7, 9]);
        assert_eq!(found[0].1, "fma.oob");
        assert!(found[1].1.contains("`gone`"));
    }

    #[test]
    fn what_can_be_run_is_not_listed() {
        assert_eq!(names(".reg .b32 %r<2>; add.u32 %r0, %r1, 1;"), []);
    }

    #[test]
    fn clusters_of_more_than_sixteen_blocks_are_refused() {
        let text = ".version 8.4\n.target sm_90\n.address_size 64\n\
                    .visible .entry k() .reqnctapercluster 4, 5, 1 { ret; }";
        let module = mica_ptx::parse(text.as_bytes()).expect("parses");
        let found = unsupported(&module);
        assert!(found[0].what.contains("cluster of 4 x 5 x 1"), "{found:?}");
    }
}
