//! The container of a process, read from the names of its cgroups.
//!
//! Every container engine gives a container a cgroup whose name holds the container's number of 64 hexadecimal digits; LXC
//! uses the container's name.

/// Characters of a container's number that people see, as container engines show them.
const SHOWN: usize = 12;
const DIGITS: usize = 64;

/// The container that a process runs in, if it runs in one.
pub(crate) fn container_of(pid: u32) -> Option<String> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    container_in(&groups)
}

/// The container in the text of `/proc/PID/cgroup`.
fn container_in(groups: &str) -> Option<String> {
    let paths = groups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let mut parts = paths.flat_map(|path| path.split('/').rev());
    parts.find_map(|part| number(part).or_else(|| lxc_name(part)))
}

/// `docker-<64 digits>.scope`, `cri-containerd-<64 digits>.scope`, `libpod-<64 digits>`, `<64 digits>`.
fn number(part: &str) -> Option<String> {
    let part = part.strip_suffix(".scope").unwrap_or(part);
    // The container engine's own processes watch containers; they are in none.
    if part.starts_with("libpod-conmon-") || part.starts_with("crio-conmon-") {
        return None;
    }
    let last = part.rsplit(['-', ':']).next()?;
    let is_number = last.len() == DIGITS && last.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_number.then(|| last[..SHOWN].to_owned())
}

fn lxc_name(part: &str) -> Option<String> {
    let name = part.strip_prefix("lxc.payload.")?;
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (!name.is_empty() && name.chars().all(good)).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_found_in_the_cgroups_of_every_engine() {
        let id = "3f4e5d6c7b8a".to_owned() + &"0".repeat(52);
        for path in [
            format!("0::/system.slice/docker-{id}.scope"),
            format!("12:cpu:/\n4:memory:/docker/{id}\n0::/"),
            format!("0::/machine.slice/libpod-{id}.scope/container"),
            format!("0::/kubepods.slice/kubepods-pod1_2.slice/cri-containerd-{id}.scope"),
            format!("0::/kubepods/besteffort/pod1-2/{id}"),
            format!("0::/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:{id}"),
        ] {
            assert_eq!(
                container_in(&path).as_deref(),
                Some("3f4e5d6c7b8a"),
                "{path}"
            );
        }
        let lxc = container_in("0::/lxc.payload.web-1/init.scope");
        assert_eq!(lxc.as_deref(), Some("web-1"));
        for none in [
            "",
            "0::/",
            "0::/user.slice/user-1000.slice/session-3.scope",
            "nonsense",
            &format!("0::/machine.slice/libpod-conmon-{id}.scope"),
            "0::/lxc.payload.",
        ] {
            assert_eq!(container_in(none), None, "{none}");
        }
    }
}
