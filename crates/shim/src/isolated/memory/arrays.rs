//! Arrays, textures and surfaces.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Mutex;

use mica_cuda_abi::{Array3dDescriptor, ArrayDescriptor, CuResult, Handle};
use mica_wire::session::{
    ArrayCreate, ArrayDestroy, ArrayShape, SurfaceCreate, TextureCreate, TextureDestroy,
    TextureShape,
};

use crate::isolated::check::objects::{self, ObjectKind};
use crate::isolated::context::{Context, current};
use crate::isolated::handles::{Kind, Object};
use crate::isolated::state::state;
use crate::isolated::support::{
    Answer, Code, bad_handle, driver, entries, get, invalid, lock, not_supported, put, room_for,
};

/// An array of this process.
pub(crate) type Array = Object<ArrayState>;

pub(crate) struct ArrayState {
    wire: u64,
    shape: Array3dDescriptor,
    context: &'static Context,
    epoch: u64,
}

impl Kind for ArrayState {
    const MAGIC: u64 = 0x4d49_4341_4152_5231;
}

impl Array {
    /// The worker's handle.
    pub(crate) fn wire(&self) -> u64 {
        self.wire
    }

    /// Bytes in a row.
    pub(crate) fn row_bytes(&self) -> u64 {
        let row = Array3dDescriptor {
            height: 1,
            depth: 1,
            flags: 0,
            ..self.shape
        };
        row.bytes().max(1)
    }
}

fn create(shape: Array3dDescriptor) -> Answer<Handle> {
    let (state, context) = current()?;
    if shape.width == 0 || !matches!(shape.channels, 1 | 2 | 4) {
        return invalid();
    }
    if shape.flags & (Array3dDescriptor::SPARSE | Array3dDescriptor::DEFERRED_MAPPING) != 0 {
        return not_supported("an array without memory");
    }
    let request = ArrayCreate {
        context: context.wire(),
        shape: ArrayShape {
            width: shape.width as u64,
            height: shape.height as u64,
            depth: shape.depth as u64,
            format: shape.format,
            channels: shape.channels,
            flags: shape.flags,
        },
    };
    let wire = context.checked(state.client.call(&request))?.value;
    let array = Object::leak(ArrayState {
        wire,
        shape,
        context,
        epoch: context.epoch(),
    });
    let handle = array.handle();
    objects::made(
        ObjectKind::Array,
        handle as u64,
        array.shape.bytes(),
        array.epoch,
    );
    Ok(handle)
}

/// `CUDA_RESOURCE_DESC`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ResourceDescriptor {
    kind: u32,
    first: u64,
    format: u32,
    channels: u32,
    /// Bytes of linear memory; width, height and pitch of pitched memory.
    numbers: [u64; 3],
    reserved: [u64; 11],
    flags: u32,
}

/// `CUDA_TEXTURE_DESC`.
#[repr(C)]
#[derive(Clone, Copy)]
struct TextureDescriptor {
    address_mode: [u32; 3],
    filter: u32,
    flags: u32,
    anisotropy: u32,
    mipmap_filter: u32,
    mipmap: [f32; 3],
    border: [f32; 4],
    reserved: [i32; 12],
}

const _: () = {
    assert!(size_of::<ResourceDescriptor>() == 144);
    assert!(size_of::<TextureDescriptor>() == 104);
};

const READ_AS_INTEGER: u32 = 1;
const NORMALIZED: u32 = 2;
const SRGB: u32 = 0x10;

/// What a texture or surface was made of.
type Made = (ResourceDescriptor, Option<TextureDescriptor>);

/// What textures and surfaces were made of, for queries.
static MADE: Mutex<Option<HashMap<u64, Made>>> = Mutex::new(None);

// SAFETY: descriptions only; the handles inside are given back to the program.
unsafe impl Send for ResourceDescriptor {}

unsafe fn array_of(handle: Handle) -> Answer<&'static Array> {
    // SAFETY: the program's handle.
    unsafe { Array::find(handle) }.ok_or(Code(CuResult::InvalidHandle as u32))
}

fn destroy_object(handle: u64) -> Answer {
    let (state, context) = current()?;
    // Nothing, as freeing a null pointer.
    if handle == 0 {
        return Ok(());
    }
    if lock(&MADE)
        .get_or_insert_default()
        .remove(&handle)
        .is_none()
    {
        return invalid();
    }
    objects::gone(ObjectKind::Texture, handle);
    let request = TextureDestroy {
        context: context.wire(),
        handle,
    };
    context.checked(state.client.call(&request)).map(drop)
}

