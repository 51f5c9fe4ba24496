//! The keyed limiter of a policy, and its answers as HTTP responses.

use core::hash::{BuildHasher, Hash};
use std::collections::hash_map::RandomState;
use std::sync::Arc;

use http::request::Parts;

use super::response::Fields;
use crate::api::{Cost, Problem, Reply, ResolvedItem, ResolvedRequest};
use crate::keyed::{Full, KeyedLimiter, Rule};
use crate::limit::Verb;
use crate::policy::{MAX_LIMITS, NamedLimit, Policy};
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
    /// The detail of the 500 for a request without a key.
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
    const { assert!(MAX_LIMITS == 8, "each number of limits has an arm") }
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
        _ => Keyed::<K, 8>::of(policy, max_keys, keys),
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
        let rule = |named: &NamedLimit| Rule::new(named.limit(), named.grain_ms());
        let limits: Vec<Rule> = policy.limits().iter().map(rule).collect();
        let limits: Option<[Rule; N]> = limits.try_into().ok();
        Arc::new(Self { policy, keys, limiter: limits.map(|limits| KeyedLimiter::new(limits, max_keys)) })
    }

    /// Each limit's answer. `costs` has one for each limit. Waits are counted from `now`, the caller's clock;
    /// the decision may be of a later moment that was seen before.
    fn ask(&self, key: &K, now: i64, costs: &[u64]) -> Result<Decided, Problem> {
        let (Some(limiter), Ok(costs)) = (&self.limiter, costs.try_into()) else {
            return Err(Problem::Misconfigured { missing: Vec::new() });
        };
        match limiter.decide(key, now, costs, Verb::Consume) {
            Ok(answer) => {
                let each = answer.parts.iter().zip(answer.full_at());
                let answers = each.map(|(part, full_at)| {
                    let own = LimitAnswer::new(part.limit, part.decision, &part.state, answer.now);
                    LimitAnswer { reset_at: full_at, ..own }
                });
                Ok(Decided::new(now, answers.collect()))
            }
            Err(Full { retry_at, .. }) => {
                Err(Problem::NoRoom { retry_after_ms: retry_at.map(|retry_at| retry_at.abs_diff(now)) })
            }
        }
    }
}

impl<K: Hash + Eq + Clone + Send + 'static, const N: usize> Budgets for Keyed<K, N> {
    fn consume(&self, request: &Parts, now: i64, cost: u64) -> Result<Fields, Reply> {
        let key = (self.keys.of)(request).ok_or(Problem::WrongServer { detail: self.keys.if_missing })?;
        let request = ResolvedRequest::consume(&self.policy, &Cost::Each(cost))?;
        let request = request.spread(|| Some(RandomState::new().hash_one(now)));
        let costs = request.items().first().map_or(&[][..], ResolvedItem::enforced_costs);
        let decided = self.ask(&key, now, costs)?;
        if decided.decision().is_allow() {
            return Ok(request.fields(&decided)?);
        }
        Err(request.reply(&ObjectReply::Decided(decided))?)
    }

    fn with_max_keys(&self, max_keys: usize) -> Arc<dyn Budgets> {
        let Keys { of, if_missing } = &self.keys;
        Self::of(Arc::clone(&self.policy), max_keys, Keys { of: Arc::clone(of), if_missing })
    }
}

/// The detail of the answer to a request without the key of the application.
pub(super) const NO_KEY: &str = "the server's rate limit found no key in this request; nothing was taken";
