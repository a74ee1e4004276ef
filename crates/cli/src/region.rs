//! `mica region`: memory that several virtual GPUs share.

use anyhow::{Context, Result, bail};
use mica_command::refusal::explain;
use mica_command::size::show_bytes;
use mica_command::table::Table;
use mica_control::api::{Created, RegionAccess, RegionHandle, RegionInfo, RegionSpec, VgpuSpec};
use mica_control::client::ControlClient;
use mica_wire::host::printable::printable;

use crate::args::{RegionAttachArgs, RegionCommand, RegionCreateArgs, RegionUse};
use crate::control::connect;
use crate::listing::print_json;
use crate::spec::gpu_index;

pub(crate) fn run(command: &RegionCommand) -> Result<()> {
    let client = connect()?;
    match command {
        RegionCommand::Create(args) => create(args, &client),
        RegionCommand::Ls(args) => {
            let regions = client.regions().map_err(explain)?;
            if args.json {
                return print_json(&regions);
            }
            out!("{}", list_words(&regions));
            Ok(())
        }
        RegionCommand::Attach(args) => allow(args, &client),
        RegionCommand::Detach(args) => {
            let (vgpu, region) = (printable(&args.vgpu), printable(&args.region));
            let detached = client.detach_region(&args.region, &args.vgpu);
            detached.map_err(explain)?;
            outln!("{vgpu} can no longer open the region {region}");
            Ok(())
        }
        RegionCommand::Rm(args) => {
            let done = client.remove_region(&args.name, args.force);
            outln!("{}", printable(&done.map_err(explain)?.done));
            Ok(())
        }
    }
}

fn create(args: &RegionCreateArgs, client: &ControlClient) -> Result<()> {
    let bytes = args.memory.bytes();
    let gpu = args.gpu.as_deref().map(|gpu| gpu_index(gpu, client));
    let spec = RegionSpec {
        name: args.name.clone(),
        bytes: bytes.context("-m is a number of bytes here, such as 20GiB")?,
        gpu: gpu.transpose()?,
    };
    let made = client.create_region(&spec).map_err(explain)?;
    if args.json {
        return print_json(&made);
    }
    outln!("{}", created_words(&made));
    Ok(())
}

/// Lets a virtual GPU use a region.
fn allow(args: &RegionAttachArgs, client: &ControlClient) -> Result<()> {
    let access = match args.write {
        true => RegionAccess::ReadWrite,
        false => RegionAccess::Read,
    };
    let attached = client.attach_region(&args.region, &args.vgpu, access);
    let attached = attached.map_err(explain)?;
    if args.json {
        return print_json(&attached);
    }
    outln!(
        "programs that are started in {} from now on may {access} the region {} ({})",
        printable(&args.vgpu),
        printable(&args.region),
        variable(&attached.name)
    );
    Ok(())
}

/// The variable in which a program finds the handle of a region.
fn variable(name: &str) -> String {
    let handle = RegionHandle {
        name: name.to_owned(),
        ..RegionHandle::default()
    };
    handle.variable()
}

fn created_words(made: &RegionInfo) -> String {
    let name = printable(&made.name);
    format!(
        "{name}: {} of GPU {}. Give it to programs with `mica run --region {name}:rw -- CMD`, \
         or to a virtual GPU with `mica region attach {name} VGPU`",
        show_bytes(made.bytes),
        made.gpu
    )
}

fn list_words(regions: &[RegionInfo]) -> String {
    if regions.is_empty() {
        return "no regions\n".to_owned();
    }
    let mut table = Table::new(&["NAME", "SIZE", "GPU", "STATE", "ATTACHED TO"]);
    for region in regions {
        let attached: Vec<String> = (region.attached.iter())
            .map(|to| match to.access {
                RegionAccess::Read => printable(&to.vgpu).to_string(),
                RegionAccess::ReadWrite => format!("{}:rw", printable(&to.vgpu)),
            })
            .collect();
        table.row(vec![
            printable(&region.name).to_string(),
            show_bytes(region.bytes),
            region.gpu.to_string(),
            match region.has_memory {
                true => "ready",
                false => "empty",
            }
            .to_owned(),
            match attached.is_empty() {
                true => "-".to_owned(),
                false => attached.join(", "),
            },
        ]);
    }
    table.render()
}

/// Has a virtual GPU that is about to be made fit for its regions: on their GPU, and isolated.
pub(crate) fn fit(spec: &mut VgpuSpec, uses: &[RegionUse], client: &ControlClient) -> Result<()> {
    let Some(first) = uses.first() else {
        return Ok(());
    };
    spec.mode.get_or_insert(mica_control::api::Mode::Isolated);
    if spec.gpu.is_none() {
        let regions = client.regions().map_err(explain)?;
        let names = |region: &&RegionInfo| {
            let name = region.name.as_str();
            name == first.name || name.split('@').next() == Some(&first.name)
        };
        match regions.iter().find(names) {
            Some(region) => spec.gpu = Some(region.gpu),
            None => bail!(
                "there is no region named {}: `mica region ls` lists all regions",
                printable(&first.name)
            ),
        }
    }
    Ok(())
}

/// Attaches regions to a virtual GPU; how to join it with them.
pub(crate) fn attach(
    created: Created,
    uses: &[RegionUse],
    client: &ControlClient,
) -> Result<Created> {
    if uses.is_empty() {
        return Ok(created);
    }
    for used in uses {
        let attached = client.attach_region(&used.name, &created.name, used.access);
        attached.map_err(explain)?;
    }
    client.join(&created.name).map_err(explain)
}
