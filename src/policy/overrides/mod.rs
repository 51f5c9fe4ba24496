//! Overrides: for one key, or for all text keys with a prefix, a replacement for the policy's limits.
//!
//! A deployment may have 10⁵ of them, and every isolate must find a key's override without a call. So for each override an isolate keeps
//! only 128 bits of a keyed hash, and a few more bytes of history. The most specific counts: the key's own, else that of its longest
//! prefix, else the policy. Only prefixes of existing lengths are looked up.
//!
//! Each added override costs an isolate at most [`MEMORY_PER_OVERRIDE`] bytes and those of its [`History`]: about 25 for other numbers of
//! one limit.

mod compose;
mod history;
mod parse;
mod plan;

use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

use self::compose::compose;
use self::history::{Rest, number};
use super::named::Policy;
use crate::key_hash::{KeyHash, KeyHasher, first};
use crate::sorted::{SortedMap, sort_by};

pub use self::history::{History, InForce, MAX_CHANGES};
#[cfg(feature = "service")]
pub(crate) use self::parse::WrittenKeys;
pub use self::parse::{MAX_PREFIX_LEN, WrittenOverride};
pub use self::plan::{Multiple, Numbers, Plan};

/// The overrides of all policies in an isolate.
#[derive(Default)]
pub struct Overrides {
    hasher: KeyHasher,
    table: RwLock<Table>,
    composed: Mutex<Composed>,
}

/// Without the composed policies, which follow from the table.
impl fmt::Debug for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hasher, table, composed: _ } = self;
        f.debug_tuple("Overrides").field(&(hasher, table)).finish()
    }
}

/// Selects the keys of a policy that an override is for: one key, or those with a prefix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Selector {
    policy: Box<str>,
    /// In bytes; 0 for one key.
    prefix_len: u16,
    /// The key's hash, or that of the prefix.
    named: KeyHash,
    hash: SelectorHash,
}

/// An override's memory in an isolate, in bytes, without its [`History`]: the hash, the pointer to the history, the allocator's overhead,
/// and room for the next page. In WebAssembly 10⁵ with other numbers grow the memory by 12 MB.
pub const MEMORY_PER_OVERRIDE: usize = 104;

impl Selector {
    /// Selects the key with that hash.
    #[must_use]
    pub fn key(policy: &str, key: KeyHash) -> Self {
        Self::of(policy.into(), 0, key)
    }

    /// Selects all text keys with that prefix of 1 to [`MAX_PREFIX_LEN`] bytes.
    #[must_use]
    pub fn prefix(hasher: &KeyHasher, policy: &str, prefix: &str) -> Self {
        let prefix_len = u16::try_from(prefix.len()).unwrap_or(u16::MAX);
        Self::of(policy.into(), prefix_len, PrefixHasher::new(hasher, policy).after(prefix.as_bytes()).prefix())
    }

    fn of(policy: Box<str>, prefix_len: u16, named: KeyHash) -> Self {
        let hash = if prefix_len == 0 { hash_in(&policy, named) } else { named };
        Self { policy, prefix_len, named, hash }
    }

    /// The hash of the key; `None` if it is for a prefix.
    #[must_use]
    pub fn key_hash(&self) -> Option<KeyHash> {
        (self.prefix_len == 0).then_some(self.named)
    }

    /// The policy's name.
    #[must_use]
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// The prefix's length in bytes; `None` if it is for one key.
    #[must_use]
    pub fn prefix_len(&self) -> Option<u16> {
        Some(self.prefix_len).filter(|&len| len > 0)
    }

    /// Identifies the selector.
    #[must_use]
    pub const fn hash(&self) -> SelectorHash {
        self.hash
    }

    /// The selector and the history in one record.
    #[must_use]
    pub fn of_record(record: &[u8]) -> Option<(Self, &[u8])> {
        let mut rest = Rest(record);
        self::record(&mut rest).filter(|_| rest.0.is_empty())
    }

