//! The daemon of this host: virtual GPUs that stay, made and changed from Rust.

use std::path::Path;

use mica_control::Paths;
use mica_control::api::{Created, GpuInfo, Mode, Resize, VgpuInfo, VgpuSpec};
use mica_control::client::{ControlClient, ControlError};
use mica_limits::Environment;

use crate::vgpu::Vgpu;
use crate::{Error, Result};

/// The daemon of this host, as far as this user may ask it. `mica create`, `ls`, `resize` and the like ask it for the same.
///
/// ```no_run
/// # fn main() -> Result<(), mica::Error> {
/// use mica::Daemon;
/// use mica::control::{Mode, Resize, VgpuSpec};
///
/// let daemon = Daemon::connect()?;
/// let spec = VgpuSpec {
///     name: Some("trial".into()),
///     memory_limit_bytes: Some(64 << 20),
///     mode: Some(Mode::Isolated),
///     ..VgpuSpec::default()
/// };
/// daemon.create(&spec)?;
/// let vgpu = daemon.join("trial")?;
/// assert_eq!(vgpu.memory()?.limit_bytes, 64 << 20);
/// let smaller = Resize { memory_limit_bytes: Some(32 << 20), ..Resize::default() };
/// daemon.resize("trial", &smaller)?;
/// drop(vgpu);
/// daemon.remove("trial", false)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Daemon {
    client: ControlClient,
}

impl Daemon {
    /// The daemon that serves all users, if there is one, else this user's own.
    ///
    /// # Errors
    /// If none answers.
    pub fn connect() -> Result<Self> {
        let system = Paths::system_socket().filter(|socket| mica_control::listens(socket));
        let own = || Paths::from_environment().control_socket();
        Self::at(system.unwrap_or_else(own))
    }

    /// The daemon whose control socket this is.
    ///
    /// # Errors
    /// If none answers.
    pub fn at(control_socket: impl AsRef<Path>) -> Result<Self> {
        let client = ControlClient::new(control_socket.as_ref());
        client.gpus()?;
        Ok(Self { client })
    }

    /// As [`Daemon::connect`]; where none runs, one is started with this `mica` command. It ends when nobody needs it.
    ///
    /// # Errors
    /// If it cannot be started or does not answer.
    pub fn start(command: impl AsRef<Path>) -> Result<Self> {
        let client = mica_control::ensure_running(command.as_ref())?;
        Ok(Self { client })
    }

    /// The GPUs of the host.
    ///
    /// # Errors
    /// If the daemon does not answer.
    pub fn gpus(&self) -> Result<Vec<GpuInfo>> {
        Ok(self.client.gpus()?)
    }

    /// The virtual GPUs that this user may see.
    ///
    /// # Errors
    /// If the daemon does not answer.
    pub fn list(&self) -> Result<Vec<VgpuInfo>> {
        Ok(self.client.list()?)
    }

    /// One virtual GPU.
    ///
    /// # Errors
    /// If there is none of this name.
    pub fn get(&self, name: &str) -> Result<VgpuInfo> {
        Ok(self.client.get(name)?)
    }

    /// Makes a virtual GPU.
    ///
    /// # Errors
    /// If it is refused: the name is taken, or the GPU has not so much left to promise.
    pub fn create(&self, spec: &VgpuSpec) -> Result<VgpuInfo> {
        let created = self.client.create(spec)?;
        self.get(&created.name)
    }

    /// Changes limits while it runs.
    ///
    /// # Errors
    /// If more is in use, or the GPU has not so much left to promise.
    pub fn resize(&self, name: &str, change: &Resize) -> Result<VgpuInfo> {
        Ok(self.client.resize(name, change)?)
    }

    /// Holds its programs.
    ///
    /// # Errors
    /// If there is none of this name.
    pub fn suspend(&self, name: &str) -> Result<VgpuInfo> {
        Ok(self.client.suspend(name)?)
    }

    /// Lets its programs go on.
    ///
    /// # Errors
    /// If there is none of this name.
    pub fn resume(&self, name: &str) -> Result<VgpuInfo> {
        Ok(self.client.resume(name)?)
    }

    /// Ends its running and queued kernels; how many.
    ///
    /// # Errors
    /// If there is none of this name.
    pub fn cancel(&self, name: &str) -> Result<u64> {
        Ok(self.client.cancel(name)?.kernels)
    }

    /// Removes it; with `force`, ends what runs in it.
    ///
    /// # Errors
    /// If a program runs in it and `force` is not set.
    pub fn remove(&self, name: &str, force: bool) -> Result<()> {
        self.client.remove(name, force)?;
        Ok(())
    }

    /// Joins a virtual GPU: this process uses it from now on, beside others in it. For isolated virtual GPUs; in direct mode
    /// the driver library must be Mica's from the start of the program, which `mica exec` sees to.
    ///
    /// # Errors
    /// If there is none of this name, or it is in direct mode.
    pub fn join(&self, name: &str) -> Result<Vgpu> {
        let joined: Created = self.client.join(name)?;
        if joined.mode == Mode::Direct {
            return Err(Error::Argument(format!(
                "{name} is in direct mode: start the program with `mica exec {name} -- PROGRAM` and use Vgpu::through_driver"
            )));
        }
        let token = Environment::parse_token(&joined.token);
        let token = token.ok_or_else(|| {
            let message = "the daemon's token is not 32 hexadecimal digits".into();
            ControlError::Malformed(message)
        })?;
        Vgpu::connect_to(&Environment {
            socket: joined.host_socket.into(),
            token,
        })
    }
}
