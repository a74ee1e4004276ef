//! Calls about memory and events that programs of one virtual GPU share.
//!
//! What a program shares is a file that another worker is given under a random name; the program carries the name. A file
//! is shared as long as what it stands for is there: the daemon's copy would hold the memory otherwise.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use mica_cuda_abi::CuResult;
use mica_gpu::{Access, DevicePtr, GpuError};
use mica_limits::{OpenedFile, SharedFile};
use mica_vgpu::VgpuError;
use mica_wire::host::message::file_kinds;
use mica_wire::session as wire;
use mica_wire::session::{Number, SharedMemory, check_foreign};

use super::{Dispatcher, Failure, handlers, lock, number};
use crate::event_page::{EventPage, PAGE_BYTES, SharedEvent};
use crate::shared_files::{SharedFiles, random_name};

/// Pages of other workers' events that are kept mapped.
const MOST_PAGES: usize = 64;

/// Access to a frame, as [`wire::FrameAccess`] has it.
const READ: u32 = 1;
const READ_WRITE: u32 = 3;

type Name = [u8; 16];

/// Memory that is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// By context and first address.
    Allocation(u64, u64),
    Frame(u64),
}

/// What a session shares, and what it has of others.
#[derive(Default)]
pub(super) struct Shared {
    memory: Mutex<HashMap<Key, SharedMemory>>,
    /// Pages of this session's events, with their names once somebody else may have them.
    own_pages: Mutex<Vec<(Arc<EventPage>, Option<Name>)>>,
    /// Its events, by handle, with their contexts.
    events: Mutex<HashMap<u64, (u64, Arc<SharedEvent>)>>,
    other_pages: Mutex<HashMap<Name, Arc<EventPage>>>,
}

impl Shared {
    /// Whether anything was shared with or taken from another process.
    pub(super) fn is_used(&self) -> bool {
        !lock(&self.memory).is_empty()
            || !lock(&self.own_pages).is_empty()
            || !lock(&self.events).is_empty()
    }
}

handlers! { dispatcher, session, tail;
    ShareMemory(call) => {
        let key = Key::Allocation(call.context, call.address);
        let export = || session.memory_export(call.context, DevicePtr(call.address));
        dispatcher.share_memory(key, export)
    };
    ShareFrame(call) => {
        let export = || session.frame_export(call.frame);
        dispatcher.share_memory(Key::Frame(call.frame), export)
    };
    OpenShared(call) => {
        dispatcher.open_memory(call.id)
    };
    EventCreateShared(call) => {
        let event = Arc::new(dispatcher.new_shared_event()?);
        let handle = session.event_create_shared(call.context, event.clone())?;
        lock(&dispatcher.shared.events).insert(handle, (call.context, event));
        number(handle)
    };
    ShareEvent(call) => {
        let event = lock(&dispatcher.shared.events).get(&call.event).cloned();
        let (_, event) = event.ok_or_else(|| VgpuError::from(bad_handle()))?;
        Ok(wire::SharedEvent { id: dispatcher.share_page(event.page())?, slot: event.slot() })
    };
    OpenSharedEvent(call) => dispatcher.open_shared_event(&call);
}

fn bad_handle() -> GpuError {
    let what = "the handle is not of something that a program of this virtual GPU shares";
    GpuError::new(CuResult::InvalidValue, what)
}

fn no_room(why: String) -> Failure {
    VgpuError::from(GpuError::new(CuResult::OutOfMemory, why)).into()
}

impl Dispatcher {
    fn files(&self) -> Result<&dyn SharedFiles, Failure> {
        let what = "there is no daemon through which programs could share memory";
        let absent = || VgpuError::from(GpuError::new(CuResult::NotSupported, what));
        Ok(self.files.as_deref().ok_or_else(absent)?)
    }

    fn share_memory(
        &self,
        key: Key,
        export: impl FnOnce() -> mica_vgpu::Result<(std::os::fd::OwnedFd, u64)>,
    ) -> Result<SharedMemory, Failure> {
        let files = self.files()?;
        let mut memory = lock(&self.shared.memory);
        if let Some(known) = memory.get(&key) {
            return Ok(known.clone());
        }
        let (file, bytes) = export()?;
        let id = random_name().map_err(no_room)?;
        let shared = files.share(id, file.as_fd(), bytes, file_kinds::MEMORY);
        shared.map_err(no_room)?;
        let shared = SharedMemory { id, bytes };
        memory.insert(key, shared.clone());
        Ok(shared)
    }

    fn open_shared(&self, id: Name) -> Result<OpenedFile, Failure> {
        let refused = |why: String| VgpuError::from(GpuError::new(CuResult::InvalidValue, why));
        Ok(self.files()?.open(id).map_err(refused)?)
    }

    /// Takes in memory of another program, or of a region.
    fn open_memory(&self, id: Name) -> Result<wire::OpenedFrame, Failure> {
        let session = &self.session;
        let shared = match self.open_shared(id)? {
            OpenedFile::Shared(shared) => shared,
            OpenedFile::ToMake { bytes } => self.make_region(id, bytes)?,
        };
        let bytes = shared.bytes;
        if !session.gpu().has_driver() {
            // A driver looks at what it is given; here it must be memory that can be mapped without harm.
            check_foreign(&shared.file, 0, bytes).map_err(|_| bad_handle())?;
        }
        let import = |most: Access| {
            let file = shared.file.try_clone().map_err(|_| bad_handle())?;
            self.files()?.keep_region(id, file.as_fd(), bytes);
            Ok::<u64, Failure>(session.region_import(file, bytes, most)?)
        };
        let (frame, access) = match shared.what {
            file_kinds::MEMORY => (session.frame_import(shared.file, bytes)?, READ_WRITE),
            file_kinds::REGION => (import(Access::ReadWrite)?, READ_WRITE),
            file_kinds::READ_ONLY_REGION => (import(Access::Read)?, READ),
            _ => return Err(bad_handle().into()),
        };
        Ok(wire::OpenedFrame {
            frame,
            bytes,
            access,
        })
    }

