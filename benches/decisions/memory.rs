//! Memory: the size of a bucket as a value, in a map, and on the heap as requested from the allocator.

use super::contestants::{self, Asked, Case, Entry};
use super::counting;

pub(crate) fn compare() {
    println!("{:26}{:>12}{:>12}{:>20}{:>20}", "", "bucket", "map entry", "heap, 1000000 keys", "heap, 100 spent");
    for Entry { name, bucket, in_map, make } in contestants::all(1_000_000) {
        let many = heap_each(make, Case::Allowed, 1_000_000);
        let spent = heap_each(make, Case::Refused, 1_000);
        println!("{name:26}{bucket:12}{in_map:12}{many:20.1}{spent:20.1}");
    }
}

/// The same for keys that are texts of 16 bytes, which the maps keep on the heap.
pub(crate) fn compare_texts() {
    println!("{:26}{:>20}", "", "heap, 1000000 keys");
    let texts: Vec<String> = (0..1_000_000).map(|key| format!("account:{key:08}")).collect();
    for (name, make) in contestants::with_texts() {
        println!("{name:26}{:20.1}", heap_of(|| make(&texts), 1_000_000));
    }
}

/// Heap bytes per key.
fn heap_each(make: fn(Case, u32) -> Box<dyn Asked>, case: Case, keys: u32) -> f64 {
    heap_of(|| make(case, keys), keys)
}

fn heap_of<T>(make: impl FnOnce() -> T, keys: u32) -> f64 {
    let before = counting::live_bytes();
    let limiter = make();
    let bytes = u32::try_from(counting::live_bytes() - before).expect("less than 4 GB");
    drop(limiter);
    f64::from(bytes) / f64::from(keys)
}
