//! Launch attributes: `CUlaunchAttribute`.
//!
//! A real driver behind the worker gets all of them. The software GPU knows cooperative launches and clusters, and takes
//! the rest as the hints they are, but for events, which would change what a program sees.

use std::borrow::Cow;
use std::ffi::c_void;
use std::sync::atomic::Ordering::Relaxed;

use mica_cuda_abi::{CuResult, Handle, LaunchAttributeId, LaunchAttributeRecord};
use mica_wire::session::{Field, LaunchAttribute};

use super::Shape;
use crate::isolated::modules::Function;
use crate::isolated::state::State;
use crate::isolated::streams::events::Event;
use crate::isolated::support::{Answer, Code, get, invalid, not_supported};

/// `CUlaunchAttributeID`.
pub(crate) const COOPERATIVE: u32 = LaunchAttributeId::Cooperative as u32;
pub(crate) const CLUSTER_DIMENSION: u32 = LaunchAttributeId::ClusterDimension as u32;
const PROGRAMMATIC_EVENT: u32 = LaunchAttributeId::ProgrammaticEvent as u32;
const LAUNCH_COMPLETION_EVENT: u32 = LaunchAttributeId::LaunchCompletionEvent as u32;
const DEVICE_UPDATABLE_KERNEL_NODE: u32 = LaunchAttributeId::DeviceUpdatableKernelNode as u32;
/// More than there are kinds.
const MOST: u32 = 32;
/// Blocks of a cluster that any kernel may have, and that one may have which is set to.
pub(crate) const PORTABLE_BLOCKS: u64 = 8;
const MOST_BLOCKS: u64 = 16;

/// Reads launch attributes: those that travel, and whether the launch is cooperative.
///
/// # Safety
/// There are `count` attributes.
pub(crate) unsafe fn read(
    state: &State,
    attributes: *const c_void,
    count: u32,
) -> Answer<(Vec<LaunchAttribute>, bool)> {
    if count > MOST {
        return invalid();
    }
    let (mut travelling, mut is_cooperative) = (Vec::new(), false);
    for index in 0..count as usize {
        // SAFETY: our contract.
        let LaunchAttributeRecord { id, value, .. } =
            unsafe { get(attributes.cast::<LaunchAttributeRecord>().add(index))? };
        if id == COOPERATIVE {
            is_cooperative = value[0] != 0;
        }
        // SAFETY: the program's attribute.
        if let Some(attribute) = unsafe { translated(state, id, value)? } {
            travelling.push(attribute);
        }
    }
    Ok((travelling, is_cooperative))
}

/// An attribute as it travels; `None` if the device has no use for it.
///
/// # Safety
/// The program's attribute: an event in it is a handle of the program.
pub(crate) unsafe fn translated(
    state: &State,
    id: u32,
    mut value: [u32; 16],
) -> Answer<Option<LaunchAttribute>> {
    let has_driver = state.client.snapshot().has_driver;
    match id {
        // An empty attribute.
        0 => return Ok(None),
        CLUSTER_DIMENSION => return Ok(Some(LaunchAttribute { id, value })),
        PROGRAMMATIC_EVENT | LAUNCH_COMPLETION_EVENT if has_driver => {
            let handle = u64::from(value[0]) | u64::from(value[1]) << 32;
            // SAFETY: our contract.
            let Some(event) = (unsafe { Event::find(handle as Handle) }) else {
                return Err(CuResult::InvalidHandle.into());
            };
            event.note_in_attribute();
            (value[0], value[1]) = (event.wire() as u32, (event.wire() >> 32) as u32);
        }
        PROGRAMMATIC_EVENT | LAUNCH_COMPLETION_EVENT => {
            return not_supported("a launch that records an event");
        }
        DEVICE_UPDATABLE_KERNEL_NODE if value[0] != 0 => {
            return not_supported("a kernel node that device code updates");
        }
        DEVICE_UPDATABLE_KERNEL_NODE => return Ok(None),
        _ => {}
    }
    Ok(has_driver.then_some(LaunchAttribute { id, value }))
}

/// The attributes of a launch on a device without a driver: with the cluster that the function was set to, and what the
/// driver would refuse refused.
pub(crate) fn completed<'a>(
    state: &State,
    function: &Function,
    shape: &Shape,
    attributes: &'a [LaunchAttribute],
) -> Answer<Cow<'a, [LaunchAttribute]>> {
    if state.client.snapshot().has_driver {
        return Ok(Cow::Borrowed(attributes));
    }
    let [_, width, height, depth, non_portable] =
        [0, 1, 2, 3, 4].map(|index| function.cluster[index].load(Relaxed));
    let asked = attributes.iter().find(|a| a.id == CLUSTER_DIMENSION);
    let set = (width > 0).then_some([width, height.max(1), depth.max(1)]);
    let cluster = match (asked, set) {
        (Some(asked), _) => [asked.value[0], asked.value[1], asked.value[2]],
        (None, Some(set)) => set.map(|blocks| blocks as u32),
        (None, None) => return Ok(Cow::Borrowed(attributes)),
    };
    let most = if non_portable != 0 {
        MOST_BLOCKS
    } else {
        PORTABLE_BLOCKS
    };
    let blocks = (cluster.iter()).fold(1_u64, |all, n| all.saturating_mul((*n).into()));
    let divides = (shape.grid.iter().zip(cluster)).all(|(n, by)| by > 0 && n.is_multiple_of(by));
    if !(1..=most).contains(&blocks) || !divides {
        return Err(Code(CuResult::InvalidClusterSize as u32));
    }
    let with = |id: u32, numbers: [u32; 3]| {
        let mut value = [0; 16];
        value[..3].copy_from_slice(&numbers);
        LaunchAttribute { id, value }
    };
    let mut all = vec![with(CLUSTER_DIMENSION, cluster)];
    if shape.is_cooperative {
        all.push(with(COOPERATIVE, [1, 0, 0]));
    }
    Ok(Cow::Owned(all))
}

/// Attributes and parameters as the tail of a call.
pub(crate) fn encode(attributes: &[LaunchAttribute], params: &[u8]) -> Vec<u8> {
    let mut tail = Vec::with_capacity(size_of_val(attributes) + params.len());
    for attribute in attributes {
        attribute.put(&mut tail);
    }
    tail.extend_from_slice(params);
    tail
}
