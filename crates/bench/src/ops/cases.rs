//! What `mica bench ops` measures.

use serde::Serialize;

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    Gemm,
    /// A product by cuBLASLt, whatever is fastest.
    Library,
    Attention,
    /// The gradients of queries, keys and values.
    Gradients,
    /// 3 × 3 elements, a zero around the images.
    Conv,
    Gelu,
    Softmax,
    Norm,
}

/// What is promised.
#[derive(Clone, Copy, Debug)]
pub(super) enum Goal {
    None,
    /// At least so many units (TFLOP/s, or GB/s).
    Rate(f64),
    /// At least this part of the rival's rate.
    Part(f64),
}

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// `f32`, `tf32`, `f16`, `bf16`, `i8` or `i4`.
    pub(super) dtype: &'static str,
    /// A product: matrices of the stack, m, n, k. Attention: batch, heads, rows, size. A convolution: images, channels, height
    /// and width, outputs. Else the tensor's.
    pub(super) shape: Vec<usize>,
    pub(super) causal: bool,
    /// Which of PyTorch's attention kernels.
    pub(super) rival: &'static str,
    /// `card` or `processor`.
    pub(super) on: &'static str,
    #[serde(skip)]
    pub(super) goal: Goal,
}

impl Case {
    fn new(kind: Kind, dtype: &'static str, shape: &[usize], goal: Goal) -> Self {
        let sizes: Vec<String> = shape.iter().map(ToString::to_string).collect();
        let name = match kind {
            Kind::Gemm => "product",
            Kind::Library => "cuBLASLt",
            Kind::Attention => "attention",
            Kind::Gradients => "attention gradients",
            Kind::Conv => "convolution 3×3",
            Kind::Gelu => "GELU",
            Kind::Softmax => "softmax",
            Kind::Norm => "layer norm",
        };
        Self {
            name: format!("{name} {dtype} {}", sizes.join("×")),
            kind,
            dtype,
            shape: shape.to_vec(),
            causal: false,
            rival: "",
            on: "card",
            goal,
        }
    }

    fn attention(
        shape: [usize; 4],
        dtype: &'static str,
        causal: bool,
        rival: &'static str,
        goal: Goal,
    ) -> Self {
        Self::of_attention(Kind::Attention, shape, dtype, causal, rival, goal)
    }

    fn of_attention(
        kind: Kind,
        shape: [usize; 4],
        dtype: &'static str,
        causal: bool,
        rival: &'static str,
        goal: Goal,
    ) -> Self {
        let case = Self::new(kind, dtype, &shape, goal);
        let name = format!("{} {}", case.name, if causal { "causal" } else { "full" });
        Self {
            name: if rival.is_empty() {
                name
            } else {
                format!("{name}, {rival}")
            },
            causal,
            rival,
            ..case
        }
    }

    /// Floating-point operations, or bytes read and written, whichever bounds it.
    pub(super) fn work(&self) -> f64 {
        let product: f64 = self.shape.iter().map(|n| *n as f64).product();
        match self.kind {
            Kind::Gemm | Kind::Library => 2.0 * product,
            // Two products, five for gradients; a causal one sees half of the keys.
            Kind::Attention | Kind::Gradients => {
                let products = if self.kind == Kind::Attention {
                    2.0
                } else {
                    5.0
                };
                let seen = if self.causal { 0.5 } else { 1.0 };
                2.0 * products * product * self.shape[2] as f64 * seen
            }
            Kind::Conv => 2.0 * 9.0 * product * self.shape[2] as f64,
            _ => 2.0 * product * if self.dtype == "f32" { 4.0 } else { 2.0 },
        }
    }

    /// Unit of the rate and what it divides by.
    pub(super) fn unit(&self) -> (&'static str, f64) {
        match (self.kind, self.on) {
            (Kind::Gelu | Kind::Softmax | Kind::Norm, "card") => ("GB/s", 1e9),
            (_, "card") => ("TFLOP/s", 1e12),
            (Kind::Gemm | Kind::Attention, _) => ("GFLOP/s", 1e9),
            _ => ("GB/s", 1e9),
        }
    }
}

