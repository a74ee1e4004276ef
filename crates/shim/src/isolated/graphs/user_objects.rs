//! Objects of the program that graphs keep alive.

use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::AcqRel;

use mica_cuda_abi::{CuResult, Handle};

use super::graph_of;
use crate::isolated::handles::{Kind, Object};
use crate::isolated::state::state;
use crate::isolated::support::{Answer, Code, driver, entries, invalid, lock, put};

struct UserState {
    count: AtomicI64,
    destroy: unsafe extern "C" fn(*mut c_void),
    data: usize,
}

impl Kind for UserState {
    const MAGIC: u64 = 0x4d49_4341_5553_5231;
}

impl Object<UserState> {
    fn release(&self, count: i64) {
        if self.count.fetch_sub(count, AcqRel) == count {
            self.retire();
            // SAFETY: the program gave this function for the end of this object.
            unsafe { (self.destroy)(self.data as *mut c_void) }
        }
    }
}

/// References to a user object that a graph holds.
struct UserHold {
    object: &'static Object<UserState>,
    count: i64,
}

impl Drop for UserHold {
    fn drop(&mut self) {
        self.object.release(self.count);
    }
}

unsafe fn user_of(handle: Handle) -> Answer<&'static Object<UserState>> {
    // SAFETY: the program's handle.
    unsafe { Object::<UserState>::find(handle) }.ok_or(Code(CuResult::InvalidValue as u32))
}

driver! {
    fn user_object_create(out: *mut Handle, data: *mut c_void, destroy: Option<unsafe extern "C" fn(*mut c_void)>, count: u32, flags: u32) {
        state()?;
        let Some(destroy) = destroy.filter(|_| flags == 1 && count > 0) else {
            return invalid();
        };
        let object = Object::leak(UserState { count: AtomicI64::new(count.into()), destroy, data: data as usize });
        put(out, object.handle())
    }

    fn user_object_retain(object: Handle, count: u32) {
        user_of(object)?.count.fetch_add(count.into(), AcqRel);
        Ok(())
    }

    fn user_object_release(object: Handle, count: u32) {
        user_of(object)?.release(count.into());
        Ok(())
    }

    fn graph_retain_user_object(graph: Handle, object: Handle, count: u32, flags: u32) {
        let (graph, object) = (graph_of(graph)?, user_of(object)?);
        // Without the flag to move the caller's references, the graph takes its own.
        if flags & 1 == 0 {
            object.count.fetch_add(count.into(), AcqRel);
        }
        graph.hold(Arc::new(UserHold { object, count: count.into() }));
        Ok(())
    }

    fn graph_release_user_object(graph: Handle, object: Handle, _count: u32) {
        let (graph, object) = (graph_of(graph)?, user_of(object)?);
        let mut held = lock(&graph.held);
        let of = |what: &Arc<dyn Any + Send + Sync>| {
            what.downcast_ref::<UserHold>().is_some_and(|hold| std::ptr::eq(hold.object, object))
        };
        let Some(at) = held.iter().position(of) else {
            return invalid();
        };
        let gone = held.remove(at);
        drop(held);
        drop(gone);
        Ok(())
    }
}

entries! {
    cuUserObjectCreate = user_object_create;
    cuUserObjectRetain = user_object_retain;
    cuUserObjectRelease = user_object_release;
    cuGraphRetainUserObject = graph_retain_user_object;
    cuGraphReleaseUserObject = graph_release_user_object;
}
