use super::*;

use std::process::{Child, Command, Stdio};

const LIMITS: GroupLimits = GroupLimits {
    priority: Priority::High,
    memory_bytes: Some(4 << 30),
};

fn at(parent: &Path, inherited: bool) -> Cgroups {
    let made = BTreeSet::new();
    Cgroups {
        parent: Ok(parent.to_owned()),
        groups: Mutex::new(Groups { made, inherited }),
    }
}

/// A folder that looks like a delegated cgroup with these processes.
fn group(folder: &Path, members: &str) {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("cgroup.procs"), members).unwrap();
}

#[test]
fn memory_and_weight_are_limits_of_the_virtual_gpu_and_threads_of_both() {
    let dir = tempfile::tempdir().unwrap();
    let cgroups = at(dir.path(), false);
    let worker = cgroups.make("a@1000", 7, &LIMITS).unwrap();
    let vgpu = worker.parent().unwrap();
    assert_eq!(vgpu, dir.path().join("vgpu-a@1000"));
    let read = |file| std::fs::read_to_string(vgpu.join(file)).unwrap();
    assert_eq!(read("cpu.weight"), "400");
    assert_eq!(read("memory.max"), (4_u64 << 30).to_string());
    assert_eq!(read("pids.max"), "32768");
    assert_eq!(read("cgroup.subtree_control"), "+pids");
    let threads = std::fs::read_to_string(worker.join("pids.max")).unwrap();
    assert_eq!(threads, "4096");
    assert!(!worker.join("memory.max").exists());
    let larger = GroupLimits {
        memory_bytes: Some(5 << 30),
        ..LIMITS
    };
    cgroups.limit("a@1000", &larger);
    assert_eq!(read("memory.max"), (5_u64 << 30).to_string());
    cgroups.limit("nobody", &larger);
    assert!(!dir.path().join("vgpu-nobody").exists());
}

#[test]
fn a_host_without_version_2_is_told_of() {
    let dir = tempfile::tempdir().unwrap();
    let refused = delegated(dir.path(), "mica.service").unwrap_err();
    assert!(refused.contains("version 2"), "{refused}");
}

#[test]
fn a_daemon_alone_in_its_cgroup_moves_aside_and_one_in_company_has_none() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("cgroup.controllers"), "memory pids cpu").unwrap();
    let service = dir.path().join("system.slice/mica.service");
    let path = "system.slice/mica.service";
    group(&service, &format!("{}\n1\n", std::process::id()));
    let refused = delegated(dir.path(), path).unwrap_err();
    assert!(refused.contains("shares its cgroup"), "{refused}");
    group(&service, &format!("{}\n", std::process::id()));
    assert_eq!(delegated(dir.path(), path), Ok(service.clone()));
    let moved = std::fs::read_to_string(service.join("daemon/cgroup.procs")).unwrap();
    assert_eq!(moved, "0");
}

#[test]
fn a_daemon_that_is_restarted_beside_its_workers_finds_their_cgroups() {
    // As a service manager leaves it with KillMode=process, Delegate=yes and DelegateSubgroup=daemon.
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("cgroup.controllers"), "memory pids cpu").unwrap();
    let service = dir.path().join("mica.service");
    group(&service, "");
    // Also a worker that could get no cgroup of its own is in the daemon's.
    group(
        &service.join("daemon"),
        &format!("{}\n77\n", std::process::id()),
    );
    std::fs::create_dir_all(service.join("vgpu-a/worker-9-3")).unwrap();
    let found = delegated(dir.path(), "mica.service/daemon");
    assert_eq!(found, Ok(service.clone()));
    let controllers = std::fs::read_to_string(service.join("cgroup.subtree_control")).unwrap();
    assert_eq!(controllers, "+memory +pids +cpu");
    // A manager that put others beside the workers would be refused the controllers.
    group(&service, "4711\n");
    assert!(delegated(dir.path(), "mica.service/daemon").is_err());
}

