//! The table of handles.
//!
//! Owns every object that a C program holds. A handle is a number in the form of a pointer: it is looked up, never
//! followed, and never given out twice. So a freed handle, a handle of another kind and a made-up one are refused.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use crate::buffer::Buffer;
use crate::module::{Kernel, Module};
use crate::status::{Failure, Result};
use crate::stream::Stream;
use crate::tensor::Tensor;
use crate::vgpu::Vgpu;

/// What a handle stands for.
#[derive(Clone)]
pub(crate) enum Object {
    Vgpu(Arc<Vgpu>),
    Stream(Arc<Stream>),
    Buffer(Arc<Buffer>),
    Module(Arc<Module>),
    Kernel(Arc<Kernel>),
    Tensor(Arc<Tensor>),
}

impl Object {
    fn kind(&self) -> &'static str {
        match self {
            Self::Vgpu(_) => "virtual GPU",
            Self::Stream(_) => "stream",
            Self::Buffer(_) => "buffer",
            Self::Module(_) => "module",
            Self::Kernel(_) => "kernel",
            Self::Tensor(_) => "tensor",
        }
    }
}

static OBJECTS: LazyLock<RwLock<HashMap<usize, Object>>> = LazyLock::new(RwLock::default);
/// The next handle; 0 is the null pointer.
static NEXT: AtomicUsize = AtomicUsize::new(1);
/// Handles are multiples of this number, as pointers to objects would be.
const STEP: usize = 16;

/// A kind of handle, and the objects behind it.
pub(crate) trait Kind {
    type Target;
    const NAME: &'static str;
    fn of(object: Object) -> Option<Arc<Self::Target>>;
    fn wrap(target: Arc<Self::Target>) -> Object;
}

/// Puts an object into the table.
pub(crate) fn insert<K: Kind>(target: K::Target) -> *mut K {
    let handle = NEXT.fetch_add(1, Ordering::Relaxed) * STEP;
    let mut objects = OBJECTS.write().unwrap_or_else(PoisonError::into_inner);
    objects.insert(handle, K::wrap(Arc::new(target)));
    std::ptr::without_provenance_mut(handle)
}

fn refuse<K: Kind>(argument: &str, handle: *const K, found: Option<&Object>) -> Failure {
    let kind = K::NAME;
    match found {
        Some(object) => Failure::Handle(format!(
            "{argument} is the handle of a {}, not of a {kind}",
            object.kind()
        )),
        None if handle.is_null() => Failure::Argument(format!("{argument} is null")),
        None => Failure::Handle(format!(
            "{argument} is not the handle of a {kind}: it was freed, or no function returned it"
        )),
    }
}

/// The object behind a handle.
pub(crate) fn get<K: Kind>(argument: &str, handle: *const K) -> Result<Arc<K::Target>> {
    let objects = OBJECTS.read().unwrap_or_else(PoisonError::into_inner);
    let found = objects.get(&handle.addr());
    match found.cloned().and_then(K::of) {
        Some(target) => Ok(target),
        None => Err(refuse(argument, handle, found)),
    }
}

/// The object behind a handle that may be null.
pub(crate) fn optional<K: Kind>(
    argument: &str,
    handle: *const K,
) -> Result<Option<Arc<K::Target>>> {
    match handle.is_null() {
        true => Ok(None),
        false => get(argument, handle).map(Some),
    }
}

/// Takes an object out of the table. The object ends when the last call that uses it has returned.
pub(crate) fn remove<K: Kind>(argument: &str, handle: *const K) -> Result<()> {
    let object = get(argument, handle)?;
    let mut objects = OBJECTS.write().unwrap_or_else(PoisonError::into_inner);
    let removed = objects.remove(&handle.addr());
    // The end of an object may wait for the device, so the table is open again before.
    drop(objects);
    match removed {
        Some(_) => {
            drop(object);
            Ok(())
        }
        // Another thread freed the handle since it was looked up.
        None => Err(refuse(argument, handle, None)),
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $handle:ident: $variant:ident, $name:literal;)*) => {$(
        impl Kind for $handle {
            type Target = $variant;
            const NAME: &'static str = $name;
            fn of(object: Object) -> Option<Arc<$variant>> {
                match object {
                    Object::$variant(target) => Some(target),
                    _ => None,
                }
            }
            fn wrap(target: Arc<$variant>) -> Object {
                Object::$variant(target)
            }
        }
    )*};
}

kinds! {
    mica_vgpu: Vgpu, "virtual GPU";
    mica_stream: Stream, "stream";
    mica_buffer: Buffer, "buffer";
    mica_module: Module, "module";
    mica_kernel: Kernel, "kernel";
    mica_tensor: Tensor, "tensor";
}

/// A virtual GPU.
pub struct mica_vgpu(PhantomData<()>);
/// Work of a virtual GPU in order.
pub struct mica_stream(PhantomData<()>);
/// Memory of a virtual GPU.
pub struct mica_buffer(PhantomData<()>);
/// Loaded code.
pub struct mica_module(PhantomData<()>);
/// A kernel of a module.
pub struct mica_kernel(PhantomData<()>);
/// An array of a virtual GPU, with a type and a shape.
pub struct mica_tensor(PhantomData<()>);
