//! Textures and surfaces.

use crate::access::{update, write};
use crate::machine::{Machine, Stop};
use mica_kernel::{FaultKind, TextureView};
use mica_ptx::ast::{
    Clamp, Geometry, Op, Operand, RegId, ScalarType, Space, Suld, Sured, Sust, Tex, TexQuery, Tld4,
};
use mica_ptx_ops::float::{BF16, F16, Format, from_f64};
use mica_ptx_ops::surface::{SurfaceAddress, encode_component, surface_address};
use mica_ptx_ops::texture::{self, Coordinates, component_bytes};
use mica_ptx_ops::typed::mask;

impl Machine<'_> {
    pub(crate) fn texture(&mut self, t: usize, op: &Op) -> Result<(), Stop> {
        match op {
            Op::Tex(tex) => self.sample(t, tex),
            Op::Tld4(tld4) => self.gather(t, tld4),
            Op::Txq {
                query, dst, handle, ..
            } => {
                let view = self.view(t, *handle)?;
                self.set(t, *dst, u64::from(answer(&view, *query)));
                Ok(())
            }
            Op::Suld(suld) => self.surface_load(t, suld),
            Op::Sust(sust) => self.surface_store(t, sust),
            Op::Sured(sured) => self.surface_reduce(t, sured),
            _ => Ok(()),
        }
    }

    /// The view of a handle in a register, or in the variable of a texture reference.
    fn view(&self, t: usize, handle: Operand) -> Result<TextureView, Stop> {
        let handle = match handle {
            Operand::Var { var, .. } if self.module.var(var).space != Space::Param => {
                let at = self.variable_address(t, var);
                self.read_at(t, at, 8)?
            }
            Operand::Var { var, .. } => {
                let at = self.variable_address(t, var);
                let place = self.place_at(t, Space::Param, at, 8, false)?;
                self.read_place(place, 0, 8)
            }
            operand => self.value(t, operand),
        };
        let view = self.env.services.and_then(|s| s.texture(handle));
        view.ok_or_else(|| self.access_fault(t, FaultKind::InvalidAddressSpace, handle, 0, false))
    }

    fn words(&self, t: usize, operands: &[Operand]) -> [u32; 3] {
        let mut words = [0; 3];
        for (word, operand) in words.iter_mut().zip(operands) {
            *word = self.value32(t, *operand);
        }
        words
    }

    fn sample(&mut self, t: usize, tex: &Tex) -> Result<(), Stop> {
        let view = self.view(t, tex.texture)?;
        let words = self.words(t, &tex.coords);
        let coords = if tex.coord_ty == ScalarType::F32 {
            Coordinates::Float(words.map(f32::from_bits))
        } else {
            Coordinates::Integer(words.map(|w| w as i32))
        };
        let layer = tex.layer.map_or(0, |l| self.value32(t, l));
        let offsets = self.words(t, &tex.offsets).map(|w| w as i32);
        let texel = texture::sample(&view, tex.geom, coords, layer, offsets, &mut |at, bytes| {
            self.read_at(t, at, bytes)
        })?;
        self.set_texel(t, tex.dst_ty, &tex.dst, texel);
        self.set_optional(t, tex.resident, 1);
        Ok(())
    }

    fn gather(&mut self, t: usize, tld4: &Tld4) -> Result<(), Stop> {
        let view = self.view(t, tld4.texture)?;
        let coords = self.words(t, &tld4.coords).map(f32::from_bits);
        let layer = tld4.layer.map_or(0, |l| self.value32(t, l));
        let offsets = self.words(t, &tld4.offsets).map(|w| w as i32);
        let texel = texture::gather(
            &view,
            tld4.geom,
            coords,
            layer,
            offsets,
            tld4.component,
            &mut |at, bytes| self.read_at(t, at, bytes),
        )?;
        self.set_texel(t, tld4.dst_ty, &tld4.dst, texel);
        self.set_optional(t, tld4.resident, 1);
        Ok(())
    }

    fn set_texel(&mut self, t: usize, ty: ScalarType, dst: &[Option<RegId>], texel: [u32; 4]) {
        let narrow = |format: Format, x: u32| from_f64(format, f64::from(f32::from_bits(x)));
        let format = match ty {
            ScalarType::F16x2 | ScalarType::F16 => Some(F16),
            ScalarType::Bf16x2 | ScalarType::Bf16 => Some(BF16),
            _ => None,
        };
        if let (Some(format), 2) = (format, dst.len()) {
            for (i, dst) in dst.iter().enumerate() {
                let pair = narrow(format, texel[2 * i + 1]) << 16 | narrow(format, texel[2 * i]);
                self.set_optional(t, *dst, pair);
            }
            return;
        }
        for (dst, component) in dst.iter().zip(texel) {
            let bits = format.map_or(u64::from(component), |f| narrow(f, component));
            self.set_optional(t, *dst, bits);
        }
    }

    /// The host address of a surface access, `None` when it does nothing.
    fn surface(&self, t: usize, at: SurfaceAt<'_>) -> Result<Option<u64>, Stop> {
        let SurfaceAt {
            handle,
            geom,
            clamp,
            layer,
            coords,
            bytes,
            scale,
            is_write,
        } = at;
        let view = self.view(t, handle)?;
        let mut at = self.words(t, coords).map(|w| w as i32);
        if scale {
            let texel = component_bytes(view.format) * view.channels.clamp(1, 4);
            at[0] = at[0].saturating_mul(texel as i32);
        }
        let layer = layer.map_or(0, |l| self.value32(t, l));
        match surface_address(&view, geom, clamp, at, layer, bytes) {
            SurfaceAddress::Nothing => Ok(None),
            SurfaceAddress::Trap => {
                Err(self.access_fault(t, FaultKind::LaunchFailed, view.base, bytes, is_write))
            }
            SurfaceAddress::At(host) => {
                self.place_at(t, Space::Generic, host, bytes, is_write)?;
                Ok(Some(host))
            }
        }
    }

    fn surface_load(&mut self, t: usize, suld: &Suld) -> Result<(), Stop> {
        let element = suld.ty.bytes();
        let bytes = element * suld.dst.len() as u32;
        let host = self.surface(
            t,
            SurfaceAt {
                handle: suld.surface,
                geom: suld.geom,
                clamp: suld.clamp,
                layer: suld.layer,
                coords: &suld.coords,
                bytes,
                scale: false,
                is_write: false,
            },
        )?;
        for (i, dst) in suld.dst.iter().enumerate() {
            let bits = match host {
                Some(host) => self.read_at(t, host + u64::from(element) * i as u64, element)?,
                None => 0,
            };
            self.set_optional(t, *dst, bits);
        }
        Ok(())
    }

    fn surface_store(&mut self, t: usize, sust: &Sust) -> Result<(), Stop> {
        if !sust.formatted {
            let element = sust.ty.bytes();
            let bytes = element * sust.src.len() as u32;
            let host = self.surface(t, written_at(sust, bytes, false))?;
            for (i, src) in sust.src.iter().enumerate() {
                let bits = self.value(t, *src) & mask(element * 8);
                if let Some(host) = host {
                    // SAFETY: `surface` checked the whole access.
                    unsafe { write(host + u64::from(element) * i as u64, element, bits) };
                }
            }
            return Ok(());
        }
        let view = self.view(t, sust.surface)?;
        let element = component_bytes(view.format);
        let channels = view.channels.clamp(1, 4);
        let bytes = element * channels;
        let host = self.surface(t, written_at(sust, bytes, true))?;
        for (i, src) in sust.src.iter().enumerate().take(channels as usize) {
            let bits = encode_component(view.format, self.value32(t, *src));
            if let Some(host) = host {
                // SAFETY: `surface` checked the whole access.
                unsafe { write(host + u64::from(element) * i as u64, element, bits) };
            }
        }
        Ok(())
    }

    fn surface_reduce(&mut self, t: usize, sured: &Sured) -> Result<(), Stop> {
        let bytes = sured.ty.bytes();
        let host = self.surface(
            t,
            SurfaceAt {
                handle: sured.surface,
                geom: sured.geom,
                clamp: sured.clamp,
                layer: sured.layer,
                coords: &sured.coords,
                bytes,
                scale: sured.formatted,
                is_write: true,
            },
        )?;
        let operand = self.value(t, sured.src);
        if let Some(host) = host {
            let apply =
                |old| mica_ptx_ops::atomic::apply(sured.op, sured.ty, false, old, operand, 0);
            // SAFETY: `surface` checked the access.
            unsafe { update(host, bytes, apply) };
        }
        Ok(())
    }
}