    /// Makes the memory of a region that nobody has opened yet. Two workers may do so at once: the one that the daemon
    /// hears first has made it, and the other takes that in.
    fn make_region(&self, id: Name, bytes: u64) -> Result<SharedFile, Failure> {
        let (frame, file) = self.session.region_create(bytes)?;
        let shared = self
            .files()?
            .share(id, file.as_fd(), bytes, file_kinds::REGION);
        // The daemon says how it may be used, and which memory it is.
        let _ = self.session.frame_release(frame);
        shared.map_err(no_room)?;
        match self.open_shared(id)? {
            OpenedFile::Shared(shared) => Ok(shared),
            OpenedFile::ToMake { .. } => Err(bad_handle().into()),
        }
    }

    fn new_shared_event(&self) -> Result<SharedEvent, Failure> {
        let mut pages = lock(&self.shared.own_pages);
        if let Some(event) = pages.iter().find_map(|(page, _)| page.take()) {
            return Ok(event);
        }
        let page = EventPage::new().map_err(|error| no_room(error.to_string()))?;
        let event = page.take().ok_or_else(|| no_room("no page".into()))?;
        pages.push((page, None));
        Ok(event)
    }

    /// Lets other workers have a page of events; its name.
    fn share_page(&self, page: &Arc<EventPage>) -> Result<Name, Failure> {
        let files = self.files()?;
        let mut pages = lock(&self.shared.own_pages);
        let is_it = |(known, _): &&mut (Arc<EventPage>, Option<Name>)| Arc::ptr_eq(known, page);
        // An event that came from another worker is not this one's to hand on.
        let (page, name) = pages.iter_mut().find(is_it).ok_or_else(bad_handle)?;
        if let Some(name) = name {
            return Ok(*name);
        }
        let id = random_name().map_err(no_room)?;
        let shared = files.share(id, page.file(), PAGE_BYTES, file_kinds::EVENTS);
        shared.map_err(no_room)?;
        *name = Some(id);
        Ok(id)
    }

    fn open_shared_event(&self, call: &wire::OpenSharedEvent) -> Result<Number, Failure> {
        let mut pages = lock(&self.shared.other_pages);
        let page = match pages.get(&call.id) {
            Some(page) => Arc::clone(page),
            None => {
                let shared = match self.open_shared(call.id)? {
                    OpenedFile::Shared(shared) if shared.what == file_kinds::EVENTS => shared,
                    _ => return Err(bad_handle().into()),
                };
                let page = EventPage::open(shared.file).map_err(|_| bad_handle())?;
                if pages.len() >= MOST_PAGES {
                    // Events keep their pages.
                    pages.clear();
                }
                pages.insert(call.id, Arc::clone(&page));
                page
            }
        };
        drop(pages);
        let event = Arc::new(page.at(call.slot).ok_or_else(bad_handle)?);
        number(self.session.event_create_shared(call.context, event)?)
    }

    /// Carries out a call that frees an allocation: it is shared no more.
    pub(super) fn freeing(
        &self,
        context: u64,
        address: u64,
        free: impl FnOnce() -> mica_vgpu::Result<()>,
    ) -> Result<(), Failure> {
        self.ending(Key::Allocation(context, address), free)
    }

    /// As [`Dispatcher::freeing`], for a frame.
    pub(super) fn releasing(
        &self,
        frame: u64,
        release: impl FnOnce() -> mica_vgpu::Result<()>,
    ) -> Result<(), Failure> {
        self.ending(Key::Frame(frame), release)
    }

    fn ending(&self, key: Key, end: impl FnOnce() -> mica_vgpu::Result<()>) -> Result<(), Failure> {
        // Taken out first: once it is freed, the address may be somebody else's.
        let shared = lock(&self.shared.memory).remove(&key);
        let ended = end();
        if let Some(shared) = shared {
            match &ended {
                Ok(()) => self.forget(shared),
                Err(_) => drop(lock(&self.shared.memory).insert(key, shared)),
            }
        }
        Ok(ended?)
    }

    fn forget(&self, shared: SharedMemory) {
        if let Some(files) = &self.files {
            files.forget(shared.id);
        }
    }

    /// A context has ended with all it held.
    pub(super) fn forget_context(&self, context: u64) {
        lock(&self.shared.events).retain(|_, (of, _)| *of != context);
        self.not_pinned.forget(context);
        let is_its = |key: &Key| matches!(key, Key::Allocation(of, _) if *of == context);
        let mut memory = lock(&self.shared.memory);
        let gone: Vec<SharedMemory> = memory
            .extract_if(|key, _| is_its(key))
            .map(|(_, m)| m)
            .collect();
        drop(memory);
        gone.into_iter().for_each(|shared| self.forget(shared));
    }

    /// An event has ended.
    pub(super) fn forget_event(&self, event: u64) {
        lock(&self.shared.events).remove(&event);
    }
}
