//! The files of the Container Device Interface, version 0.5.0, which Docker, Podman, containerd and CRI-O read.

use serde::Serialize;

/// Version of the files: the first that all engines in use read.
const VERSION: &str = "0.5.0";

/// One file: a kind of device, and each device of it.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Document {
    cdi_version: &'static str,
    pub(crate) kind: String,
    pub(crate) devices: Vec<Device>,
    container_edits: Edits,
}

/// A device that a container may ask for by name.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) container_edits: Edits,
}

/// What is changed in a container.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Edits {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) env: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) device_nodes: Vec<DeviceNode>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) mounts: Vec<Mount>,
}

/// A device file.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct DeviceNode {
    pub(crate) path: String,
}

/// A file or folder of the host, read-only.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Mount {
    host_path: String,
    container_path: String,
    options: Vec<&'static str>,
}

impl Document {
    /// A file of the kind `mica.dev/CLASS`. `common` is changed for every device.
    pub(crate) fn new(class: &str, devices: Vec<Device>, common: Edits) -> Self {
        Self {
            cdi_version: VERSION,
            kind: format!("mica.dev/{class}"),
            devices,
            container_edits: common,
        }
    }
}

impl Mount {
    /// A folder with a socket; nothing in it is run.
    pub(crate) fn socket(host: &str, container: &str) -> Self {
        Self::with(
            host,
            container,
            vec!["ro", "nosuid", "nodev", "noexec", "rbind", "rprivate"],
        )
    }

    /// A library.
    pub(crate) fn library(host: &str, container: &str) -> Self {
        Self::with(
            host,
            container,
            vec!["ro", "nosuid", "nodev", "bind", "private"],
        )
    }

    fn with(host: &str, container: &str, options: Vec<&'static str>) -> Self {
        Self {
            host_path: host.into(),
            container_path: container.into(),
            options,
        }
    }
}

/// The name of a device: the interface takes letters, digits, `_`, `-`, `.` and `:`. A virtual GPU of another user has an `@`.
pub(crate) fn device_name(vgpu: &str) -> String {
    vgpu.replace('@', ".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_keys_that_engines_read() {
        let edits = Edits {
            mounts: vec![Mount::socket("/run/mica/containers/0/1", "/run/mica-vgpu")],
            ..Edits::default()
        };
        let device = Device {
            name: device_name("a@1000"),
            container_edits: edits,
        };
        let common = Edits {
            env: vec!["A=b".into()],
            ..Edits::default()
        };
        let document = Document::new("vgpu", vec![device], common);
        let expected = serde_json::json!({
            "cdiVersion": "0.5.0",
            "kind": "mica.dev/vgpu",
            "devices": [{
                "name": "a.1000",
                "containerEdits": { "mounts": [{
                    "hostPath": "/run/mica/containers/0/1",
                    "containerPath": "/run/mica-vgpu",
                    "options": ["ro", "nosuid", "nodev", "noexec", "rbind", "rprivate"],
                }]},
            }],
            "containerEdits": { "env": ["A=b"] },
        });
        assert_eq!(serde_json::to_value(&document).unwrap(), expected);
    }
}
