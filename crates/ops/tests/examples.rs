//! Runs the examples: each must end well, and the transformer's loss must fall.

use std::process::Command;

/// Runs an example that cargo has put beside this test; what it printed.
fn run(name: &str, arguments: &[&str]) -> String {
    let test = std::env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(
        program.exists(),
        "{} is not there: build it with `cargo build -p mica-ops --examples`",
        program.display()
    );
    let output = Command::new(&program)
        .args(arguments)
        .env("MICA_OPS_TUNE", "off")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {text}{errors}");
    text
}

#[test]
fn the_product_agrees_with_the_hosts() {
    assert!(run("matmul", &[]).contains("on the host"));
}

#[test]
fn attention_tells_its_memory_beforehand() {
    let text = run("attention", &[]);
    assert!(
        text.contains("flash needs") && text.contains("KiB"),
        "{text}"
    );
}

#[test]
fn a_transformer_learns_and_draws_its_loss() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("loss.svg");
    // It ends with an error if the loss has not fallen.
    let text = run("transformer", &["20", picture.to_str().unwrap()]);
    assert!(text.contains("step   20  loss "), "{text}");
    let drawn = std::fs::read_to_string(&picture).unwrap();
    let points = drawn.split("points='").nth(1).unwrap();
    let points = points.split('\'').next().unwrap();
    assert_eq!(
        points.split_whitespace().count(),
        20,
        "a point for each step"
    );
    assert!(drawn.trim_end().ends_with("</svg>"));
}
