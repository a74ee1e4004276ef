//! Files that the workers of one virtual GPU hand each other: memory and events that its programs share.
//!
//! A file is kept under a random name that its worker chose, until that worker drops it or goes. Only workers of the same
//! virtual GPU are given it: a name from elsewhere, or one that was guessed, opens nothing.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};

use mica_control::api::RegionAccess;
use mica_wire::host::message::{DaemonMessage, Refusal, Role, file_kinds};

use super::messages::Reply;
use super::{Flow, HostServer};
use crate::registry::OpenedRegion;

/// Files kept for one virtual GPU at most, and for all: each is a descriptor of the daemon.
const MOST_OF_ONE: usize = 512;
const MOST_OF_ALL: usize = 4096;

type Name = [u8; 16];

/// The files of all virtual GPUs.
#[derive(Debug, Default)]
pub(super) struct SharedFiles {
    by_vgpu: HashMap<String, HashMap<Name, SharedFile>>,
}

#[derive(Debug)]
struct SharedFile {
    file: OwnedFd,
    bytes: u64,
    what: u64,
    /// The client that shares it.
    owner: u64,
}

impl SharedFiles {
    fn share(&mut self, vgpu: &str, name: Name, shared: SharedFile) -> Result<(), String> {
        let all: usize = self.by_vgpu.values().map(HashMap::len).sum();
        let files = self.by_vgpu.entry(vgpu.to_owned()).or_default();
        if files.len() >= MOST_OF_ONE {
            return Err(format!(
                "the programs of {vgpu} share {MOST_OF_ONE} pieces of memory already"
            ));
        }
        if all >= MOST_OF_ALL {
            return Err(format!(
                "the programs of all virtual GPUs share {MOST_OF_ALL} pieces of memory already"
            ));
        }
        if files.contains_key(&name) {
            return Err("something is shared under this name already".into());
        }
        files.insert(name, shared);
        Ok(())
    }

    fn open(&self, vgpu: &str, name: &Name) -> Result<&SharedFile, String> {
        let found = self.by_vgpu.get(vgpu).and_then(|files| files.get(name));
        found.ok_or_else(|| format!("no program of {vgpu} shares memory under this handle"))
    }

    fn drop_file(&mut self, vgpu: &str, name: &Name, owner: u64) {
        if let Some(files) = self.by_vgpu.get_mut(vgpu)
            && files.get(name).is_some_and(|file| file.owner == owner)
        {
            files.remove(name);
        }
    }

    /// Drops all files of a client that has gone.
    pub(super) fn forget(&mut self, owner: u64) {
        for files in self.by_vgpu.values_mut() {
            files.retain(|_, file| file.owner != owner);
        }
        self.by_vgpu.retain(|_, files| !files.is_empty());
    }
}

/// What is asked about a file.
pub(super) enum FileRequest {
    Share { bytes: u64, what: u64 },
    Open,
    Drop,
}

impl HostServer {
    /// Serves a client's request about the file with a name.
    pub(super) fn share(
        &mut self,
        reply: &Reply,
        (client, name): (u64, Name),
        request: FileRequest,
        fds: Vec<OwnedFd>,
    ) -> Flow {
        let vgpu = {
            let registry = self.daemon.registry();
            let client = registry.clients.get(&client);
            let worker = client.filter(|client| client.role == Role::Worker);
            worker.map(|client| client.vgpu.clone())
        };
        let Some(vgpu) = vgpu else {
            return reply.refuse(Refusal::Permission, "only workers share memory");
        };
        let file = fds.into_iter().next();
        if let Some((answer, file)) = self.serve_region(client, &vgpu, &name, &request, &file) {
            let given: Vec<_> = file.iter().map(AsFd::as_fd).collect();
            return reply.send_with(&answer, &given);
        }
        let files = &mut self.shared_files;
        let served = match (request, file) {
            (FileRequest::Drop, _) => {
                files.drop_file(&vgpu, &name, client);
                return Flow::Keep;
            }
            (FileRequest::Open, _) => files.open(&vgpu, &name).map(Some),
            (FileRequest::Share { bytes, what }, Some(file)) => {
                let shared = SharedFile {
                    file,
                    bytes,
                    what,
                    owner: client,
                };
                files.share(&vgpu, name, shared).map(|()| None)
            }
            (FileRequest::Share { .. }, None) => {
                Err("a file to share must come with its descriptor".into())
            }
        };
        match served {
            Ok(None) => reply.send(&DaemonMessage::FileShared {}),
            Ok(Some(shared)) => {
                let (bytes, what) = (shared.bytes, shared.what);
                reply.send_with(&DaemonMessage::File { bytes, what }, &[shared.file.as_fd()])
            }
            Err(why) => {
                let why = why.as_str().into();
                reply.send(&DaemonMessage::NoFile { why })
            }
        }
    }
}

