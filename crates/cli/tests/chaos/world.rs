//! A daemon and its tenants in a folder of their own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mica_control::api::{ProcessInfo, Stats, VgpuInfo};
use mica_control::client::ControlClient;

use crate::processes;
use crate::tenant::{self, Kind, Tenant};

const TENANTS: usize = 8;
const SHARE: u32 = 10;
/// Nothing may take so long, however busy the machine is.
const HANG: Duration = Duration::from_secs(180);

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Victim {
    Program(usize),
    Worker(usize),
    Launcher(usize),
    Daemon,
}

impl Victim {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Program(_) => "program",
            Self::Worker(_) => "worker",
            Self::Launcher(_) => "launcher",
            Self::Daemon => "daemon",
        }
    }

    fn tenant(self) -> Option<usize> {
        match self {
            Self::Program(index) | Self::Worker(index) | Self::Launcher(index) => Some(index),
            Self::Daemon => None,
        }
    }
}

/// The folder with the sockets and the state.
#[derive(Debug)]
pub(crate) struct Home {
    folder: tempfile::TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        let home = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        let config = "[software_gpu]\noffer = \"always\"\nmemory_bytes = 2147483648\n";
        std::fs::write(home.config(), config).unwrap();
        home
    }

    /// Every process that belongs to the folder ends.
    pub(crate) fn wait_for_the_end(&self) {
        eventually("the end of every process", || {
            match processes::of(self.path()).as_slice() {
                [] => Ok(()),
                left => Err(format!("{left:?}")),
            }
        });
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn mica(&self) -> &'static str {
        env!("CARGO_BIN_EXE_mica")
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.mica());
        command
            .args(words)
            .env("MICA_RUNTIME_DIR", self.path().join("run"))
            .env("MICA_CONFIG", self.config())
            .env_remove("MICA_STATE_DIR")
            .env_remove("MICA_HOST_SOCKET")
            .env_remove("MICA_TOKEN")
            .stdin(Stdio::null());
        command
    }

    fn config(&self) -> PathBuf {
        self.path().join("mica.toml")
    }

    fn log(&self) -> PathBuf {
        self.path().join("daemon.err")
    }
}

