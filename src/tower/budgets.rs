//! The keyed limiter of a policy, and its answers as HTTP responses.

use core::hash::{BuildHasher, Hash};
use std::collections::hash_map::RandomState;
use std::sync::Arc;

use http::request::Parts;

use super::response::Fields;
use crate::api::{Cost, Problem, Reply, ResolvedItem, ResolvedRequest, no_room};
use crate::keyed::{Answer, Full, KeyedLimiter};
use crate::limit::{Limit, Part, Verb};
use crate::policy::{NamedLimit, Policy};
use crate::protocol::{Decided, LimitAnswer, ObjectReply};

pub(super) trait Budgets: Send + Sync {
    /// The fields for the response to a granted request, or the response to a refused one.
    fn consume(&self, request: &Parts, now: i64, cost: u64) -> Result<Fields, Reply>;

    /// The same for another number of keys at once, with full budgets.
    fn with_max_keys(&self, max_keys: usize) -> Arc<dyn Budgets>;
}

pub(super) type FromRequest<T> = Arc<dyn Fn(&Parts) -> T + Send + Sync>;

/// The key of each request.
pub(super) struct Keys<K> {
    of: FromRequest<Option<K>>,
    /// The body of the 500 for a request without a key.
    if_missing: &'static str,
}

impl<K> Keys<K> {
    pub(super) fn new(key: impl Fn(&Parts) -> Option<K> + Send + Sync + 'static, if_missing: &'static str) -> Self {
        Self { of: Arc::new(key), if_missing }
    }
}

/// The budgets of `policy`; a single one, if it has one for all.
pub(super) fn new<K>(policy: &Policy, max_keys: usize, keys: Keys<K>) -> Arc<dyn Budgets>
where
    K: Hash + Eq + Clone + Send + 'static,
{
    let undivided = Arc::new(policy.undivided());
    if policy.frontend().has_one_budget {
        return keyed(undivided, max_keys, Keys::new(|_| Some(()), NO_KEY));
    }
    keyed(undivided, max_keys, keys)
}

fn keyed<K>(policy: Arc<Policy>, max_keys: usize, keys: Keys<K>) -> Arc<dyn Budgets>
where
    K: Hash + Eq + Clone + Send + 'static,
{
    // A key's states are an array, so that they need no allocation of their own.
    match policy.limits().len() {
        0 => Keyed::<K, 0>::of(policy, max_keys, keys), // no limit is enforced
        1 => Keyed::<K, 1>::of(policy, max_keys, keys),
        2 => Keyed::<K, 2>::of(policy, max_keys, keys),
        3 => Keyed::<K, 3>::of(policy, max_keys, keys),
        4 => Keyed::<K, 4>::of(policy, max_keys, keys),
        5 => Keyed::<K, 5>::of(policy, max_keys, keys),
        6 => Keyed::<K, 6>::of(policy, max_keys, keys),
        7 => Keyed::<K, 7>::of(policy, max_keys, keys),
        _ => Keyed::<K, 8>::of(policy, max_keys, keys), // policy::MAX_LIMITS
    }
}
struct Keyed<K, const N: usize> {
    policy: Arc<Policy>,
    keys: Keys<K>,
    /// `None` only if the policy had another number of limits than `N`.
    limiter: Option<KeyedLimiter<K, N>>,
}

impl<K: Hash + Eq + Clone + Send + 'static, const N: usize> Keyed<K, N> {
    fn of(policy: Arc<Policy>, max_keys: usize, keys: Keys<K>) -> Arc<dyn Budgets> {
        let limits: Vec<Limit> = policy.limits().iter().map(NamedLimit::limit).copied().collect();
        let limits: Option<[Limit; N]> = limits.try_into().ok();
        Arc::new(Self { policy, keys, limiter: limits.map(|limits| KeyedLimiter::new(limits, max_keys)) })
    }

    /// Each limit's answer, or the reply if there is none. `costs` has one for each limit. Waits are counted from `now`, the caller's clock;
    /// the decision may be of a later moment that was seen before.
    fn ask(&self, key: &K, now: i64, costs: &[u64]) -> Result<Decided, Reply> {
        let (Some(limiter), Ok(costs)) = (&self.limiter, costs.try_into()) else {
            return Err(Problem::Misconfigured { missing: Vec::new() }.reply());
        };
        match limiter.decide(key, now, costs, Verb::Consume) {
            Ok(Answer { now: at, parts, .. }) => {
                Ok(Decided::new(now, parts.iter().map(|part| answer(part, at)).collect()))
            }
            Err(Full { retry_at, .. }) => Err(no_room(retry_at.map(|retry_at| retry_at.abs_diff(now)))),
        }
    }
}

impl<K: Hash + Eq + Clone + Send + 'static, const N: usize> Budgets for Keyed<K, N> {
    fn consume(&self, request: &Parts, now: i64, cost: u64) -> Result<Fields, Reply> {
        if self.policy.has_slots() {
            return Err(misconfigured(HAS_SLOTS));
        }
        if self.policy.has_own_rolling_windows() {
            return Err(misconfigured(HAS_ROLLING_WINDOWS));
        }
        let key = (self.keys.of)(request).ok_or_else(|| misconfigured(self.keys.if_missing))?;
        let request = ResolvedRequest::consume(&self.policy, &Cost::Each(cost)).map_err(|problem| problem.reply())?;
        let request = request.spread(|| Some(RandomState::new().hash_one(now)));
        let costs = request.items().first().map_or(&[][..], ResolvedItem::enforced_costs);
        let decided = self.ask(&key, now, costs)?;
        let is_granted = decided.limits.iter().all(|limit| limit.decision.is_allow());
        let answer = if is_granted {
            request.fields(&decided).map(Ok)
        } else {
            request.reply(&ObjectReply::Decided(decided)).map(Err)
        };
        answer.unwrap_or_else(|problem| Err(problem.reply()))
    }

    fn with_max_keys(&self, max_keys: usize) -> Arc<dyn Budgets> {
        let Keys { of, if_missing } = &self.keys;
        Self::of(Arc::clone(&self.policy), max_keys, Keys { of: Arc::clone(of), if_missing })
    }
}

fn answer(&Part { limit, state, decision, .. }: &Part<'_>, now: i64) -> LimitAnswer {
    let (remaining, owed) = (limit.remaining(&state, now), limit.owed(&state, now));
    LimitAnswer { decision, remaining, owed, reset_at: limit.full_at(&state, now), snapshot: limit.snapshot(&state) }
}

fn misconfigured(body: &str) -> Reply {
    let headers = vec![("content-type", "application/problem+json".into()), ("cache-control", "no-store".into())];
    Reply::bare(500, headers, body.to_owned())
}

/// The answer under a policy that nothing here can decide.
const HAS_SLOTS: &str = r#"{"type":"urn:problem-type:tollgate:misconfigured","title":"Misconfigured","status":500,"detail":"the server's policy has slots, which only reservations of the service take; nothing was taken"}"#;

/// The answer under a policy whose limits no table of states can keep.
const HAS_ROLLING_WINDOWS: &str = r#"{"type":"urn:problem-type:tollgate:misconfigured","title":"Misconfigured","status":500,"detail":"the server's policy has a rolling window, which only the service keeps; nothing was taken"}"#;

/// The answer to a request without the key of the application.
pub(super) const NO_KEY: &str = r#"{"type":"urn:problem-type:tollgate:misconfigured","title":"Misconfigured","status":500,"detail":"the server's rate limit found no key in this request; nothing was taken"}"#;
