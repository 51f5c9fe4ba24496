//! State shared by all frontends of this isolate, and its sources of time and randomness.

use std::rc::Rc;

use super::clock;
use crate::frontend::{Isolate, Now};

/// State shared by all frontends of this isolate.
pub(super) fn isolate() -> Rc<Isolate> {
    ISOLATE.with(Rc::clone)
}

/// The current time.
pub(super) fn now() -> Now {
    let waiting = clock::wall_clock(); // once: each reading is a call of JavaScript
    Now { at: clock::at(waiting), waiting }
}

/// 64 random bits. All Workers runtimes have them; there is no safe substitute.
pub(super) fn random() -> Option<u64> {
    getrandom::u64().ok()
}

thread_local! {
    static ISOLATE: Rc<Isolate> = Rc::default();
}
