//! Whether code may be loaded: matrix instructions and number formats.
//!
//! Where a policy restricts anything, only PTX is loaded: machine code cannot be judged. The best PTX of
//! an image is parsed and judged by its instructions, and exactly the text that was judged goes to the
//! device. Machine code beside it, comments, and whatever else another reader might find in the image do not.

use std::sync::Arc;

use mica_fatbin::{EntryKind, Image};
use mica_gpu::{GpuError, SessionBudget, Share};
use mica_ptx::Format;
use mica_ptx::ast::{Module, Op, ScalarType};

/// Number formats that kernels may compute in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberFormats {
    /// 64-bit floats.
    pub f64: bool,
    /// 16-bit floats, `f16` and `bf16`.
    pub half: bool,
    /// `tf32`.
    pub tf32: bool,
    /// 8-bit and smaller floats.
    pub f8: bool,
}

impl Default for NumberFormats {
    fn default() -> Self {
        Self {
            f64: true,
            half: true,
            tf32: true,
            f8: true,
        }
    }
}

impl NumberFormats {
    /// Whether anything is forbidden.
    pub fn restricts(&self) -> bool {
        *self != Self::default()
    }

    fn allows(&self, ty: ScalarType) -> bool {
        use ScalarType::*;
        match ty {
            F64 => self.f64,
            F16 | F16x2 | Bf16 | Bf16x2 => self.half,
            Tf32 => self.tf32,
            E4m3 | E5m2 | E4m3x2 | E5m2x2 | E2m1x2 | E2m3x2 | E3m2x2 | Ue8m0x2 => self.f8,
            Pred | B1 | B8 | B16 | B32 | B64 | B128 | U2 | U4 | U8 | U16 | U32 | U64 | S2 | S4
            | S8 | S16 | S32 | S64 | U16x2 | S16x2 | F32 | F32x2 | TexRef | SamplerRef
            | SurfRef => true,
        }
    }
}

/// What a virtual GPU allows code to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CodePolicy {
    pub(crate) tensor_cores: bool,
    pub(crate) precision: NumberFormats,
}

/// PTX that a policy allows: what the device is to load.
#[derive(Debug)]
pub(crate) struct AllowedText {
    pub(crate) text: String,
    #[expect(dead_code, reason = "counts the text until it is loaded")]
    share: Share,
}

/// Most bytes of PTX that are judged.
const MOST_TEXT: u64 = 256 << 20;

impl CodePolicy {
    /// Whether anything is forbidden.
    pub(crate) fn restricts(&self) -> bool {
        !self.tensor_cores || self.precision.restricts()
    }

    /// The PTX of an image for a device of this compute capability (90 for 9.0), or why it may not be loaded.
    /// The image is untrusted: what reading it takes is counted against the budget.
    pub(crate) fn judge_image(
        &self,
        image: &[u8],
        capability: u32,
        budget: &Arc<SessionBudget>,
    ) -> Result<Result<AllowedText, String>, GpuError> {
        let Ok(image) = Image::parse(image) else {
            return Ok(Err("it is neither PTX nor an image that holds PTX".into()));
        };
        let ptx = image
            .entries
            .iter()
            .filter(|entry| entry.kind == EntryKind::Ptx);
        // Where nothing suits the device, the device itself says so.
        let oldest = || ptx.min_by_key(|entry| entry.sm);
        let Some(entry) = image.select_ptx(capability).or_else(oldest) else {
            return Ok(Err(
                "it has no PTX, so what it computes cannot be checked".into()
            ));
        };
        let bytes = entry.payload_bytes();
        if bytes > MOST_TEXT {
            return Ok(Err(format!("it holds more than {MOST_TEXT} bytes of PTX")));
        }
        // A vector that grows takes twice what is in it, and the judged text is a copy.
        let mut share = budget.take(bytes.saturating_mul(3), "decompressed PTX")?;
        let unreadable = |why: &dyn std::fmt::Display| {
            format!("its PTX cannot be read, so what it computes cannot be checked: {why}")
        };
        let text = match entry.payload(MOST_TEXT) {
            Ok(text) => text,
            Err(error) => return Ok(Err(unreadable(&error))),
        };
        let reading = mica_ptx::reading_bytes(&text);
        share.resize(share.bytes().saturating_add(reading), "reading PTX")?;
        let text = match mica_ptx::plain_text(&text) {
            Ok(text) => text,
            Err(error) => return Ok(Err(unreadable(&error))),
        };
        let judged = match mica_ptx::parse(text.as_bytes()) {
            Ok(module) => self.judge(&module),
            Err(error) => Err(unreadable(&error)),
        };
        // To give back never fails.
        let _ = share.resize(text.len() as u64, "allowed PTX");
        Ok(judged.map(|()| AllowedText { text, share }))
    }

    /// Says why a module may not be loaded, if it may not.
    fn judge(&self, module: &Module) -> Result<(), String> {
        for function in &module.functions {
            for inst in &function.body {
                self.judge_instruction(&inst.op).map_err(|what| {
                    let name: String = function.name.chars().take(80).collect();
                    format!("line {} of {name} {what}", inst.line)
                })?;
            }
        }
        Ok(())
    }

    fn judge_instruction(&self, op: &Op) -> Result<(), String> {
        if !self.tensor_cores && op.uses_tensor_cores() {
            return Err("uses tensor cores".into());
        }
        let mut judged = Ok(());
        op.visit_formats(&mut |format| match format {
            Format::Of(ty) if !self.precision.allows(ty) => {
                judged = Err(format!("computes in {}", ty.name()));
            }
            Format::Unknown if self.precision.restricts() => {
                judged = Err("computes in a number format that its text does not name".into());
            }
            _ => {}
        });
        judged
    }
}

#[cfg(test)]
mod tests;
