//! Kernels as functions: [`crate::kernels!`].

use crate::module::{Kernel, Module};
use crate::{Error, Result};

/// Makes a struct of the kernels of a module, with a method for each that launches it. When it is loaded, the number and the
/// sizes of each kernel's parameters are compared with those that the PTX (or machine code) declares.
///
/// ```
/// use mica::{DeviceBuffer, Grid, Vgpu};
///
/// const PTX: &str = r"
/// .version 7.0
/// .target sm_75
/// .address_size 64
/// .visible .entry scale(.param .u64 data, .param .f32 by, .param .u32 count)
/// {
///     .reg .pred %p; .reg .b32 %r<5>; .reg .f32 %f<3>; .reg .b64 %d<3>;
///     mov.u32 %r1, %ctaid.x;
///     mov.u32 %r2, %ntid.x;
///     mov.u32 %r3, %tid.x;
///     mad.lo.u32 %r4, %r1, %r2, %r3;
///     ld.param.u32 %r1, [count];
///     setp.ge.u32 %p, %r4, %r1;
///     @%p ret;
///     ld.param.u64 %d1, [data];
///     ld.param.f32 %f1, [by];
///     mul.wide.u32 %d2, %r4, 4;
///     add.u64 %d1, %d1, %d2;
///     ld.global.f32 %f2, [%d1];
///     mul.f32 %f2, %f2, %f1;
///     st.global.f32 [%d1], %f2;
///     ret;
/// }";
///
/// mica::kernels! {
///     /// What this program computes.
///     struct Kernels {
///         /// Multiplies `count` values.
///         fn scale(data: &mut DeviceBuffer<f32>, by: f32, count: u32);
///     }
/// }
/// mica::kernels! {
///     struct Wrong {
///         fn scale(data: &mut DeviceBuffer<f32>, by: f64, count: u32);
///     }
/// }
///
/// # fn main() -> Result<(), mica::Error> {
/// let device = mica::Device::software()?;
/// let vgpu = Vgpu::builder().memory(16 << 20).build(&device)?;
/// let kernels = Kernels::load(&vgpu.load_ptx(PTX)?)?;
/// let mut data = vgpu.upload(&[1.0_f32, 2.0, 3.0])?;
/// kernels.scale(&vgpu.default_stream(), Grid::covering(3, 32), &mut data, 2.0, 3)?;
/// assert_eq!(data.to_vec()?, [2.0, 4.0, 6.0]);
///
/// let refused = Wrong::load(&vgpu.load_ptx(PTX)?).unwrap_err().to_string();
/// assert!(refused.contains("parameter 1 of kernel scale, `by`, has 4 bytes, not 8"), "{refused}");
/// # Ok(())
/// # }
/// ```
#[macro_export]
macro_rules! kernels {
    (
        $(#[$attribute:meta])* $visible:vis struct $name:ident {
            $($(#[$about:meta])* fn $kernel:ident($($param:ident: $type:ty),* $(,)?);)*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Debug)]
        $visible struct $name {
            $($kernel: $crate::Kernel,)*
        }

        impl $name {
            /// Finds the kernels in a module.
            ///
            /// # Errors
            /// If one is not there, or has other parameters.
            $visible fn load(module: &$crate::Module) -> $crate::Result<Self> {
                Ok(Self {
                    $($kernel: $crate::checked_kernel(
                        module,
                        stringify!($kernel),
                        &[$((stringify!($param), <$type as $crate::SizedParam>::BYTES)),*],
                    )?,)*
                })
            }

            $(
                $(#[$about])*
                ///
                /// # Errors
                /// At once for impossible shapes; what happens while it runs is told by later calls.
                $visible fn $kernel(
                    &self,
                    stream: &$crate::Stream,
                    grid: $crate::Grid,
                    $($param: $type),*
                ) -> $crate::Result<()> {
                    stream.launch(&self.$kernel, grid, ($($param,)*))
                }
            )*
        }
    };
}

/// A kernel whose parameters have these names and sizes; for [`crate::kernels!`].
///
/// # Errors
/// If it is not there, or has other parameters.
#[doc(hidden)]
pub fn checked_kernel(module: &Module, name: &str, params: &[(&str, usize)]) -> Result<Kernel> {
    let kernel = module.kernel(name)?;
    let sizes: Vec<usize> = kernel.param_sizes().collect();
    if sizes.len() != params.len() {
        return Err(Error::Argument(format!(
            "kernel {name} takes {} parameters, {} are declared",
            sizes.len(),
            params.len()
        )));
    }
    for (index, (has, (param, declared))) in sizes.iter().zip(params).enumerate() {
        if has != declared {
            return Err(Error::Argument(format!(
                "parameter {index} of kernel {name}, `{param}`, has {has} bytes, not {declared}"
            )));
        }
    }
    Ok(kernel)
}
