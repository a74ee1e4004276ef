//! Notes that a block was entered, in code that was made to record coverage.

use std::mem::offset_of;

use cranelift_codegen::ir::{InstBuilder, types};
use mica_kernel::BlockContext;

use super::{Emit, flags};
use crate::unit::BlockId;

impl Emit<'_, '_> {
    /// Sets the block's byte where it is not set yet: a store at every entry would send the cache line from core to core.
    pub(crate) fn note_entered(&mut self, id: BlockId) {
        if !self.src.coverage || self.plan.unit.blocks[id as usize].covers.is_empty() {
            return;
        }
        let bytes = self.field(types::I64, offset_of!(BlockContext, entered));
        let at = self.add_imm(bytes, i64::from(id));
        let entered = self.b.ins().load(types::I8, flags(), at, 0);
        let (first, on) = (self.cold(), self.b.create_block());
        self.b.ins().brif(entered, on, &[], first, &[]);
        self.b.switch_to_block(first);
        let one = self.imm(types::I8, 1);
        self.b.ins().store(flags(), one, at, 0);
        self.b.ins().jump(on, &[]);
        self.b.switch_to_block(on);
    }
}
