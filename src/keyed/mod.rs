//! A limiter for many keys in one process: one policy, a state for each key, bounded memory.
//!
//! An entry takes 16 bytes for each limit, beside its key and a few bytes of tables. With a [rolling window](crate::limit::RollingWindow) among the
//! limits it takes 24 more for each limit, and 16 for each moment at which the window counts something as taken: as many as its entry has ever
//! had at once, at most twice that, and never more than [`max_moments`](crate::limit::RollingWindow::max_moments).
//!
//! A plain map of states grows with every key ever seen. But a bucket that is full again equals a new one, and the moment of that is known:
//! [`Limit::expires_at`]. So whenever a key is added, a few that are full are forgotten, in a place where there may be some. Entries are in
//! blocks, each with a moment before which none of its entries can be forgotten. A decision that takes tokens does not touch that moment,
//! which makes it too early, but not too late: when it comes, the block is looked through, and the true one is noted. So it causes at most one look
//! at a block later, and adding a key looks at one block, or, if all `max_keys` are in use, at more until one has room. While no key is
//! added, none is forgotten, so that a busy key is not forgotten and added again each time it is full. A key is stored once: a table of
//! positions leads to its entry.
//!
//! Only when the clock has stepped back by more than a minute, a table of positions doubles, or all `max_keys` are in use may all entries of
//! a shard be visited.
//!
//! # When all keys are in use
//! At most `max_keys` keys have an entry. When all of them are still needed, a new key is **refused** with [`Full`] until the moment at
//! which the first of the others may be forgotten. Evicting one of them instead would fill its bucket early and break its promise. So an
//! attacker with many keys cannot get an extra token out of any key, nor any memory beyond the bound, nor delay a key that has an entry.
//! The attacker can keep *new* keys out by spending a token of each of `max_keys` keys in the time in which a token refills. Make that
//! expensive: use keys that cost something (an account, or with the feature `api` a `Network` instead of an address), and as large a
//! `max_keys` as memory allows.
//!
//! If the clock steps back over an opening of a calendar's windows, a key that was forgotten since then gets the earlier window once more.
//!
//! Limits whose buckets never expire ([`Limit::expires_at`]), at rate 0 or with `initial` below the capacity, keep their keys forever.
#![forbid(unsafe_code)]

mod index;
mod queue;
mod rules;
mod shard;

use core::borrow::Borrow;
use core::fmt;
use core::hash::{BuildHasher, Hash};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::collections::hash_map::RandomState;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(feature = "api")]
#[doc(inline)]
pub use crate::access::Network;
use crate::limit::{Decision, Limit, Part, Verb};
use index::MAX_ENTRIES;
pub use queue::{Granted, KeyedQueue, WaitError};
pub use rules::Rule;
use rules::{Budget, OwnBudget, Rules};
use shard::Shard;

/// A limiter for many keys. It is shared by reference: all methods take `&self`, and threads with different keys seldom wait for each
/// other.
///
/// Pass a key in any borrowed form that converts into it, such as `str` for `String` or `Arc<str>`; the converted key must equal it.
///
/// Moments are Unix milliseconds. Threads read their clocks before calling, so a moment may be slightly behind the latest one seen; then
/// the later one counts.
///
/// ```
/// use std::time::Duration;
///
/// use tollgate::keyed::KeyedLimiter;
/// use tollgate::limit::{Config, Decision, Limit};
///
/// // 2 per second for each key. A server would allow for 100 000 keys or more, not 2.
/// let limiter = KeyedLimiter::<String>::new([Limit::new(&Config::token_bucket(2, Duration::from_secs(1)))?], 2);
/// let now = 1_800_000_000_000;
/// assert!(limiter.try_consume("alice", now, 2));
/// assert_eq!(limiter.consume("alice", now, 1), Ok(Decision::Wait { retry_at: now + 500 }));
/// assert!(limiter.try_consume("bob", now, 1));
/// // Both are needed until their buckets are full: bob's after half a second. Carol has used up nothing, and is kept out.
/// assert_eq!(limiter.consume("carol", now, 1).unwrap_err().retry_at, Some(now + 500));
/// assert!(limiter.try_consume("carol", now + 500, 1));
/// assert_eq!(limiter.len(), 2);
/// # Ok::<(), tollgate::limit::ConfigError>(())
/// ```
pub struct KeyedLimiter<K, const N: usize = 1, S = RandomState> {
    rules: Rules<N>,
    max_keys: usize,
    /// The number of keys with an entry: at most `max_keys`.
    len: AtomicUsize,
    hasher: S,
    /// Their number is a power of two.
    shards: Box<[Locked<K, N>]>,
}

