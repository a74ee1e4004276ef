//! Makes random programs of [`templates`](super::templates). The fuzzer makes them of its bytes.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::ops::Range;

use super::templates;

/// Where choices come from: one of so many.
pub(crate) type Pick<'a> = &'a mut dyn FnMut(usize) -> usize;

const KINDS: &[(char, &str, usize)] = &[
    ('i', "%r", 6),
    ('l', "%rd", 4),
    ('s', "%rs", 3),
    ('f', "%f", 4),
    ('d', "%fd", 3),
    ('p', "%p", 3),
];

/// Writes out what templates have short words for.
fn expanded(template: &str) -> String {
    let own = "shl.b32 %t0, %tx, 2; add.s32 %t0, %t0, %sb;";
    let first = "setp.ne.u32 %q0, %tx, 0; @%q0 bra PAST;";
    let meet = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;";
    let lead = "mov.u32 %t3, %cluster_ctarank; or.b32 %t3, %t3, %tx; setp.ne.u32 %q0, %t3, 0; @%q0 bra PAST;";
    let text = template
        .replace("@FIRST", &format!("bar.sync 0; {first}"))
        .replace(
            "@SHOW",
            &format!("bar.sync 0; {own} st.shared.u32 [%t0+2048], Ai; bar.sync 0; {first} add.s64 %tm, %map, 128;"),
        )
        .replace(
            "@LAST",
            &format!("PAST: bar.sync 0; {own} ld.shared.u32 Di, [%t0+2048]; bar.sync 0;"),
        )
        .replace("@LEAD", &format!("{meet} {lead}"))
        .replace(
            "@TOLD",
            &format!("PAST: {meet} {own} ld.shared.u32 Di, [%t0+2048]; {meet}"),
        );
    let Some((before, call)) = text.split_once("@PRODUCT ") else {
        return text;
    };
    let (call, after) = call.split_once(';').unwrap_or((call, ""));
    let words: Vec<&str> = call.split(", ").collect();
    let [function, a, sizes, a_row, a_col, b_row, c_row] = words[..] else {
        return text;
    };
    let arguments = [a, "%in", "%box", sizes, a_row, a_col, b_row, c_row];
    let passed: String = (arguments.iter().enumerate())
        .map(|(i, word)| format!(".param .b64 x{i}; st.param.b64 [x{i}], {word}; "))
        .collect();
    format!("{before}{{ {passed}call {function}, (x0, x1, x2, x3, x4, x5, x6, x7); }}{after}")
}

/// Fills in a template.
fn instance(pick: Pick<'_>, template: &str, id: usize) -> String {
    let template = expanded(template);
    let mut out = String::new();
    let mut used: Vec<String> = Vec::new();
    let mut chars = template.chars().peekable();
    while let Some(c) = chars.next() {
        let kind = chars.peek().and_then(|k| KINDS.iter().find(|x| x.0 == *k));
        match (c, kind) {
            ('D' | 'A', Some((_, prefix, n))) => {
                chars.next();
                let first = pick(*n);
                // Two results of one instruction must be different registers.
                let names = (first..first + n).map(|i| format!("{prefix}{}", i % n));
                let mut free = names.filter(|name| c == 'A' || !used.contains(name));
                let name = free.next().unwrap_or_default();
                if c == 'D' {
                    used.push(name.clone());
                }
                out.push_str(&name);
            }
            ('N', _) if out.ends_with(' ') => {
                let _ = write!(out, "{}", pick(31) + 1);
            }
            _ => out.push(c),
        }
        if c == ';' {
            used.clear();
        }
    }
    for label in ["PAST", "MEET", "LOOP", "TABLE"] {
        out = out.replace(label, &format!("$L{id}{label}"));
    }
    out
}

/// Whether a text names a word, such as a register or a function.
fn has_word(text: &str, word: &str) -> bool {
    let mut rest = text.match_indices(word);
    rest.any(|(at, _)| !text[at + word.len()..].starts_with(|c: char| c.is_alphanumeric()))
}