#[test]
fn empty_cgroups_of_an_earlier_daemon_go_and_used_ones_stay_until_they_are_empty() {
    let dir = tempfile::tempdir().unwrap();
    let old = dir.path().join("vgpu-a/worker-1-1");
    let used = dir.path().join("vgpu-a/worker-1-2");
    let gone = dir.path().join("vgpu-b/worker-1-3");
    let other = dir.path().join("daemon");
    for folder in [&old, &used, &gone, &other] {
        std::fs::create_dir_all(folder).unwrap();
    }
    // A folder that cannot be removed, as that of a cgroup with processes.
    std::fs::write(used.join("process"), "").unwrap();
    let cgroups = at(dir.path(), true);
    let made = cgroups.worker_folder("a", 5).unwrap();
    std::fs::create_dir_all(&made).unwrap();
    cgroups.groups().made.insert(made.clone());
    cgroups.sweep();
    assert!(!old.exists() && !gone.exists() && !dir.path().join("vgpu-b").exists());
    assert!(used.exists() && other.exists());
    assert!(made.exists(), "its worker is about to join");
    std::fs::remove_file(used.join("process")).unwrap();
    cgroups.sweep();
    assert!(!used.exists());
    cgroups.remove("a", 5);
    assert!(!dir.path().join("vgpu-a").exists(), "it was the last one");
}

/// A cgroup of version 2 on this machine, removed with this guard.
struct RealGroup(PathBuf);

impl RealGroup {
    /// `None` where none can be made, or lacks these controllers.
    fn make(name: &str, controllers: &[&str]) -> Option<Self> {
        let roots = [CGROUPS, "/sys/fs/cgroup/unified"].map(Path::new);
        let root = roots.into_iter().find(|root| {
            let enabled = std::fs::read_to_string(root.join("cgroup.subtree_control"));
            enabled.is_ok_and(|enabled| {
                let mut words = controllers.iter();
                words.all(|word| enabled.split_whitespace().any(|e| e == *word))
            })
        })?;
        let folder = root.join(format!("mica-test-{name}-{}", std::process::id()));
        std::fs::create_dir(&folder).ok()?;
        Some(Self(folder))
    }
}

impl Drop for RealGroup {
    fn drop(&mut self) {
        for vgpu in folders(&self.0, "vgpu-") {
            for worker in folders(&vgpu, "worker-") {
                let _ = std::fs::remove_dir(worker);
            }
            let _ = std::fs::remove_dir(vgpu);
        }
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Joins a cgroup as a worker does, then runs a script.
fn inside(group: &Path, script: &str) -> Child {
    let script = format!("echo 0 > {}/cgroup.procs && {script}", group.display());
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).stderr(Stdio::null());
    shell.stdout(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_real_cgroup_stays_while_a_process_is_in_it() {
    let Some(group) = RealGroup::make("sweep", &[]) else {
        eprintln!("skipped: no cgroup of version 2 can be made here");
        return;
    };
    let folder = group.0.join("vgpu-a/worker-1-1");
    std::fs::create_dir_all(&folder).unwrap();
    let mut child = inside(&folder, "echo in && exec sleep 600");
    let mut word = [0; 3];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut word).unwrap();
    let cgroups = at(&group.0, true);
    cgroups.sweep();
    assert!(folder.exists(), "its process lives");
    child.kill().unwrap();
    child.wait().unwrap();
    cgroups.sweep();
    assert!(!folder.exists() && !group.0.join("vgpu-a").exists());
    assert!(!cgroups.groups().inherited, "nothing is left to look for");
}

#[test]
fn memory_and_threads_of_a_real_cgroup_are_limited() {
    let Some(group) = RealGroup::make("limits", &["memory", "pids", "cpu"]) else {
        eprintln!("skipped: no cgroup of version 2 with controllers can be made here");
        return;
    };
    std::fs::write(group.0.join("cgroup.subtree_control"), "+memory +pids +cpu").unwrap();
    let cgroups = at(&group.0, false);
    let limits = GroupLimits {
        memory_bytes: Some(64 << 20),
        ..LIMITS
    };
    let workers = [1, 2].map(|slot| cgroups.make("a", slot, &limits).unwrap());
    let weight = std::fs::read_to_string(workers[0].parent().unwrap().join("cpu.weight"));
    assert_eq!(weight.unwrap().trim(), "400", "as the kernel reads it back");
    // The buffer of `tail` grows with what has no line end. The limit is that of both workers together.
    let mut idle = inside(&workers[0], "exec sleep 600");
    let hungry = inside(
        &workers[1],
        "head -c 256M /dev/zero | tail -c 256M > /dev/null",
    );
    let ended = hungry.wait_with_output().unwrap();
    assert!(!ended.status.success(), "256 MiB do not fit in 64");
    let _ = idle.kill();
    idle.wait().unwrap();
    std::fs::write(workers[0].join("pids.max"), "4").unwrap();
    let many = "for i in 1 2 3 4 5 6 7 8; do sleep 1 & done; wait";
    let ended = inside(&workers[0], many).wait_with_output().unwrap();
    assert!(!ended.status.success(), "eight processes do not fit in 4");
}
