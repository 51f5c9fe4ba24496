//! What all frontends of this isolate share, and where the moments and random bits of this isolate come from.

use std::rc::Rc;

use super::clock;
use crate::frontend::{Isolate, Now};

/// What all frontends of this isolate share.
pub(super) fn isolate() -> Rc<Isolate> {
    ISOLATE.with(Rc::clone)
}

/// The moment.
pub(super) fn now() -> Now {
    Now { at: clock::now(), waiting: clock::wall_clock() }
}

/// 64 random bits. Every Workers runtime has them; without them there is no safe substitute.
pub(super) fn random() -> Option<u64> {
    getrandom::u64().ok()
}

thread_local! {
    static ISOLATE: Rc<Isolate> = Rc::default();
}