    /// Appends the selector with this history to `records`. An empty history deletes it.
    pub fn record(&self, history: &[u8], records: &mut Vec<u8>) {
        for part in [self.policy.as_bytes(), history] {
            number(records, part.len() as u64);
            records.extend(part);
        }
        number(records, self.prefix_len.into());
        records.extend(self.named);
    }
}

impl Overrides {
    /// No overrides yet; keys are hashed by `hasher`.
    #[must_use]
    pub fn new(hasher: KeyHasher) -> Self {
        Self { hasher, ..Self::default() }
    }

    /// Whether any are by prefix, or were until recently: then the key itself is needed to find its overrides.
    #[must_use]
    pub fn has_prefixes(&self, policy: &str) -> bool {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.lengths.get(policy).is_some_and(|lengths| lengths.keys().any(|&len| len > 0))
    }

    /// Applies [records](Selector::record).
    ///
    /// # Errors
    /// If they are malformed; then nothing has changed.
    pub fn update(&self, records: &[u8]) -> Result<(), MalformedRecords> {
        let mut rest = Rest(records);
        let mut all = Vec::new();
        while !rest.0.is_empty() {
            all.push(record(&mut rest).ok_or(MalformedRecords)?);
        }
        self.table.write().unwrap_or_else(PoisonError::into_inner).update(all);
        *self.composed() = Composed::default();
        Ok(())
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.read().unwrap_or_else(PoisonError::into_inner).entries.len()
    }

    /// Reports whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `policy` at `now` for the key with these [bytes](crate::access::Key::to_bytes).
    #[must_use]
    pub fn apply(&self, policy: &Arc<Policy>, key: &[u8], now: i64) -> Arc<Policy> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let found = table.find(&self.hasher, policy.name(), key);
        let Some((most_specific, _)) = found.first() else {
            return Arc::clone(policy);
        };
        // It determines the others, which are prefixes of it.
        if let Some(composed) = self.composed().get(most_specific, policy, now) {
            return composed;
        }
        let histories: Vec<_> = found.iter().filter_map(|(_, history)| History::decode(history)).collect();
        let composed = Arc::new(compose(policy, &histories, now));
        let ends_at = histories.iter().filter_map(|history| history.next_end(now)).min().unwrap_or(i64::MAX);
        let one = One { base: Arc::clone(policy), composed: Arc::clone(&composed), from: now, ends_at };
        self.composed().insert(*most_specific, one);
        composed
    }

    fn composed(&self) -> std::sync::MutexGuard<'_, Composed> {
        self.composed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Malformed records of overrides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedRecords;

impl std::fmt::Display for MalformedRecords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the records of overrides are malformed")
    }
}

impl std::error::Error for MalformedRecords {}

/// 128 bits, which no two overrides share: from a hash of the policy and the key's hash, or a keyed hash of the policy and the prefix.
pub type SelectorHash = [u8; 16];

/// Sorted by hash, without gaps.
#[derive(Debug, Default)]
struct Table {
    entries: Vec<Entry>,
    /// For each policy, the number of overrides for each prefix length; 0 is for those of one key.
    lengths: SortedMap<String, SortedMap<u16, u32>>,
}

#[derive(Debug)]
struct Entry {
    hash: SelectorHash,
    /// The encoded history.
    history: Box<[u8]>,
}

impl Table {
    /// The matching overrides, most specific first.
    fn find(&self, hasher: &KeyHasher, policy: &str, key: &[u8]) -> Vec<(SelectorHash, &[u8])> {
        let Some(lengths) = self.lengths.get(policy) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        let mut add = |hash: SelectorHash| found.extend(self.get(&hash).map(|history| (hash, history)));
        let (mut prefixes, mut rest, mut done) = (None, key, 0);
        for &len in lengths.keys().filter(|&&len| len > 0) {
            let Some((next, after)) = rest.split_at_checked(usize::from(len).saturating_sub(done)) else { break };
            let longer = prefixes.take().unwrap_or_else(|| PrefixHasher::new(hasher, policy)).after(next);
            add(longer.prefix());
            (prefixes, rest, done) = (Some(longer), after, len.into());
        }
        if lengths.contains_key(&0) {
            add(hash_in(policy, hasher.hash(key)));
        }
        found.reverse();
        found
    }

