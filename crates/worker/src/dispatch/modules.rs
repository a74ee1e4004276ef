//! Calls about modules and kernels.

use mica_cuda_abi::FunctionAttribute;
use mica_gpu::{DevicePtr, ModuleOptions};
use mica_vgpu::{GraphOp, OwnedLaunch, RawAttribute, VgpuError};
use mica_wire::session as wire;
use mica_wire::session::{Data, Done, Field, Reader, Request, Signed, TensorMapShape, Violation};

use super::{Dispatcher, Failure, IntoNode, done, handlers, number};
use crate::{convert, startup};

/// Most attributes of one launch; there are not so many kinds.
const MOST_ATTRIBUTES: u32 = 32;

handlers! { dispatcher, session, tail;
    ModuleLoad(call) => {
        startup::done("module asked for");
        let image = dispatcher.take_blob(call.blob)?;
        let options = ModuleOptions { memcheck: call.memcheck };
        let loaded = session.module_load(call.context, &image.bytes, &options)?;
        startup::done("module loaded");
        Ok(convert::module(loaded))
    };
    ModuleUnload(call) => done(session.module_unload(call.module)?);
    ModuleBind(call) => done(session.module_bind(call.module, call.global, DevicePtr(call.address))?);
    Occupancy(call) => {
        let blocks = session.occupancy(call.module, call.kernel, call.block_threads, call.dynamic_shared)?;
        number(blocks.into())
    };
    KernelDescription(call) => {
        let found = session.kernel_description(call.module, call.kernel)?;
        Ok(convert::kernel(found))
    };
    KernelAttribute(call) => {
        let value = session.kernel_attribute(call.module, call.kernel, attribute(call.attribute)?)?;
        Ok(Signed { value })
    };
    KernelSetAttribute(call) => done(session.kernel_set_attribute(
        call.module,
        call.kernel,
        attribute(call.attribute)?,
        call.value,
    )?);
    Clusters(call) => {
        let (attributes, _) = split_attributes(call.attributes, tail, wire::Clusters::NUMBER)?;
        let launch = OwnedLaunch {
            module: call.module,
            kernel: call.kernel,
            grid: call.grid,
            block: call.block,
            dynamic_shared: call.dynamic_shared,
            cooperative: false,
            params: Vec::new(),
            attributes,
        };
        number(session.clusters(&launch, call.largest)?.into())
    };
    AvailableShared(call) => number(session.available_shared(
        call.module,
        call.kernel,
        call.blocks,
        call.block_threads,
    )?);
    TensorMap(call) => {
        let number = wire::TensorMap::NUMBER;
        let malformed = |source| Failure::Violation(Violation::Body { number, source });
        let mut reader = Reader::new(tail);
        let shape = TensorMapShape::take(&mut reader).map_err(malformed)?;
        reader.finish().map_err(malformed)?;
        let map = session.tensor_map(call.context, &convert::tensor_map(&shape)?)?;
        Ok(Data { bytes: map.to_vec() })
    };
    LaunchWith(call) => {
        let stream = call.stream;
        done(session.launch_with(stream, &owned(call, tail)?)?)
    };
    Launch(call) => dispatcher.launch(call, tail);
}

impl Dispatcher {
    /// Launches a kernel; `params` is its packed parameter block.
    #[inline]
    pub(crate) fn launch(&self, call: wire::Launch, params: &[u8]) -> Result<Done, Failure> {
        done(self.session.launch(
            call.stream,
            call.module,
            call.kernel,
            call.grid,
            call.block,
            call.dynamic_shared,
            call.cooperative,
            params,
        )?)
    }
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
            attributes: Vec::new(),
        }))
    }
}

impl IntoNode for wire::LaunchWith {
    fn into_node(self, _: &Dispatcher, tail: &[u8]) -> Result<GraphOp, Failure> {
        owned(self, tail).map(GraphOp::Launch)
    }
}

fn owned(call: wire::LaunchWith, tail: &[u8]) -> Result<OwnedLaunch, Failure> {
    let number = wire::LaunchWith::NUMBER;
    let (attributes, params) = split_attributes(call.attributes, tail, number)?;
    Ok(OwnedLaunch {
        module: call.module,
        kernel: call.kernel,
        grid: call.grid,
        block: call.block,
        dynamic_shared: call.dynamic_shared,
        cooperative: false,
        params: params.to_vec(),
        attributes,
    })
}

/// The launch attributes at the front of a tail, and what follows them.
fn split_attributes(
    count: u32,
    tail: &[u8],
    number: u16,
) -> Result<(Vec<RawAttribute>, &[u8]), Failure> {
    if count > MOST_ATTRIBUTES {
        let what = format!("a launch with {count} attributes, more than {MOST_ATTRIBUTES}");
        return Err(VgpuError::Argument(what).into());
    }
    let mut reader = Reader::new(tail);
    let attributes = (0..count).map(|_| {
        let read = wire::LaunchAttribute::take(&mut reader);
        read.map(|wire::LaunchAttribute { id, value }| RawAttribute { id, value })
    });
    let attributes = attributes.collect::<Result<Vec<_>, _>>();
    let malformed = |source| Failure::Violation(Violation::Body { number, source });
    Ok((attributes.map_err(malformed)?, reader.rest()))
}

fn attribute(number: u32) -> Result<FunctionAttribute, Failure> {
    let known = FunctionAttribute::from_number(number);
    let unknown = || VgpuError::Argument(format!("{number} is not an attribute of a kernel"));
    Ok(known.ok_or_else(unknown)?)
}
