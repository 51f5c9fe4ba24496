//! An allocator that counts. To use it: `#[global_allocator] static HEAP: Counting = Counting;`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, with every call counted for the thread that makes it.
pub(crate) struct Counting;

/// Allocations by this thread. Growing a block is one more.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Bytes requested by this thread, less those it freed. The allocator may take more than was requested.
pub(crate) fn live_bytes() -> i64 {
    LIVE_BYTES.get()
}

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static LIVE_BYTES: Cell<i64> = const { Cell::new(0) };
}

fn asked(bytes: usize) {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
    LIVE_BYTES.set(LIVE_BYTES.get() + bytes.cast_signed() as i64);
}

fn freed(bytes: usize) {
    LIVE_BYTES.set(LIVE_BYTES.get() - bytes.cast_signed() as i64);
}

// SAFETY: every call goes to `System` as it came. The counters are plain cells that need no memory of their own.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        asked(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        asked(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        asked(size);
        freed(layout.size());
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        freed(layout.size());
        unsafe { System.dealloc(block, layout) }
    }
}
