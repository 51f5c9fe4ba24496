//! Memory for some buckets in two hundred bytes of WebAssembly; the usual allocator takes eight thousand.
//!
//! Every block is a power of two long, and one that is given back waits in the list of its length. Blocks are neither
//! cut nor joined, so what was needed once for one length is kept for that length: right for a page that makes some
//! buckets and keeps them, wrong for a program that builds strings and maps. The Worker has the usual one.

use core::alloc::{GlobalAlloc, Layout};
use core::arch::wasm32::{memory_grow, memory_size, unreachable};
use core::cell::Cell;
use core::hint::assert_unchecked;
use core::ptr::{null_mut, with_exposed_provenance_mut};

#[global_allocator]
static MEMORY: Memory = Memory { given_back: [const { Cell::new(null_mut()) }; 32], fresh: Cell::new(0) };

struct Memory {
    /// The first block of each list, by the logarithm of its length. The first word of a block points to the next.
    given_back: [Cell<*mut u8>; 32],
    /// From here on nothing was ever used; 0 before the first use of all.
    fresh: Cell<usize>,
}

// SAFETY: `js` declares this module only where there is one thread.
unsafe impl Sync for Memory {}

// SAFETY: a block is as long as its list says and aligned to that, and it is either in use or in one list, once.
unsafe impl GlobalAlloc for Memory {
    #[expect(clippy::cast_ptr_alignment, reason = "a block is aligned to its length")]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let len = block_len(layout);
        let list = self.list(len);
        let mut block = list.get();
        if block.is_null() {
            block = self.fresh_block(len);
        } else {
            // SAFETY: `dealloc` put it there.
            list.set(unsafe { block.cast::<*mut u8>().read() });
        }
        // SAFETY: `fresh_block` does not return at all when there is no more memory. Said aloud, because otherwise
        // every caller brings the panic of an allocation that failed.
        unsafe { assert_unchecked(!block.is_null()) };
        block
    }

    #[expect(clippy::cast_ptr_alignment, reason = "a block is aligned to its length")]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let list = self.list(block_len(layout));
        // SAFETY: a block has room for a pointer, and whoever had it is done with it.
        unsafe { block.cast::<*mut u8>().write(list.get()) };
        list.set(block);
    }
}

impl Memory {
    fn list(&self, len: usize) -> &Cell<*mut u8> {
        &self.given_back[len.trailing_zeros() as usize % 32]
    }

    fn fresh_block(&self, len: usize) -> *mut u8 {
        let memory_end = memory_size::<0>().saturating_mul(PAGE);
        let unaligned = match self.fresh.get() {
            0 => memory_end, // what lies before it is the stack and the constants
            fresh => fresh,
        };
        let Some(start) = unaligned.checked_next_multiple_of(len) else { unreachable() };
        let Some(end) = start.checked_add(len) else { unreachable() };
        let missing = end.saturating_sub(memory_end);
        if missing > 0 && memory_grow::<0>(missing.div_ceil(PAGE)) == usize::MAX {
            unreachable();
        }
        self.fresh.set(end);
        with_exposed_provenance_mut(start)
    }
}

/// How long a block must be: at least 16 bytes. A layout is shorter than 2³¹ bytes, so there is a power of two for it.
fn block_len(layout: Layout) -> usize {
    layout.size().max(layout.align()).max(16).next_power_of_two()
}

const PAGE: usize = 1 << 16;
