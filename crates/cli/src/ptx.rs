//! `mica ptx`: what is in a file of GPU code.

use anyhow::{Result, bail};

use crate::args::PtxArgs;

pub(crate) fn show(args: &PtxArgs) -> Result<()> {
    bail!(
        "{}: this build cannot read GPU code yet",
        args.file.display()
    )
}
