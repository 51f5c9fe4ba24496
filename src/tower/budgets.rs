//! The keyed limiter of a policy, and its answers as HTTP responses.

use core::any::TypeId;
use core::fmt;
use core::hash::{BuildHasher, Hash};
use std::collections::hash_map::RandomState;
use std::sync::Arc;

use crate::api::{Cost, Problem, Reply, ResolvedItem, ResolvedRequest, no_room};
use crate::keyed::{Answer, Full, KeyedLimiter};
use crate::limit::{Limit, Part, Verb};
use crate::policy::{NamedLimit, Policy};
use crate::protocol::{Decided, LimitAnswer, ObjectReply};

pub(super) struct Budgets<K> {
    policy: Arc<Policy>,
    limiter: Box<dyn Consume<K>>,
}

impl<K: Hash + Eq + Clone + Send + 'static> Budgets<K> {
    pub(super) fn new(policy: &Policy, max_keys: usize) -> Result<Self, Problem> {
        if policy.frontend().has_one_budget && TypeId::of::<K>() != TypeId::of::<()>() {
            return Err(Problem::Misconfigured { missing: Vec::new() }); // each key would have its own budget
        }
        let policy = Arc::new(policy.undivided());
        let limits: Vec<Limit> = policy.limits().iter().map(NamedLimit::limit).copied().collect();
        // A key's states are an array, so that they need no allocation of their own.
        let limiter = match limits.len() {
            0 => boxed::<K, 0>(&limits, max_keys), // no limit is enforced
            1 => boxed::<K, 1>(&limits, max_keys),
            2 => boxed::<K, 2>(&limits, max_keys),
            3 => boxed::<K, 3>(&limits, max_keys),
            4 => boxed::<K, 4>(&limits, max_keys),
            5 => boxed::<K, 5>(&limits, max_keys),
            6 => boxed::<K, 6>(&limits, max_keys),
            7 => boxed::<K, 7>(&limits, max_keys),
            _ => boxed::<K, 8>(&limits, max_keys), // policy::MAX_LIMITS
        };
        let limiter = limiter.ok_or(Problem::Misconfigured { missing: Vec::new() })?;
        Ok(Self { policy, limiter })
    }
}

impl<K> Budgets<K> {
    /// The fields for the response to a granted request, or the response to a refused one.
    pub(super) fn consume(&self, key: Option<&K>, now: i64, cost: u64) -> Result<Vec<(&'static str, String)>, Reply> {
        let Some(key) = key else { return Err(no_key()) };
        let request = ResolvedRequest::consume(&self.policy, &Cost::Each(cost)).map_err(|problem| problem.reply())?;
        let request = request.spread(|| Some(RandomState::new().hash_one(now)));
        let costs = request.items().first().map_or(&[][..], ResolvedItem::enforced_costs);
        let (now, limits) = self.limiter.consume(key, now, costs).map_err(no_room)?;
        let is_granted = limits.iter().all(|limit| limit.decision.is_allow());
        let decided = Decided::new(now, limits);
        let answer = if is_granted {
            request.fields(&decided).map(Ok)
        } else {
            request.reply(&ObjectReply::Decided(decided)).map(Err)
        };
        answer.unwrap_or_else(|problem| Err(problem.reply()))
    }
}

impl<K> fmt::Debug for Budgets<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budgets").finish_non_exhaustive()
    }
}

trait Consume<K>: Send + Sync {
    /// The moment of the decision and each limit's answer; or, if there is no room for a new key, how long to wait. `costs` has one for
    /// each limit.
    fn consume(&self, key: &K, now: i64, costs: &[u64]) -> Result<(i64, Vec<LimitAnswer>), Option<u64>>;
}

impl<K: Hash + Eq + Clone + Send, const N: usize> Consume<K> for KeyedLimiter<K, N> {
    fn consume(&self, key: &K, now: i64, costs: &[u64]) -> Result<(i64, Vec<LimitAnswer>), Option<u64>> {
        let costs = costs.try_into().map_err(|_| None)?; // a cost for each: the limits are the policy's
        match self.decide(key, now, costs, Verb::Consume) {
            Ok(Answer { now, parts, .. }) => Ok((now, parts.iter().map(|part| answer(part, now)).collect())),
            Err(Full { retry_at, now, .. }) => Err(retry_at.map(|retry_at| retry_at.abs_diff(now))),
        }
    }
}

fn boxed<K: Hash + Eq + Clone + Send + 'static, const N: usize>(
    limits: &[Limit],
    max_keys: usize,
) -> Option<Box<dyn Consume<K>>> {
    let limits: [Limit; N] = limits.try_into().ok()?;
    Some(Box::new(KeyedLimiter::new(limits, max_keys)))
}

fn answer(&Part { limit, state, decision, .. }: &Part<'_>, now: i64) -> LimitAnswer {
    let (remaining, owed) = (limit.remaining(&state, now), limit.owed(&state, now));
    LimitAnswer { decision, remaining, owed, reset_at: limit.full_at(&state, now), snapshot: limit.snapshot(&state) }
}

fn no_key() -> Reply {
    let headers = vec![("content-type", "application/problem+json".into()), ("cache-control", "no-store".into())];
    Reply::bare(500, headers, NO_KEY.to_owned())
}

const NO_KEY: &str = r#"{"type":"urn:problem-type:tollgate:misconfigured","title":"Misconfigured","status":500,"detail":"the server's rate limit found no key in this request, such as the peer's address; nothing was taken. With axum, serve with `into_make_service_with_connect_info::<SocketAddr>()`"}"#;
