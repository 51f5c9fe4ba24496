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

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise isolates whose halves, or requests whose counts, differ only there would all begin at the same shard.
    #[test]
    fn each_bit_of_an_id_changes_the_upper_bits_and_a_lasting_request_has_those_of_its_fingerprint() {
        let request_id = |id, ttl_ms| RequestId { id, fingerprint: 7, ttl_ms, by_grant: false };
        let upper_bits = |id| bits_of(&request_id(id, 0)) >> 32;
        let id = 0x0123_4567_89ab_cdef_fedc_ba98_7654_3210_u128;
        for bit in 0..128 {
            assert_ne!(upper_bits(id ^ (1 << bit)), upper_bits(id), "{bit}");
        }
        assert_eq!(bits_of(&request_id(id, 1)), 7);
    }
}
