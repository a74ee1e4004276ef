//! Variables of loaded code: where they lie, and those that both sides use.

use mica_cuda_abi::CuResult;
use mica_wire::session::ModuleBind;

use super::{Library, Loaded};
use crate::isolated::context::Context;
use crate::isolated::memory::AllocationKind;
use crate::isolated::state::State;
use crate::isolated::support::{Answer, Code, lock};

/// Where a variable of the device lies and how large it is.
fn globals_of(loaded: &Loaded, name: &str) -> Answer<(u64, u64)> {
    let found = lock(&loaded.globals).get(name).copied();
    let found = found.map(|(_, address, bytes)| (address, bytes));
    found.ok_or(Code(CuResult::NotFound as u32))
}

/// Where a variable lies and how large it is. Runtimes before 13 ask for those that both sides use as
/// for any other.
pub(crate) fn variable_of(
    state: &'static State,
    context: &'static Context,
    library: &Library,
    name: &str,
) -> Answer<(u64, u64)> {
    let loaded = library.load(state, context)?;
    if state.client.snapshot().has_driver {
        return globals_of(&loaded, name);
    }
    match library.is_managed(state, name) {
        true => managed_of(state, context, &loaded, name),
        false => globals_of(&loaded, name),
    }
}

/// A variable that both sides use: moved to shared memory when it is first asked for.
pub(crate) fn managed_of(
    state: &'static State,
    context: &'static Context,
    loaded: &Loaded,
    name: &str,
) -> Answer<(u64, u64)> {
    if state.client.snapshot().has_driver {
        return match loaded.managed.contains(name) {
            true => globals_of(loaded, name),
            false => Err(CuResult::NotFound.into()),
        };
    }
    let mut globals = lock(&loaded.globals);
    let global = globals
        .get_mut(name)
        .ok_or(Code(CuResult::NotFound as u32))?;
    let (index, address, bytes) = *global;
    if state.memory.find_host(address).is_some() {
        return Ok((address, bytes));
    }
    let shared =
        crate::isolated::memory::host_memory::allocate_managed(state, context, bytes as usize)?;
    let request = ModuleBind {
        module: loaded.module,
        global: index,
        address: shared,
    };
    if let Err(error) = context.checked(state.client.call(&request)) {
        if let Some(made) = state.memory.take(shared, &[AllocationKind::Managed]) {
            crate::isolated::memory::host_memory::release(state, &made)?;
        }
        return Err(error);
    }
    state.memory.take(address, &[AllocationKind::Global]);
    *global = (index, shared, bytes);
    Ok((shared, bytes))
}