/// Instructions that set a register before the templates, each with what it needs set before.
fn beginnings(pick: Pick<'_>) -> Vec<(String, Vec<String>, String)> {
    let mut all = Vec::new();
    for i in 0..6 {
        let mut text = format!("ld.global.u32 %r{i}, [%own+{}];", 4 * i);
        if i % 2 == 1 {
            let _ = write!(text, " mad.lo.s32 %r{i}, %tx, {}, %r{i};", pick(5));
        }
        all.push((format!("%r{i}"), Vec::new(), text));
    }
    for i in 0..4 {
        let from = vec![format!("%r{i}")];
        let text = format!("mul.wide.s32 %rd{i}, %r{i}, {};", pick(9) + 1);
        all.push((format!("%rd{i}"), from.clone(), text));
        let text = format!("cvt.rn.f32.s32 %f{i}, %r{i}; mul.f32 %f{i}, %f{i}, 0f3e19999a;");
        all.push((format!("%f{i}"), from, text));
    }
    for i in 0..3 {
        let from = vec![format!("%r{i}")];
        let text = format!("cvt.f64.f32 %fd{i}, %f{i};");
        all.push((format!("%fd{i}"), vec![format!("%f{i}")], text));
        let text = format!("cvt.u16.u32 %rs{i}, %r{i};");
        all.push((format!("%rs{i}"), from, text));
        let from = vec![format!("%r{i}"), format!("%r{}", i + 1)];
        let text = format!("setp.lt.s32 %p{i}, %r{i}, %r{};", i + 1);
        all.push((format!("%p{i}"), from, text));
    }
    all
}

/// The beginnings of the registers that a text names: compiling others takes most of the time of a short program.
fn needed(text: &str, beginnings: Vec<(String, Vec<String>, String)>) -> Vec<String> {
    let mut wanted = BTreeSet::new();
    // What needs others stands behind them.
    for (register, from, _) in beginnings.iter().rev() {
        if wanted.contains(register) || has_word(text, register) {
            wanted.insert(register.clone());
            wanted.extend(from.iter().cloned());
        }
    }
    let kept = beginnings.into_iter();
    let kept = kept.filter(|(register, ..)| wanted.contains(register));
    kept.map(|(_, _, text)| text).collect()
}

/// Stores of the registers that a text names, each at its place in what the kernel gives.
fn stores(text: &str) -> String {
    let mut out = String::new();
    let mut offset = 0;
    for (kind, prefix, n) in KINDS {
        for i in 0..*n {
            let at = offset;
            offset += 8;
            if !has_word(text, &format!("{prefix}{i}")) {
                continue;
            }
            let _ = match kind {
                'l' | 'd' => writeln!(out, "  st.global.b64 [%out+{at}], {prefix}{i};"),
                's' => writeln!(out, "  st.global.b16 [%out+{at}], {prefix}{i};"),
                'p' => writeln!(
                    out,
                    "  selp.u32 %t0, 1, 0, {prefix}{i}; st.global.u32 [%out+{at}], %t0;"
                ),
                _ => writeln!(out, "  st.global.b32 [%out+{at}], {prefix}{i};"),
            };
        }
    }
    out
}

/// A program with kernel `k(in, work, out, scr, tex, maps, boxes)` of so many templates. With `whole`, for blocks of whole
/// warps only; with `hostile`, it may try what it may not.
pub(crate) fn program(
    (whole, hostile): (bool, bool),
    templates: Range<usize>,
    pick: Pick<'_>,
) -> String {
    let beginnings = beginnings(pick);
    let steps = templates.start + pick(templates.len());
    let wrap = pick(3) == 0;
    let mut middle = String::new();
    if wrap {
        middle.push_str("  mov.u32 %t1, 0;\n$LWRAP:\n");
    }
    for id in 0..steps {
        let own = [
            (whole, templates::MATRIX),
            (hostile, templates::HOSTILE),
            (whole && hostile, templates::HOSTILE_MATRIX),
        ];
        let own = own.iter().filter(|(is_used, _)| *is_used);
        let groups: Vec<_> = (templates::GROUPS.iter().copied())
            .chain(own.map(|(_, group)| *group))
            .collect();
        let group = groups[pick(groups.len())];
        let template = group[pick(group.len())];
        let _ = writeln!(middle, "  {}", instance(pick, template, id));
    }
    if wrap {
        middle.push_str("  add.s32 %t1, %t1, 1; setp.lt.s32 %q1, %t1, 3; @%q1 bra $LWRAP;\n");
    }
    text_of(&middle, beginnings)
}

