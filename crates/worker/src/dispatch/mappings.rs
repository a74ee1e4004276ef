//! Calls about addresses and physical memory apart from each other, arrays and textures.

use mica_gpu::{Access, DevicePtr};
use mica_vgpu::VgpuError;

use super::{done, handlers, number};
use crate::convert;

handlers! { dispatcher, session, tail;
    AddressReserve(call) => number(session.address_reserve(call.bytes, call.align)?.0);
    AddressFree(call) => done(session.address_free(DevicePtr(call.address), call.bytes)?);
    FrameCreate(call) => number(session.frame_create(call.bytes)?);
    FrameRelease(call) => done(dispatcher.releasing(call.frame, || session.frame_release(call.frame))?);
    FrameMap(call) => done(session.frame_map(DevicePtr(call.address), call.frame)?);
    FrameUnmap(call) => done(session.frame_unmap(DevicePtr(call.address), call.bytes)?);
    FrameAccess(call) => {
        let access = access(call.access)?;
        done(session.frame_access(DevicePtr(call.address), call.bytes, access)?)
    };

    ArrayCreate(call) => number(session.array_create(call.context, &convert::array(&call.shape))?);
    ArrayDestroy(call) => done(session.array_destroy(call.array)?);
    TextureCreate(call) => {
        let descriptor = convert::texture(&call.shape)?;
        number(session.texture_create(call.context, &descriptor)?)
    };
    SurfaceCreate(call) => number(session.surface_create(call.context, call.array)?);
    TextureDestroy(call) => done(session.texture_destroy(call.context, call.handle)?);
}

fn access(number: u32) -> Result<Access, VgpuError> {
    match number {
        0 => Ok(Access::None),
        1 => Ok(Access::Read),
        3 => Ok(Access::ReadWrite),
        other => Err(VgpuError::Argument(format!(
            "{other} is not a kind of access"
        ))),
    }
}