/// Which part of a surface an instruction touches, and how.
struct SurfaceAt<'a> {
    handle: Operand,
    geom: Geometry,
    clamp: Clamp,
    layer: Option<Operand>,
    coords: &'a [Operand],
    bytes: u32,
    /// `x` is in elements rather than bytes.
    scale: bool,
    is_write: bool,
}

fn answer(view: &TextureView, query: TexQuery) -> u32 {
    match query {
        TexQuery::Width => view.extent.x,
        TexQuery::Height => view.extent.y,
        TexQuery::Depth | TexQuery::ArraySize => view.extent.z,
        TexQuery::ChannelDataType => view.format,
        TexQuery::ChannelOrder => view.channels,
        TexQuery::NormalizedCoords => u32::from(view.normalized_coords),
        TexQuery::ForceUnnormalizedCoords => u32::from(!view.normalized_coords),
        TexQuery::NumMipmapLevels | TexQuery::NumSamples => 1,
        TexQuery::MemoryLayout => 0,
        TexQuery::FilterMode => view.filter,
        TexQuery::AddrMode0 => view.address_mode[0],
        TexQuery::AddrMode1 => view.address_mode[1],
        TexQuery::AddrMode2 => view.address_mode[2],
    }
}

/// Where a store writes so many bytes; a formatted one counts in texels.
fn written_at(sust: &Sust, bytes: u32, is_formatted: bool) -> SurfaceAt<'_> {
    SurfaceAt {
        handle: sust.surface,
        geom: sust.geom,
        clamp: sust.clamp,
        layer: sust.layer,
        coords: &sust.coords,
        bytes,
        scale: is_formatted,
        is_write: true,
    }
}
