//! Launches with attributes, and how many clusters of blocks run at once.

use mica_cuda_abi::CuResult;
use mica_gpu::{ClusterQuestion, GpuError, Launch, LaunchAttribute, Result, StreamId};
use mica_kernel::Dim3;
use mica_kernel::cluster::MOST_BLOCKS;

use crate::device::SoftwareGpu;
use crate::error::bad_handle;
use crate::launch::cluster_of;

impl SoftwareGpu {
    pub(super) fn launch_by_attributes(
        &self,
        stream: StreamId,
        launch: &Launch<'_>,
        attributes: &[LaunchAttribute],
    ) -> Result<()> {
        if attributes
            .iter()
            .any(|a| LaunchAttribute::records_event(a.id))
        {
            let what = "this device has no launch that records an event";
            return Err(GpuError::new(CuResult::NotSupported, what));
        }
        let asked = |attribute: &LaunchAttribute| {
            attribute.id == LaunchAttribute::COOPERATIVE && attribute.value[0] != 0
        };
        let cooperative = launch.cooperative || attributes.iter().any(asked);
        let launch = Launch {
            cooperative,
            ..launch.clone()
        };
        self.submit_launch(stream, &launch, asked_cluster(attributes))
    }

    /// The largest cluster of a kernel that fits, or how many clusters of a launch run at once.
    pub(super) fn clusters_at_once(&self, question: &ClusterQuestion<'_>) -> Result<u32> {
        let [x, y, z] = question.block;
        let threads = u32::try_from(Dim3 { x, y, z }.count()).unwrap_or(u32::MAX);
        let shared = u64::from(question.dynamic_shared);
        let blocks = self.blocks_at_once(question.module, question.kernel, threads, shared)?;
        if question.largest {
            return Ok(if blocks == 0 { 0 } else { MOST_BLOCKS as u32 });
        }
        let module = self.own_module(question.module)?;
        let kernels = module.executable.kernels();
        let info = kernels.get(question.kernel as usize);
        let info = info.ok_or_else(|| bad_handle("kernel", question.kernel.into()))?;
        let [x, y, z] = question.grid;
        let cluster = cluster_of(info, asked_cluster(question.attributes), Dim3 { x, y, z })?;
        // Each multiprocessor is a thread that runs all blocks of a cluster in turns.
        let fit = blocks.saturating_mul(self.facts.multiprocessors);
        let most = fit / u32::try_from(cluster.count()).unwrap_or(u32::MAX);
        Ok(match blocks {
            0 => 0,
            _ => most.max(self.facts.multiprocessors),
        })
    }
}

/// The cluster that launch attributes ask for.
fn asked_cluster(attributes: &[LaunchAttribute]) -> Option<Dim3> {
    let found = attributes
        .iter()
        .rfind(|a| a.id == LaunchAttribute::CLUSTER_DIMENSION);
    let [x, y, z, ..] = found?.value;
    Some(Dim3 { x, y, z })
}
