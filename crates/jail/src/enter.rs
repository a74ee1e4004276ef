//! The way in: every layer in the order in which it can still be applied.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit, WaitOptions, setrlimit};
use rustix::thread::UnshareFlags;

use crate::layer::{Layer, Report};
use crate::{Jail, JailError, Kept, Profile, files, landlocked, syscalls, user};

/// Descriptors a worker may have open: sockets and memory files of one program.
const MOST_DESCRIPTORS: u64 = 4096;

/// Confines this process and returns what is in force. Where a process namespace can be had, the calling process
/// only waits for a child from here on and ends as the child does: everything after this call runs in the child.
///
/// Call this before any other thread is started, before anything is opened that is to stay open, and before the first
/// byte of a tenant is read: every descriptor but those of standard input, output and error is closed.
///
/// # Errors
/// A layer was begun and could not be finished: the process must end. A layer that cannot be begun is no error.
pub fn enter(jail: &Jail) -> Result<Report, JailError> {
    let mut report = Report::default();
    for layer in &jail.without {
        report.failed(*layer, "switched off in the configuration");
    }
    if !jail.without.contains(&Layer::Cgroup) {
        join_cgroup(jail.cgroup.as_deref(), &mut report);
    }
    report.note(Layer::ResourceLimits, limit_resources());
    if threads()? > 1 {
        // Namespaces, users and capabilities belong to threads: those that exist already would keep theirs.
        report.fail_the_rest("the process had other threads already");
        return Ok(report);
    }
    close_inherited()?;
    (jail.done)("in its cgroup");
    let own_user_namespace = separate(jail, &mut report)?;
    (jail.done)("in namespaces");
    let mut jail = jail.clone();
    match (report.has(Layer::Processes), jail.kept.take()) {
        (true, kept) => live_as_child(&jail, kept)?,
        (false, Some(kept)) => jail.read_write.push(kept.folder),
        (false, None) => {}
    }
    let jail = &jail;
    (jail.done)("a child");
    if report.has(Layer::Files) {
        files::move_in(jail)?;
    }
    (jail.done)("in its root");
    let user = jail.user.filter(|_| !jail.without.contains(&Layer::User));
    user::drop_privileges(user, own_user_namespace, &mut report);
    if let (Some(user), false) = (user, report.has(Layer::User)) {
        // The worker would stay root.
        let what = format!(
            "it cannot become user {user}; `without = [\"user\"]` under [workers] lets workers run as the daemon's user"
        );
        let source = io::Error::from(io::ErrorKind::PermissionDenied);
        return Err(JailError { what, source });
    }
    if report.has(Layer::Processes) {
        end_with_parent()?;
    }
    if !jail.without.contains(&Layer::Landlock) {
        report.note(Layer::Landlock, landlocked::restrict(jail));
    }
    if !jail.without.contains(&Layer::Seccomp) {
        report.note(Layer::Seccomp, syscalls::restrict(jail));
    }
    Ok(report)
}

fn join_cgroup(folder: Option<&Path>, report: &mut Report) {
    match folder {
        Some(folder) => {
            report.note(
                Layer::Cgroup,
                std::fs::write(folder.join("cgroup.procs"), "0"),
            );
        }
        None => report.failed(Layer::Cgroup, "the daemon may make no cgroups here"),
    }
}

fn limit_resources() -> io::Result<()> {
    let both = |bytes| Rlimit {
        current: Some(bytes),
        maximum: Some(bytes),
    };
    setrlimit(Resource::Core, both(0))?;
    setrlimit(Resource::Msgqueue, both(0))?;
    let descriptors = rustix::process::getrlimit(Resource::Nofile);
    let most = descriptors.maximum.unwrap_or(MOST_DESCRIPTORS);
    setrlimit(Resource::Nofile, both(most.min(MOST_DESCRIPTORS)))?;
    Ok(())
}

fn threads() -> Result<usize, JailError> {
    let tasks = std::fs::read_dir("/proc/self/task");
    let tasks = tasks.map_err(|e| JailError::new("its threads cannot be counted", e))?;
    Ok(tasks.count())
}

/// Closes what the daemon's own starter left open: a file or folder from outside would still be one inside.
fn close_inherited() -> Result<(), JailError> {
    let listed = std::fs::read_dir("/proc/self/fd");
    let listed = listed.map_err(|e| JailError::new("its descriptors cannot be listed", e))?;
    let numbers = listed.flatten().filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse::<i32>().ok()?;
        (number > libc::STDERR_FILENO).then_some(number)
    });
    // The list is read to its end first: the descriptor that it is read through is one of them, and is closed by then.
    for number in numbers.collect::<Vec<_>>() {
        // SAFETY: there is one thread, and the caller keeps nothing open, as the documentation of `enter` asks.
        let _ = unsafe { libc::close(number) };
    }
    Ok(())
}

