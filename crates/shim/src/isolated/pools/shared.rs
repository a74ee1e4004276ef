//! Pools that programs of one virtual GPU share: an exported pool is a file, an exported pointer says where it lies in
//! memory that its worker shares.

use std::ffi::c_void;

use mica_cuda_abi::Handle;

use super::{imported_pool, pool_of, pool_of_block};
use crate::isolated::context::current;
use crate::isolated::memory::AllocationKind;
use crate::isolated::memory::ipc::{self, IpcHandle, Token, What};
use crate::isolated::memory::vmm::FILE_DESCRIPTOR;
use crate::isolated::state::state;
use crate::isolated::support::{driver, entries, get, invalid, lock, put};

driver! {
    fn pool_export(out: *mut i32, pool: Handle, kind: i32, flags: u64) {
        let pool = pool_of(pool)?;
        if out.is_null() || kind != FILE_DESCRIPTOR || pool.handle_types & kind == 0 || flags != 0 {
            return invalid();
        }
        // Pointers carry what they need themselves.
        let token = Token { what: What::Pool, id: [0; 16], slot: 0, offset: 0, bytes: 0 };
        put(out, ipc::into_file(&token)?)
    }

    fn pool_import(out: *mut Handle, descriptor: *mut c_void, kind: i32, flags: u64) {
        state()?;
        if out.is_null() || kind != FILE_DESCRIPTOR || flags != 0 {
            return invalid();
        }
        ipc::from_file(descriptor as usize as i32, What::Pool)?;
        put(out, imported_pool().handle())
    }

    fn pool_export_pointer(out: *mut IpcHandle, pointer: u64) {
        let state = state()?;
        let found = state.memory.find_device(pointer).filter(|found| found.kind == AllocationKind::Pool);
        let Some(found) = found.filter(|_| !out.is_null()) else {
            return invalid();
        };
        let Some(pool) = pool_of_block(found.pool).filter(|pool| pool.handle_types != 0) else {
            return invalid();
        };
        let chunk = lock(&pool.memory).get(&found.epoch).and_then(|memory| memory.chunk_start(found.device));
        // Without chunks each piece is an allocation of the worker.
        let base = chunk.unwrap_or(found.device);
        let id = ipc::share(state, found.context, base)?;
        let offset = found.device - base;
        put(out, Token { what: What::PoolPointer, id, slot: 0, offset, bytes: found.bytes }.encode())
    }

    fn pool_import_pointer(out: *mut u64, pool: Handle, data: *const IpcHandle) {
        let (state, context) = current()?;
        let pool = pool_of(pool)?;
        if out.is_null() || !pool.is_imported {
            return invalid();
        }
        put(out, ipc::import_pool_pointer(state, context, &get(data)?, pool.handle() as u64)?)
    }
}

entries! {
    cuMemPoolExportPointer = pool_export_pointer;
    cuMemPoolExportToShareableHandle = pool_export;
    cuMemPoolImportFromShareableHandle = pool_import;
    cuMemPoolImportPointer = pool_import_pointer;
}
