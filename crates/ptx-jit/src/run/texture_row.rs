//! `tex` for all lanes of a group that sample one texture of one or two dimensions.
//!
//! What is known of the texture stays in the block's scratch memory for its next `tex`: to ask the device and to check
//! the addresses costs more than a sample. A texture that is destroyed while a kernel samples it is undefined; its
//! addresses stay those of the arena. Everything else is done lane by lane ([`super::texture_ops`]).

use mica_ptx::ast::{Geometry, Operand, RegId, ScalarType, Space, Tex};
use mica_ptx_ops::texture::Plane;

use super::env::{self, Env};
use super::recheck::{RECHECK_ARENA, recheck};
use super::row::Rows;
use super::texture_floats::Floats;
use crate::scratch;
use crate::unit::Class;

/// The texture of the block's last `tex`.
struct Known {
    handle: u64,
    /// Where all of its texels are: checked.
    host: u64,
    plane: Plane,
}

const _: () = assert!(
    size_of::<Known>() <= scratch::TEXTURE_BYTES && align_of::<Known>() <= 16,
    "scratch memory has room for a texture"
);

/// What one operand is in each lane.
pub(super) enum Lanes {
    Row(*const u32),
    Number(u32),
}

impl Lanes {
    fn get(&self, lane: usize) -> u32 {
        match self {
            // SAFETY: a row has a word for each lane.
            Lanes::Row(row) => unsafe { row.add(lane).read_unaligned() },
            Lanes::Number(word) => *word,
        }
    }
}

/// The coordinates of a plain `tex` of one or two dimensions.
fn coordinates(x: &Tex, rows: &Rows<'_>) -> Option<[Lanes; 2]> {
    let is_plain = x.layer.is_none() && x.offsets.is_empty() && x.dst_ty != ScalarType::F16x2;
    if !is_plain {
        return None;
    }
    match (x.geom, &x.coords[..]) {
        (Geometry::D1, [a, ..]) => Some([words(rows, *a)?, Lanes::Number(0)]),
        (Geometry::D2, [a, b, ..]) => Some([words(rows, *a)?, words(rows, *b)?]),
        _ => None,
    }
}

/// Where the four components go that are wanted.
fn results(x: &Tex, rows: &Rows<'_>) -> Option<[Option<*mut u32>; 4]> {
    let mut results = [None; 4];
    if x.dst.len() > results.len() {
        return None;
    }
    for (to, r) in results.iter_mut().zip(&x.dst) {
        *to = match r {
            Some(r) => Some(result(rows, *r, Class::B32)?),
            None => None,
        };
    }
    Some(results)
}

/// Samples for all lanes. `None`, with nothing done, where that has to go lane by lane.
pub(super) fn sample(env: &Env<'_>, x: &Tex, rows: &Rows<'_>) -> Option<()> {
    let coords = coordinates(x, rows)?;
    let results = results(x, rows)?;
    let resident = match x.resident {
        Some(r) => Some(result(rows, r, Class::Pred)?),
        None => None,
    };
    let handle = handle(env, x.texture, rows)?;
    let known = known(env, handle, x.geom)?;
    let is_float = x.coord_ty == ScalarType::F32;
    let (first, host, recheck_all) = (env.thread, known.host, env.kernel.recheck);
    if let (true, Some(simple)) = (is_float, known.plane.simple()) {
        let floats = Floats {
            env,
            rows,
            host,
            simple,
            coords: &coords,
            results: &results,
            resident,
        };
        floats.sample();
        return Some(());
    }
    for lane in 0..rows.lanes {
        let read = |offset: u64, bytes: u32| {
            if recheck_all {
                again(env, rows, lane, host + offset, bytes);
            }
            env::load(host + offset, bytes)
        };
        let [a, b] = [coords[0].get(lane), coords[1].get(lane)];
        env.note_access_of(first + lane as u32);
        let texel = match is_float {
            true => known
                .plane
                .sample([f32::from_bits(a), f32::from_bits(b)], read),
            false => known.plane.texel([a as i32, b as i32], read),
        };
        for (to, word) in results.iter().zip(texel) {
            put(*to, lane, word);
        }
        put(resident, lane, u32::MAX);
    }
    Some(())
}

fn put(row: Option<*mut u32>, lane: usize, word: u32) {
    if let Some(row) = row {
        // SAFETY: a row has a word for each lane.
        unsafe { row.add(lane).write_unaligned(word) };
    }
}

/// Checks an address once more ([`crate::Options::recheck`]).
#[cold]
pub(super) fn again(env: &Env<'_>, rows: &Rows<'_>, lane: usize, at: u64, bytes: u32) {
    let thread = u64::from(env.thread) + lane as u64;
    let (bytes, region) = (u64::from(bytes), RECHECK_ARENA as u64);
    recheck(env.ctx, rows.site, thread, at, bytes, region);
}

fn words(rows: &Rows<'_>, o: Operand) -> Option<Lanes> {
    match o {
        Operand::Reg(r) => Some(Lanes::Row(rows.operand(r, Class::B32)?.cast())),
        Operand::Imm(bits) => Some(Lanes::Number(bits as u32)),
        _ => None,
    }
}

fn result(rows: &Rows<'_>, r: RegId, class: Class) -> Option<*mut u32> {
    Some(rows.result(r, class)?.cast())
}

/// The texture that all lanes sample.
fn handle(env: &Env<'_>, o: Operand, rows: &Rows<'_>) -> Option<u64> {
    match o {
        Operand::Reg(r) => {
            let row: *const u64 = rows.operand(r, Class::B64)?.cast();
            // SAFETY: a row has eight bytes for each lane.
            let get = |lane: usize| unsafe { row.add(lane).read_unaligned() };
            (1..rows.lanes)
                .all(|lane| get(lane) == get(0))
                .then(|| get(0))
        }
        Operand::Var { var, offset } => {
            let at = env.var_address(var).wrapping_add_signed(offset);
            let host = env.host_at(Space::Global, at, 8, 8, false).ok()?;
            Some(env::load(host, 8))
        }
        _ => None,
    }
}

fn known<'k>(env: &Env<'k>, handle: u64, geom: Geometry) -> Option<&'k Known> {
    let scratch = env.context().scratch;
    // SAFETY: the header and the room for a texture are inside scratch memory, which is aligned and this block's
    // own; the room is written before the word says so.
    let (state, room) = unsafe {
        (
            &mut *scratch.add(scratch::TEXTURE as usize).cast::<u32>(),
            scratch.add(scratch::TEXTURE_ROOM as usize).cast::<Known>(),
        )
    };
    let dims = 1 + u32::from(geom == Geometry::D2);
    // SAFETY: as above.
    if *state == dims && unsafe { (*room).handle } == handle {
        // SAFETY: as above; nothing writes it while a lane samples.
        return Some(unsafe { &*room });
    }
    let view = env.services()?.texture(handle)?;
    let plane = Plane::new(&view, geom)?;
    let (base, bytes) = plane.bytes()?;
    // All texels at once; where that fails, each lane is told of its own.
    let bytes = u32::try_from(bytes).ok()?;
    let host = env.host_at(Space::Global, base, bytes, 1, false).ok()?;
    *state = 0;
    let new = Known {
        handle,
        host,
        plane,
    };
    // SAFETY: as above.
    unsafe { room.write(new) };
    *state = dims;
    // SAFETY: as above.
    Some(unsafe { &*room })
}
