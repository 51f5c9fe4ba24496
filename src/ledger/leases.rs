//! Tokens that frontends have taken in advance: withheld from all others until they are spent, returned, or over.
//!
//! A frontend spends from its lease without a call, at moments that the object does not know. So the tokens stay in the bucket, which
//! refills no further than to its capacity with them, and are only withheld from others. When the frontend reports what it has spent, that
//! is taken; without a report, all of it is taken once the lease is over. Tokens taken late refill later than they would have: the bucket
//! is never fuller than if each had been taken when it was spent. So whatever is lost, repeated or restarted, the key is granted no more
//! than one bucket could grant; and it loses at most what a frontend had not spent when it vanished.
//!
//! A lease is in the bucket's row before the frontend receives it: see `row.rs`. An object that wakes withholds it too.
//!
//! Tokens are withheld by the name of their limit, for as long as they can be spent, whichever version of the policy a request has. A limit
//! that a version lacks stays dormant in the bucket while any of its tokens are leased, and is debited like the others. So a limit that was
//! renamed, disabled or unknown to an older version lacks the leased tokens when it comes back.
//!
//! If its numbers change meanwhile, the account of the new ones pays no more than it has: had the tokens been spent before the change,
//! what exceeds the new capacity would not be owed. The account that they were leased of pays for all of them.
//!
//! Clocks: the object waits [`LEASE_GRACE_MS`](crate::protocol::LEASE_GRACE_MS) longer than it announces, for a frontend whose clock stands still while
//! it computes. If the object's clock steps forward meanwhile, that step's refill may be granted in addition to the lease.
//!
//! Tokens that have not refilled yet may be leased too, to be spent once they have. So under overload each frontend has its share of the
//! next moments, and refuses by itself until then.

use super::accounts::Change;
use super::names::Renamed;
use super::open_lease::OpenLease;
use super::row::{LEASED, NamedState, StoredRow};
use super::without::without;
use crate::limit::{Cuts, Limit, State};
use crate::policy::{LeaseTerms, NamedLimit, Policy};
use crate::protocol::EndedLease;

/// Maximum leases of a bucket, all of which are in its row: for a key with ten thousand requests per second from a hundred isolates.
pub const MAX_LEASES: usize = 256;

/// Maximum limits that have leased tokens and are not in the policy; with more, no lease is given. The policy's own, at most 8, may be
/// removed next: so at most 16 are absent, and a row has room for all.
const MAX_ABSENT: usize = 8;

/// The leases of one bucket.
#[derive(Clone, Debug, Default)]
pub(super) struct Leases {
    /// The policy's limits in its order, then those that it does not have. Empty before the first lease.
    limits: Vec<LeasedLimit>,
    open: Vec<OpenLease>,
    /// Whether a lease is in no row yet.
    is_unsaved: bool,
    /// Until when no lease is given, so that a waiting request is not overtaken forever.
    paused_until: Option<i64>,
}

/// A limit with leases, by name.
#[derive(Clone, Debug, Default)]
struct LeasedLimit {
    name: Option<String>,
    /// Returned tokens of leases that are still in the stored row, and of leases also in the row in flight: after a crash these can be
    /// returned again.
    returned: (u64, u64),
    /// How many of the leased tokens the account in force pays for at most, if they may be of other numbers.
    owed: Option<u64>,
}

impl LeasedLimit {
    fn of(name: Option<&str>) -> Self {
        Self { name: name.map(str::to_owned), ..Self::default() }
    }

    /// How many of these tokens the account in force pays for.
    fn share(&self, tokens: u64) -> u64 {
        self.owed.map_or(tokens, |owed| owed.min(tokens))
    }

    /// How many of these spent tokens the account in force pays for. From now on it pays for as many fewer.
    fn pay(&mut self, tokens: u64) -> u64 {
        let paid = self.share(tokens);
        self.owed = self.owed.map(|owed| owed.saturating_sub(paid));
        paid
    }
}

