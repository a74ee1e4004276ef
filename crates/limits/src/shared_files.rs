//! Files that workers of one virtual GPU hand each other through the daemon.

use std::os::fd::{BorrowedFd, OwnedFd};

use mica_wire::host::message::{ClientMessage, DaemonMessage};

use crate::{HostLink, Push};

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
    pub fn open_file(&self, name: [u8; 16]) -> Result<SharedFile, String> {
        match self.ask_about_file(&ClientMessage::OpenFile { name }, &[])? {
            (DaemonMessage::File { bytes, what }, fds) => {
                let file = fds.into_iter().next();
                let file = file.ok_or("the daemon gave no file")?;
                Ok(SharedFile { file, bytes, what })
            }
            (other, _) => Err(refused(other)),
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
            return Err("this process is a copy of one that joined".into());
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
