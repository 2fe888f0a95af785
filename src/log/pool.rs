//! Spare blocks, so that a busy log does not pay for fresh zeroed pages.

use std::rc::Rc;

use super::block::Block;
use crate::model::limit::BLOCK_BYTES;

/// Sizes are `BLOCK_BYTES << class`: 4 KiB to 1 MiB.
const CLASSES: usize = 9;
pub(crate) const BLOCK_BYTES_MAX: usize = BLOCK_BYTES << (CLASSES - 1);
/// Spare memory kept, bytes; what comes back beyond it is freed.
const SPARE_BYTES_MAX: usize = 8 * 1024 * 1024;

#[derive(Debug, Default)]
pub(crate) struct Pool {
    spare: [Vec<Rc<Block>>; CLASSES],
    spare_bytes: usize,
    /// Bytes of blocks given out and not yet returned.
    live_bytes: u64,
}

impl Pool {
    /// A block of at least `bytes` (at most [`BLOCK_BYTES_MAX`]). Its content is undefined.
    pub fn take(&mut self, bytes: usize) -> Rc<Block> {
        let class = bytes
            .clamp(BLOCK_BYTES, BLOCK_BYTES_MAX)
            .next_power_of_two()
            .trailing_zeros() as usize
            - BLOCK_BYTES.trailing_zeros() as usize;
        let block = match self.spare[class].pop() {
            Some(block) => {
                self.spare_bytes -= block.capacity();
                block
            }
            None => Block::new(BLOCK_BYTES << class),
        };
        self.live_bytes += block.capacity() as u64;
        block
    }

    pub fn give(&mut self, block: Rc<Block>) {
        let capacity = block.capacity();
        self.live_bytes -= capacity as u64;
        if self.spare_bytes + capacity <= SPARE_BYTES_MAX
            && let Some(block) = Block::recycle(block)
        {
            let class = capacity.trailing_zeros() as usize - BLOCK_BYTES.trailing_zeros() as usize;
            self.spare_bytes += capacity;
            self.spare[class].push(block);
        }
    }

    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }
}
