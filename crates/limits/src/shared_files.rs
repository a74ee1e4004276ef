//! Files that workers of one virtual GPU hand each other through the daemon.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use mica_wire::host::message::{ClientMessage, DaemonMessage, Role, file_kinds};
use mica_wire::host::socket::HostSocket;

use crate::link::hello_as;
use crate::{Environment, HostLink, LinkError, Push};

/// A file that the daemon keeps for a request to the control API, as long as this lives.
#[derive(Debug)]
pub struct LentFile(#[expect(dead_code, reason = "held open")] HostSocket);

/// Lends the daemon a file under a name that nobody can guess.
///
/// # Errors
/// The daemon is not there or does not take it.
pub fn lend_file(
    environment: &Environment,
    name: [u8; 16],
    file: BorrowedFd<'_>,
) -> Result<LentFile, LinkError> {
    let socket = hello_as(environment, Role::Monitor)?;
    let failed = |source| LinkError::Connect {
        path: environment.socket.clone(),
        source,
    };
    let lend = ClientMessage::LendFile { name };
    socket.send(&lend, &[file]).map_err(failed)?;
    loop {
        let (answer, _) = match socket.receive() {
            Err(error) if error.would_block() => continue,
            received => received.map_err(failed)?,
        };
        match answer.read() {
            Ok(DaemonMessage::FileShared {}) => return Ok(LentFile(socket)),
            Ok(DaemonMessage::NoFile { why }) => return Err(LinkError::Refused(why.into())),
            // What the daemon tells every process of a virtual GPU.
            Ok(_) => {}
            Err(_) => return Err(LinkError::Unexpected(answer.kind())),
        }
    }
}

/// A file of another worker.
#[derive(Debug)]
pub struct SharedFile {
    /// The file; whatever the other worker gave.
    pub file: OwnedFd,
    /// Bytes of what it stands for, by the other worker's word.
    pub bytes: u64,
    /// What it stands for, by the other worker's word.
    pub what: u64,
}

/// What the daemon has under a name.
#[derive(Debug)]
pub enum OpenedFile {
    /// A file.
    Shared(SharedFile),
    /// A region whose memory nobody has made yet.
    ToMake {
        /// Bytes of the region.
        bytes: u64,
    },
}

impl HostLink {
    /// Lets other workers of the virtual GPU have a file under a name that nobody can guess.
    ///
    /// # Errors
    /// The daemon's sentence.
    pub fn share_file(
        &self,
        name: [u8; 16],
        file: BorrowedFd<'_>,
        bytes: u64,
        what: u64,
    ) -> Result<(), String> {
        let question = ClientMessage::ShareFile { name, bytes, what };
        match self.ask_about_file(&question, &[file])? {
            (DaemonMessage::FileShared {}, _) => Ok(()),
            (other, _) => Err(refused(other)),
        }
    }

    /// A file that another worker of the virtual GPU shares.
    ///
    /// # Errors
    /// The daemon's sentence.
    pub fn open_file(&self, name: [u8; 16]) -> Result<OpenedFile, String> {
        match self.ask_about_file(&ClientMessage::OpenFile { name }, &[])? {
            (DaemonMessage::File { bytes, what }, fds) => {
                let file = fds.into_iter().next();
                let file = file.ok_or("the daemon gave no file")?;
                Ok(OpenedFile::Shared(SharedFile { file, bytes, what }))
            }
            (DaemonMessage::MakeFile { bytes }, _) => Ok(OpenedFile::ToMake { bytes }),
            (other, _) => Err(refused(other)),
        }
    }

    /// Keeps a region's file, to give it to a daemon that is started later: the daemon alone holds it otherwise, and what
    /// is in the region would be lost to those who open it then.
    pub fn keep_region(&self, name: [u8; 16], file: BorrowedFd<'_>, bytes: u64) {
        let Ok(file) = file.try_clone_to_owned() else {
            return;
        };
        let mut regions = self.regions();
        regions.retain(|(known, ..)| *known != name);
        regions.push((name, file, bytes));
    }

    /// Gives a new daemon the files of regions.
    pub(crate) fn share_regions_again(&self) {
        for (name, file, bytes) in self.regions().iter() {
            let message = ClientMessage::ShareFile {
                name: *name,
                bytes: *bytes,
                what: file_kinds::REGION,
            };
            self.tell_with(&message, &[file.as_fd()]);
        }
    }

    /// Shares a file no more.
    pub fn drop_file(&self, name: [u8; 16]) {
        self.tell(&ClientMessage::DropFile { name });
    }

    fn ask_about_file(
        &self,
        question: &ClientMessage,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Push, String> {
        if !self.is_own() {
            return Err(
                "this process was forked from a process of the virtual GPU and has not joined it"
                    .into(),
            );
        }
        let answer = self.ask_with(question, fds);
        answer.ok_or_else(|| "the Mica daemon is not running".into())
    }
}

/// The daemon's reason.
fn refused(answer: DaemonMessage) -> String {
    match answer {
        DaemonMessage::NoFile { why } => why.into(),
        other => format!("the daemon answered {other:?}"),
    }
}
