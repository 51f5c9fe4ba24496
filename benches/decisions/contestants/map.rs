//! The map and the hasher for every contestant that allows a choice, and two contestants that measure the harness.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::{Contestant, Quota};

pub(super) type Map<V> = HashMap<u64, V, Hash>;
pub(super) type Hash = BuildHasherDefault<Mix>;

pub(super) fn filled<V>(keys: u32, value: impl Fn() -> V) -> Map<V> {
    (0..u64::from(keys)).map(|key| (key, value())).collect()
}

/// Applies `f` to the value of `key`, which is created if absent.
#[inline]
pub(super) fn with<V, A>(map: &mut Map<V>, key: u64, make: impl FnOnce() -> V, f: impl FnOnce(&mut V) -> A) -> A {
    if let Some(value) = map.get_mut(&key) {
        return f(value);
    }
    f(map.entry(key).or_insert_with(make))
}

/// The last step of Murmur3. The standard library's hasher takes longer than a decision and would hide it.
#[derive(Clone, Copy, Default)]
pub(super) struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, key: u64) {
        let key = self.0 ^ key;
        let key = (key ^ (key >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        let key = (key ^ (key >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        self.0 = key ^ (key >> 33);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Grants everything.
pub(super) struct NoLimit;

impl Contestant for NoLimit {
    type Moment = i64;
    type Later = i64;
    type Bucket = ();

    fn new(_: &Quota, _: u32) -> Self {
        Self
    }

    fn moment(ms: u64) -> i64 {
        ms.cast_signed()
    }

    #[inline]
    fn decide(&mut self, _: u64, now: i64) -> Result<(), i64> {
        if std::hint::black_box(now) < 0 { Err(now) } else { Ok(()) }
    }
}

/// Finds the key, writes the moment into its entry, and grants everything.
pub(super) struct NoLimits(Map<[i64; 2]>);

impl Contestant for NoLimits {
    type Moment = i64;
    type Later = i64;
    type Bucket = [i64; 2];

    fn new(_: &Quota, keys: u32) -> Self {
        Self(filled(keys, || [0; 2]))
    }

    fn moment(ms: u64) -> i64 {
        ms.cast_signed()
    }

    #[inline]
    fn decide(&mut self, key: u64, now: i64) -> Result<(), i64> {
        with(&mut self.0, key, || [0; 2], |value| *value = [now; 2]);
        Ok(())
    }
}
