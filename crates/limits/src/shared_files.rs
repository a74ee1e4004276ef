//! Files that workers of one virtual GPU hand each other through the daemon.

use std::os::fd::{BorrowedFd, OwnedFd};

use mica_wire::host::message::{Kind, Message};

use crate::HostLink;

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
        let mut question = Message::new(Kind::ShareFile);
        (question.token, question.a, question.b) = (name, bytes, what);
        self.ask_about_file(question, &[file]).map(drop)
    }

    /// A file that another worker of the virtual GPU shares.
    ///
    /// # Errors
    /// The daemon's sentence.
    pub fn open_file(&self, name: [u8; 16]) -> Result<SharedFile, String> {
        let mut question = Message::new(Kind::OpenFile);
        question.token = name;
        let (answer, fds) = self.ask_about_file(question, &[])?;
        let file = fds.into_iter().next();
        Ok(SharedFile {
            file: file.ok_or("the daemon gave no file")?,
            bytes: answer.a,
            what: answer.b,
        })
    }

    /// Shares a file no more.
    pub fn drop_file(&self, name: [u8; 16]) {
        let mut message = Message::new(Kind::DropFile);
        message.token = name;
        self.tell(&message);
    }

    fn ask_about_file(
        &self,
        question: Message,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Message, Vec<OwnedFd>), String> {
        if !self.is_own() {
            return Err("this process is a copy of one that joined".into());
        }
        let answer = self.ask_with(question, fds);
        let (answer, fds) = answer.ok_or("the Mica daemon is not running")?;
        match answer.kind() {
            Some(Kind::ShareFile) => Ok((answer, fds)),
            _ => Err(answer.text()),
        }
    }
}
