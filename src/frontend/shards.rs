//! A budget in several shards: the order of calls, and the last known shard levels.

use super::Now;
use super::isolate::Isolate;
use super::memory::Memory;
use super::object::Object;
use crate::api::ResolvedRequest;
use crate::edge::ShardCalls;
use crate::limit::Verb;
use crate::protocol::{Action, Decided, ObjectReply, ObjectRequest, RequestId};

/// 64 bits by which a request is divided among shards: the same each time that it is tried or repeated, and as good as random otherwise.
pub(super) fn bits_of(request_id: &RequestId) -> u64 {
    if request_id.is_lasting() {
        return request_id.fingerprint;
    }
    // A random half and a counter, mixed by multiplications with 2⁶⁴ divided by the golden ratio, which reach the upper bits.
    let [high, low] =
        [request_id.id >> 64, request_id.id & u128::from(u64::MAX)].map(|half| u64::try_from(half).unwrap_or(0));
    let mixed = (high ^ low).wrapping_mul(GOLDEN);
    (mixed ^ (mixed >> 32)).wrapping_mul(GOLDEN).rotate_left(32)
}

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The calls for a request about one budget, each with an item of its own.
pub(super) fn calls(
    asked: &ResolvedRequest,
    objects: &[Object],
    requests: Vec<ObjectRequest>,
    (isolate, memory): (&Isolate, &mut Memory),
    (random, is_tried): (u64, bool),
    now: Now,
) -> ShardCalls {
    if matches!(asked.action(), Action::Look(_)) && !asked.is_recalled() {
        return ShardCalls::all(requests, now.waiting);
    }
    if !asked.takes_from_one_shard() {
        return ShardCalls::first_then_others(requests, (random, is_tried), now.waiting);
    }
    let shards = objects.iter().zip(asked.items()).map(|(object, item)| (object.name.as_str(), &item.policy));
    let order = isolate.shard_levels.borrow_mut().order(shards, random, now.at);
    let known = objects.iter().map(|object| memory.reply_of_shard(asked, object, Verb::Consume, now.at)).collect();
    ShardCalls::one_by_one(requests, &order, known, now.waiting)
}

/// Records a shard's answer.
pub(super) fn remember(
    asked: &ResolvedRequest,
    object: &Object,
    decided: &Decided,
    (isolate, memory): (&Isolate, &mut Memory),
) {
    let mut levels = isolate.shard_levels.borrow_mut();
    for item in object.items_of(asked) {
        levels.keep(&object.name, &item.policy, decided, object.answered_at);
    }
    let reply = Ok(ObjectReply::Decided(decided.clone()));
    memory.answered(asked, std::slice::from_ref(object), &[reply]);
}