impl Leases {
    /// The leases of a row, also those that are over. Their tokens are added back to the limits, to be withheld.
    pub(super) fn stored<'a>(
        row: &StoredRow<'_>,
        limits: impl Iterator<Item = (Option<&'a str>, &'a Limit, &'a mut State, Option<&'a mut Cuts>)>,
    ) -> Self {
        if row.leased.is_empty() {
            return Self::default();
        }
        let mut all = Self { open: row.leased.clone(), ..Self::default() };
        for (index, (name, limit, state, cuts)) in limits.enumerate() {
            let owed = row.owed.get(index).copied().flatten();
            all.limits.push(LeasedLimit { owed, ..LeasedLimit::of(name) });
            let leased = all.of(index);
            *state = limit.raised(state, leased);
            if let Some(cuts) = cuts {
                cuts.raise(limit, leased);
            }
        }
        all
    }

    /// Debits the leases that are over, and were so at the moment `by`, from `accounts`, of which the first of each name is in force. See
    /// [`Leases::spend`].
    pub(super) fn end(&mut self, accounts: &mut [NamedState], is_inline: bool, (by, now): (i64, i64)) {
        let was_over = |lease: &mut OpenLease| lease.is_over(now) && lease.until.min(now) <= by;
        let over: Vec<_> = self.open.extract_if(.., was_over).collect();
        for lease in over {
            self.spend(accounts, &lease.tokens, is_inline, lease.until.min(now));
        }
    }

    /// Debits what was spent of a lease at that moment: from the account in force as much as it pays for, and from the others of its name as
    /// a grant is. `is_inline`: numbers come with requests.
    pub(super) fn spend(&mut self, accounts: &mut [NamedState], tokens: &[u64], is_inline: bool, at: i64) {
        for index in 0..accounts.len() {
            let Some((before, [account, others @ ..])) = accounts.split_at_mut_checked(index) else { return };
            let is_in_force = before.iter().all(|other| other.name != account.name);
            let Some(place) = self.position(account.name.as_deref()).filter(|_| is_in_force) else { continue };
            let tokens = tokens.get(place).copied().unwrap_or(0);
            let NamedState { name, limit, state, cuts, log } = account;
            let before = std::mem::replace(state, without(limit, state, self.pay(place, tokens), at));
            if limit.is_rolling() {
                log.fit(limit, state, at);
            }
            if let Some(cuts) = cuts {
                cuts.take(limit, &before, state, at);
            }
            Change::Take(tokens).apply_to_others((name.as_deref(), limit), *state, is_inline, others, at);
        }
    }

    pub(super) const fn is_any(&self) -> bool {
        !self.open.is_empty()
    }

    /// How many leased tokens the account in force pays for at most, of the limit at that position in the policy.
    pub(super) fn of(&self, limit: usize) -> u64 {
        let all = self.all_of(limit);
        self.limits.get(limit).map_or(all, |leased| leased.share(all))
    }

    /// The leased tokens of the limit with that name.
    pub(super) fn of_name(&self, name: Option<&str>) -> u64 {
        self.position(name).map_or(0, |position| self.all_of(position))
    }

    /// How many leased tokens an account with that name pays for at most: the one in force perhaps not for all.
    pub(super) fn withheld(&self, name: Option<&str>, is_in_force: bool) -> u64 {
        if is_in_force { self.position(name).map_or(0, |place| self.of(place)) } else { self.of_name(name) }
    }

    fn all_of(&self, limit: usize) -> u64 {
        self.open.iter().fold(0, |sum, lease| sum.saturating_add(lease.tokens.get(limit).copied().unwrap_or(0)))
    }

    /// As [`LeasedLimit::pay`], for the limit at that position in the policy.
    fn pay(&mut self, limit: usize, tokens: u64) -> u64 {
        self.limits.get_mut(limit).map_or(tokens, |limit| limit.pay(tokens))
    }

    /// The accounts in force were among those `before`, and are `after`: one that was not in force pays for no more than it will have when
    /// the last lease is over. Unless reservations are open: what they give back may pay for the rest.
    pub(super) fn follow(&mut self, before: &[NamedState], after: &[NamedState], has_openings: bool) {
        let over_at = self.over_at(i64::MIN);
        for account in after {
            let Some(leased) = self.limits.iter_mut().find(|leased| leased.name == account.name) else { continue };
            let in_force = before.iter().find(|before| before.name == account.name);
            if in_force.is_some_and(|before| before.limit != account.limit || before.state != account.state) {
                let left = account.limit.snapshot(&account.limit.refilled(&account.state, over_at)).tokens;
                leased.owed = (!has_openings).then_some(left.max(0).unsigned_abs());
            }
        }
    }

    pub(super) fn position(&self, name: Option<&str>) -> Option<usize> {
        self.limits.iter().position(|limit| limit.name.as_deref() == name)
    }

    /// When the last lease ends.
    pub(super) fn over_at(&self, now: i64) -> i64 {
        self.open.iter().map(|lease| lease.until).max().unwrap_or(now).max(now)
    }

    /// Whether a lease is in no row yet.
    pub(super) const fn is_unsaved(&self) -> bool {
        self.is_unsaved
    }

    /// Records that a row has the current leases.
    pub(super) fn mark_saved(&mut self) {
        self.is_unsaved = false;
        self.limits.iter_mut().for_each(|limit| limit.returned = (0, 0));
    }

    /// Records that a row with the current leases is in flight.
    pub(super) fn mark_in_flight(&mut self) {
        self.limits.iter_mut().for_each(|limit| limit.returned.1 = 0);
    }

    /// Records that the row in flight has arrived.
    pub(super) fn mark_arrived(&mut self) {
        self.limits.iter_mut().for_each(|limit| limit.returned.0 = limit.returned.1);
    }

    /// How many tokens of the named limit could be returned again after a crash, with the stored row and with the row in flight.
    pub(super) fn returned(&self, name: Option<&str>) -> (u64, u64) {
        let limit = self.position(name).and_then(|position| self.limits.get(position));
        limit.map(|limit| limit.returned).unwrap_or_default()
    }

    /// Removes the lease with that id, and returns what was spent of it. The report covers the policy's `limits`; of others, all tokens
    /// count as spent.
    pub(super) fn close(&mut self, ended: &EndedLease, limits: usize) -> Option<Vec<u64>> {
        let lease = self.open.extract_if(.., |lease| lease.id == ended.id).next()?;
        let reported = if ended.spent.len() == limits { ended.spent.as_slice() } else { &[] };
        let reported = reported.iter().copied().chain(std::iter::repeat(u64::MAX));
        let spent: Vec<_> = lease.tokens.iter().zip(reported).map(|(&all, spent)| spent.min(all)).collect();
        for ((limit, all), spent) in self.limits.iter_mut().zip(&lease.tokens).zip(&spent) {
            let (rest, (returned, since)) = (all.saturating_sub(*spent), limit.returned);
            limit.returned = (returned.saturating_add(rest), since.saturating_add(rest));
        }
        Some(spent)
    }

    /// Renames a limit.
    pub(super) fn rename(&mut self, renamed: &Renamed) {
        for limit in self.limits.iter_mut().filter(|limit| limit.name == renamed.from) {
            limit.name.clone_from(&renamed.to);
        }
    }

    /// Switches to the limits of `policy`, keeping others with leased tokens.
    pub(super) fn move_to(&mut self, policy: &Policy) {
        if self.limits.is_empty() {
            return;
        }
        let mut names: Vec<_> = policy.limits().iter().map(NamedLimit::account).collect();
        for name in self.limits.iter().map(|limit| limit.name.as_deref()) {
            if !names.contains(&name) && self.of_name(name) > 0 {
                names.push(name);
            }
        }
        let places: Vec<_> = names.iter().map(|name| self.position(*name)).collect();
        let known = |place: &Option<usize>| place.and_then(|place| self.limits.get(place)).cloned();
        let limits =
            names.iter().zip(&places).map(|(name, place)| known(place).unwrap_or_else(|| LeasedLimit::of(*name)));
        self.limits = limits.collect();
        for lease in &mut self.open {
            lease.tokens = in_order(&places, &lease.tokens);
        }
    }

    /// Adds the leases' part of a row. `accounts` are the names of its states, for each name the one in force first.
    pub(super) fn encode<'a>(&self, accounts: impl Iterator<Item = Option<&'a str>>, row: &mut Vec<u8>) {
        if self.open.is_empty() {
            return;
        }
        let places: Vec<_> = accounts.map(|name| self.position(name)).collect();
        let owed = |(index, place): (usize, &Option<usize>)| {
            let is_in_force = !places.iter().take(index).any(|other| other == place);
            place.filter(|_| is_in_force).and_then(|place| self.limits.get(place)?.owed)
        };
        row.push(LEASED);
        let of_states = places.len().saturating_mul(8);
        let (first, each) = (of_states.saturating_add(1), of_states.saturating_add(16));
        // 256 leases of 24 limits, 53 KB, fit: see `MAX_ABSENT`. With 8 limits whose numbers changed often there are up to 64 accounts.
        // Leases that do not fit count as spent: the states lack their tokens.
        let room = usize::from(u16::MAX).saturating_sub(first).checked_div(each).unwrap_or(0).min(self.open.len());
        row.extend(u16::try_from(room.saturating_mul(each).saturating_add(first)).unwrap_or(u16::MAX).to_le_bytes());
        row.push(u8::try_from(places.len()).unwrap_or(u8::MAX));
        let owed = places.iter().enumerate().map(owed);
        row.extend(owed.flat_map(|owed| owed.unwrap_or(u64::MAX).to_le_bytes()));
        for OpenLease { id, until, tokens } in self.open.iter().take(room) {
            row.extend(id.to_le_bytes());
            row.extend(until.to_le_bytes());
            row.extend(in_order(&places, tokens).into_iter().flat_map(u64::to_le_bytes));
        }
    }

    /// Whether any lease is over.
    pub(super) fn is_any_over(&self, now: i64) -> bool {
        self.open.iter().any(|lease| lease.is_over(now))
    }

    /// Whether there is room for a lease of a policy with this many limits.
    pub(super) fn has_room(&self, limits: usize) -> bool {
        let absent = (limits..self.limits.len()).filter(|&position| self.all_of(position) > 0);
        self.open.len() < MAX_LEASES && absent.count() <= MAX_ABSENT
    }

    pub(super) fn add(&mut self, lease: OpenLease, policy: &Policy) {
        if self.limits.is_empty() {
            self.limits = policy.limits().iter().map(|limit| LeasedLimit::of(limit.account())).collect();
        }
        let is_first = self.open.is_empty();
        for (limit, tokens) in self.limits.iter_mut().zip(&lease.tokens) {
            limit.owed = limit.owed.filter(|_| !is_first).map(|owed| owed.saturating_add(*tokens));
        }
        self.open.push(lease);
        self.is_unsaved = true;
    }

    /// Gives no lease until then.
    pub(super) fn pause(&mut self, until: i64) {
        self.paused_until = self.paused_until.max(Some(until));
    }

    pub(super) fn is_paused(&self, now: i64) -> bool {
        self.paused_until.is_some_and(|until| now < until && until.abs_diff(now) <= LeaseTerms::MAX_LEASE_MS)
    }
}

/// The tokens at these places; 0 for `None`.
fn in_order(places: &[Option<usize>], tokens: &[u64]) -> Vec<u64> {
    let at = |place: &Option<usize>| place.and_then(|place| tokens.get(place)).copied().unwrap_or(0);
    places.iter().map(at).collect()
}
