//! `mica vm`: a virtual GPU in a virtual machine.
//!
//! The relay holds nothing: for each stream of the guest it starts a process, which joins the virtual GPU through its
//! container socket, as a program in a container does.

mod ivshmem;
mod rate;

use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use mica_command::child::{ends_with_us, own_path};
use mica_command::refusal::explain;
use mica_control::api::{ContainerSocketSpec, Mode};
use mica_guest::VsockListener;
use mica_limits::Environment;
use mica_wire::host::printable::printable;

use self::rate::Rate;
use crate::args::{VmArgs, VmAttachArgs, VmCommand, VmServeArgs};
use crate::control::connect;

/// Streams of one guest at a time.
const MOST_STREAMS: usize = 128;

pub(crate) fn run(args: &VmArgs) -> Result<()> {
    match &args.command {
        VmCommand::Attach(args) => attach(args),
        VmCommand::Detach(args) => ivshmem::detach(&args.name),
        VmCommand::Serve(args) => serve(args),
    }
}

fn attach(args: &VmAttachArgs) -> Result<()> {
    let VmAttachArgs {
        name,
        cid,
        port,
        memory,
    } = args;
    must_be_isolated(name)?;
    let snippets = ivshmem::Snippets::new(name, memory)?;
    let (words, qemu, libvirt) = (snippets.words(), snippets.qemu(), snippets.libvirt());
    outln!(
        "\
On the host, for a QEMU with KVM and the module vhost_vsock:

    mica vm serve {name} --cid {cid} --port {port}{words}
    qemu-system-x86_64 ... -device vhost-vsock-pci,guest-cid={cid}{qemu}

The same devices in libvirt, inside <devices>:

    <vsock model='virtio'>
      <cid auto='no' address='{cid}'/>
    </vsock>{libvirt}

Without the module, with the program vhost-device-vsock:

    vhost-device-vsock --vm guest-cid={cid},socket=vhost.sock,uds-path=vm.vsock
    mica vm serve {name} --socket vm.vsock_{port}{words}
    qemu-system-x86_64 ... -object memory-backend-memfd,id=mem0,size=4G,share=on -machine q35,memory-backend=mem0 \\
        -chardev socket,id=vsock0,path=vhost.sock -device vhost-user-vsock-pci,chardev=vsock0{qemu}

In the guest, with the package mica-guest:

    mica-guest serve --host 2:{port}"
    );
    Ok(())
}

/// The folder of the socket that leads to the virtual GPU.
fn must_be_isolated(name: &str) -> Result<PathBuf> {
    let client = connect()?;
    let vgpu = client.get(name).map_err(explain)?;
    if vgpu.mode == Mode::Direct {
        bail!(
            "{name} is a direct virtual GPU: programs in a virtual machine cannot reach the card\n  \
             hint: make an isolated one (mica create NAME --mode isolated)"
        );
    }
    let spec = ContainerSocketSpec {
        vgpu: Some(name.into()),
        ..ContainerSocketSpec::default()
    };
    let socket = client.container_socket(&spec).map_err(explain)?;
    Ok(socket.folder.into())
}

fn serve(args: &VmServeArgs) -> Result<()> {
    let folder = must_be_isolated(&args.name)?;
    let streams = Streams {
        exe: own_path()?,
        socket: folder.join("host.sock"),
        ivshmem: ivshmem::prepare(&args.name, &args.memory, args.ivshmem_owner.as_deref())?.into(),
        open: Arc::default(),
    };
    let mut rate = Rate::new(Instant::now());
    match (&args.socket, args.cid) {
        (Some(path), _) => {
            let listener = listen(path)?;
            errln!("mica: serving {} at {}", args.name, path.display());
            loop {
                rate.wait();
                streams.serve(OwnedFd::from(listener.accept()?.0));
            }
        }
        (None, Some(cid)) => {
            let port = args.port;
            let listener = VsockListener::bind(port)
                .with_context(|| format!("--port {port}: vsock cannot listen there"))?;
            errln!(
                "mica: serving {} to machine {cid} at port {port}",
                args.name
            );
            loop {
                match listener.accept()? {
                    (stream, from) if from == cid => {
                        rate.wait();
                        streams.serve(stream);
                    }
                    (_, from) => errln!("mica: machine {from} was refused: it is not {cid}"),
                }
            }
        }
        (None, None) => bail!("write --cid or --socket"),
    }
}

/// Listens at a path; what a relay that has ended left there is replaced.
fn listen(path: &Path) -> Result<UnixListener> {
    let shown = path.display();
    if let Err(error) = std::os::unix::net::UnixStream::connect(path)
        && error.kind() == ErrorKind::ConnectionRefused
    {
        let _ = std::fs::remove_file(path);
    }
    let listener = UnixListener::bind(path)
        .with_context(|| format!("--socket {shown}: cannot listen there"))?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600))?;
    Ok(listener)
}

/// The streams of one guest.
struct Streams {
    exe: PathBuf,
    /// The virtual GPU's container socket.
    socket: PathBuf,
    /// The files of the machine's shared memory.
    ivshmem: Arc<[PathBuf]>,
    open: Arc<AtomicUsize>,
}

impl Streams {
    /// Starts a process for a stream.
    fn serve(&self, stream: OwnedFd) {
        if self.open.fetch_add(1, Relaxed) >= MOST_STREAMS {
            self.open.fetch_sub(1, Relaxed);
            errln!("mica: a stream was refused: the guest has {MOST_STREAMS}");
            return;
        }
        let (exe, socket, open) = (self.exe.clone(), self.socket.clone(), self.open.clone());
        let ivshmem = Arc::clone(&self.ivshmem);
        // The thread waits for the process, so that the process ends with this one.
        std::thread::spawn(move || {
            let mut command = Command::new(exe);
            command.arg("vm-stream").arg(socket).args(&*ivshmem);
            command.stdin(Stdio::from(stream)).stdout(Stdio::null());
            let child = ends_with_us(&mut command, libc::SIGTERM).spawn();
            drop(command);
            if let Err(error) = child.and_then(|mut child| child.wait()) {
                errln!("mica: no process for a stream: {error}");
            }
            open.fetch_sub(1, Relaxed);
            // A process that was killed has emptied nothing.
            mica_guest::clear_unused_ivshmem(&ivshmem);
        });
    }
}

/// Serves one stream, which is the standard input.
pub(crate) fn stream(socket: &Path, ivshmem: &[PathBuf]) -> Result<()> {
    let stream = std::io::stdin().as_fd().try_clone_to_owned()?;
    let environment = Environment {
        socket: socket.to_owned(),
        token: Environment::NO_TOKEN,
    };
    if let Err(error) = mica_guest::serve(stream, &environment, ivshmem) {
        let error = anyhow::Error::new(error);
        errln!(
            "mica: a guest's stream ended: {}",
            printable(&format!("{error:#}"))
        );
    }
    Ok(())
}
