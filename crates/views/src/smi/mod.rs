//! `mica smi`: a picture in the layout of nvidia-smi, and the queries that scripts parse.

mod fields;
mod table;

use anyhow::{Result, bail};
use mica_command::refusal::explain;
use mica_command::when::date_and_time;
use mica_control::api::{GpuInfo, GpuKind, Stats};
use mica_control::client::ControlClient;
use mica_wire::host::printable::printable_lines;

use crate::args::SmiArgs;
use fields::{Field, GPU_FIELDS, OfVgpu, VGPU_FIELDS, fields};

/// A query that cannot be understood: wrong usage, as nvidia-smi has it, and no failure.
#[derive(Debug)]
pub struct WrongQuery(String);

impl std::fmt::Display for WrongQuery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongQuery {}

/// What a query asks for: fields of GPUs or of virtual GPUs, and how they are printed.
struct Query {
    gpu_fields: Option<Vec<&'static Field<GpuInfo>>>,
    vgpu_fields: Option<Vec<&'static Field<OfVgpu>>>,
    format: Format,
}

fn query(args: &SmiArgs) -> Result<Query> {
    let format = format(args.format.as_deref())?;
    let gpu_fields = args.query_gpu.as_deref();
    let gpu_fields = gpu_fields
        .map(|names| fields("--query-gpu", names, GPU_FIELDS))
        .transpose()?;
    let vgpu_fields = args.query_vgpu.as_deref();
    let vgpu_fields = vgpu_fields
        .map(|names| fields("--query-vgpu", names, VGPU_FIELDS))
        .transpose()?;
    let is_query = gpu_fields.is_some() || vgpu_fields.is_some();
    match (is_query, format) {
        (true, None) => bail!(
            "a query needs --format=csv (and if wanted csv,noheader,nounits), as with nvidia-smi"
        ),
        (false, Some(_)) => bail!("--format is for --query-gpu and --query-vgpu"),
        _ => {}
    }
    Ok(Query {
        gpu_fields,
        vgpu_fields,
        format: format.unwrap_or_default(),
    })
}

/// Prints what was asked for.
///
/// # Errors
/// [`WrongQuery`] where a field or a format is unknown; or the daemon does not answer.
pub fn run(client: &ControlClient, args: &SmiArgs) -> Result<()> {
    // Checked before the daemon is asked.
    let Query {
        gpu_fields,
        vgpu_fields,
        format,
    } = query(args).map_err(|error| WrongQuery(error.to_string()))?;
    let stats = client.stats().map_err(explain)?;
    let text = if args.list {
        list(&stats)
    } else if let Some(fields) = gpu_fields {
        csv(&fields, &stats.gpus, format)
    } else if let Some(fields) = vgpu_fields {
        csv(&fields, &with_gpus(&stats), format)
    } else {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now = now.unwrap_or_default().as_secs_f64();
        table::render(&stats, &date_and_time(now))
    };
    out!("{}", printable_lines(&text));
    Ok(())
}

/// Each virtual GPU with its GPU.
fn with_gpus(stats: &Stats) -> Vec<OfVgpu> {
    let gpu = |index: u32| stats.gpus.iter().find(|gpu| gpu.index == index).cloned();
    let all = stats.vgpus.iter();
    all.map(|vgpu| (gpu(vgpu.gpu), vgpu.clone())).collect()
}

/// How fields are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Format {
    noheader: bool,
    nounits: bool,
}

fn format(text: Option<&str>) -> Result<Option<Format>> {
    let Some(text) = text else {
        return Ok(None);
    };
    let mut format = Format::default();
    let mut is_csv = false;
    for word in text.split(',').map(str::trim) {
        match word {
            "csv" => is_csv = true,
            "noheader" => format.noheader = true,
            "nounits" => format.nounits = true,
            other => {
                bail!("{other:?} is not a format: write csv, csv,noheader or csv,noheader,nounits")
            }
        }
    }
    if !is_csv {
        bail!("--format={text}: the only format is csv: write csv,{text}");
    }
    Ok(Some(format))
}

