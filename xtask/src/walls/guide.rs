//! The commands of the guide that need a container engine, run with it.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::mica::Mica;
use super::podman::text;
use crate::docs::commands_that_need;

/// Longest that a container may take to be listed.
const LISTED_WITHIN: Duration = Duration::from_secs(20);

/// Runs the commands that the page about containers has for an engine, whose words `command` completes and `image` are those of the
/// image. The containers check their GPU instead of running a program of the reader's.
pub(super) fn run(
    engine: &str,
    mica: &Mica,
    devices: &str,
    image: &[&str],
    command: impl Fn(&[&str]) -> Command,
) -> Result<String> {
    // As in the page's first commands.
    text(&mut mica.command(&["create", "team-a", "-m", "256MiB", "-s", "30"]))?;
    let (mut names, mut count) = (Vec::new(), 0);
    for line in commands_that_need("containers.md", "engine")? {
        let words: Vec<&str> = line.split_whitespace().collect();
        let words = words.strip_prefix(&["sudo"]).unwrap_or(&words);
        let ran = match words {
            ["mica", "cdi", "generate", rest @ ..] => {
                let mut generate = mica.command(&["cdi", "generate", "--output", devices]);
                text(generate.args(rest)).map(drop)
            }
            ["mica", "ls"] => until_listed(mica, &names),
            [first, "run", options @ .., "IMAGE", "python", _] if *first == engine => {
                let most = match line.contains("mica.dev/new=2GiB") {
                    true => 2048,
                    false => 256,
                };
                let script = match options.contains(&"-d") {
                    true => format!("sleep 600 | probe {most} wait"),
                    false => format!("probe {most}"),
                };
                let named = options.windows(2).filter(|words| words[0] == "--name");
                names.extend(named.map(|words| words[1].to_owned()));
                let mut run = command(&["run", "--network", "none"]);
                run.args(options).args(image);
                text(run.args(["/bin/sh", "-c", &script])).map(drop)
            }
            ["podman" | "docker", ..] => continue,
            _ => bail!("this check does not know {line:?}"),
        };
        ran.with_context(|| line.clone())?;
        count += 1;
    }
    for name in names {
        text(&mut command(&["kill", &name]))?;
    }
    Ok(format!("{count} commands"))
}

/// Waits until containers are listed, each beside the virtual GPU that was made for it.
fn until_listed(mica: &Mica, names: &[String]) -> Result<()> {
    let began = Instant::now();
    loop {
        let listed = text(&mut mica.command(&["ls"]))?;
        let is_listed = |name: &String| {
            let mut lines = listed.lines();
            lines.any(|line| line.starts_with(name) && line.ends_with(name))
        };
        if names.iter().all(is_listed) {
            return Ok(());
        }
        ensure!(
            began.elapsed() < LISTED_WITHIN,
            "{names:?} are not in\n{listed}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}
