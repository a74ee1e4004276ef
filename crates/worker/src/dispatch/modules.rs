//! Calls about modules and kernels.

use mica_gpu::{DevicePtr, ModuleOptions};
use mica_vgpu::{GraphOp, OwnedLaunch};
use mica_wire::session as wire;

use super::{Dispatcher, Failure, IntoNode, done, handlers, number};
use crate::convert;

handlers! { dispatcher, session, tail;
    ModuleLoad(call) => {
        let image = dispatcher.take_blob(call.blob)?;
        let options = ModuleOptions { memcheck: call.memcheck };
        let loaded = session.module_load(call.context, &image.bytes, &options)?;
        Ok(convert::module(loaded))
    };
    ModuleUnload(call) => done(session.module_unload(call.module)?);
    ModuleBind(call) => done(session.module_bind(call.module, call.global, DevicePtr(call.address))?);
    Occupancy(call) => {
        let blocks = session.occupancy(call.module, call.kernel, call.block_threads, call.dynamic_shared)?;
        number(blocks.into())
    };
    Launch(call) => done(session.launch(
        call.stream,
        call.module,
        call.kernel,
        call.grid,
        call.block,
        call.dynamic_shared,
        call.cooperative,
        tail,
    )?);
}

impl IntoNode for wire::Launch {
    fn into_node(self, _: &Dispatcher, tail: &[u8]) -> Result<GraphOp, Failure> {
        Ok(GraphOp::Launch(OwnedLaunch {
            module: self.module,
            kernel: self.kernel,
            grid: self.grid,
            block: self.block,
            dynamic_shared: self.dynamic_shared,
            cooperative: self.cooperative,
            params: tail.to_vec(),
        }))
    }
}
