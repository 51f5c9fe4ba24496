//! The memory of one call of the lint: allocated once, never freed.
#![expect(unsafe_code, reason = "an allocator")]

use std::alloc::{GlobalAlloc, Layout};
use std::arch::wasm32::{memory_grow, memory_size};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// One block after the other, to the end of the module's memory, which grows. JavaScript makes an instance for each call and drops all its
/// memory afterwards: the standard allocator, which could reuse it, is 5 KB more, compressed, for each visitor.
struct Arena {
    /// Where the next block starts; 0 before the first.
    next: AtomicUsize,
}

// Only in the module that scripts/build-library makes: a library must not choose the allocator of the program it is part of.
#[cfg_attr(tollgate_module, global_allocator)]
#[cfg_attr(not(tollgate_module), expect(dead_code, reason = "see above"))]
static ARENA: Arena = Arena { next: AtomicUsize::new(0) };

const PAGE_BYTES: usize = 65_536;

// SAFETY: every block starts at or after the end of the previous one, below the end of the memory. There is one thread.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let mut next = self.next.load(Relaxed);
        if next == 0 {
            next = memory_size(0) * PAGE_BYTES; // memory below belongs to the stack and to constants
        }
        let Some(start) = next.checked_next_multiple_of(layout.align()) else { return ptr::null_mut() };
        let Some(end) = start.checked_add(layout.size()) else { return ptr::null_mut() };
        let missing = end.saturating_sub(memory_size(0) * PAGE_BYTES);
        if missing > 0 && memory_grow(0, missing.div_ceil(PAGE_BYTES)) == usize::MAX {
            return ptr::null_mut();
        }
        self.next.store(end, Relaxed);
        ptr::with_exposed_provenance_mut(start)
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}
