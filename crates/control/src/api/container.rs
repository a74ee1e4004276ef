//! Containers, and the sockets that are mounted into them.

use serde::{Deserialize, Serialize};

use super::{GpuKind, Mode, VgpuSpec};

/// Asks for a socket for containers. Exactly one of `vgpu` and `new` is given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ContainerSocketSpec {
    /// The virtual GPU that containers with this socket use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vgpu: Option<String>,
    /// The virtual GPU that is made for each container with this socket, and removed when the container ends. It is named
    /// after the container; `name` is the name of the socket, such as `8GiB-30`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<VgpuSpec>,
}

/// A socket for containers. Whoever can connect to it is in its virtual GPU, whatever user, token or environment that
/// process has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct ContainerSocket {
    /// Name of the virtual GPU, or of the kind of virtual GPU that is made for each container.
    pub name: String,
    /// Whether each container gets a virtual GPU of its own.
    pub makes_new: bool,
    /// The folder that is mounted into containers.
    pub folder: String,
    /// User that owns it.
    pub owner_uid: u32,
    /// Where the engine of the virtual GPU runs.
    pub mode: Mode,
    /// Kind of the GPU; absent where the GPU is chosen for each container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_kind: Option<GpuKind>,
}

/// A container that uses a virtual GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct ContainerInfo {
    /// Its name, as `docker ps` or `podman ps` shows it; the first twelve digits of its id where the name is not known.
    pub name: String,
    /// Its id; empty for a process namespace that no container engine has made.
    pub id: String,
    /// `docker`, `podman`, `containerd`, `cri-o`, `lxc` or empty.
    pub engine: String,
}
