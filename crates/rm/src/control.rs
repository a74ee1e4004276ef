//! The controls: how one is issued, the time slices, and what is known.
//!
//! Each control takes a copy of what the registry holds and then talks to the kernel without any
//! lock, by a plain system call on the descriptor libcuda used.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use crate::RmError;
use crate::abi::{self, Control, GidInfo};
use crate::observer;
use crate::registry::Group;

/// The slice libcuda gives its compute group, for groups whose own request was not seen.
const DRIVER_DEFAULT_US: u64 = 2048;

static LAST: Mutex<Vec<LastResult>> = Mutex::new(Vec::new());
static CONTROLS: AtomicU32 = AtomicU32::new(0);

/// A channel group of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupId {
    /// The client that owns it.
    pub client: u32,
    /// Its handle.
    pub handle: u32,
}

impl GroupId {
    pub(crate) fn of(group: &Group) -> Self {
        Self {
            client: group.object.client,
            handle: group.object.handle,
        }
    }
}

/// The outcome of the last control of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastResult {
    /// The control's name.
    pub control: &'static str,
    /// What came of it.
    pub result: Result<(), RmError>,
}

/// One channel group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    /// The client that owns it.
    pub client: u32,
    /// Its handle.
    pub handle: u32,
    /// The device it belongs to.
    pub device: u32,
    /// The engine type it was made for, 0 if not said, 1 to 8 for kernels.
    pub engine: u32,
    /// Whether it runs kernels; slices and suspension act on these only.
    pub compute: bool,
    /// Its channels.
    pub channels: usize,
    /// The slice the driver asked for itself.
    pub driver_slice_us: Option<u64>,
    /// The slice as the resource manager reports it now.
    pub slice_us: Result<u64, RmError>,
    /// UUID of its GPU.
    pub uuid: Option<[u8; 16]>,
}

/// Everything known, for `mica doctor`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Whether libcuda is watched.
    pub observed: bool,
    /// See [`generation`](crate::generation).
    pub generation: u64,
    /// The pinned slice.
    pub pinned_us: Option<u64>,
    /// Whether the channels are stopped by us.
    pub suspended: bool,
    /// Resource-manager requests of libcuda seen so far.
    pub requests: u64,
    /// Controls issued so far.
    pub controls: u32,
    /// All groups in order of creation.
    pub groups: Vec<GroupStatus>,
    /// The last outcome of each kind of control.
    pub last: Vec<LastResult>,
}

/// Sets the time slice of every compute group of this process, in microseconds. Returns how many
/// groups were set.
///
/// libcuda sets 2048 µs itself at the end of context creation, so a slice set earlier is lost: see
/// [`take_overwritten`](crate::take_overwritten) and [`pin_timeslice_us`].
///
/// # Errors
/// [`RmError::NoGroup`] before there is a context; the manager's refusal otherwise.
pub fn set_timeslice_us(us: u64) -> Result<usize, RmError> {
    let result = compute_groups(None).and_then(|groups| set_all(&groups, |_| us));
    remember("SET_TIMESLICE", result)
}

/// As [`set_timeslice_us`], on one GPU only.
///
/// # Errors
/// As [`set_timeslice_us`].
pub fn set_timeslice_us_on(uuid: &[u8; 16], us: u64) -> Result<usize, RmError> {
    let result = compute_groups(Some(uuid)).and_then(|groups| set_all(&groups, |_| us));
    remember("SET_TIMESLICE", result)
}

/// Gives every compute group back the slice the driver asked for, and pins none.
///
/// # Errors
/// As [`set_timeslice_us`].
pub fn restore_timeslice() -> Result<usize, RmError> {
    observer::set_pinned(0);
    let own = |group: &Group| group.object.driver_slice_us.unwrap_or(DRIVER_DEFAULT_US);
    let result = compute_groups(None).and_then(|groups| set_all(&groups, own));
    remember("SET_TIMESLICE", result)
}

/// Makes the driver's own setting of a compute group's slice carry this value instead, so that new
/// contexts start with it; `None` lets the driver's value pass. Groups that exist keep theirs.
pub fn pin_timeslice_us(us: Option<u64>) {
    observer::set_pinned(us.unwrap_or(0));
}

/// The time slice of this process's compute groups; the shortest if they differ.
///
/// # Errors
/// As [`set_timeslice_us`].
pub fn get_timeslice_us() -> Result<u64, RmError> {
    let result = compute_groups(None).and_then(|groups| {
        let mut shortest = u64::MAX;
        for group in &groups {
            shortest = shortest.min(read_slice(group)?);
        }
        Ok(shortest)
    });
    remember("GET_TIMESLICE", result)
}

/// Handle and slice of each compute group.
///
/// # Errors
/// As [`set_timeslice_us`].
pub fn timeslices() -> Result<Vec<(u32, u64)>, RmError> {
    let groups = compute_groups(None)?;
    let read = |group: &Group| Ok((group.object.handle, read_slice(group)?));
    groups.iter().map(read).collect()
}