type Locked<K, const N: usize> = Padded<Mutex<Shard<K, N>>>;

/// The answers of all limits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the tokens may have been refused"]
#[non_exhaustive]
pub struct Answer<'a, const N: usize> {
    /// The combined decision.
    pub decision: Decision,
    /// The moment of the decision: the given one, or a later one seen before.
    pub now: i64,
    /// Each limit with its own answer and the resulting state. That of a rolling window says what is left, and not when it comes back.
    pub parts: [Part<'a>; N],
    /// When each rolling window is full again.
    windows_full_at: [Option<i64>; N],
}

impl<const N: usize> Answer<'_, N> {
    /// The first moment, [`now`](Self::now) or later, at which each limit is full if nothing more is taken; `None` when one never will be.
    #[must_use]
    pub fn full_at(&self) -> [Option<i64>; N] {
        let full_at = |part: &Part<'_>| part.limit.full_at(&part.state, self.now);
        core::array::from_fn(|i| self.windows_full_at[i].or_else(|| full_at(&self.parts[i])))
    }
}

/// The key is new, and all entries are in use by others. Its own budget is untouched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Full {
    /// The first moment at which an entry may be free; another new key may take it first. `None` if all are in use forever.
    pub retry_at: Option<i64>,
    /// The moment of the refusal: the given one, or a later one seen before.
    pub now: i64,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.retry_at {
            Some(at) => write!(f, "all entries of the keyed limiter are in use by other keys, at least until {at}"),
            None => write!(f, "all entries of the keyed limiter are in use by other keys, for good"),
        }
    }
}

impl core::error::Error for Full {}

impl<K: Hash + Eq, const N: usize> KeyedLimiter<K, N> {
    /// A limiter with `limits`, all of which must grant, for at most `max_keys` keys at once. With 0 it grants no tokens. Each is a [`Limit`] or
    /// a [`RollingWindow`](crate::limit::RollingWindow); if there are both, a [`Rule`].
    #[must_use]
    pub fn new(limits: [impl Into<Rule>; N], max_keys: usize) -> Self {
        Self::with_hasher(limits, max_keys, RandomState::new())
    }
}

impl<K: Hash + Eq, const N: usize, S: BuildHasher> KeyedLimiter<K, N, S> {
    /// The same with another hash function. Use this where the standard one takes longer than the decision, and callers do not choose their
    /// keys. All 64 bits of a hash must be well mixed: some of them choose one of many parts, each with a lock and with memory of its own.
    #[must_use]
    pub fn with_hasher(limits: [impl Into<Rule>; N], max_keys: usize, hasher: S) -> Self {
        let max_keys = max_keys.min(MAX_ENTRIES); // more would take ten gigabytes
        let shards = max_keys.div_ceil(KEYS_PER_SHARD).next_power_of_two().min(MAX_SHARDS);
        let shards = (0..shards).map(|_| Padded(Mutex::new(Shard::new()))).collect();
        let rules = Rules::new(limits.map(Into::into));
        Self { rules, max_keys, len: AtomicUsize::new(0), hasher, shards }
    }

    /// Takes `cost` tokens of each limit and returns `true`, or takes none. Use this when neither the reason nor the moment to retry matters.
    #[must_use = "the tokens may have been refused"]
    pub fn try_consume<Q>(&self, key: &Q, now: i64, cost: u64) -> bool
    where
        Q: Hash + Eq + ToOwned<Owned: Into<K>> + ?Sized,
        K: Borrow<Q>,
    {
        self.consume(key, now, cost).is_ok_and(Decision::is_allow)
    }

