//! What a module takes of host memory, judged by its text before it is read.
//!
//! A syntax tree is many times larger than its text, and how many depends on what the text says: a thousand times
//! `ret;` is a hundred times its length. So the text is charged by what it consists of. The figures are from
//! `tests/module_memory.rs`, which holds them to what the allocator counts.

use std::sync::Arc;

use mica_gpu::{Result, SessionBudget, Share};

/// Host bytes for one statement, and for what else can be many.
const STATEMENT: u64 = 640;
/// For one operand.
const OPERAND: u64 = 64;
/// For one name in a declaration.
const DECLARED: u64 = 640;
/// For a variable besides, which has a place in device memory.
const VARIABLE: u64 = 256;
const LABEL: u64 = 400;
const FUNCTION: u64 = 4096;
/// Host bytes that compiling takes for one instruction, and those that are kept.
const COMPILING: u64 = 8 << 10;
const COMPILED: u64 = 1 << 10;

/// Most bytes of host memory that reading a text takes, the text itself not counted.
pub(crate) fn text_cost(text: &[u8]) -> u64 {
    let mut cost = 16 << 10;
    let (mut starts, mut is_directive) = (true, false);
    for (at, byte) in text.iter().enumerate() {
        match byte {
            b';' if is_directive => cost += STATEMENT + VARIABLE,
            b';' => cost += STATEMENT,
            b',' if is_directive => cost += DECLARED,
            b',' => cost += OPERAND,
            b':' => cost += LABEL,
            b'.' if starts => {
                is_directive = true;
                let rest = &text[at..];
                if [&b".entry"[..], b".func", b".visible", b".weak", b".extern"]
                    .iter()
                    .any(|word| rest.starts_with(word))
                {
                    cost += FUNCTION;
                }
            }
            _ if starts && !byte.is_ascii_whitespace() => is_directive = false,
            _ => {}
        }
        starts = match byte {
            b';' | b':' | b'{' | b'}' => true,
            _ => starts && byte.is_ascii_whitespace(),
        };
    }
    cost
}

/// The charge for a module while it is read; what remains of it goes with the module.
#[derive(Debug, Default)]
pub(crate) struct ReadingShare(Option<Share>);

impl ReadingShare {
    /// Takes more.
    pub(crate) fn add(&mut self, budget: Option<&Arc<SessionBudget>>, bytes: u64) -> Result<()> {
        let Some(budget) = budget else {
            return Ok(());
        };
        let what = "a module";
        match &mut self.0 {
            Some(share) => share.resize(share.bytes().saturating_add(bytes), what),
            None => {
                self.0 = Some(budget.take(bytes, what)?);
                Ok(())
            }
        }
    }

    /// Gives back all but `bytes`.
    pub(crate) fn keep(mut self, bytes: u64) -> Option<Share> {
        if let Some(share) = &mut self.0 {
            let less = bytes.min(share.bytes());
            // To give back never fails.
            let _ = share.resize(less, "a module");
        }
        self.0
    }
}

/// Host bytes of compiling so many instructions, and what of them is kept.
pub(crate) fn compile_cost(instructions: u64) -> (u64, u64) {
    (
        instructions.saturating_mul(COMPILING),
        instructions.saturating_mul(COMPILED),
    )
}