impl HostServer {
    /// Keeps a file for the request of a tool to the control API.
    pub(super) fn lend(&self, reply: &Reply, client: u64, name: Name, fds: Vec<OwnedFd>) -> Flow {
        let vgpu = {
            let registry = self.daemon.registry();
            let client = registry.clients.get(&client);
            let tool = client.filter(|client| client.role == Role::Monitor);
            tool.map(|client| client.vgpu.clone())
        };
        let Some(vgpu) = vgpu else {
            return reply.refuse(Refusal::Permission, "only tools lend files");
        };
        let lent = match fds.into_iter().next() {
            Some(file) => self.daemon.lent_files.lend(name, (client, &vgpu), file),
            None => Err("a file to lend must come with its descriptor".into()),
        };
        match lent {
            Ok(()) => reply.send(&DaemonMessage::FileShared {}),
            Err(why) => {
                let why = why.as_str().into();
                reply.send(&DaemonMessage::NoFile { why })
            }
        }
    }

    /// Answers a request about a region of a virtual GPU; `None` if no region has the name.
    fn serve_region(
        &self,
        client: u64,
        vgpu: &str,
        name: &Name,
        request: &FileRequest,
        file: &Option<OwnedFd>,
    ) -> Option<(DaemonMessage, Option<OwnedFd>)> {
        let refused = |why: String| {
            let why = why.as_str().into();
            (DaemonMessage::NoFile { why }, None)
        };
        let mut registry = self.daemon.registry();
        match request {
            FileRequest::Open => Some(match registry.open_region(client, vgpu, name)? {
                Ok(OpenedRegion::File(file, bytes, access)) => {
                    let what = match access {
                        RegionAccess::Read => file_kinds::READ_ONLY_REGION,
                        RegionAccess::ReadWrite => file_kinds::REGION,
                    };
                    (DaemonMessage::File { bytes, what }, Some(file))
                }
                Ok(OpenedRegion::ToMake(bytes)) => (DaemonMessage::MakeFile { bytes }, None),
                Err(why) => refused(why),
            }),
            FileRequest::Share { bytes, what } if *what == file_kinds::REGION => {
                let file = file.as_ref()?.try_clone().ok()?;
                let brought = registry.bring_region(client, vgpu, name, *bytes, file);
                // A region that was removed meanwhile is nobody's.
                let brought = brought.unwrap_or_else(|| Err("the region was removed".into()));
                Some(match brought {
                    Ok(()) => (DaemonMessage::FileShared {}, None),
                    Err(why) => refused(why),
                })
            }
            FileRequest::Share { .. } | FileRequest::Drop => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(owner: u64) -> SharedFile {
        SharedFile {
            file: std::fs::File::open("/dev/null").unwrap().into(),
            bytes: 1,
            what: 1,
            owner,
        }
    }

    #[test]
    fn a_file_is_its_virtual_gpus_own_and_goes_with_its_worker() {
        let mut files = SharedFiles::default();
        files.share("a", [1; 16], file(7)).unwrap();
        assert!(files.share("a", [1; 16], file(8)).is_err(), "taken");
        assert!(files.open("a", &[1; 16]).is_ok());
        assert!(files.open("b", &[1; 16]).is_err());
        assert!(files.open("a", &[2; 16]).is_err());
        files.drop_file("a", &[1; 16], 8);
        assert!(files.open("a", &[1; 16]).is_ok(), "not theirs to drop");
        files.share("a", [3; 16], file(7)).unwrap();
        files.drop_file("a", &[3; 16], 7);
        assert!(files.open("a", &[3; 16]).is_err());
        files.forget(7);
        assert!(files.open("a", &[1; 16]).is_err());
    }

    #[test]
    fn one_virtual_gpu_cannot_take_all_descriptors() {
        let mut files = SharedFiles::default();
        let name = |number: usize| (number as u128).to_le_bytes();
        for number in 0..MOST_OF_ONE {
            files.share("a", name(number), file(1)).unwrap();
        }
        assert!(files.share("a", name(MOST_OF_ONE), file(1)).is_err());
        files.share("b", name(0), file(2)).unwrap();
    }
}