    /// Takes `cost` tokens of each limit now, or refuses. Use [`KeyedLimiter::decide`] for other verbs, a cost for each
    /// limit, or the tokens that are left.
    ///
    /// # Errors
    /// [`Full`] if the key is new, this would change its bucket, and all entries are in use.
    pub fn consume<Q>(&self, key: &Q, now: i64, cost: u64) -> Result<Decision, Full>
    where
        Q: Hash + Eq + ToOwned<Owned: Into<K>> + ?Sized,
        K: Borrow<Q>,
    {
        self.with(key, now, |budget, now| self.rules.consume(budget, now, cost))
    }

    /// Applies `verb` with the cost of each limit, and returns each limit's answer.
    ///
    /// # Errors
    /// [`Full`] if the key is new, this would change its bucket, and all entries are in use.
    pub fn decide<Q>(&self, key: &Q, now: i64, costs: [u64; N], verb: Verb) -> Result<Answer<'_, N>, Full>
    where
        Q: Hash + Eq + ToOwned<Owned: Into<K>> + ?Sized,
        K: Borrow<Q>,
    {
        let answer = self.with(key, now, |budget, now| {
            let (decision, parts) = self.rules.decide(budget, now, costs, verb);
            Answer { decision, now, parts, windows_full_at: self.rules.full_at(budget, now) }
        });
        if matches!(verb, Verb::Refund | Verb::Reset) {
            let hash = self.hasher.hash_one(key);
            self.lock(self.index(hash)).give_back(hash, key, &self.rules);
        }
        answer
    }

    /// The answer that [`KeyedLimiter::consume`] would give at that moment, which may be in the future, taking nothing and remembering neither
    /// the key nor the moment.
    ///
    /// # Errors
    /// [`Full`], as [`KeyedLimiter::consume`].
    pub fn peek<Q>(&self, key: &Q, now: i64, cost: u64) -> Result<Decision, Full>
    where
        Q: Hash + Eq + ?Sized,
        K: Borrow<Q>,
    {
        let hash = self.hasher.hash_one(key);
        let shard = self.lock(self.index(hash));
        let known = shard.copy(hash, key);
        let is_new = known.is_none();
        let mut budget = known.unwrap_or_else(|| self.rules.new_budget(now, hash));
        let moment = shard.moment(now, &self.rules, &mut budget);
        drop(shard);
        if is_new {
            budget = self.rules.new_budget(moment, hash);
        }
        let decision = self.rules.consume(&mut budget.view(), moment, cost);
        let OwnBudget { states, moments } = &budget;
        if is_new && self.rules.due_at(states, Some(moments), moment) > moment && self.len() >= self.max_keys {
            let rooms = self.shards.iter().map(|shard| lock(shard).room_at(&self.rules, moment));
            let room_at = rooms.min().unwrap_or(i64::MAX);
            if room_at > moment {
                return Err(Full { retry_at: (room_at < i64::MAX).then_some(room_at), now: moment });
            }
        }
        Ok(decision)
    }

    /// The limits. That of a rolling window has its numbers; by itself nothing comes back into its bucket.
    #[must_use]
    pub const fn limits(&self) -> &[Limit; N] {
        self.rules.limits()
    }

    /// The number of keys with an entry, at most `max_keys`. Some may be full again and not forgotten yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether no key has an entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The moment of a decision at `now`, and a copy of what `key` has then.
    fn look<Q>(&self, key: &Q, now: i64) -> Result<(i64, OwnBudget<N>), Full>
    where
        Q: Hash + Eq + ToOwned<Owned: Into<K>> + ?Sized,
        K: Borrow<Q>,
    {
        self.with(key, now, |budget, now| {
            // Giving back nothing takes nothing.
            let _ = self.rules.decide(budget, now, [0; N], Verb::Refund);
            (now, budget.copy())
        })
    }