    fn get(&self, hash: &SelectorHash) -> Option<&[u8]> {
        let index = self.entries.binary_search_by(|entry| entry.hash.cmp(hash)).ok()?;
        self.entries.get(index).map(|entry| &*entry.history)
    }

    fn update(&mut self, records: Vec<(Selector, &[u8])>) {
        // Of several with the same selector, the last counts.
        let mut records: Vec<_> = (0_usize..).zip(records).collect();
        sort_by(&mut records, |(a, (of_a, _)), (b, (of_b, _))| of_a.hash.cmp(&of_b.hash).then(b.cmp(a)));
        records.dedup_by(|(_, (next, _)), (_, (first, _))| next.hash == first.hash);
        let mut new = Vec::new();
        let mut is_shorter = false;
        for (_, (Selector { policy, prefix_len, hash, .. }, history)) in records {
            let found = self.entries.binary_search_by(|entry| entry.hash.cmp(&hash));
            let more = match found {
                Ok(index) => {
                    if let Some(entry) = self.entries.get_mut(index) {
                        entry.history = history.into();
                    }
                    is_shorter |= history.is_empty();
                    if history.is_empty() { -1 } else { 0 }
                }
                Err(_) if history.is_empty() => continue,
                Err(_) => {
                    new.push(Entry { hash, history: history.into() });
                    1
                }
            };
            self.lengths.change(policy.into_string(), |lengths| {
                lengths.change(prefix_len, |count| *count = count.saturating_add_signed(more));
            });
        }
        if is_shorter {
            self.entries.retain(|entry| !entry.history.is_empty());
        }
        if !new.is_empty() {
            self.insert(new);
        }
        self.lengths.retain(|_, lengths| {
            lengths.retain(|_, count| *count > 0);
            !lengths.is_empty()
        });
    }

    /// Inserts sorted entries.
    fn insert(&mut self, new: Vec<Entry>) {
        // Exact capacity: growing by half would waste as much.
        let mut merged = Vec::with_capacity(self.entries.len().saturating_add(new.len()));
        let mut new = new.into_iter().peekable();
        for entry in mem::take(&mut self.entries) {
            while let Some(first) = new.next_if(|first| first.hash < entry.hash) {
                merged.push(first);
            }
            merged.push(entry);
        }
        merged.extend(new);
        self.entries = merged;
    }
}

fn record<'a>(rest: &mut Rest<'a>) -> Option<(Selector, &'a [u8])> {
    let mut part = || {
        let len = usize::try_from(rest.number()?).ok()?;
        rest.slice(len)
    };
    let (policy, history) = (part()?, part()?);
    let policy = std::str::from_utf8(policy).ok()?.into();
    let prefix_len = u16::try_from(rest.number()?).ok()?;
    let named = rest.slice(HASH_LEN)?.first_chunk().copied()?;
    Some((Selector::of(policy, prefix_len, named), history))
}

const HASH_LEN: usize = 16;

/// Distinguishes the overrides of one policy from those of another for the same key. One-way: an operator may give any hash as that of a
/// key, and must not be able to choose one that selects an override of a policy outside its rights.
fn hash_in(policy: &str, key: KeyHash) -> SelectorHash {
    // Names contain no zero byte.
    let digest = Sha256::new().chain_update(policy).chain_update([0]).chain_update(key).finalize();
    digest.first_chunk().copied().unwrap_or_default()
}

/// Hashes a policy's name and the start of a key.
struct PrefixHasher(Hmac<Sha256>);

impl PrefixHasher {
    fn new(hasher: &KeyHasher, policy: &str) -> Self {
        // No key starts like this, and names contain no zero byte.
        Self(hasher.hmac().chain_update([0xff, 0]).chain_update(policy).chain_update([0]))
    }

