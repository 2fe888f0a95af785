//! Blocks: aligned memory that a log appends to while writes and sends read what is already there.
//!
//! The bytes below [`Block::len`] never change again, so any number of [`MemSpan`]s may point at them while the one
//! writer appends behind. A block belongs to one shard (`Rc`, not `Send`) and is freed with its last span.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;

use crate::model::limit::BLOCK_BYTES;

/// `capacity` bytes, aligned to [`BLOCK_BYTES`], of which the first `len` are written and frozen.
pub struct Block {
    ptr: NonNull<u8>,
    capacity: usize,
    len: Cell<usize>,
}

impl Block {
    /// Zeroed memory of at least `capacity` bytes, rounded up to whole [`BLOCK_BYTES`].
    pub fn new(capacity: usize) -> Rc<Block> {
        let capacity = capacity.max(1).next_multiple_of(BLOCK_BYTES);
        let layout = Self::layout(capacity);
        // SAFETY: the layout has a non-zero size.
        let ptr = NonNull::new(unsafe { alloc_zeroed(layout) })
            .unwrap_or_else(|| handle_alloc_error(layout));
        Rc::new(Block {
            ptr,
            capacity,
            len: Cell::new(0),
        })
    }

    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, BLOCK_BYTES).expect("capacity fits isize")
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes written, frozen.
    pub fn len(&self) -> usize {
        self.len.get()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn room(&self) -> usize {
        self.capacity - self.len()
    }

    /// Appends `n` bytes that `fill` writes (it gets exactly `n` bytes, with undefined but initialised content).
    /// Panics when there is no room: the caller checks [`Block::room`].
    pub fn append_with<R>(&self, n: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        let len = self.len.get();
        assert!(
            n <= self.capacity - len,
            "append of {n} bytes into {} of room",
            self.capacity - len
        );
        // SAFETY: [len..len + n) is inside the allocation, initialised (zeroed at birth), and no span can reach it:
        // spans end at or below `len`, and `fill` cannot append again because `len` is raised before it runs only
        // after the check above, and the slice handed out is disjoint from any later one.
        let target = unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr().add(len), n) };
        let result = fill(target);
        assert_eq!(self.len.get(), len, "no append inside an append");
        self.len.set(len + n);
        result
    }

    pub fn append(&self, bytes: &[u8]) {
        self.append_with(bytes.len(), |target| target.copy_from_slice(bytes));
    }

    /// The block for a new use, if nobody else holds it or a span of it. Its old bytes remain behind `len`, so a segment
    /// must call [`Block::clear_padding`] before a write; otherwise `None`, and the last span frees it.
    pub fn recycle(mut block: Rc<Block>) -> Option<Rc<Block>> {
        Rc::get_mut(&mut block)?.len.set(0);
        Some(block)
    }

    /// Zeroes what follows `len` in its [`BLOCK_BYTES`] unit: the padding of the next direct write.
    pub fn clear_padding(&self) {
        let len = self.len.get();
        let end = len.next_multiple_of(BLOCK_BYTES);
        // SAFETY: [len..end) is inside the allocation (the capacity is whole units) and no span reaches it.
        unsafe { std::ptr::write_bytes(self.ptr.as_ptr().add(len), 0, end - len) };
    }

    /// The frozen bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: [0..len) is inside the allocation and is never written again.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len.get()) }
    }

    /// Address and length of `[start..end)` rounded up to whole [`BLOCK_BYTES`], for a direct write. What lies behind
    /// `len` in the last block is padding: zeros, or bytes appended while the write is in flight.
    pub fn padded(&self, start: usize, end: usize) -> (*const u8, usize) {
        let end = end.next_multiple_of(BLOCK_BYTES);
        assert!(
            start.is_multiple_of(BLOCK_BYTES) && start <= end && end <= self.capacity,
            "aligned range inside the block"
        );
        // SAFETY: start <= capacity.
        (unsafe { self.ptr.as_ptr().add(start) }, end - start)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.capacity)) }
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({}/{})", self.len(), self.capacity)
    }
}

/// Frozen bytes `[start..end)` of a block; keeps the block alive.
#[derive(Clone, Debug)]
pub struct MemSpan {
    block: Rc<Block>,
    start: u32,
    end: u32,
}

impl MemSpan {
    /// Panics when the range is not frozen yet.
    pub fn new(block: &Rc<Block>, start: usize, end: usize) -> MemSpan {
        assert!(
            start <= end && end <= block.len(),
            "a span holds frozen bytes only"
        );
        MemSpan {
            block: Rc::clone(block),
            start: start as u32,
            end: end as u32,
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.block.bytes()[self.start as usize..self.end as usize]
    }

    pub fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Address and length for a direct write: the end is rounded up to whole blocks (see [`Block::padded`]).
    pub fn padded(&self) -> (*const u8, usize) {
        self.block.padded(self.start as usize, self.end as usize)
    }

    /// The bytes a direct write of this span puts on disk, padding included, as they are now (for the simulator).
    pub fn padded_bytes(&self) -> Vec<u8> {
        let (ptr, len) = self.padded();
        // SAFETY: `padded` returns an initialised range inside the allocation; the owner thread is this one.
        unsafe { std::slice::from_raw_parts(ptr, len) }.to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_keep_their_bytes_while_the_block_grows() {
        let block = Block::new(8192);
        block.append(b"hello");
        let span = MemSpan::new(&block, 0, 5);
        block.append(b" world");
        drop(block);
        assert_eq!(span.bytes(), b"hello");
        assert_eq!(span.padded().1, 4096);
        assert_eq!(span.padded().0 as usize % BLOCK_BYTES, 0);
    }

    #[test]
    fn a_block_is_used_again_only_when_no_span_is_left() {
        let block = Block::new(4096);
        block.append(b"secret");
        let span = MemSpan::new(&block, 0, 6);
        assert!(Block::recycle(block).is_none());
        assert_eq!(span.bytes(), b"secret");
        let block = Block::new(4096);
        block.append(b"secret");
        let block = Block::recycle(block).expect("nobody else");
        block.append(b"ab");
        block.clear_padding();
        let span = MemSpan::new(&block, 0, 2);
        assert_eq!(&span.padded_bytes()[..8], b"ab\0\0\0\0\0\0");
    }

    #[test]
    #[should_panic(expected = "a span holds frozen bytes only")]
    fn a_span_of_unwritten_bytes_is_refused() {
        let block = Block::new(4096);
        let _ = MemSpan::new(&block, 0, 1);
    }
}
