use super::*;

const HEAD: &str = ".version 7.0\n.target sm_70\n.address_size 64\n";

fn joined(texts: &[&str]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
    let joined = join(&texts, &|name| name == "vprintf").unwrap();
    crate::parse(joined.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{joined}"));
    joined
}

fn with_head(text: &str) -> String {
    format!("{HEAD}{text}")
}

#[test]
fn texts_become_one_with_the_highest_header() {
    let a = with_head(
        ".extern .func (.param .b32 r) twice(.param .b32 x);\n.visible .entry k() { .param .b32 r; .param .b32 x; call.uni (r), twice, (x); ret; }",
    );
    let b = "// two\n.version\n7.8 .target /* sm_60 */ sm_80\n.address_size 64\n.visible .func (.param .b32 r) twice(.param .b32 x) { /* body; */ ret; }\n.global .u32 t[2] = {1, 2};";
    let joined = joined(&[&a, b]);
    assert!(joined.starts_with(".version 7.8\n.target sm_80\n"));
    assert_eq!(joined.matches(".version").count(), 1);
    assert!(!joined.contains(".extern"));
    assert!(joined.contains("t[2] = {1, 2};"));
    assert_eq!(joined.matches("twice(").count(), 2);
}

#[test]
fn the_strong_definition_stands_and_else_the_largest_common_one() {
    let a = with_head(
        ".weak .func f() { .reg .u32 weak; ret; }\n.visible .entry k() { call f; ret; }\n.common .global .b8 c[4];\n.common .global .u32 d;\n.weak .global .u32 w = 1;",
    );
    let b = with_head(
        ".visible .func f() { .reg .u32 strong; ret; }\n.common .global .b8 c[16];\n.visible .global .u32 d = 5;\n.weak .global .u32 w = 2;",
    );
    for (texts, w) in [([&*a, &*b], 1), ([&b, &a], 2)] {
        let joined = joined(&texts);
        assert!(joined.contains("strong;") && !joined.contains("weak;"));
        assert!(joined.contains("c[16]") && !joined.contains("c[4]"));
        assert_eq!(joined.matches(".u32 d").count(), 1);
        assert!(joined.contains(".u32 d = 5"));
        assert!(joined.contains(&format!(".u32 w = {w};")));
        assert_eq!(joined.matches(".u32 w").count(), 1);
    }
}

#[test]
fn texts_with_strings_of_their_own_and_their_files() {
    let text = |name: &str| {
        with_head(&format!(
            ".global .align 1 .b8 $str[2] = {{65}};\n.visible .entry {name}() {{ .reg .b64 d;\n\t.loc 1 3 0\n mov.u64 d, $str; ret; }}\n.file 1 \"{name}.cu\"\n"
        ))
    };
    let joined = joined(&[&text("one"), &text("two")]);
    assert!(joined.contains(".loc 1 3 0") && joined.contains(".loc 10001 3 0"));
    assert!(joined.contains(".file 1 \"one.cu\"") && joined.contains(".file 10001 \"two.cu\""));
}

#[test]
fn what_no_text_defines_is_an_error_that_names_it() {
    let text = with_head(".extern .func gone();\n.extern .func vprintf();\n");
    let error = join(&[text], &|name| name == "vprintf").unwrap_err();
    assert_eq!(error.to_string(), "no text defines `gone`");
}

#[test]
fn several_names_of_one_statement_are_told_apart() {
    let a = with_head(".weak .global .u32 a, b = 7;\n.visible .entry k() { ret; }");
    let b = with_head(".visible .global .u32 b = 9;");
    let joined = joined(&[&a, &b]);
    assert!(joined.contains(".weak .global .u32 a;") && joined.contains("b = 9;"));
    assert!(!joined.contains("b = 7"));
}

#[test]
fn an_alias_is_a_definition_and_comes_after_its_function() {
    let a = with_head(".extern .func other();\n.visible .entry k() { call other; ret; }");
    let b =
        with_head(".visible .func real() { ret; }\n.visible .func other();\n.alias other, real;");
    let joined = joined(&[&a, &b]);
    assert!(joined.find(".alias other").unwrap() > joined.find("real()").unwrap());
}

#[test]
fn text_that_only_looks_like_a_declaration_is_none() {
    let a = with_head(
        "/* .visible .func f() { */ .extern /* .visible */ .func\nf\n(); .pragma \".func f() {};\";\n.visible .entry k() { call f; ret; }",
    );
    let b = with_head(".visible // .extern\n .func f() { .pragma \"}\"; ret; }");
    assert_eq!(joined(&[&a, &b]).matches("call f").count(), 1);
}

#[test]
fn instructions_that_the_parser_does_not_know_are_joined_all_the_same() {
    let a = with_head(".visible .entry k() { future.op.f17 %r, { 1 }; ret; }\n.future 12;");
    let joined = join(&[a, with_head(".global .u32 v;")], &|_| false).unwrap();
    assert!(joined.contains("future.op.f17 %r, { 1 };") && joined.contains(".future 12;"));
}

#[test]
fn texts_without_a_header_are_refused() {
    for text in [
        "",
        "add.f64;",
        ".version 8.0\n",
        ".target sm_80\n",
        "/* .version",
    ] {
        assert!(join(&[text.into()], &|_| true).is_err(), "{text}");
    }
}