/// A program of one template.
#[allow(dead_code, reason = "the fuzzer has no use for it")]
pub(crate) fn alone(template: &str, pick: Pick<'_>) -> String {
    let beginnings = beginnings(pick);
    text_of(&format!("  {}\n", instance(pick, template, 0)), beginnings)
}

/// The program with these instructions in its middle.
fn text_of(middle: &str, beginnings: Vec<(String, Vec<String>, String)>) -> String {
    let first: String = needed(middle, beginnings)
        .iter()
        .map(|text| format!("  {text}\n"))
        .collect();
    let body = first + middle + &stores(middle);
    format!(
        ".version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b32 r) vprintf (.param .b64 format, .param .b64 args);
.extern .func __mica_multiply_f32 (.param .b64 a, .param .b64 b, .param .b64 c, .param .b64 sizes, .param .b64 ar,
  .param .b64 ac, .param .b64 br, .param .b64 cr);
.extern .func __mica_multiply_add_f32 (.param .b64 a, .param .b64 b, .param .b64 c, .param .b64 sizes, .param .b64 ar,
  .param .b64 ac, .param .b64 br, .param .b64 cr);
.global .align 1 .b8 format[4] = {{37, 117, 10, 0}};
.func (.param .b32 r) mix(.param .b32 a, .param .b32 b) {{
  .reg .b32 %x<3>;
  .reg .pred %c;
  ld.param.b32 %x0, [a];
  ld.param.b32 %x1, [b];
  setp.lt.s32 %c, %x0, %x1;
  @%c xor.b32 %x0, %x0, %x1;
  mad.lo.s32 %x2, %x0, 7, %x1;
  st.param.b32 [r], %x2;
  ret;
}}
.func (.param .b32 r) keep(.param .b32 a) {{
  .local .align 16 .b8 own[64];
  .reg .b32 %x<4>;
  .reg .b64 %d<2>;
  ld.param.b32 %x0, [a];
  st.local.b32 [own+60], %x0;
  and.b32 %x1, %x0, 15;
  mul.wide.u32 %d0, %x1, 4; mov.u64 %d1, own; add.s64 %d0, %d0, %d1;
  st.local.b32 [%d0], %x1;
  ld.local.b32 %x2, [own+60];
  mad.lo.s32 %x2, %x2, 3, %x1;
  st.param.b32 [r], %x2;
  ret;
}}
.visible .entry k(.param .u64 in, .param .u64 work, .param .u64 out, .param .u64 scr, .param .u64 tex, .param .u64 maps,
  .param .u64 boxes) {{
  .reg .b32 %r<6>, %t<4>, %tx, %sb;
  .reg .b64 %rd<4>, %tl, %tm, %in, %own, %out, %scr, %tex, %map, %box;
  .reg .b16 %rs<3>, %h;
  .reg .f32 %f<4>;
  .reg .f64 %fd<3>;
  .reg .pred %p<3>, %q<2>;
  .shared .align 128 .b8 tile[6144];
  .local .align 8 .b8 %stack[32];
  ld.param.u64 %in, [in];
  ld.param.u64 %own, [work];
  ld.param.u64 %out, [out];
  ld.param.u64 %scr, [scr];
  ld.param.u64 %tex, [tex];
  ld.param.u64 %map, [maps];
  ld.param.u64 %box, [boxes];
  mov.u32 %t0, %ctaid.x; mul.wide.u32 %tl, %t0, 512; add.s64 %map, %map, %tl; mul.wide.u32 %tl, %t0, 4096; add.s64 %box, %box, %tl;
  mov.u32 %t2, %ntid.x; mul.lo.u32 %t3, %t0, %t2; mul.wide.u32 %tl, %t3, 8; add.s64 %scr, %scr, %tl;
  mul.wide.u32 %tl, %t3, 256; add.s64 %own, %own, %tl; add.s64 %out, %out, %tl;
  mov.u32 %tx, %tid.x;
  mov.u32 %sb, tile;
  shl.b32 %t0, %tx, 2; add.s32 %t0, %t0, %sb; st.shared.u32 [%t0], %tx; st.shared.u32 [%t0+1024], %tx;
  bar.sync 0;
  bar.warp.sync 0xffffffff;
  mul.wide.u32 %tl, %tx, 256; add.s64 %own, %own, %tl; add.s64 %out, %out, %tl;
{body}
  exit;
}}
"
    )
}