    fn after(self, bytes: &[u8]) -> Self {
        Self(self.0.chain_update(bytes))
    }

    /// The hash with the bytes so far as the prefix.
    fn prefix(&self) -> SelectorHash {
        first(self.0.clone())
    }
}

/// Policies for recently requested keys, by their most specific override.
#[derive(Debug, Default)]
struct Composed {
    recent: SortedMap<SelectorHash, One>,
    /// The total size of the recent ones: see [`One::size`].
    recent_size: usize,
    older: SortedMap<SelectorHash, One>,
}

#[derive(Debug)]
struct One {
    base: Arc<Policy>,
    composed: Arc<Policy>,
    /// Valid from this moment on.
    from: i64,
    /// Valid until before this moment.
    ends_at: i64,
}

impl Composed {
    fn get(&mut self, hash: &SelectorHash, base: &Arc<Policy>, now: i64) -> Option<Arc<Policy>> {
        if let Some(one) = self.older.remove(hash) {
            self.insert(*hash, one);
        }
        let one = self.recent.get(hash)?;
        let is_valid = Arc::ptr_eq(&one.base, base) && one.from <= now && now < one.ends_at;
        is_valid.then(|| Arc::clone(&one.composed))
    }

    fn insert(&mut self, hash: SelectorHash, one: One) {
        if self.recent_size >= MAX_COMPOSED {
            self.older = mem::take(&mut self.recent);
            self.recent_size = 0;
        }
        self.recent_size = self.recent_size.saturating_add(one.size());
        self.recent.insert(hash, one);
    }
}

impl One {
    /// In limits: its own, those of its earlier versions, and four for everything else.
    fn size(&self) -> usize {
        let limits = |policy: &Policy| {
            let earlier = policy.timeline().earlier().iter().map(|version| version.limits.len());
            earlier.sum::<usize>().saturating_add(policy.limits().len())
        };
        let shadow = self.composed.shadow().map_or(0, |shadow| limits(shadow));
        limits(&self.composed).saturating_add(shadow).saturating_add(4)
    }
}

/// Twice as many limits are kept, and one more policy, at about 150 bytes each: 1.2 MB. Most policies have six or seven.
const MAX_COMPOSED: usize = 4_096;