/// On a card: the sizes of SPECIFICATION.
pub(super) fn on_card() -> Vec<Case> {
    use Goal::{None, Part, Rate};
    use Kind::{Gelu, Gemm, Norm, Softmax};
    let mut cases = vec![
        Case::new(Gemm, "bf16", &[1, 8192, 8192, 8192], Rate(600.0)),
        Case::new(Gemm, "f16", &[1, 8192, 8192, 8192], None),
        Case::new(Gemm, "tf32", &[1, 8192, 8192, 8192], None),
        Case::new(Gemm, "f32", &[1, 8192, 8192, 8192], Rate(45.0)),
        Case::new(Gemm, "i8", &[1, 8192, 8192, 8192], Rate(700.0)),
        Case::new(Gemm, "i4", &[1, 8192, 8192, 8192], None),
        Case::new(Gemm, "bf16", &[1, 16, 8192, 8192], Part(0.9)),
        Case::new(Gemm, "bf16", &[1, 128, 8192, 8192], Part(0.9)),
        Case::new(Gemm, "bf16", &[64, 512, 512, 512], Part(0.9)),
        Case::new(Gelu, "f16", &[16384, 16384], Rate(3600.0)),
        Case::new(Softmax, "f16", &[65536, 4096], Rate(3600.0)),
        Case::new(Norm, "f16", &[65536, 4096], Rate(3600.0)),
    ];
    for shape in [[64, 256, 56, 256], [64, 512, 28, 512], [64, 64, 56, 64]] {
        let goal = if shape[1] == 256 { Part(0.7) } else { None };
        cases.push(Case::new(Kind::Conv, "f16", &shape, goal));
    }
    for dtype in ["bf16", "f16", "tf32", "f32", "i8"] {
        cases.push(Case::new(
            Kind::Library,
            dtype,
            &[1, 8192, 8192, 8192],
            Part(0.99),
        ));
    }
    for (heads, size) in [(32, 64), (16, 128)] {
        for causal in [false, true] {
            for rival in ["flash", "cudnn"] {
                let goal = match (size, causal, rival) {
                    (128, true, "flash") => Rate(450.0),
                    _ => None,
                };
                cases.push(Case::attention(
                    [4, heads, 4096, size],
                    "f16",
                    causal,
                    rival,
                    goal,
                ));
                let goal = if rival == "flash" { Part(1.0) } else { None };
                cases.push(Case::of_attention(
                    Kind::Gradients,
                    [4, heads, 4096, size],
                    "f16",
                    causal,
                    rival,
                    goal,
                ));
            }
        }
    }
    cases
}

/// On the software GPU.
pub(super) fn on_processor() -> Vec<Case> {
    let mut cases = vec![
        Case::new(Kind::Gemm, "f32", &[1, 1024, 1024, 1024], Goal::Part(0.6)),
        Case::new(Kind::Gemm, "f32", &[1, 512, 2048, 512], Goal::Part(0.6)),
        Case::new(Kind::Gemm, "bf16", &[1, 512, 512, 512], Goal::None),
        Case::new(Kind::Gemm, "i8", &[1, 512, 512, 512], Goal::None),
        Case::new(Kind::Gemm, "i4", &[1, 512, 512, 512], Goal::None),
        Case::attention([1, 8, 1024, 64], "f32", false, "", Goal::Part(2.0)),
        Case::attention([1, 8, 1024, 64], "f32", true, "", Goal::Part(2.0)),
        Case::new(Kind::Gelu, "f32", &[4096, 1024], Goal::None),
        Case::new(Kind::Softmax, "f32", &[4096, 1024], Goal::None),
        Case::new(Kind::Norm, "f32", &[4096, 1024], Goal::None),
    ];
    cases.iter_mut().for_each(|case| case.on = "processor");
    cases
}
