//! Running programs, loudly.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// The root of the project.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map_or_else(PathBuf::new, Path::to_path_buf)
}

/// Where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// A cargo command in the project's root.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    // Variables that cargo has set for this program: build scripts that watch them would run again, and `ring` be compiled anew.
    let own = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(own) {
            command.env_remove(name);
        }
    }
    command
}

/// Says what runs, runs it, and fails with its name if it fails.
pub(crate) fn run(title: &str, command: &mut Command) -> Result<()> {
    eprintln!("==> {title}");
    let start = Instant::now();
    let status = command
        .status()
        .with_context(|| format!("{title}: cannot start"))?;
    if !status.success() {
        bail!("{title} failed ({status})");
    }
    eprintln!("    {title}: {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// The words `[--minutes N] [NAME]` in any order; `usual` minutes when no number is given.
pub(crate) fn minutes_and_name<'a>(
    words: &[&'a str],
    usual: u64,
) -> Result<(Duration, Option<&'a str>)> {
    match words {
        [] => Ok((Duration::from_secs(usual * 60), None)),
        ["--minutes", number, rest @ ..] => {
            let minutes = number.parse().ok().filter(|m| (1..=10_000).contains(m));
            let minutes: u64 = minutes
                .with_context(|| format!("{number:?} is not a number of minutes: write {usual}"))?;
            minutes_and_name(rest, minutes)
        }
        [name, rest @ ..] if !name.starts_with('-') => {
            let (limit, other) = minutes_and_name(rest, usual)?;
            match other {
                None => Ok((limit, Some(name))),
                Some(other) => bail!("one name is enough, not {name} and {other}"),
            }
        }
        [other, ..] => bail!("unknown option {other}: write --minutes N, a name or both"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_and_a_name_come_in_any_order() {
        let parsed = |words: &[&'static str]| {
            let (limit, name) = minutes_and_name(words, 60).unwrap();
            (limit.as_secs() / 60, name)
        };
        assert_eq!(parsed(&[]), (60, None));
        assert_eq!(parsed(&["jit"]), (60, Some("jit")));
        assert_eq!(parsed(&["--minutes", "2"]), (2, None));
        assert_eq!(parsed(&["jit", "--minutes", "2"]), (2, Some("jit")));
        assert_eq!(parsed(&["--minutes", "2", "jit"]), (2, Some("jit")));
        for wrong in [
            &["--minutes"][..],
            &["--minutes", "0"],
            &["--minutes", "x"],
            &["--hours", "1"],
            &["jit", "ptx"],
        ] {
            assert!(minutes_and_name(wrong, 60).is_err(), "{wrong:?}");
        }
    }
}
