//! The daemon alone, for services and tests; `mica daemon` is the same.

fn main() -> anyhow::Result<()> {
    let config = std::env::args_os().nth(1).filter(|a| a != "daemon");
    mica_daemon::run(config.map(Into::into))?;
    Ok(())
}
