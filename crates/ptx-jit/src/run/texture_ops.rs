//! Textures and surfaces.

use mica_kernel::{Fault, FaultKind, TextureView};
use mica_ptx::ast::{Op, Operand, RegId, ScalarType, Space, Suld, Sured, Sust, TexQuery};
use mica_ptx_ops::atomic;
use mica_ptx_ops::surface::{SurfaceAddress, encode_component, surface_address};
use mica_ptx_ops::texture::{Coordinates, component_bytes, gather, sample};

use super::env::Env;
use super::scalar_ops::Out;

fn view(env: &Env<'_>, o: Operand) -> Result<TextureView, Fault> {
    // A texture reference is a variable that holds the handle.
    let handle = match o {
        Operand::Var { var, offset } => {
            let at = env.var_address(var).wrapping_add_signed(offset);
            env.load(env.host_at(Space::Global, at, 8, 8, false)?, 8)
        }
        o => env.value(o),
    };
    if let Some((known, view)) = env.texture.get()
        && known == handle
    {
        return Ok(view);
    }
    let view = env
        .services()
        .and_then(|s| s.texture(handle))
        .ok_or_else(|| env.fault(FaultKind::InvalidAddressSpace))?;
    env.texture.set(Some((handle, view)));
    Ok(view)
}

fn three<T: Default + Copy>(list: &[Operand], f: impl Fn(Operand) -> T) -> [T; 3] {
    let mut out = [T::default(); 3];
    for (o, x) in out.iter_mut().zip(list) {
        *o = f(*x);
    }
    out
}

fn half(bits: u32) -> u128 {
    use mica_ptx_ops::float::{F16, from_f64};
    u128::from(from_f64(F16, f64::from(f32::from_bits(bits))))
}

/// Writes a texel's components: as they are, or as packed halves.
fn texel(dst: &[Option<RegId>], ty: ScalarType, t: [u32; 4], out: &mut Out<'_>) {
    let packed = ty == ScalarType::F16x2;
    for (i, d) in dst.iter().enumerate() {
        let Some(d) = d else { continue };
        let v = if packed {
            half(t[(2 * i) & 3]) | half(t[(2 * i + 1) & 3]) << 16
        } else {
            u128::from(t[i & 3])
        };
        out(*d, v);
    }
}

pub(crate) fn execute(env: &Env<'_>, op: &Op, out: &mut Out<'_>) -> Result<(), Fault> {
    let mut read = |at: u64, bytes: u32| -> Result<u64, Fault> {
        Ok(env.load(env.host_at(Space::Global, at, bytes, 1, false)?, bytes))
    };
    let float = |o: Operand| f32::from_bits(env.word(o));
    let int = |o: Operand| env.word(o) as i32;
    match op {
        Op::Tex(x) => {
            let v = view(env, x.texture)?;
            let coords = if x.coord_ty == ScalarType::F32 {
                Coordinates::Float(three(&x.coords, float))
            } else {
                Coordinates::Integer(three(&x.coords, int))
            };
            let layer = x.layer.map_or(0, |o| env.word(o));
            let t = sample(&v, x.geom, coords, layer, three(&x.offsets, int), &mut read)?;
            texel(&x.dst, x.dst_ty, t, out);
            if let Some(r) = x.resident {
                out(r, 1);
            }
        }
        Op::Tld4(x) => {
            let v = view(env, x.texture)?;
            let layer = x.layer.map_or(0, |o| env.word(o));
            let at = three(&x.coords, float);
            let offsets = three(&x.offsets, int);
            let t = gather(&v, x.geom, at, layer, offsets, x.component, &mut read)?;
            texel(&x.dst, x.dst_ty, t, out);
            if let Some(r) = x.resident {
                out(r, 1);
            }
        }
        Op::Txq {
            query, dst, handle, ..
        } => out(*dst, u128::from(queried(&view(env, *handle)?, *query))),
        Op::Suld(x) => load_surface(env, x, out)?,
        Op::Sust(x) => store_surface(env, x)?,
        Op::Sured(x) => reduce_surface(env, x)?,
        _ => return Err(env.fault(FaultKind::IllegalInstruction)),
    }
    Ok(())
}

