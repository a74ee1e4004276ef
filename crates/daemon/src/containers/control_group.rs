//! Container ids in the names of control groups.
//!
//! Docker, Podman, containerd and CRI-O give each container a control group whose name holds the container's id, 64
//! hexadecimal digits: `docker/ID`, `docker-ID.scope`, `libpod-ID`, `cri-containerd-ID.scope`, `crio-ID.scope`. A container may make
//! groups below its own, also with such names, so the first id of a path counts. Ids that are part of the daemon's own path
//! belong to the container that the daemon itself runs in.
//!
//! Ids can be read by everybody, and a user with control groups of its own can give one of them any name. So a container is its
//! group's whole path: only who may make groups beside it can be in it.

use std::sync::OnceLock;

const ID_DIGITS: usize = 64;

/// A container's control group, the id in its name, and the engine that the name tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Its path, from the root of the hierarchy on.
    pub(crate) group: String,
    pub(crate) id: String,
    /// `docker`, `podman`, `containerd`, `cri-o`, `lxc` or empty.
    pub(crate) engine: &'static str,
}

/// The container of a process, if its control group tells.
pub(super) fn of_process(pid: u32) -> Option<Found> {
    static OWN: OnceLock<String> = OnceLock::new();
    let own = OWN.get_or_init(|| read(std::process::id()).unwrap_or_default());
    container_in(&read(pid)?, own)
}

fn read(pid: u32) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()
}

/// The container in the text of `/proc/PID/cgroup`, with the text of the daemon itself.
pub(crate) fn container_in(text: &str, own: &str) -> Option<Found> {
    // `hierarchy:controllers:path`, of which only the last has slashes.
    let mut paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.find_map(|path| {
        let mut above = "";
        let mut end = 0;
        path.split('/').find_map(|name| {
            let found = lxc(name).or_else(|| of_name(above, name));
            (above, end) = (name, end + name.len() + 1);
            let (id, engine) = found.filter(|(id, _)| !own.contains(id))?;
            let group = path[..end - 1].to_owned();
            Some(Found { group, id, engine })
        })
    })
}

/// The container of a control group of LXC, which has the container's name instead of an id.
fn lxc(group: &str) -> Option<(String, &'static str)> {
    let name = group.strip_prefix("lxc.payload.")?;
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_name = !name.is_empty() && name.chars().all(good);
    is_name.then(|| (name.into(), "lxc"))
}

/// The id and the engine in the name of one control group, with the name of the group above it.
fn of_name(above: &str, name: &str) -> Option<(String, &'static str)> {
    let is_digit = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    let name = name.strip_suffix(".scope").unwrap_or(name);
    let (prefix, id) = match name.rsplit_once(['-', ':']) {
        Some((prefix, id)) => (prefix, id),
        None => (above, name),
    };
    if id.len() != ID_DIGITS || !id.chars().all(is_digit) {
        return None;
    }
    let engine = match prefix {
        "docker" => "docker",
        "libpod" => "podman",
        "crio" => "cri-o",
        prefix if prefix.ends_with("containerd") => "containerd",
        _ => "",
    };
    let id = id.to_owned();
    // `libpod-conmon-ID` is the group of the container's monitor, which is outside.
    (!prefix.ends_with("conmon")).then_some((id, engine))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(digit: char) -> String {
        digit.to_string().repeat(ID_DIGITS)
    }

    #[test]
    fn every_engine_is_known_by_its_control_groups() {
        let a = id('a');
        for (path, engine) in [
            (format!("/docker/{a}"), "docker"),
            (format!("/system.slice/docker-{a}.scope"), "docker"),
            (
                format!("/machine.slice/libpod-{a}.scope/container"),
                "podman",
            ),
            (format!("/libpod_parent/libpod-{a}"), "podman"),
            (
                format!(
                    "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{a}.scope"
                ),
                "podman",
            ),
            (
                format!(
                    "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-{a}.scope"
                ),
                "containerd",
            ),
            (format!("/kubepods/besteffort/pod1/crio-{a}"), "cri-o"),
            (
                format!("/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:{a}"),
                "containerd",
            ),
        ] {
            let below = format!("0::{path}/below\n");
            for text in [format!("0::{path}\n"), below] {
                let found = container_in(&text, "0::/\n").unwrap();
                assert_eq!((&found.id, found.engine), (&a, engine), "{path}");
                let group = path.trim_end_matches("/container");
                assert_eq!(found.group, group);
            }
        }
    }

    #[test]
    fn a_group_of_the_same_name_elsewhere_is_another_container() {
        let a = id('a');
        let [real, forged] = [
            format!("0::/system.slice/docker-{a}.scope/init\n"),
            format!("0::/user.slice/user@1001.service/docker-{a}.scope\n"),
        ]
        .map(|text| container_in(&text, "0::/\n").unwrap());
        assert_eq!(real.id, forged.id);
        assert_ne!(real.group, forged.group);
    }

    #[test]
    fn what_is_no_container_is_none() {
        let a = id('a');
        for path in [
            "/".to_owned(),
            "/user.slice/session-2.scope".into(),
            format!("/docker/{}", &a[1..]),
            format!("/docker/{}", id('g')),
            format!("/machine.slice/libpod-conmon-{a}.scope"),
        ] {
            assert_eq!(container_in(&format!("0::{path}\n"), ""), None, "{path}");
        }
        assert_eq!(container_in("nonsense\n0:x\n\n", ""), None);
        assert_eq!(container_in("0::/lxc.payload.", ""), None);
        let lxc = container_in("0::/lxc.payload.web-1/init.scope", "");
        assert_eq!(lxc.map(|found| found.id).as_deref(), Some("web-1"));
    }

    #[test]
    fn a_group_that_a_container_makes_inside_its_own_changes_nothing() {
        let (a, b) = (id('a'), id('b'));
        let text = format!("12:memory:/docker/{a}/docker/{b}\n0::/docker/{a}/docker/{b}\n");
        assert_eq!(container_in(&text, "0::/\n").unwrap().id, a);
        // The daemon runs in container a itself: those below are what it tells apart.
        let own = format!("0::/docker/{a}/mica\n");
        assert_eq!(container_in(&text, &own).unwrap().id, b);
    }
}
