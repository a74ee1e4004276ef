//! Damaged texts: whatever the bytes, an answer and no panic, and what is accepted keeps the
//! promises of the tree.

use std::path::PathBuf;

use mica_ptx::cfg::Cfg;

/// A small generator, so that a failure repeats.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

fn exercise(bytes: &[u8]) -> bool {
    let outline = mica_ptx::outline(bytes);
    match mica_ptx::parse(bytes) {
        Ok(module) => {
            let text = || String::from_utf8_lossy(bytes).into_owned();
            // The text without what the lexer skips is the same module.
            let plain = mica_ptx::plain_text(bytes).unwrap_or_else(|e| panic!("{e}"));
            let again = mica_ptx::parse(plain.as_bytes()).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(again.functions.len(), module.functions.len());
            for (a, b) in again.functions.iter().zip(&module.functions) {
                assert_eq!(a.body, b.body, "{}", text());
            }
            let outline = outline.unwrap_or_else(|e| panic!("{e}"));
            for (declared, _, bytes) in outline.variables() {
                let known = module.global(&declared.name);
                let known = known.unwrap_or_else(|| panic!("{}", text()));
                assert_eq!(bytes, known.1.size, "{}", text());
            }
            mica_ptx::verify(&module).unwrap_or_else(|e| panic!("{e}\n{}", text()));
            for f in &module.functions {
                let _ = Cfg::build(f);
            }
            let _ = mica_ptx::describe(&module).to_string();
            true
        }
        Err(e) => {
            let _ = e.to_string();
            false
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/ptx");
    let mut seeds = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let small = std::fs::metadata(&path).is_ok_and(|m| m.len() < 30_000);
        if small && path.extension().is_some_and(|e| e == "ptx") {
            seeds.push(std::fs::read(path).unwrap());
        }
    }
    seeds.sort();
    assert!(seeds.len() > 40);
    seeds
}

#[test]
fn damaged_texts_never_panic() {
    let seeds = seeds();
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut accepted = 0;
    for round in 0..1500 {
        let mut bytes = seeds[random.below(seeds.len())].clone();
        let other = &seeds[random.below(seeds.len())];
        for _ in 0..1 + random.below(3) {
            let at = random.below(bytes.len());
            match random.below(6) {
                0 => bytes[at] = random.next() as u8,
                1 => bytes[at] = b"{}[]();,.:@!%$<>=+-*/0123456789abfrx\n\" "[random.below(38)],
                2 if round % 7 == 0 => bytes.truncate(at),
                3 => {
                    let end = (at + random.below(40)).min(bytes.len());
                    bytes.drain(at..end);
                }
                4 => {
                    // A piece of another text, of whole lines.
                    let from = random.below(other.len());
                    let piece: Vec<u8> = other[from..]
                        .iter()
                        .copied()
                        .take(random.below(300))
                        .collect();
                    bytes.splice(at..at, piece);
                }
                _ => {
                    let piece = bytes[at..(at + random.below(60)).min(bytes.len())].to_vec();
                    bytes.splice(at..at, piece);
                }
            }
            if bytes.is_empty() {
                break;
            }
        }
        accepted += usize::from(exercise(&bytes));
    }
    // If nothing were accepted, the promises would not have been checked.
    assert!(accepted > 20, "{accepted}");
}

#[test]
fn nesting_and_sizes_are_bounded() {
    let head = ".version 8.0\n.target sm_80\n.address_size 64\n";
    for body in [
        format!(".entry k() {{ {} }}", "{".repeat(100_000)),
        format!(
            ".entry k() {{ .reg .b32 r; mov.b32 r, {}1; }}",
            "(".repeat(100_000)
        ),
        format!(
            ".entry k() {{ .reg .b32 r; mov.b32 r, {}1; }}",
            "-".repeat(100_000)
        ),
        format!(
            ".entry k() {{ .reg .b32 r; mov.b32 r, 1{}; }}",
            " ? 1 : 1".repeat(100_000)
        ),
        format!(
            ".global .b32 a{} = {};",
            "[1]".repeat(100_000),
            "{".repeat(100_000)
        ),
        ".global .b8 a[0xffffffffffffffff][2];".to_string(),
        ".global .b8 a[][0xffffffffffffffff][0xffffffffffffffff] = {1};".to_string(),
        ".global .b8 a[2][0x800000000000] = {{1}, {2}};".to_string(),
        ".entry k(.param .b8 a[0xffffffffff]) { ret; }".to_string(),
        ".entry k() { .local .b8 a[0xffffffffff]; ret; }".to_string(),
        ".entry k() { .shared .b8 a[0xffffffffff]; ret; }".to_string(),
        format!(".entry k() {{ add{} r; }}", ".u32".repeat(1000)),
    ] {
        let text = format!("{head}{body}");
        assert!(
            !exercise(text.as_bytes()),
            "{}",
            &body[..body.len().min(80)]
        );
    }
    // Large ranges cost nothing: registers are numbered when used.
    let text = format!("{head}.entry k() {{ .reg .b32 r<4000000000>; mov.b32 r3999999999, 1; }}");
    let module = mica_ptx::parse(text.as_bytes()).unwrap();
    assert_eq!(module.functions[0].regs.len(), 1);
}
