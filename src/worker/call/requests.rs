//! What the objects are asked, and the texts of that in which it crosses to JavaScript.

use std::cell::RefCell;
use std::sync::Arc;

use js_sys::{Array, JsString};
use wasm_bindgen::prelude::wasm_bindgen;

use super::super::settings::Settings;
use super::Object;
use crate::api::{ResolvedItem, ResolvedRequest};
use crate::edge::Batch;
use crate::policy::Policy;
use crate::protocol::{Action, Known, LeaseRequest, ObjectRequest, RequestId};

/// What the objects are asked.
pub(super) fn batch_of(
    asked: &ResolvedRequest,
    objects: &[Object],
    of_request: (RequestId, Option<LeaseRequest>),
    hold_ids: &[u64],
    now: i64,
    settings: &Settings,
) -> Batch {
    let batch = Batch::new(requests_of(asked, objects, of_request, hold_ids, settings), now);
    if settings.sends_definitions || asked.has_inline() { batch.with_definitions() } else { batch }
}

pub(super) fn requests_of(
    asked: &ResolvedRequest,
    objects: &[Object],
    (request_id, lease): (RequestId, Option<LeaseRequest>),
    hold_ids: &[u64],
    settings: &Settings,
) -> Vec<ObjectRequest> {
    let lease = lease.or_else(|| asked.lease().cloned());
    let wants_notices = settings.receivers.is_any() && asked.may_notify();
    let requests = objects.iter().enumerate().map(|(index, object)| {
        let action = match hold_ids.get(index) {
            Some(&id) => Action::Hold(id),
            None => asked.action(),
        };
        // A peek changes nothing, so repetitions need not be recognized.
        let request_id = (!matches!(action, Action::Look(_)) || asked.is_recalled()).then_some(request_id);
        // There are none if a reservation is settled at its reserved cost.
        let costs = object.items_of(asked).filter_map(|item| item.costs.clone()).collect();
        let mut shadow_costs: Vec<_> = object.items_of(asked).filter_map(|item| item.shadow_costs.clone()).collect();
        if shadow_costs.iter().all(Vec::is_empty) {
            shadow_costs.clear();
        }
        let known = known_of(asked, object, settings);
        ObjectRequest { action, request_id, costs, shadow_costs, known, wants_notices, lease: lease.clone() }
    });
    requests.collect()
}

/// What is known from the registry of the policies that the object is asked for, if there is one.
pub(super) fn known_of(asked: &ResolvedRequest, object: &Object, settings: &Settings) -> Option<Known> {
    let id = |item: &ResolvedItem| if item.policy.timeline().since() == 0 { 0 } else { item.policy.id() };
    let names = object.items_of(asked).map(|item| item.policy.name());
    settings.as_of(names).map(|as_of| Known { as_of, ids: object.items_of(asked).map(id).collect() })
}

/// The names of the policies, separated by commas: a text of JavaScript, which is made once for requests about the same.
pub(super) fn names_of<'a>(policies: impl Iterator<Item = &'a Arc<Policy>>) -> JsString {
    thread_local! {
        static LATEST: RefCell<Option<(String, JsString)>> = const { RefCell::new(None) };
    }
    let mut names = String::new();
    for policy in policies {
        if !names.is_empty() {
            names.push(',');
        }
        names.push_str(policy.wire_name());
    }
    LATEST.with_borrow_mut(|latest| match latest {
        Some((known, text)) if *known == names => text.clone(),
        _ => {
            let text = JsString::from(names.as_str());
            *latest = Some((names, text.clone()));
            text
        }
    })
}

#[wasm_bindgen(inline_js = "export const parts = (...parts) => parts;")]
extern "C" {
    /// What [`Call::next`] returns, made by a single call.
    pub(super) fn parts(
        index: usize,
        name: &str,
        names: &JsString,
        request: &str,
        definitions: Option<String>,
        wait_ms: f64,
    ) -> Array;
}
