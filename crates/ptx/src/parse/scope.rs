//! Names: nested scopes, register ranges, labels and the branches that wait for them.

use std::collections::HashMap;

use crate::ast::{FuncId, ProtoId, RegId, ScalarType, VarId};
use crate::lexer::Token;

/// What a name stands for.
#[derive(Clone, Debug)]
pub(crate) enum Binding {
    Reg(RegId),
    /// A `.v2` or `.v4` register: its elements.
    Vector(Vec<RegId>),
    Var(VarId),
    Func(FuncId),
    Proto(ProtoId),
    /// A `.calltargets` list.
    Targets(Vec<FuncId>),
}

/// A `%r<N>` declaration: names are numbered when first mentioned.
#[derive(Clone, Copy, Debug)]
struct Range {
    count: u64,
    ty: ScalarType,
}

/// The most digits a number in a register's name may have.
const MAX_DIGITS: usize = 10;

/// A branch waiting for its label.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waiting<'a> {
    /// The `bra` at this index.
    Bra { inst: usize, label: Token<'a> },
    /// One entry of the `brx.idx` at this index.
    BrxEntry {
        inst: usize,
        entry: usize,
        label: Token<'a>,
    },
    /// The whole table of the `brx.idx` at this index.
    BrxTable { inst: usize, label: Token<'a> },
}

/// One `{ }`.
#[derive(Debug, Default)]
pub(crate) struct Scope<'a> {
    names: HashMap<&'a str, Binding>,
    ranges: HashMap<&'a str, Range>,
    pub(crate) labels: HashMap<&'a str, u32>,
    pub(crate) tables: HashMap<&'a str, Vec<Token<'a>>>,
    pub(crate) waiting: Vec<Waiting<'a>>,
    /// Where the area of `.param` variables ended when the scope opened.
    pub(crate) call_param_mark: u64,
}

/// What looking a name up found.
pub(crate) enum Found {
    Binding(Binding),
    /// A register of a range, not numbered yet: number it and call [`Scopes::number`].
    New {
        scope: usize,
        ty: ScalarType,
    },
    Nothing,
}

/// The scopes open now, the module's first.
#[derive(Debug)]
pub(crate) struct Scopes<'a> {
    stack: Vec<Scope<'a>>,
}

/// The most scopes that may be open at once.
pub(crate) const MAX_SCOPES: usize = 256;

impl<'a> Scopes<'a> {
    pub(crate) fn new() -> Self {
        Scopes {
            stack: vec![Scope::default()],
        }
    }

    pub(crate) fn depth(&self) -> usize {
        self.stack.len()
    }

    pub(crate) fn open(&mut self, call_param_mark: u64) {
        self.stack.push(Scope {
            call_param_mark,
            ..Scope::default()
        });
    }

    /// Closes the innermost scope; the module's stays.
    pub(crate) fn close(&mut self) -> Option<Scope<'a>> {
        if self.stack.len() > 1 {
            self.stack.pop()
        } else {
            None
        }
    }

    pub(crate) fn top(&mut self) -> &mut Scope<'a> {
        if self.stack.is_empty() {
            self.stack.push(Scope::default());
        }
        let last = self.stack.len() - 1;
        &mut self.stack[last]
    }

    /// Declares a name in the innermost scope; `false` when it is already there.
    pub(crate) fn declare(&mut self, name: &'a str, binding: Binding) -> bool {
        self.top().names.insert(name, binding).is_none()
    }

    /// Declares or replaces a name in the module's scope.
    pub(crate) fn declare_global(&mut self, name: &'a str, binding: Binding) {
        if let Some(module) = self.stack.first_mut() {
            module.names.insert(name, binding);
        }
    }

    pub(crate) fn global(&self, name: &str) -> Option<&Binding> {
        self.stack.first().and_then(|s| s.names.get(name))
    }

    /// Declares `prefix<count>`; `false` when the prefix already has a range here.
    pub(crate) fn declare_range(&mut self, prefix: &'a str, count: u64, ty: ScalarType) -> bool {
        self.top()
            .ranges
            .insert(prefix, Range { count, ty })
            .is_none()
    }

    /// Finds a name, innermost scope first.
    pub(crate) fn find(&self, name: &str) -> Found {
        let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
        for (depth, scope) in self.stack.iter().enumerate().rev() {
            if let Some(b) = scope.names.get(name) {
                return Found::Binding(b.clone());
            }
            if scope.ranges.is_empty() {
                continue;
            }
            // `%r12` is number 12 of `%r<N>`, or number 2 of `%r1<N>`.
            for taken in (1..=digits.min(MAX_DIGITS)).rev() {
                let (prefix, number) = name.split_at(name.len() - taken);
                // `%r01` is not a member of `%r<2>`.
                if taken > 1 && number.starts_with('0') {
                    continue;
                }
                let Some(range) = scope.ranges.get(prefix) else {
                    continue;
                };
                if number.parse().is_ok_and(|n: u64| n < range.count) {
                    return Found::New {
                        scope: depth,
                        ty: range.ty,
                    };
                }
            }
        }
        Found::Nothing
    }

    /// Records the number of a register that [`Found::New`] promised.
    pub(crate) fn number(&mut self, scope: usize, name: &'a str, reg: RegId) {
        if let Some(s) = self.stack.get_mut(scope) {
            s.names.insert(name, Binding::Reg(reg));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found_reg(scopes: &Scopes<'_>, name: &str) -> Option<RegId> {
        match scopes.find(name) {
            Found::Binding(Binding::Reg(r)) => Some(r),
            _ => None,
        }
    }

    #[test]
    fn ranges_give_names_below_their_count() {
        let mut scopes = Scopes::new();
        scopes.declare_range("%r", 12, ScalarType::B32);
        assert!(matches!(
            scopes.find("%r11"),
            Found::New {
                scope: 0,
                ty: ScalarType::B32
            }
        ));
        assert!(matches!(scopes.find("%r0"), Found::New { .. }));
        for name in ["%r12", "%r01", "%r", "%rs1", "%r99999999999999999999999"] {
            assert!(matches!(scopes.find(name), Found::Nothing), "{name}");
        }
    }

    #[test]
    fn a_prefix_may_end_in_a_digit() {
        let mut scopes = Scopes::new();
        assert!(scopes.declare_range("%r1", 5, ScalarType::B32));
        assert!(!scopes.declare_range("%r1", 5, ScalarType::B64));
        assert!(matches!(scopes.find("%r14"), Found::New { .. }));
        assert!(matches!(scopes.find("%r15"), Found::Nothing));
    }

    #[test]
    fn inner_scope_hides_outer_until_closed() {
        let mut scopes = Scopes::new();
        scopes.declare("%p", Binding::Reg(RegId(0)));
        scopes.open(0);
        assert_eq!(found_reg(&scopes, "%p"), Some(RegId(0)));
        assert!(scopes.declare("%p", Binding::Reg(RegId(1))));
        assert!(!scopes.declare("%p", Binding::Reg(RegId(2))));
        assert_eq!(found_reg(&scopes, "%p"), Some(RegId(2)));
        scopes.close();
        assert_eq!(found_reg(&scopes, "%p"), Some(RegId(0)));
        assert!(scopes.close().is_none());
    }
}