/// What `txq` and `suq` answer.
fn queried(v: &TextureView, query: TexQuery) -> u32 {
    match query {
        TexQuery::Width => v.extent.x,
        TexQuery::Height => v.extent.y,
        TexQuery::Depth | TexQuery::ArraySize => v.extent.z,
        TexQuery::NumMipmapLevels | TexQuery::NumSamples => 1,
        TexQuery::NormalizedCoords => u32::from(v.normalized_coords),
        TexQuery::FilterMode => v.filter,
        TexQuery::AddrMode0 => v.address_mode[0],
        TexQuery::AddrMode1 => v.address_mode[1],
        TexQuery::AddrMode2 => v.address_mode[2],
        TexQuery::ChannelDataType => v.format,
        TexQuery::ChannelOrder => v.channels,
        TexQuery::MemoryLayout | TexQuery::ForceUnnormalizedCoords => 0,
    }
}

/// The host address of an access of `bytes` to a surface, in elements of `size`; `None` where the access does nothing.
fn surface_host(
    env: &Env<'_>,
    at: SurfaceAddress,
    bytes: u32,
    size: u32,
    write: bool,
) -> Result<Option<u64>, Fault> {
    match at {
        SurfaceAddress::At(at) => env.host_at(Space::Global, at, bytes, size, write).map(Some),
        SurfaceAddress::Nothing => Ok(None),
        SurfaceAddress::Trap => Err(env.fault(FaultKind::IllegalAddress)),
    }
}

fn load_surface(env: &Env<'_>, x: &Suld, out: &mut Out<'_>) -> Result<(), Fault> {
    let v = view(env, x.surface)?;
    let size = x.ty.bytes();
    let bytes = size * x.dst.len() as u32;
    let layer = x.layer.map_or(0, |o| env.word(o));
    let coords = three(&x.coords, |o| env.word(o) as i32);
    let at = surface_address(&v, x.geom, x.clamp, coords, layer, bytes);
    let host = surface_host(env, at, bytes, size, false)?;
    for (i, d) in x.dst.iter().enumerate() {
        let Some(d) = d else { continue };
        let bits = host.map_or(0, |h| env.load(h + i as u64 * u64::from(size), size));
        out(*d, u128::from(bits));
    }
    Ok(())
}

fn store_surface(env: &Env<'_>, x: &Sust) -> Result<(), Fault> {
    let v = view(env, x.surface)?;
    let layer = x.layer.map_or(0, |o| env.word(o));
    let mut coords = three(&x.coords, |o| env.word(o) as i32);
    let (size, n) = if x.formatted {
        let size = component_bytes(v.format);
        coords[0] = coords[0].wrapping_mul((size * v.channels) as i32);
        (size, (v.channels as usize).min(x.src.len()))
    } else {
        (x.ty.bytes(), x.src.len())
    };
    let bytes = size * n as u32;
    let at = surface_address(&v, x.geom, x.clamp, coords, layer, bytes);
    let Some(host) = surface_host(env, at, bytes, size, true)? else {
        return Ok(());
    };
    for (i, o) in x.src.iter().take(n).enumerate() {
        let bits = match x.formatted {
            true => encode_component(v.format, env.word(*o)),
            false => env.value(*o),
        };
        env.store(host + i as u64 * u64::from(size), size, bits);
    }
    Ok(())
}

fn reduce_surface(env: &Env<'_>, x: &Sured) -> Result<(), Fault> {
    let v = view(env, x.surface)?;
    let layer = x.layer.map_or(0, |o| env.word(o));
    let mut coords = three(&x.coords, |o| env.word(o) as i32);
    let size = x.ty.bytes();
    if x.formatted {
        coords[0] = coords[0].wrapping_mul(size as i32);
    }
    let at = surface_address(&v, x.geom, x.clamp, coords, layer, size);
    let Some(host) = surface_host(env, at, size, size, true)? else {
        return Ok(());
    };
    let value = env.value(x.src);
    super::memory_ops::rmw(host, size, |old| {
        atomic::apply(x.op, x.ty, false, old, value, 0)
    });
    Ok(())
}
