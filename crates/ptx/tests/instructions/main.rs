//! Each family of instructions: what its text becomes.

use mica_ptx::ast::*;
use mica_ptx::{parse, verify};

const DECLS: &str = "
    .reg .pred p, q;
    .reg .b16 h<8>;
    .reg .b32 r<40>;
    .reg .b64 d<16>;
    .reg .b128 x<4>;
    .reg .f32 f<40>;
    .reg .f64 g<16>;
    .reg .v4 .f32 vec;
    .shared .align 16 .b8 smem[1024];
    .local .b32 loc[4];
";

fn module(body: &str) -> Module {
    let text = format!(
        ".version 8.3\n.target sm_90\n.address_size 64\n.global .texref tex0;\n.global .b32 data[16];\n\
         .func (.param .b32 ret) callee(.param .b64 a, .param .b32 b);\n\
         .visible .entry k(.param .u64 p0, .param .u32 p1) {{\n{DECLS}\n{body}\nret;\n}}\n"
    );
    let module = parse(text.as_bytes()).unwrap_or_else(|e| panic!("{body}: {e}"));
    verify(&module).unwrap_or_else(|e| panic!("{body}: {e}"));
    module
}

/// The instructions of a body, without the final `ret`.
fn ops(body: &str) -> Vec<Op> {
    let module = module(body);
    let (_, f) = module.function("k").unwrap();
    let mut ops: Vec<Op> = f.body.iter().map(|i| i.op.clone()).collect();
    ops.pop();
    ops
}

fn op(body: &str) -> Op {
    let ops = ops(body);
    assert_eq!(ops.len(), 1, "{body}: {ops:?}");
    ops[0].clone()
}

fn refused(body: &str) -> String {
    let text = format!(
        ".version 8.3\n.target sm_90\n.address_size 64\n.visible .entry k() {{\n{DECLS}\n{body}\nret;\n}}\n"
    );
    match parse(text.as_bytes()) {
        Ok(_) => panic!("{body} was accepted"),
        Err(e) => e.to_string().lines().next().unwrap_or("").to_string(),
    }
}

macro_rules! assert_op {
    ($text:expr, $pattern:pat $(if $guard:expr)?) => {
        let op = op($text);
        assert!(matches!(&op, $pattern $(if $guard)?), "{} became {op:?}", $text);
    };
}

mod arithmetic;
mod floats;
mod flow;
mod memory;
mod objects;
mod warpgroup;