driver! {
    fn array_create(out: *mut Handle, shape: *const ArrayDescriptor) {
        if out.is_null() {
            return invalid();
        }
        put(out, create(get(shape)?.into())?)
    }

    fn array_3d_create(out: *mut Handle, shape: *const Array3dDescriptor) {
        if out.is_null() {
            return invalid();
        }
        put(out, create(get(shape)?)?)
    }

    fn array_destroy(array: Handle) {
        let state = state()?;
        let array = array_of(array)?;
        array.retire();
        objects::gone(ObjectKind::Array, array.handle() as u64);
        if array.context.epoch() != array.epoch {
            return Err(CuResult::ContextIsDestroyed.into());
        }
        array.context.checked(state.client.call(&ArrayDestroy { array: array.wire })).map(drop)
    }

    fn array_descriptor(out: *mut ArrayDescriptor, array: Handle) {
        let shape = array_of(array)?.shape;
        put(out, ArrayDescriptor {
            width: shape.width,
            height: shape.height,
            format: shape.format,
            channels: shape.channels,
        })
    }

    fn array_3d_descriptor(out: *mut Array3dDescriptor, array: Handle) {
        put(out, array_of(array)?.shape)
    }

    fn texture_create(out: *mut u64, resource: *const ResourceDescriptor, texture: *const TextureDescriptor, view: *const c_void) {
        let (state, context) = current()?;
        let (resource, texture) = (get(resource)?, get(texture)?);
        if out.is_null() {
            return invalid();
        }
        if !view.is_null() {
            return not_supported("a texture that views its resource in another format");
        }
        if texture.flags & SRGB != 0 {
            return not_supported("a texture with sRGB conversion");
        }
        let [width, height, pitch] = resource.numbers;
        let (kind, at) = match resource.kind {
            0 => (0, array_of(resource.first as Handle)?.wire),
            2 => (1, resource.first),
            3 => (2, resource.first),
            1 => return not_supported("a mipmapped texture"),
            _ => return invalid(),
        };
        let request = TextureCreate {
            context: context.wire(),
            shape: TextureShape {
                kind,
                resource: at,
                width: if kind == 0 { 0 } else { width },
                height: if kind == 2 { height } else { 0 },
                pitch: if kind == 2 { pitch } else { 0 },
                format: if kind == 0 { 0 } else { resource.format },
                channels: if kind == 0 { 0 } else { resource.channels },
                address_mode: texture.address_mode,
                filter: texture.filter,
                normalized_coords: texture.flags & NORMALIZED != 0,
                read_as_integer: texture.flags & READ_AS_INTEGER != 0,
                border: texture.border,
            },
        };
        let handle = context.checked(state.client.call(&request))?.value;
        lock(&MADE).get_or_insert_default().insert(handle, (resource, Some(texture)));
        objects::made(ObjectKind::Texture, handle, 0, context.epoch());
        put(out, handle)
    }

    fn object_destroy(handle: u64) {
        destroy_object(handle)
    }

    fn surface_create(out: *mut u64, resource: *const ResourceDescriptor) {
        let (state, context) = current()?;
        let resource = get(resource)?;
        if out.is_null() || resource.kind != 0 {
            return invalid();
        }
        let array = array_of(resource.first as Handle)?.wire;
        let request = SurfaceCreate { context: context.wire(), array };
        let handle = context.checked(state.client.call(&request))?.value;
        lock(&MADE).get_or_insert_default().insert(handle, (resource, None));
        objects::made(ObjectKind::Texture, handle, 0, context.epoch());
        put(out, handle)
    }

    fn object_resource(out: *mut ResourceDescriptor, handle: u64) {
        match lock(&MADE).get_or_insert_default().get(&handle) {
            Some((resource, _)) => put(out, *resource),
            None => invalid(),
        }
    }

    fn texture_descriptor(out: *mut TextureDescriptor, handle: u64) {
        match lock(&MADE).get_or_insert_default().get(&handle) {
            Some((_, Some(texture))) => put(out, *texture),
            _ => invalid(),
        }
    }

    fn mipmapped_create(out: *mut Handle, shape: *const Array3dDescriptor, _levels: u32) {
        current()?;
        room_for(out)?;
        room_for(shape)?;
        not_supported("a mipmapped array")
    }

    fn mipmapped_destroy(_array: Handle) {
        bad_handle()
    }
}

entries! {
    cuArrayCreate_v2 = array_create;
    cuArray3DCreate_v2 = array_3d_create;
    cuArrayDestroy = array_destroy;
    cuArrayGetDescriptor_v2 = array_descriptor;
    cuArray3DGetDescriptor_v2 = array_3d_descriptor;
    cuTexObjectCreate = texture_create;
    cuTexObjectDestroy = object_destroy;
    cuTexObjectGetResourceDesc = object_resource;
    cuTexObjectGetTextureDesc = texture_descriptor;
    cuSurfObjectCreate = surface_create;
    cuSurfObjectDestroy = object_destroy;
    cuSurfObjectGetResourceDesc = object_resource;
    cuMipmappedArrayCreate = mipmapped_create;
    cuMipmappedArrayDestroy = mipmapped_destroy;
}