#[cfg(test)]
impl Overrides {
    /// The overrides with these fields for a single key of a policy.
    pub(crate) fn of_key(policy: &str, key: &str, fields: &str) -> Self {
        let text = format!(r#"{{"policy":"{policy}","key":"{key}",{fields}}}"#);
        let written = WrittenOverride::parse("it", &text).unwrap();
        let mut history = History::default();
        history.push(1, Some(InForce { plan: written.plan, until: written.until }), None);
        let mut records = Vec::new();
        Selector::key(policy, KeyHasher::default().hash(key.as_bytes())).record(&history.encode(), &mut records);
        let overrides = Self::default();
        overrides.update(&records).unwrap();
        overrides
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::{Policies, Standing};

    fn policies() -> Policies {
        Policies::parse(r#"{"p":"1/1s","q":{"limits":[{"name":"a","rate":"1/1s"},{"name":"b","rate":"7/1s"}]}}"#)
            .unwrap()
    }

    fn key(policy: &str, bytes: &[u8]) -> Selector {
        Selector::key(policy, KeyHasher::default().hash(bytes))
    }

    fn plan(fields: &str) -> Plan {
        let text = format!(r#"{{"policy":"p","key":"k",{fields}}}"#);
        WrittenOverride::parse("it", &text).unwrap().plan
    }

    fn set(fields: &str, until: Option<i64>) -> History {
        let mut history = History::default();
        history.push(1, Some(InForce { plan: plan(fields), until }), None);
        history
    }

    fn records(all: &[(Selector, History)]) -> Vec<u8> {
        let mut records = Vec::new();
        for (selector, history) in all {
            selector.record(&history.encode(), &mut records);
        }
        records
    }

    /// A text over a small alphabet, so that common prefixes are frequent.
    fn texts() -> impl Strategy<Value = String> {
        prop::collection::vec(prop::sample::select(vec!["a", "b", "ab", "\u{e9}"]), 1..6)
            .prop_map(|parts| parts.concat())
    }

    #[derive(Clone, Debug)]
    enum Act {
        /// Multiplies the rate of keys, or deletes the override if 0.
        Set(&'static str, bool, String, u32),
        /// Applies all acts since the last update together.
        Update,
    }

    proptest! {
        #![proptest_config(crate::chance::config(256))]

        /// The one that a linear search finds.
        #[test]
        fn the_most_specific_override_is_found(
            acts in prop::collection::vec(
                prop_oneof![
                    6 => (prop::sample::select(vec!["p", "q"]), any::<bool>(), texts(), 0..50_u32)
                        .prop_map(|(policy, is_prefix, text, times)| Act::Set(policy, is_prefix, text, times)),
                    1 => Just(Act::Update),
                ],
                0..40,
            ),
            keys in prop::collection::vec(texts(), 1..10),
        ) {
            let (overrides, policies) = (Overrides::default(), policies());
            let mut list: Vec<(&str, bool, String, u32)> = Vec::new();
            let mut waiting = Vec::new();
            for act in acts.into_iter().chain([Act::Update]) {
                match act {
                    Act::Set(policy, is_prefix, text, times) => {
                        let selector = if is_prefix { Selector::prefix(&KeyHasher::default(), policy, &text) } else { key(policy, text.as_bytes()) };
                        let history = match times {
                            0 => History::default(),
                            times => set(&format!(r#""multiple":{times}"#), None),
                        };
                        waiting.push((selector, history));
                        list.retain(|one| (one.0, one.1, &one.2) != (policy, is_prefix, &text));
                        list.extend((times > 0).then_some((policy, is_prefix, text, times)));
                    }
                    Act::Update => {
                        overrides.update(&records(&std::mem::take(&mut waiting))).unwrap();
                        prop_assert_eq!(overrides.len(), list.len());
                        for (name, key) in ["p", "q"].into_iter().flat_map(|name| keys.iter().map(move |key| (name, key))) {
                            let exact = list.iter().find(|one| one.0 == name && !one.1 && one.2 == *key);
                            let prefixes = list.iter().filter(|one| one.0 == name && one.1 && key.starts_with(&one.2));
                            let expected = exact.or_else(|| prefixes.max_by_key(|one| one.2.len())).map_or(1, |one| one.3);
                            let policy = policies.get(name).unwrap();
                            for _ in 0..2 {
                                let made = overrides.apply(policy, key.as_bytes(), 5);
                                prop_assert_eq!(made.limits()[0].limit().config().rate, u64::from(expected));
                                prop_assert_eq!(Arc::ptr_eq(&made, policy), expected == 1 && Arc::ptr_eq(&made, policy));
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_prefix_covers_only_text_keys_and_an_override_only_its_policy() {
        let (overrides, policies) = (Overrides::default(), policies());
        let banned = set(r#""banned":true"#, None);
        overrides
            .update(&records(&[
                (Selector::prefix(&KeyHasher::default(), "p", "a"), banned.clone()),
                (key("p", b"\xff\x01\x01\0a"), banned),
            ]))
            .unwrap();
        let standing = |policy: &str, key: &[u8]| overrides.apply(policies.get(policy).unwrap(), key, 5).standing();
        let banned = Standing::Banned { until: None };
        assert_eq!(standing("p", b"a"), banned);
        assert_eq!(standing("p", b"abc"), banned);
        assert_eq!(standing("p", b"\xff\x01\x01\0a"), banned);
        for (policy, key) in [("p", &b""[..]), ("p", b"ba"), ("p", b"\xff\x01\x02\0ab"), ("q", b"a")] {
            assert_eq!(standing(policy, key), Standing::Limited, "{policy} {key:?}");
        }
    }

    /// Each has six: a limit, one of the version before the override, and four. So 683 fill a generation, and there are two.
    #[test]
    fn a_flood_of_keys_with_overrides_pushes_out_composed_policies_and_changes_no_answer() {
        let (overrides, policies) = (Overrides::default(), policies());
        let name = |number: usize| format!("key {number}");
        let one = |number: usize| {
            (key("p", name(number).as_bytes()), set(&format!(r#""multiple":{}"#, 2 + number % 7), None))
        };
        overrides.update(&records(&(0..=1_500).map(one).collect::<Vec<_>>())).unwrap();
        let apply = |number: usize| {
            let policy = overrides.apply(policies.get("p").unwrap(), name(number).as_bytes(), 5);
            assert_eq!(policy.limits()[0].limit().config().rate, 2 + number as u64 % 7);
            policy
        };
        let generation = MAX_COMPOSED.div_ceil(6);
        for (others, is_kept) in [(2 * generation - 1, true), (2 * generation, false)] {
            *overrides.composed() = Composed::default();
            let first = apply(0);
            for number in 1..=others {
                apply(number);
            }
            let composed = mem::take(&mut *overrides.composed());
            assert!(composed.recent.len() <= generation && composed.older.len() <= generation);
            *overrides.composed() = composed;
            assert_eq!(Arc::ptr_eq(&apply(0), &first), is_kept, "{others} others");
        }
    }

    #[test]
    fn an_override_ends_on_time_even_if_looked_up_just_before() {
        let (overrides, policies) = (Overrides::default(), policies());
        let both = [
            (key("p", b"abc"), set(r#""banned":true"#, Some(2_000))),
            (Selector::prefix(&KeyHasher::default(), "p", "ab"), set(r#""unlimited":true"#, Some(3_000))),
        ];
        overrides.update(&records(&both)).unwrap();
        let p = policies.get("p").unwrap();
        let standing = |now| overrides.apply(p, b"abc", now).standing();
        for (now, expected) in [
            (1_999, Standing::Banned { until: Some(2_000) }),
            (2_000, Standing::Unlimited),
            (2_999, Standing::Unlimited),
            (3_000, Standing::Limited),
            // The clock stepped back.
            (1_999, Standing::Banned { until: Some(2_000) }),
        ] {
            assert_eq!(standing(now), expected, "{now}");
        }
        assert!(Arc::ptr_eq(&overrides.apply(p, b"abc", 5), &overrides.apply(p, b"abc", 6)), "a busy key costs little");
        // A new version of the policy, and then of the override.
        let other = Policies::parse(r#"{"p":"2/1s"}"#).unwrap();
        assert_eq!(overrides.apply(other.get("p").unwrap(), b"abc", 3_000).limits()[0].limit().config().rate, 2);
        overrides.update(&records(&[(key("p", b"abc"), set(r#""multiple":3"#, None))])).unwrap();
        assert_eq!(overrides.apply(p, b"abc", 5).limits()[0].limit().config().rate, 3);
    }

    #[test]
    fn a_multiple_applies_to_every_limit_and_numbers_to_those_named() {
        let (overrides, policies) = (Overrides::default(), policies());
        let limits = r#""limits":[{"name":"b","rate":"5/1s"}]"#;
        overrides
            .update(&records(&[(key("q", b"x"), set(r#""multiple":2"#, None)), (key("q", b"y"), set(limits, None))]))
            .unwrap();
        let q = policies.get("q").unwrap();
        let rates = |key: &[u8]| {
            let made = overrides.apply(q, key, 5);
            assert_eq!((made.name(), made.wire_name()), (q.name(), q.wire_name()));
            made.limits()
                .iter()
                .map(|limit| (limit.full_name().to_owned(), limit.limit().config().rate))
                .collect::<Vec<_>>()
        };
        assert_eq!(rates(b"x"), [("q/a".to_owned(), 2), ("q/b".to_owned(), 14)]);
        assert_eq!(rates(b"y"), [("q/a".to_owned(), 1), ("q/b".to_owned(), 5)]);
    }

    #[test]
    fn malformed_records_change_nothing() {
        let overrides = Overrides::default();
        let good = records(&[(key("p", b"k"), set(r#""banned":true"#, None))]);
        overrides.update(&good).unwrap();
        let other = records(&[(key("p", b"l"), set(r#""banned":true"#, None))]);
        for len in 1..other.len() {
            assert_eq!(overrides.update(&other[..len]), Err(MalformedRecords), "{len}");
        }
        assert_eq!(overrides.update(&[&other[..], &[1]].concat()), Err(MalformedRecords));
        assert_eq!(overrides.len(), 1);
    }

    /// The registry stores it, and isolates of neighbouring versions read it.
    #[test]
    fn the_format_of_records_is_unchanged() {
        let mut bytes = Vec::new();
        Selector::prefix(&KeyHasher::new("a secret"), "api", "acme:").record(&[7, 8], &mut bytes);
        let keyed = |bytes: &[u8]| KeyHasher::new("a secret").hash(bytes);
        let hash = keyed(b"\xff\0api\0acme:");
        assert_eq!(bytes, [&[3, b'a', b'p', b'i', 2, 7, 8, 5][..], &hash].concat());
        let selector = Selector::key("api", keyed(b"acme:"));
        let mut bytes = Vec::new();
        selector.record(&[7, 8], &mut bytes);
        assert_eq!(bytes, [&[3, b'a', b'p', b'i', 2, 7, 8, 0][..], &keyed(b"acme:")].concat());
        assert_eq!(Selector::of_record(&bytes), Some((selector.clone(), &[7, 8][..])));
        assert_eq!(selector.hash()[..], Sha256::digest([b"api\0", &keyed(b"acme:")[..]].concat())[..16]);
        assert_eq!(selector.key_hash(), Some(keyed(b"acme:")));
        assert_eq!(Selector::prefix(&KeyHasher::default(), "api", "acme:").key_hash(), None);
    }

    #[test]
    fn only_the_secret_turns_a_guessed_key_into_its_hash() {
        let of = |secret: &str| {
            let hasher = KeyHasher::new(secret);
            [Selector::key("p", hasher.hash(b"\xff\x04\xc0\0\x02\x01")), Selector::prefix(&hasher, "p", "192.0.2.")]
        };
        let ([key, prefix], [other_key, other_prefix]) = (of("a secret"), of("another"));
        assert!(key.hash() != other_key.hash() && prefix.hash() != other_prefix.hash());
    }

    #[test]
    fn an_override_is_also_found_by_its_keys_hash() {
        let (overrides, policies) = (Overrides::new(KeyHasher::new("a secret")), policies());
        let hash = KeyHasher::new("a secret").hash(b"alice");
        overrides.update(&records(&[(Selector::key("p", hash), set(r#""banned":true"#, None))])).unwrap();
        let standing = |policy: &str, key: &[u8]| overrides.apply(policies.get(policy).unwrap(), key, 5).standing();
        let by_hash = crate::key_hash::bytes_of(&hash);
        for (policy, key, is_banned) in [
            ("p", &b"alice"[..], true),
            ("p", &by_hash, true),
            ("p", &hash, false), // a key of these bytes is another key
            ("p", b"alicf", false),
            ("q", b"alice", false),
            ("q", &by_hash, false),
        ] {
            assert_eq!(standing(policy, key) == Standing::Banned { until: None }, is_banned, "{policy} {key:?}");
        }
        assert!(!overrides.has_prefixes("p"));
        let prefix = Selector::prefix(&KeyHasher::new("a secret"), "p", "a");
        overrides.update(&records(&[(prefix, set(r#""banned":true"#, None))])).unwrap();
        assert!(overrides.has_prefixes("p") && !overrides.has_prefixes("q"));
    }
}