fn csv<T>(fields: &[&Field<T>], all: &[T], format: Format) -> String {
    let mut text = String::new();
    if !format.noheader {
        let titles = fields
            .iter()
            .map(|field| match (field.unit, format.nounits) {
                ("", _) => field.name.to_owned(),
                (unit, _) => format!("{} [{unit}]", field.name),
            });
        text += &titles.collect::<Vec<_>>().join(", ");
        text.push('\n');
    }
    for one in all {
        let cells = fields.iter().map(|field| {
            let value = (field.value)(one);
            match (field.unit, format.nounits, value) {
                (_, _, None) => "[N/A]".to_owned(),
                ("", _, Some(value)) | (_, true, Some(value)) => value,
                (unit, false, Some(value)) => format!("{value} {unit}"),
            }
        });
        text += &cells.collect::<Vec<_>>().join(", ");
        text.push('\n');
    }
    text
}

/// A GPU's id; the software GPU has none of its own.
fn uuid(gpu: &GpuInfo) -> String {
    match gpu.kind {
        GpuKind::Software => "software".to_owned(),
        GpuKind::Nvidia => gpu.uuid.clone(),
    }
}

/// `-L`.
fn list(stats: &Stats) -> String {
    let mut text = String::new();
    for gpu in &stats.gpus {
        text += &format!("GPU {}: {} (UUID: {})\n", gpu.index, gpu.name, uuid(gpu));
        for vgpu in stats.vgpus.iter().filter(|vgpu| vgpu.gpu == gpu.index) {
            let memory = mica_command::size::show_bytes(vgpu.memory_limit_bytes);
            let share = mica_command::share::share_words(vgpu);
            text += &format!("  vGPU {}: {memory}, {share} ({})\n", vgpu.name, vgpu.state);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use mica_control::api::VgpuInfo;

    fn stats() -> Stats {
        Stats {
            gpus: vec![GpuInfo {
                name: "NVIDIA H200".into(),
                kind: GpuKind::Nvidia,
                uuid: "GPU-1".into(),
                memory_total_bytes: 141 << 30,
                memory_used_bytes: 3 << 30,
                utilization_percent: 42.4,
                ..GpuInfo::default()
            }],
            vgpus: vec![VgpuInfo {
                name: "team-a".into(),
                memory_limit_bytes: 8 << 30,
                share_percent: 30.into(),
                ..VgpuInfo::default()
            }],
            ..Stats::default()
        }
    }

    fn answer(names: &str, format: Format) -> String {
        let fields = fields("--query-gpu", names, GPU_FIELDS).unwrap();
        csv(&fields, &stats().gpus, format)
    }

    #[test]
    fn queries_print_what_scripts_that_know_nvidia_smi_expect() {
        let names = "index,name,memory.used,utilization.gpu,temperature.gpu";
        assert_eq!(
            answer(names, Format::default()),
            "index, name, memory.used [MiB], utilization.gpu [%], temperature.gpu\n\
             0, NVIDIA H200, 3072 MiB, 42 %, [N/A]\n"
        );
        let bare = Format {
            noheader: true,
            nounits: true,
        };
        assert_eq!(answer(names, bare), "0, NVIDIA H200, 3072, 42, [N/A]\n");
    }

    #[test]
    fn an_unknown_field_is_refused_with_the_list() {
        let error = fields("--query-gpu", "index,memory.usd", GPU_FIELDS)
            .err()
            .unwrap();
        let text = error.to_string();
        assert!(text.contains("\"memory.usd\""), "{text}");
        assert!(text.contains("did you mean memory.used"), "{text}");
        assert!(text.contains("utilization.gpu"), "{text}");
        let error = fields("--query-gpu", "foo,index,xx", GPU_FIELDS).err();
        let text = error.unwrap().to_string();
        assert!(
            text.contains("\"foo\" is not a field, \"xx\" is not a field\n"),
            "{text}"
        );
        assert!(fields("--query-gpu", "", GPU_FIELDS).is_err());
        assert!(format(Some("xml")).is_err());
        assert!(
            format(Some("noheader"))
                .unwrap_err()
                .to_string()
                .contains("csv,noheader")
        );
    }

    #[test]
    fn the_list_has_a_line_for_each() {
        assert_eq!(
            list(&stats()),
            "GPU 0: NVIDIA H200 (UUID: GPU-1)\n  vGPU team-a: 8 GiB, 30 % not reserved (ready)\n"
        );
    }

    #[test]
    fn every_field_has_a_value_or_says_that_it_has_none() {
        let stats = stats();
        for field in GPU_FIELDS {
            let _ = (field.value)(&stats.gpus[0]);
        }
        for field in VGPU_FIELDS {
            let _ = (field.value)(&with_gpus(&stats)[0]);
        }
    }
}
