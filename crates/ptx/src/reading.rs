//! What parsing a text takes of host memory, judged before it is parsed.
//!
//! A syntax tree is many times larger than its text, and how many depends on what the text says: a thousand times
//! `ret;` is a hundred times its length. So the text is charged by what it consists of. The figures are from
//! `module_memory.rs` of the software GPU's tests, which holds them to what the allocator counts.

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
/// Most bytes of host memory that reading a text takes, the text itself not counted.
pub fn reading_bytes(text: &[u8]) -> u64 {
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