/// The compute groups there are now, in order of creation. A context's own are those that appear
/// while it is made.
pub fn compute_group_ids() -> Vec<GroupId> {
    let groups = compute_groups(None).unwrap_or_default();
    groups.iter().map(GroupId::of).collect()
}

/// Everything known. Asks the kernel for each group's slice.
pub fn status() -> Status {
    let groups = observer::registry().groups();
    let observed = observer::observed();
    let describe = |group: Group| GroupStatus {
        client: group.object.client,
        handle: group.object.handle,
        device: group.object.parent,
        engine: group.object.engine,
        compute: group.compute,
        channels: group.channels.len(),
        driver_slice_us: group.object.driver_slice_us,
        slice_us: match observed {
            true => read_slice(&group),
            false => Err(RmError::NotObserved),
        },
        uuid: uuid_of(&group).ok(),
    };
    Status {
        observed,
        generation: observer::generation(),
        pinned_us: observer::pinned(),
        suspended: crate::suspend::suspended(),
        requests: observer::requests(),
        controls: CONTROLS.load(Relaxed),
        groups: groups.into_iter().map(describe).collect(),
        last: LAST.lock().unwrap_or_else(PoisonError::into_inner).clone(),
    }
}

pub(crate) fn remember<T>(control: &'static str, result: Result<T, RmError>) -> Result<T, RmError> {
    let entry = LastResult {
        control,
        result: result.as_ref().map(|_| ()).map_err(Clone::clone),
    };
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    last.retain(|e| e.control != control);
    last.push(entry);
    result
}

/// The compute groups, of one GPU if asked so.
pub(crate) fn compute_groups(uuid: Option<&[u8; 16]>) -> Result<Vec<Group>, RmError> {
    if !observer::observed() {
        return Err(RmError::NotObserved);
    }
    let mut groups = observer::registry().groups();
    groups.retain(|group| group.compute);
    let device = |group: &Group| (group.object.client, group.object.parent);
    let several = groups.iter().any(|g| device(g) != device(&groups[0]));
    if let (Some(wanted), true) = (uuid, several) {
        groups.retain(|group| uuid_of(group).as_ref() == Ok(wanted));
    }
    match groups.is_empty() {
        true => Err(RmError::NoGroup),
        false => Ok(groups),
    }
}

fn set_all(groups: &[Group], us: impl Fn(&Group) -> u64) -> Result<usize, RmError> {
    for group in groups {
        let mut value = us(group);
        control(
            group,
            group.object.handle,
            abi::CTRL_SET_TIMESLICE,
            "SET_TIMESLICE",
            &mut value,
        )?;
    }
    Ok(groups.len())
}

fn read_slice(group: &Group) -> Result<u64, RmError> {
    let mut us = 0_u64;
    control(
        group,
        group.object.handle,
        abi::CTRL_GET_TIMESLICE,
        "GET_TIMESLICE",
        &mut us,
    )?;
    Ok(us)
}

fn uuid_of(group: &Group) -> Result<[u8; 16], RmError> {
    let subdevice = group.subdevice.ok_or(RmError::NoSubdevice)?;
    let mut info = GidInfo {
        index: 0,
        flags: abi::GID_BINARY,
        length: 0,
        data: [0; 256],
    };
    control(
        group,
        subdevice,
        abi::CTRL_GET_GID_INFO,
        "GET_GID_INFO",
        &mut info,
    )?;
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&info.data[..16]);
    Ok(uuid)
}

/// Issues one control through the file the group was made with.
pub(crate) fn control<T: Copy>(
    group: &Group,
    object: u32,
    command: u32,
    name: &'static str,
    params: &mut T,
) -> Result<(), RmError> {
    if !observer::still_open(group.object.origin) {
        return Err(RmError::System {
            operation: name,
            errno: libc::EBADF,
        });
    }
    CONTROLS.fetch_add(1, Relaxed);
    let mut block = Control {
        client: group.object.client,
        object,
        command,
        flags: 0,
        params: std::ptr::from_mut(params) as u64,
        params_bytes: size_of::<T>() as u32,
        status: 0,
    };
    let request = abi::request(abi::ESC_CONTROL, size_of::<Control>());
    loop {
        // SAFETY: the block and the parameters it points to are live, of the sizes named, and have
        // the layouts the resource manager gives these controls.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_ioctl,
                group.object.origin.fd,
                request,
                std::ptr::from_mut(&mut block),
            )
        };
        return match (rc, block.status) {
            (0.., 0) => Ok(()),
            (0.., status) => Err(RmError::Refused {
                control: name,
                status,
            }),
            _ => match observer::errno() {
                libc::EINTR => continue,
                errno => Err(RmError::System {
                    operation: name,
                    errno,
                }),
            },
        };
    }
}