/// Leaves the daemon's namespaces; says whether that took a user namespace.
fn separate(jail: &Jail, report: &mut Report) -> Result<bool, JailError> {
    let mut layers = vec![
        (Layer::Files, UnshareFlags::NEWNS),
        (Layer::Processes, UnshareFlags::NEWPID),
        (Layer::Network, UnshareFlags::NEWNET),
        (Layer::Ipc, UnshareFlags::NEWIPC),
    ];
    layers.retain(|(layer, _)| !jail.without.contains(layer));
    if jail.without.contains(&Layer::Files) {
        // Process numbers would not be those that /proc shows.
        report.failed_unless_known(Layer::Processes, "needs a root directory of its own");
        layers.retain(|(layer, _)| *layer != Layer::Processes);
    }
    let flags = layers.iter().map(|(_, flags)| *flags);
    let all = flags.fold(UnshareFlags::empty(), |all, flags| all | flags);
    // The host name where that is permitted: a worker may not change it either way.
    if unshare(all | UnshareFlags::NEWUTS).is_ok() || unshare(all).is_ok() {
        layers.iter().for_each(|(layer, _)| report.applied(*layer));
        return Ok(false);
    }
    // Without privileges a user namespace brings them, over nothing but the other new namespaces.
    let ids = (rustix::process::geteuid(), rustix::process::getegid());
    let may_map = jail.user.is_none() && !jail.without.contains(&Layer::User);
    if may_map && unshare(all | UnshareFlags::NEWUSER).is_ok() {
        user::map_to_itself(ids.0.as_raw(), ids.1.as_raw())?;
        layers.iter().for_each(|(layer, _)| report.applied(*layer));
        return Ok(true);
    }
    for (layer, flags) in layers {
        match layer == Layer::Processes && !report.has(Layer::Files) {
            true => report.failed(layer, "needs a root directory of its own"),
            false => drop(report.note(layer, unshare(flags))),
        }
    }
    Ok(false)
}

fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: there is one thread, and nothing in this process relies on a file table or namespace that it shares.
    Ok(unsafe { rustix::thread::unshare_unsafe(flags) }?)
}

/// Goes on in a child, the first process of the new namespace. The parent keeps nothing but the wait for the child, and the
/// folder that it keeps for it.
fn live_as_child(jail: &Jail, kept: Option<Kept>) -> Result<(), JailError> {
    let failed = |e: io::Error| JailError::new("what is kept outside", e);
    let ends = match &kept {
        Some(_) => Some(UnixStream::pair().map_err(failed)?),
        None => None,
    };
    // SAFETY: there is one thread, so the child finds every lock free.
    let child = unsafe { libc::fork() };
    match (child, kept.zip(ends)) {
        (-1, _) => Err(JailError::new("fork", io::Error::last_os_error())),
        (0, None) => Ok(()),
        (0, Some((kept, (own, outside)))) => {
            drop(outside);
            // The new root is the child's alone: the parent needs the folder where it is.
            unshare(UnshareFlags::NEWNS).map_err(failed)?;
            (kept.take)(own);
            Ok(())
        }
        (child, kept) => {
            // Before the change of user, who may not pass through the folders above.
            let kept = kept.and_then(|(kept, (own, outside))| {
                drop(own);
                let folder = File::open(&kept.folder).ok()?;
                Some((kept, outside, folder))
            });
            user::drop_privileges(jail.user, false, &mut Report::default());
            if let Some((kept, stream, folder)) = kept {
                keep(jail, &kept, stream, folder);
            }
            std::process::exit(status_of(child))
        }
    }
}

/// Keeps a folder for the child until the child is gone. The parent sees nothing else from here on where there is
/// Landlock. It does so on its only thread: a process whose children live in another process namespace cannot make threads.
fn keep(jail: &Jail, kept: &Kept, stream: UnixStream, folder: File) {
    let path = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
    let alone = Jail {
        profile: Profile::Software,
        read_only: Vec::new(),
        libraries: Vec::new(),
        read_write: vec![path.clone()],
        devices: Vec::new(),
        ..jail.clone()
    };
    let _ = landlocked::restrict(&alone);
    // A fault of the keeper is no end of the child, which finds nobody at the other end and compiles everything itself.
    let _ = std::panic::catch_unwind(|| (kept.keep)(stream, &path));
}

/// Waits for the child and returns a status as a shell would: the child's own, or 128 and the signal.
fn status_of(child: i32) -> i32 {
    let Some(child) = rustix::process::Pid::from_raw(child) else {
        return 1;
    };
    loop {
        match rustix::process::waitpid(Some(child), WaitOptions::empty()) {
            Ok(Some((_, status))) => {
                return match (status.exit_status(), status.terminating_signal()) {
                    (Some(code), _) => code,
                    (None, Some(signal)) => 128 + signal,
                    (None, None) => continue,
                };
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return 1,
        }
    }
}

/// The child does not outlive a parent that was killed. After the change of user, which resets this.
fn end_with_parent() -> Result<(), JailError> {
    let signal = Some(rustix::process::Signal::KILL);
    rustix::process::set_parent_process_death_signal(signal)
        .map_err(|e| JailError::new("the end with its parent cannot be arranged", e))
}
