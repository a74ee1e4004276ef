//! Functions that the device provides: a module declares and calls them.
//!
//! Owns their names and what they take. A module that declares one of them otherwise is refused
//! when it is loaded: compiled code passes their arguments to the runtime in memory of a fixed size.

use mica_ptx::ast::{Function, Param};

use crate::multiply;

/// What a provided function takes and returns: bytes of each parameter.
struct Signature {
    name: &'static str,
    params: &'static [u32],
    returns: &'static [u32],
}

const PROVIDED: [Signature; 8] = [
    Signature {
        name: "vprintf",
        params: &[8, 8],
        returns: &[4],
    },
    Signature {
        name: "__assertfail",
        params: &[8, 8, 4, 8, 8],
        returns: &[],
    },
    Signature {
        name: "malloc",
        params: &[8],
        returns: &[8],
    },
    Signature {
        name: "free",
        params: &[8],
        returns: &[],
    },
    // What the device runtime that the software GPU brings is made of.
    Signature {
        name: "__mica_parameter_buffer",
        params: &[8, 8, 8, 8, 8],
        returns: &[8],
    },
    Signature {
        name: "__mica_launch",
        params: &[8, 8],
        returns: &[8],
    },
    // Products by the widest registers that the processor has.
    Signature {
        name: multiply::MULTIPLY,
        params: &[8; multiply::WORDS],
        returns: &[],
    },
    Signature {
        name: multiply::MULTIPLY_ADD,
        params: &[8; multiply::WORDS],
        returns: &[],
    },
];

/// The most arguments that a provided function takes.
pub const MOST_ARGUMENTS: usize = multiply::WORDS;

fn signature(function: &Function) -> Option<&'static Signature> {
    PROVIDED
        .iter()
        .find(|s| !function.defined && s.name == function.name)
}

/// Whether the device provides this function.
pub fn is_provided(function: &Function) -> bool {
    signature(function).is_some()
}

/// Why a declaration of a provided function cannot be called, if it cannot.
pub fn wrong_signature(function: &Function) -> Option<String> {
    let wanted = signature(function)?;
    let same = |params: &[Param], sizes: &[u32]| {
        params.len() == sizes.len() && params.iter().zip(sizes).all(|(p, size)| p.size == *size)
    };
    // Some compilers declare no result of `vprintf` where the program drops it.
    let returns = function.returns.is_empty() || same(&function.returns, wanted.returns);
    (!same(&function.params, wanted.params) || !returns).then(|| {
        format!(
            "a call of `{}` declared with {} instead of {}",
            wanted.name,
            shape(sizes(&function.params), sizes(&function.returns)),
            shape(
                wanted.params.iter().copied(),
                wanted.returns.iter().copied()
            ),
        )
    })
}

fn sizes(params: &[Param]) -> impl ExactSizeIterator<Item = u32> + '_ {
    params.iter().map(|p| p.size)
}

/// Sizes as a sentence has them; of a long list only the first.
fn shape(
    params: impl ExactSizeIterator<Item = u32>,
    returns: impl ExactSizeIterator<Item = u32>,
) -> String {
    const MOST: usize = 8;
    fn list(sizes: impl ExactSizeIterator<Item = u32>) -> String {
        let more = if sizes.len() > MOST { ", …" } else { "" };
        let sizes: Vec<String> = sizes.take(MOST).map(|s| s.to_string()).collect();
        format!("({}{more})", sizes.join(", "))
    }
    format!(
        "parameters of {} and results of {} bytes",
        list(params),
        list(returns)
    )
}

#[cfg(test)]
mod tests {
    use crate::support::unsupported;

    fn refused(declaration: &str, call: &str) -> Option<String> {
        let text = format!(
            ".version 8.4\n.target sm_80\n.address_size 64\n.extern .func {declaration};\n\
             .visible .entry k() {{ .reg .b64 %d<2>; .reg .b32 %r<2>;\n{call}\nret; }}"
        );
        let module = mica_ptx::parse(text.as_bytes()).expect("parses");
        unsupported(&module).into_iter().next().map(|u| u.what)
    }

    #[test]
    fn what_compilers_declare_is_accepted() {
        let param = |n: usize| format!(".param .b64 p{n}");
        let two = format!("{}, {}", param(0), param(1));
        for (declaration, call) in [
            (
                format!("(.param .b32 r) vprintf ({two})"),
                "{ .param .b64 a; .param .b64 b; .param .b32 c; call (c), vprintf, (a, b); }",
            ),
            (
                format!("vprintf ({two})"),
                "{ .param .b64 a; .param .b64 b; call vprintf, (a, b); }",
            ),
            (
                format!("(.param .b64 r) malloc ({})", param(0)),
                "{ .param .b64 a; .param .b64 c; call (c), malloc, (a); }",
            ),
            (
                format!("free ({})", param(0)),
                "{ .param .b64 a; call free, (a); }",
            ),
            (
                format!(
                    "__assertfail ({two}, .param .b32 line, {}, {})",
                    param(3),
                    param(4)
                ),
                "{ .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;
                   call __assertfail, (a, b, c, d, e); }",
            ),
        ] {
            assert_eq!(refused(&declaration, call), None, "{declaration}");
        }
    }

    #[test]
    fn other_signatures_are_refused_with_both() {
        let many: Vec<String> = (0..3000).map(|i| format!(".reg .b64 p{i}")).collect();
        let args = vec!["%d0"; 3000].join(", ");
        let what = refused(
            &format!("(.param .b32 r) vprintf ({})", many.join(", ")),
            &format!("{{ .param .b32 c; call (c), vprintf, ({args}); }}"),
        );
        let what = what.expect("refused");
        assert!(
            what.contains("`vprintf`") && what.contains("(8, 8) and results of (4) bytes"),
            "{what}"
        );
        assert!(what.len() < 300, "{what}");
        for (declaration, call) in [
            (
                "(.param .b8 r[4096]) malloc (.param .b64 n)",
                "{ .param .b64 a; .param .b8 c[4096]; call (c), malloc, (a); }",
            ),
            ("free (.param .b32 p)", "{ .param .b32 a; call free, (a); }"),
            ("free ()", "call free;"),
        ] {
            assert!(refused(declaration, call).is_some(), "{declaration}");
        }
    }
}