    /// Calls `f` with the budget of `key` and stores the result, unless it equals a new key's.
    #[inline]
    fn with<Q, A, F>(&self, key: &Q, now: i64, f: F) -> Result<A, Full>
    where
        F: Fn(&mut Budget<'_, N>, i64) -> A,
        Q: Hash + Eq + ToOwned<Owned: Into<K>> + ?Sized,
        K: Borrow<Q>,
    {
        let hash = self.hasher.hash_one(key);
        let mut shard = self.lock(self.index(hash));
        let now = shard.advance(now, &self.rules);
        if let Some(mut budget) = shard.budget(hash, key) {
            return Ok(f(&mut budget, now));
        }
        drop(shard);
        self.with_new(key, hash, now, f)
    }

    /// The same for a key that is probably new.
    #[cold]
    #[inline(never)]
    fn with_new<Q, A, F>(&self, key: &Q, hash: u64, now: i64, f: F) -> Result<A, Full>
    where
        F: Fn(&mut Budget<'_, N>, i64) -> A,
        Q: Hash + Eq + ToOwned<Owned: Into<K>> + ?Sized,
        K: Borrow<Q>,
    {
        let index = self.index(hash);
        let mut has_made_room = false;
        loop {
            let mut shard = self.lock(index);
            let now = shard.advance(now, &self.rules);
            // Another thread may have added it since.
            if let Some(mut budget) = shard.budget(hash, key) {
                return Ok(f(&mut budget, now));
            }
            let mut budget = self.rules.new_budget(now, hash);
            let answer = f(&mut budget.view(), now);
            let due = self.rules.due_at(&budget.states, Some(&budget.moments), now);
            if due <= now {
                return Ok(answer);
            }
            _ = shard.forget_some(&self.rules, now, &self.hasher, &self.len);
            if let Some(room) = self.take_room() {
                shard.insert((hash, owned(key)), budget, due, &self.rules, &self.hasher);
                room.keep();
                return Ok(answer);
            }
            drop(shard); // no thread holds two
            let room_at = self.make_room(index, now);
            if room_at > now || has_made_room {
                // An entry that is free by now may go to another thread first.
                let retry_at = room_at.max(now.saturating_add(1));
                return Err(Full { retry_at: (room_at < i64::MAX).then_some(retry_at), now });
            }
            has_made_room = true;
        }
    }

    /// Forgets keys that are full again, in the first shard from `first` that has any. Returns `now` if one had, otherwise the moment at
    /// which one may have.
    fn make_room(&self, first: usize, now: i64) -> i64 {
        let mut room_at = i64::MAX;
        for step in 0..self.shards.len() {
            let mut shard = self.lock((first + step) % self.shards.len());
            let now_here = shard.advance(now, &self.rules);
            match shard.make_room(&self.rules, now_here, &self.hasher, &self.len) {
                Ok(()) => return now,
                Err(at) => room_at = room_at.min(at),
            }
        }
        room_at
    }

    fn take_room(&self) -> Option<Room<'_>> {
        let more = |len| (len < self.max_keys).then_some(len + 1);
        self.len.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Room(&self.len))
    }

    /// The shard's own index uses the lower half.
    fn index(&self, hash: u64) -> usize {
        usize::from(hash.to_le_bytes()[5]) & (self.shards.len() - 1)
    }

    fn lock(&self, index: usize) -> MutexGuard<'_, Shard<K, N>> {
        lock(&self.shards[index])
    }
}

/// Room for one entry, free again unless it is kept: a key's `Clone` or `Hash` may panic.
struct Room<'a>(&'a AtomicUsize);

impl Room<'_> {
    fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The key that is kept for it.
fn owned<K, Q>(key: &Q) -> K
where
    Q: Eq + ToOwned<Owned: Into<K>> + ?Sized,
    K: Borrow<Q>,
{
    let made = key.to_owned().into();
    debug_assert!(made.borrow() == key, "a key equals what it is made from");
    made
}

fn lock<K, const N: usize>(shard: &Locked<K, N>) -> MutexGuard<'_, Shard<K, N>> {
    // A panic in a key's `Eq` or `Hash` leaves nothing half done.
    shard.0.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K, const N: usize, S> fmt::Debug for KeyedLimiter<K, N, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rules, max_keys, len, .. } = self;
        let mut debug = f.debug_struct("KeyedLimiter");
        debug.field("limits", rules.limits()).field("max_keys", max_keys).field("len", len).finish_non_exhaustive()
    }
}

/// Alone on its cache lines, which processors fetch in pairs.
#[repr(align(128))]
struct Padded<T>(T);

/// Threads on 64 shards seldom collide; more would only slow down a full table, where a new key checks all of them.
const MAX_SHARDS: usize = 64;
const KEYS_PER_SHARD: usize = 64;
