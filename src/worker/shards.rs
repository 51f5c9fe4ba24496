//! How the shards stood that this isolate has asked: those of all of its frontends.

use std::cell::RefCell;

use super::call::Object;
use super::clock;
use super::local_state::OwnState;
use crate::api::ResolvedRequest;
use crate::edge::{ShardCalls, ShardLevels};
use crate::limit::Verb;
use crate::protocol::{Action, Decided, ObjectReply, ObjectRequest};

/// The calls for a request about one budget. Each object is asked for an item of its own.
pub(super) fn calls(
    asked: &ResolvedRequest,
    objects: &[Object],
    requests: Vec<ObjectRequest>,
    local_state: &OwnState,
    random: u64,
    now: i64,
) -> ShardCalls {
    if matches!(asked.action(), Action::Look(_)) && !asked.is_recalled() {
        return ShardCalls::all(requests, now);
    }
    if !asked.takes_from_one_shard() {
        return ShardCalls::first_then_others(requests, random, now);
    }
    let shards = objects.iter().zip(asked.items()).map(|(object, item)| (object.name.as_str(), &item.policy));
    let order = LEVELS.with_borrow_mut(|levels| levels.order(shards, random, clock::now()));
    let known = objects.iter().map(|object| local_state.reply_of_shard(asked, object, Verb::Consume)).collect();
    ShardCalls::one_by_one(requests, &order, known, now)
}

/// Remembers what a shard has answered.
pub(super) fn remember(asked: &ResolvedRequest, object: &Object, decided: &Decided, local_state: &OwnState) {
    LEVELS.with_borrow_mut(|levels| {
        for item in object.items_of(asked) {
            levels.keep(&object.name, &item.policy, decided, object.answered_at);
        }
    });
    // What a reset gives back is forgotten already.
    if matches!(asked.action(), Action::Take(Verb::Consume) | Action::Look(_)) && !asked.is_recalled() {
        let reply = Ok(ObjectReply::Decided(decided.clone()));
        local_state.answered(asked, std::slice::from_ref(object), &[reply]);
    }
}

thread_local! {
    static LEVELS: RefCell<ShardLevels> = RefCell::default();
}
