//! Names of containers, from what their engines keep.
//!
//! Podman and CRI-O start a monitor (`conmon`) for each container, whose command line has the name. Docker and containerd
//! keep a file for each container. A command line is read only of processes of root and of the daemon's own user: other
//! users could make a reader of their memory wait for ever.

use std::io::Read;
use std::os::unix::fs::MetadataExt;

use serde_json::Value;

use super::Found;

/// Longest file that is read; Docker's has some ten kilobytes.
const MOST_BYTES: u64 = 4 << 20;

/// What the monitor of a container tells of it: its id and its name.
pub(super) fn told_by_monitor(parent_of_first: u32) -> Option<(String, String)> {
    words_of_monitor(&command_line(parent_of_first)?)
}

/// The name of a container in its engine's files, and the engine that has such files; `None` where there is none.
pub(super) fn name_of(found: &Found) -> Option<(String, &'static str)> {
    let id = &found.id;
    let tasks = "/run/containerd/io.containerd.runtime.v2.task";
    let files = [
        (
            "docker",
            format!("/var/lib/docker/containers/{id}/config.v2.json"),
        ),
        ("containerd", format!("{tasks}/k8s.io/{id}/config.json")),
        ("containerd", format!("{tasks}/default/{id}/config.json")),
    ];
    (files.iter()).find_map(|(engine, file)| Some((name_in(&read(file)?)?, *engine)))
}

fn command_line(pid: u32) -> Option<Vec<u8>> {
    let folder = format!("/proc/{pid}");
    let owner = std::fs::metadata(&folder).ok()?.uid();
    let is_trusted = owner == 0 || owner == mica_control::uid();
    is_trusted
        .then(|| read(&format!("{folder}/cmdline")))
        .flatten()
}

fn read(file: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(file).ok()?;
    file.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// The id and the name in a monitor's command line: `conmon … -c ID … -n NAME …`.
pub(crate) fn words_of_monitor(line: &[u8]) -> Option<(String, String)> {
    let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
    let after = |option: &[u8]| {
        let at = words.iter().position(|word| *word == option)?;
        let value = String::from_utf8_lossy(words.get(at + 1)?).into_owned();
        (!value.is_empty()).then_some(value)
    };
    let is_monitor = words.first()?.ends_with(b"conmon");
    is_monitor.then(|| Some((after(b"-c")?, after(b"-n")?)))?
}

/// The name in a file that Docker or containerd keeps for a container.
pub(crate) fn name_in(json: &[u8]) -> Option<String> {
    let value: Value = serde_json::from_slice(json).ok()?;
    if let Some(name) = value.get("Name").and_then(Value::as_str) {
        return Some(name.trim_start_matches('/').to_owned());
    }
    let annotations = value.get("annotations")?;
    let of = |key: &str| annotations.get(key).and_then(Value::as_str);
    if let Some(name) = of("nerdctl/name") {
        return Some(name.to_owned());
    }
    let container = of("io.kubernetes.cri.container-name")?;
    let pod = of("io.kubernetes.cri.sandbox-name")?;
    Some(format!("{pod}/{container}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_monitor_tells_the_id_and_the_name_of_its_container() {
        let line = b"/usr/bin/conmon\0--api-version\x001\0-c\0abc\0-u\0abc\0-n\0web\0--exit\0";
        let told = words_of_monitor(line);
        assert_eq!(told, Some(("abc".to_owned(), "web".to_owned())));
        for other in [
            &b"sh\0-c\0abc\0-n\0web\0"[..],
            b"conmon\0-c\0abc\0-n",
            b"conmon\0-c\0abc\0-n\0\0",
            b"conmon\0-n\0web\0",
            b"",
        ] {
            assert_eq!(words_of_monitor(other), None);
        }
    }

    #[test]
    fn docker_and_containerd_keep_files() {
        let docker = br#"{"ID":"abc","Name":"/web","State":{}}"#;
        assert_eq!(name_in(docker).as_deref(), Some("web"));
        let pod = br#"{"annotations":{"io.kubernetes.cri.container-name":"train",
            "io.kubernetes.cri.sandbox-name":"job-1"}}"#;
        assert_eq!(name_in(pod).as_deref(), Some("job-1/train"));
        let nerdctl = br#"{"annotations":{"nerdctl/name":"web"}}"#;
        assert_eq!(name_in(nerdctl).as_deref(), Some("web"));
        for other in [&b"{}"[..], b"[", b"{\"Name\":7}", b"{\"annotations\":{}}"] {
            assert_eq!(name_in(other), None);
        }
    }
}
