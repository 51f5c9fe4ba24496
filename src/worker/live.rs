//! The decisions of this isolate, all of its frontends together, for operators who look on. `live.mjs` sends them.

use std::cell::RefCell;

use wasm_bindgen::prelude::wasm_bindgen;

use super::clock;
use super::frontend::Frontend;
use crate::edge::Tap;
use crate::metrics::LiveDecision;

#[wasm_bindgen]
#[expect(clippy::needless_pass_by_value, reason = "wasm-bindgen has no optional texts by reference")]
#[expect(clippy::unused_self, reason = "only calls on an object revive an instance that has panicked")]
impl Frontend {
    /// Whether anybody looks on.
    #[wasm_bindgen(getter)]
    #[must_use]
    pub fn is_live(&self) -> bool {
        TAP.with_borrow(Tap::has_listeners)
    }

    /// Records where Cloudflare receives the requests of this isolate.
    pub fn live_from(&self, colo: &str) {
        TAP.with_borrow_mut(|tap| tap.set_colo(colo));
    }

    /// In how many milliseconds to send a batch; `undefined` if there is none, or if that has been said before.
    #[must_use]
    pub fn live_due(&self) -> Option<u32> {
        TAP.with_borrow_mut(|tap| tap.due(clock::now()))
    }

    /// The batch to send. Then call [`Frontend::live_answered`] or [`Frontend::live_failed`]. `undefined` if there is none.
    #[must_use]
    pub fn live_batch(&self) -> Option<String> {
        TAP.with_borrow_mut(|tap| tap.take(clock::now()))
    }

    /// Takes over the registry's answer to it: who looks on, if anybody does.
    pub fn live_answered(&self, listeners: Option<String>) {
        TAP.with_borrow_mut(|tap| tap.answered(listeners.as_deref(), clock::now()));
    }

    /// Records that it did not answer.
    pub fn live_failed(&self) {
        TAP.with_borrow_mut(Tap::fail);
    }
}

/// Takes over what the registry says with its answer to a poll.
pub(super) fn hear(listeners: Option<&str>) {
    TAP.with_borrow_mut(|tap| {
        if listeners.is_some() || tap.has_listeners() {
            tap.hear(listeners, clock::now());
        }
    });
}

/// If anybody looks on: what there is to see, given the moment. `tell` gives each decision to the function that it is called with.
pub(super) fn observe<'a>(tell: impl FnOnce(i64, &mut dyn FnMut(&LiveDecision<'a>))) {
    TAP.with_borrow_mut(|tap| {
        if !tap.has_listeners() {
            return;
        }
        let now = clock::now();
        tell(now, &mut |decision| {
            if tap.wants(decision.policy, decision.outcome, now) {
                tap.add(decision);
            }
        });
    });
}

thread_local! {
    static TAP: RefCell<Tap> = RefCell::new(Tap::default());
}