/// Waits for what must come; what is wrong is asked again and again.
pub(crate) fn eventually<T>(what: &str, mut ask: impl FnMut() -> Result<T, String>) -> T {
    let began = Instant::now();
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(wrong) => assert!(began.elapsed() < HANG, "{what}: never; {wrong}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) tenants: Vec<Tenant>,
    daemon: Child,
    client: ControlClient,
    segments: Vec<String>,
    // Last: the folder outlives those who use it.
    home: Home,
}

impl World {
    /// Everybody runs.
    pub(crate) fn new() -> Self {
        let home = Home::new();
        let daemon = start_daemon(&home);
        let client = ControlClient::new(home.path().join("run/control.sock"));
        let mut world = Self {
            tenants: (0..TENANTS).map(Tenant::new).collect(),
            daemon,
            client,
            segments: processes::segments(),
            home,
        };
        eventually("the daemon listens", || world.stats().map(drop));
        for tenant in &mut world.tenants {
            if tenant.kind == Kind::Standing {
                let memory = (tenant.limit_bytes >> 20).to_string() + "MiB";
                let create = ["create", &tenant.name, "-m", &memory, "-s", "10"];
                assert!(world.home.command(&create).status().unwrap().success());
            }
            tenant.start(&world.home);
        }
        for index in 0..TENANTS {
            world.wait_for_first_step(index);
        }
        world.check_exact();
        world
    }

    fn stats(&self) -> Result<Stats, String> {
        self.client.stats().map_err(|error| error.to_string())
    }

    fn wait_for_first_step(&mut self, index: usize) {
        let tenant = &mut self.tenants[index];
        eventually("a tenant's first step", || {
            if let Some(code) = tenant.ended() {
                panic!("{} ended with {code}: {}", tenant.name, tenant.said());
            }
            match tenant.steps() {
                0 => Err(tenant.name.clone()),
                _ => Ok(()),
            }
        });
    }

    /// Everybody has made a step since this was called.
    pub(crate) fn wait_for_load(&mut self) {
        self.wait_for_steps(|_| true);
    }

    fn wait_for_steps(&mut self, of: impl Fn(usize) -> bool) {
        let before: Vec<u32> = self.tenants.iter().map(Tenant::steps).collect();
        for (index, tenant) in self.tenants.iter_mut().enumerate() {
            if !of(index) {
                continue;
            }
            eventually("a tenant's next step", || {
                if let Some(code) = tenant.ended() {
                    panic!("{} ended with {code}: {}", tenant.name, tenant.said());
                }
                match tenant.steps() > before[index] {
                    true => Ok(()),
                    false => Err(format!("{} stands still", tenant.name)),
                }
            });
        }
    }

    /// Kills, and waits until what the dead held is back; how long that took.
    pub(crate) fn kill(&mut self, victim: Victim) -> Duration {
        let pid = match victim {
            Victim::Program(index) => self.tenants[index].program(),
            Victim::Launcher(index) => self.tenants[index].launcher(),
            Victim::Worker(index) => self.worker(index),
            Victim::Daemon => self.daemon.id(),
        };
        let began = Instant::now();
        processes::kill(pid);
        match victim.tenant() {
            None => {
                self.daemon.wait().unwrap();
                self.daemon = start_daemon(&self.home);
                // Its successor knows everybody and everything they hold.
                eventually("a new daemon's ledger", || self.is_exact());
            }
            Some(index) => eventually("what a tenant held", || self.is_back(index)),
        }
        began.elapsed()
    }

    /// The worker of a tenant, as the daemon knows it.
    fn worker(&self, index: usize) -> u32 {
        eventually("a worker", || {
            let stats = self.stats()?;
            let vgpu = find(&stats, &self.tenants[index].name)?;
            let worker = vgpu.processes.iter().find_map(ProcessInfo::worker);
            worker.ok_or("none".into())
        })
    }

    /// Whether nothing is left of what a tenant's program held.
    fn is_back(&self, index: usize) -> Result<(), String> {
        let stats = self.stats()?;
        let tenant = &self.tenants[index];
        let used: u64 = self.used_by_others(index);
        let gpu = &stats.gpus[0];
        match (tenant.kind, find(&stats, &tenant.name)) {
            (Kind::Standing, Ok(vgpu)) if vgpu.memory_used_bytes == 0 => {}
            (Kind::Ephemeral, Err(_)) => {
                let limits = self.tenants.iter().enumerate();
                let others = limits.filter(|(other, _)| *other != index);
                let reserved: u64 = others.map(|(_, tenant)| tenant.limit_bytes).sum();
                let shares = SHARE * (TENANTS as u32 - 1);
                if gpu.memory_reserved_bytes != reserved || gpu.share_reserved_percent != shares {
                    return Err(format!("{gpu:?}, not {reserved} bytes and {shares} %"));
                }
            }
            (_, found) => return Err(format!("{found:?}")),
        }
        match gpu.memory_used_bytes == used {
            true => Ok(()),
            false => Err(format!(
                "{} bytes are in use, not {used}",
                gpu.memory_used_bytes
            )),
        }
    }

    fn used_by_others(&self, index: usize) -> u64 {
        let others = self.tenants.iter().enumerate();
        let others = others.filter(|(other, _)| *other != index);
        others.map(|(_, tenant)| tenant.used_bytes()).sum()
    }

    /// Whether the daemon's books are the sum of what the programs say they hold.
    fn is_exact(&self) -> Result<(), String> {
        let stats = self.stats()?;
        if stats.vgpus.len() != TENANTS {
            return Err(format!("{} virtual GPUs", stats.vgpus.len()));
        }
        for tenant in &self.tenants {
            let vgpu = find(&stats, &tenant.name)?;
            let (used, said) = (vgpu.memory_used_bytes, tenant.used_bytes());
            if used != said || vgpu.memory_limit_bytes != tenant.limit_bytes {
                return Err(format!(
                    "{} uses {used} and says {said}: {vgpu:?}",
                    vgpu.name
                ));
            }
        }
        let gpu = &stats.gpus[0];
        let used: u64 = self.tenants.iter().map(Tenant::used_bytes).sum();
        let limits: u64 = self.tenants.iter().map(|tenant| tenant.limit_bytes).sum();
        let found = (
            gpu.memory_used_bytes,
            gpu.memory_reserved_bytes,
            gpu.share_reserved_percent,
        );
        match found == (used, limits, (SHARE * TENANTS as u32).into()) {
            true => Ok(()),
            false => Err(format!("{gpu:?}")),
        }
    }

    /// The books are exact, and there are the processes there should be and no other.
    pub(crate) fn check_exact(&self) {
        eventually("an exact ledger", || self.is_exact());
        eventually("the right processes", || {
            tenant::is_complete(&self.tenants, &self.home).map_err(|found| format!("{found:?}"))
        });
        let said = std::fs::read_to_string(self.home.log()).unwrap();
        assert!(!said.contains("panicked"), "{said}");
    }

    /// Those who were not hit go on.
    pub(crate) fn check_survivors(&mut self, victim: Victim) {
        self.wait_for_steps(|index| Some(index) != victim.tenant());
    }

    /// Whoever was hit ends with an error, and can begin anew at once.
    pub(crate) fn revive(&mut self, victim: Victim) {
        let Some(index) = victim.tenant() else { return };
        let tenant = &mut self.tenants[index];
        let code = eventually("the end of a tenant", || {
            tenant.ended().ok_or(format!("{} runs on", tenant.name))
        });
        let said = tenant.bury();
        match victim {
            Victim::Program(_) => assert_eq!(code, 137, "{said}"),
            Victim::Worker(_) => {
                // An error that the program could act on, not a signal.
                assert_eq!(code, 1, "{said}");
                assert!(said.contains("failed with CUresult"), "{said}");
            }
            Victim::Launcher(_) | Victim::Daemon => {}
        }
        tenant.start(&self.home);
        self.wait_for_first_step(index);
    }

    /// Ends everything in order and checks that nothing is left.
    pub(crate) fn end(mut self) {
        for tenant in &mut self.tenants {
            tenant.stop();
        }
        for tenant in &self.tenants {
            if tenant.kind == Kind::Standing {
                let removed = self.home.command(&["rm", &tenant.name]).output().unwrap();
                assert!(removed.status.success(), "{removed:?}");
            }
        }
        // A virtual GPU of `mica run` goes with its last process, of whose end the daemon hears a moment later.
        let stats = eventually("the end of all virtual GPUs", || {
            let stats = self.stats()?;
            match stats.vgpus.as_slice() {
                [] => Ok(stats),
                left => Err(format!("{left:?}")),
            }
        });
        let gpu = &stats.gpus[0];
        assert_eq!((gpu.memory_used_bytes, gpu.memory_reserved_bytes), (0, 0));
        assert_eq!(gpu.share_reserved_percent, 0);
        let stopped = self.home.command(&["daemon", "--stop"]).status().unwrap();
        assert!(stopped.success());
        self.daemon.wait().unwrap();
        self.home.wait_for_the_end();
        let left = std::fs::read_dir(self.home.path().join("run")).unwrap();
        let mut left: Vec<String> = left
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        // The folder of libraries, the locks, the state and the folder of the workers' socket stay for the next daemon.
        assert_eq!(left, ["lib", "lock", "state", "worker"]);
        assert_eq!(processes::segments(), self.segments);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        self.tenants.clear();
        // After a failure only: whoever is still here must not outlive the test.
        for process in processes::of(self.home.path()) {
            processes::kill(process.pid);
        }
    }
}

pub(crate) fn start_daemon(home: &Home) -> Child {
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(home.log())
        .unwrap();
    let config = home.config();
    home.command(&["daemon", "--config", config.to_str().unwrap()])
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

fn find<'a>(stats: &'a Stats, name: &str) -> Result<&'a VgpuInfo, String> {
    let found = stats.vgpus.iter().find(|vgpu| vgpu.name == name);
    found.ok_or(format!("{name} is not there"))
}
