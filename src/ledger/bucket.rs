//! One bucket: exact in memory; in storage, slightly lower.

use std::borrow::Cow;
use std::sync::Arc;

use super::accounts::{Change, Floor, is_as_generous};
use super::cover::{block, cover, usual_block};
use super::follow::{Meanwhile, follow, rename, untouched};
use super::leases::Leases;
use super::log::Log;
use super::names::Renamed;
use super::reservation::{Expired, ReservedPart};
use super::returns::{Return, Returns};
use super::row::{NamedState, Registered, RowError, StoredRow, encode_cuts, encode_log, encode_row, mark_covered};
use super::without::without;
use super::writes::Writes;
use crate::limit::{Carry, Cuts, Decision, Limit, State, Verb};
use crate::policy::{NamedLimit, Policy, Standing, is_of_slots};
use crate::protocol::ComingBack;
use crate::sorted::SortedMap;

/// A policy's bucket for the key.
///
/// `persisted <= states <= persisted + block`, limit by limit and at every moment once [`Bucket::row`] was called, whether or not a row in
/// flight has arrived: a crash may cost tokens, at most a block, and never gives any back. The same holds if the runtime breaks its promise
/// and runs two objects of one key: the older one can spend only tokens that the newer one does not have, except for what refills in a
/// [covered](super::cover) bucket while both live.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    /// The policy of the latest request; the states are under its numbers.
    policy: Arc<Policy>,
    /// The registry version known to the frontend that sent it; 0 if no registry has the policy.
    as_of: i64,
    /// The latest version that it has followed. Frontends that know as much may send requests under an earlier one: for some of them an
    /// override has ended, or they have forgotten it.
    reached: i64,
    /// The current states, one for each limit of the policy.
    pub(super) states: Vec<State>,
    /// Accounts of other numbers, and limits that only other versions of the policy have. Requests under such numbers find them again, so
    /// versions that alternate give nothing away.
    dormant: Vec<NamedState>,
    /// Takes that may still be undone or changed, in order.
    openings: Vec<Opening>,
    /// One for each limit of the policy, if there are any openings. Dormant limits keep their own.
    pub(super) cuts: Vec<Cuts>,
    /// One for each limit of the policy, if one of them is a rolling window. Dormant limits keep their own.
    logs: Vec<Log>,
    /// What open reservations will give back, once computed.
    returns: Option<Returns>,
    /// Leased tokens. The states still include them, so a bucket is never fuller than with them.
    pub(super) leases: Leases,
    /// An account renamed since tokens were reserved of it: see [`Bucket::take_renamed`].
    renamed: Option<Renamed>,
    /// Whether storage has a row for it.
    has_row: bool,
    /// The states that a crash would leave. `None` if storage has no row, or one under other numbers.
    persisted: Option<Vec<State>>,
    lag: Lag,
    /// Since when the bucket has been in memory.
    awake_since: i64,
    /// A background row that may or may not have arrived.
    in_flight: Option<(u32, Vec<State>)>,
    spent_at: Option<i64>,
    /// Whether anything was spent since the last call of [`Bucket::flush_idle`].
    is_busy: bool,
    need: Need,
}

/// Tokens that may still be given back: those of a reservation or of a committed hold.
#[derive(Clone, Copy, Debug)]
struct Opening {
    id: u64,
    /// Whether it survives a crash: a reservation does, a committed hold does not.
    is_stored: bool,
    /// Whether its reservation has expired and was given back; it may still be settled late.
    is_returned: bool,
}

impl Opening {
    /// As in its row: ids have 52 bits.
    const fn encode(self) -> u64 {
        if self.is_returned { self.id | RETURNED } else { self.id }
    }

    const fn stored(word: u64) -> Self {
        Self { id: word & !RETURNED, is_stored: true, is_returned: word & RETURNED > 0 }
    }
}

const RETURNED: u64 = 1 << 63;

/// What a settlement does to dormant limits that the policy no longer has.
#[derive(Clone, Copy, Debug)]
pub(super) enum Others<'a> {
    /// They stay as reserved.
    Keep,
    /// They get this back.
    GiveBack(&'a ReservedPart),
    /// They got this back when the reservation expired, and it is settled late: it is taken again.
    TakeAgain(&'a ReservedPart),
}

impl Others<'_> {
    /// How many tokens were taken of a limit, and how many should have been.
    fn of(self, account: Option<&str>) -> (u64, u64) {
        match self {
            Self::Keep => (0, 0),
            Self::GiveBack(part) => (part.tokens_of(account), 0),
            Self::TakeAgain(part) => (0, part.tokens_of(account)),
        }
    }
}

/// Whether `persisted` lags behind on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lag {
    No,
    /// By a block, until spending pauses.
    Block,
    /// By not refilling for a while: see `cover.rs`.
    Cover,
}

/// Why a row must be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Need {
    Nothing,
    /// Tokens moved: how many decides whether a row is due.
    Spent,
    /// Something was opened or closed, which must be written at once; a crash may still cost a block.
    Now,
    /// The exact states must survive a crash: the numbers changed, or the clock stepped back.
    Exact,
}

/// The storage operation that is due.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Row {
    Nothing,
    /// Write before the reply.
    BeforeReply(Vec<u8>),
    /// Write in the background, then call [`Bucket::confirm`].
    Background(Vec<u8>),
}

impl Bucket {
    /// A new bucket.
    pub(super) fn new(policy: &Arc<Policy>, as_of: i64, now: i64, phase: u64) -> Self {
        let states = untouched(policy, now, phase);
        let mut bucket = Self { as_of, ..Self::of(policy, states, now) };
        // A full bucket need not be stored; one that starts below full refills from now on.
        if bucket.expires_at(now) != Some(now) {
            bucket.need = Need::Exact;
        }
        bucket
    }

    /// The bucket in a stored row, carried over if written under another version. `as_of` is the registry version known to the frontend
    /// whose request is under `policy`.
    pub(super) fn read(
        policy: &Arc<Policy>,
        as_of: i64,
        row: &[u8],
        expired: Vec<Expired>,
        now: i64,
        phase: u64,
    ) -> Result<Self, RowError> {
        let stored = StoredRow::read(row)?;
        let Registered { since, id, as_of: stored_as_of, .. } = stored.registered;
        let is_same_version = since == policy.timeline().since();
        let as_of = if is_same_version && id == policy.id() { stored_as_of } else { as_of };
        let openings = stored.openings.iter().copied().map(Opening::stored).collect();
        let reached = stored.reached.max(since);
        let mut bucket = Self { as_of, has_row: true, openings, ..Self::of(policy, Vec::new(), now) };
        if stored.is_behind() {
            bucket.need = Need::Exact; // what a crash may have cost is taken now, once
        }
        bucket.reached = bucket.reached.max(reached);
        if policy.is_inline() {
            return bucket.with_accounts(&stored, expired, now, phase);
        }
        if is_same_version && let Some(stored_states) = stored.states_of(policy) {
            let uncovered = |(named, state)| stored.uncovered(NamedLimit::limit(named), state, now);
            let mut states: Vec<_> = policy.limits().iter().zip(&stored_states).map(uncovered).collect();
            let each = policy.limits().iter().zip(&states).enumerate();
            let cuts = |(index, (named, state)): (usize, (&NamedLimit, &State))| {
                Some(stored.cuts_of(index)?.beside(named.limit(), state, now))
            };
            let mut cuts: Vec<_> = each.map_while(cuts).collect();
            let mut each = cuts.iter_mut();
            let limits = policy.limits().iter().zip(&mut states);
            let limits = limits.map(|(named, state)| (named.account(), named.limit(), state, each.next()));
            let leases = Leases::stored(&stored, limits);
            let log = |(index, (named, state)): (usize, (&NamedLimit, &State))| {
                let mut log = stored.log_of(index);
                if named.limit().is_rolling() {
                    log.fit(named.limit(), state, now); // what a crash may have cost
                }
                log
            };
            let has_logs = policy.has_own_rolling_windows();
            let logs = policy.limits().iter().zip(&states).enumerate().filter(|_| has_logs).map(log).collect();
            let stored_newest = (0..policy.limits().len()).filter_map(|index| Some(*stored.cuts_of(index)?.newest()));
            let persisted = Some(stored_states.into_iter().chain(stored_newest).collect());
            return Ok(Self { states, cuts, logs, leases, persisted, ..bucket }.with_all_cut());
        }
        let mut old = stored.limits(now)?;
        let changed_at =
            stored.covered_since.and_then(|covered_since| changed_at(policy, &old, covered_since.max(since)));
        // A bucket is carried over when its numbers change: its level at that moment counts.
        for limit in &mut old {
            limit.state = stored.uncovered(&limit.limit, &limit.state, changed_at.unwrap_or(now).min(now));
        }
        let mut leases = Leases::stored(&stored, old.iter_mut().map(NamedState::parts));
        for account in &mut old {
            account.fit_log(now); // what a crash may have cost
        }
        let is_unchanged = stored.policy_version() == policy.version() && policy.is_unchanged_since(since);
        if is_unchanged {
            leases.end(&mut old, stored.is_inline, (now, now)); // so that none is left that would need another row
        }
        let renamed = rename(&mut old, &mut leases, policy, || stored.policy(policy.name()).ok());
        leases.move_to(policy);
        let stored_states: Vec<_> = old.iter().map(|limit| limit.state).take(policy.limits().len()).collect();
        let mut meanwhile = Meanwhile::new(&mut leases, stored.is_inline, !bucket.openings.is_empty(), now);
        meanwhile.expired = bucket.places_of(expired, renamed.as_ref());
        let Followed { states, cuts, logs, dormant } = followed(&old, (since, reached), policy, &mut meanwhile, phase);
        let returned = meanwhile.returned;
        // The row only has extra dormant limits, or is of another version with the same numbers.
        let is_current = is_unchanged
            && states == stored_states
            && stored.unnamed(policy.name()).as_deref() == policy.timeline().unnamed();
        let (persisted, need) = if is_current && !leases.is_any() && bucket.openings.is_empty() {
            let dormant = dormant.iter().map(|dormant| dormant.state);
            (Some(states.iter().copied().chain(dormant).collect()), bucket.need)
        } else {
            (None, Need::Exact)
        };
        let mut bucket =
            Self { states, dormant, cuts, logs, leases, renamed, persisted, need, ..bucket }.with_all_cut();
        bucket.fit_logs(now); // tokens of leases that were over
        bucket.adopt_openings(&old, now);
        bucket.mark_all_returned(&returned);
        Ok(bucket)
    }

    /// These of its openings, with their places, if they were not given back. They are from before an account was renamed.
    fn places_of(&self, expired: Vec<Expired>, renamed: Option<&Renamed>) -> Vec<(Expired, usize)> {
        let is_open = |place: &usize| self.openings.get(*place).is_some_and(|opening| !opening.is_returned);
        let placed = expired.into_iter().filter_map(|mut expired| {
            let place = self.place_of(expired.id).filter(is_open)?;
            if let Some(renamed) = renamed {
                expired.taken.rename(renamed, false);
            }
            Some((expired, place))
        });
        placed.collect()
    }

    fn mark_all_returned(&mut self, ids: &[u64]) {
        for id in ids {
            self.mark_returned(*id);
            self.need(Need::Now);
        }
    }

    /// The bucket with a row's accounts.
    fn with_accounts(
        self,
        stored: &StoredRow<'_>,
        expired: Vec<Expired>,
        now: i64,
        phase: u64,
    ) -> Result<Self, RowError> {
        let mut old = stored.limits(now)?;
        let newest = old.iter().filter_map(|account| account.cuts.as_ref()).map(Cuts::newest);
        let persisted = Some(old.iter().map(|account| &account.state).chain(newest).copied().collect());
        // Written while a policy had its name: with a cover, or leases.
        for account in &mut old {
            account.state = stored.uncovered(&account.limit, &account.state, now);
        }
        let mut leases = Leases::stored(stored, old.iter_mut().map(NamedState::parts));
        for account in &mut old {
            account.fit_log(now); // what a crash may have cost
        }
        leases.end(&mut old, stored.is_inline, (now, now));
        let renamed = rename(&mut old, &mut leases, &self.policy, || stored.policy(self.policy.name()).ok());
        leases.move_to(&self.policy);
        if !stored.is_exact {
            // Grants since may be missing from the row: the time before now is not idle time.
            for account in &mut old {
                account.state = account.limit.refilled(&account.state, now);
                if let Some(cuts) = &mut account.cuts {
                    cuts.refill(&account.limit, now);
                }
            }
        }
        let mut bucket = Self { persisted: persisted.filter(|_| !leases.is_any()), leases, renamed, ..self };
        bucket.set_accounts(&old, stored.is_inline, expired, now, phase);
        Ok(bucket)
    }

    /// Switches to its policy's accounts after these, whose numbers came with requests if `is_inline`. `persisted` and `in_flight` are in
    /// the order of `old`.
    fn set_accounts(&mut self, old: &[NamedState], is_inline: bool, expired: Vec<Expired>, now: i64, phase: u64) {
        // Numbers that were only peeked at have granted nothing, and say nothing about others.
        let old = if self.has_row || self.need != Need::Nothing { old } else { &[] };
        let mut leases = std::mem::take(&mut self.leases);
        let mut meanwhile = Meanwhile::new(&mut leases, is_inline, !self.openings.is_empty(), now);
        meanwhile.expired = self.places_of(expired, self.renamed.as_ref());
        let followed = followed(old, (0, self.reached), &Arc::clone(&self.policy), &mut meanwhile, phase);
        Followed { states: self.states, cuts: self.cuts, logs: self.logs, dormant: self.dormant } = followed;
        let returned = meanwhile.returned;
        self.leases = leases;
        self.adopt_openings(old, now);
        self.mark_all_returned(&returned);
        self.cut_all();
        // A new account is written with the next grant. Until then a crash forgets it, which costs nothing.
        let places: Option<Vec<usize>> = self.all().map(|account| old.iter().position(|old| *old == account)).collect();
        let places = places.filter(|places| places.len() == old.len());
        let is_cut = self.has_stored_cuts();
        let in_order = |states: Vec<State>| -> Option<Vec<State>> {
            let places = places.as_ref()?;
            let newest = places.iter().filter(|_| is_cut).map(|place| place.saturating_add(places.len()));
            places.iter().copied().chain(newest).map(|place| states.get(place).copied()).collect()
        };
        if self.has_logs() {
            (self.persisted, self.in_flight) = (None, None); // something may have come back since
        }
        self.persisted = self.persisted.take().and_then(&in_order);
        self.in_flight = self.in_flight.take().and_then(|(ticket, states)| Some((ticket, in_order(states)?)));
    }

    /// Continues under `policy`. If the numbers changed, tokens are carried over as if the bucket had been read from its row. `as_of` is
    /// the registry version known to the requesting frontend; `expired` are reservations that may have been given back before a change.
    pub(super) fn move_to(&mut self, policy: &Arc<Policy>, as_of: i64, expired: Vec<Expired>, now: i64, phase: u64) {
        if Arc::ptr_eq(&self.policy, policy) {
            return;
        }
        let before = std::mem::replace(&mut self.policy, Arc::clone(policy));
        let since = before.timeline().since();
        if since == 0 || before.id() != policy.id() {
            self.as_of = as_of;
        }
        if before.version() == policy.version() && since == policy.timeline().since() {
            return self.resize(&before);
        }
        self.forget_returns(); // computed under the previous numbers
        let mut old: Vec<_> = self.all_of(&before).collect();
        self.renamed = rename(&mut old, &mut self.leases, policy, || Some(Arc::clone(&before)));
        self.leases.move_to(policy);
        if policy.is_inline() && before.is_inline() {
            return self.set_accounts(&old, true, expired, now, phase);
        }
        let mut leases = std::mem::take(&mut self.leases);
        let mut meanwhile = Meanwhile::new(&mut leases, before.is_inline(), !self.openings.is_empty(), now);
        meanwhile.expired = self.places_of(expired, self.renamed.as_ref());
        let followed = followed(&old, (since, self.reached), policy, &mut meanwhile, phase);
        let returned = meanwhile.returned;
        self.leases = leases;
        self.mark_all_returned(&returned);
        self.reached = self.reached.max(policy.timeline().since());
        let is_unchanged = before.version() == policy.version()
            && policy.is_unchanged_since(since)
            && before.timeline().unnamed() == policy.timeline().unnamed();
        if is_unchanged && followed.is_of(self) {
            return self.resize(&before);
        }
        Followed { states: self.states, cuts: self.cuts, logs: self.logs, dormant: self.dormant } = followed;
        self.adopt_openings(&old, now);
        self.cut_all();
        self.persisted = None; // storage has other numbers
        self.in_flight = None;
        self.need(Need::Exact);
    }

    /// Limits that have become rolling windows also count what their reservations cost more in the end.
    fn adopt_openings(&mut self, old: &[NamedState], now: i64) {
        // After a reset the past no longer matters.
        let is_additive = matches!(self.policy.timeline().carry(), Carry::Additive);
        for (named, log) in self.policy.limits().iter().zip(&mut self.logs).filter(|_| is_additive) {
            let mut of_name = old.iter().filter(|account| account.name.as_deref() == named.account());
            if named.limit().is_rolling() && of_name.next().is_some_and(|in_force| !in_force.limit.is_rolling()) {
                log.adopt(self.openings.iter().map(|opening| opening.id), now);
            }
        }
    }

    /// The account renamed since the last call.
    pub(super) const fn take_renamed(&mut self) -> Option<Renamed> {
        self.renamed.take()
    }

    /// Whether the bucket's last request came from a frontend that knew a newer version than this one.
    pub(super) fn is_newer_than(&self, policy: &Policy, as_of: i64) -> bool {
        self.as_of > as_of && self.policy.id() != policy.id()
    }

    /// What the frontend knew whose request is under the bucket's policy: the moment of the registry's latest change.
    pub(super) const fn as_of(&self) -> i64 {
        self.as_of
    }

    /// After a switch to another policy with the same numbers: a smaller block may need a row that the larger one did not.
    fn resize(&mut self, before: &Policy) {
        if !before.limits().iter().map(block).eq(self.policy.limits().iter().map(block)) {
            self.need(Need::Spent);
        }
    }

    fn of(policy: &Arc<Policy>, states: Vec<State>, now: i64) -> Self {
        Self {
            policy: Arc::clone(policy),
            as_of: 0,
            reached: policy.timeline().since(),
            states,
            dormant: Vec::new(),
            openings: Vec::new(),
            cuts: Vec::new(),
            logs: Vec::new(),
            returns: None,
            leases: Leases::default(),
            renamed: None,
            has_row: false,
            persisted: None,
            lag: Lag::No,
            awake_since: now,
            in_flight: None,
            spent_at: None,
            is_busy: false,
            need: Need::Nothing,
        }
    }

    pub(super) const fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    pub(super) const fn has_row(&self) -> bool {
        self.has_row
    }

    /// Requests a row, or none; the most urgent request wins.
    pub(super) fn need(&mut self, need: Need) {
        self.need = self.need.max(need);
    }

    /// Applies changes of the states of the policy's limits from `before`, in its order, to what depends on open reservations and to the
    /// accounts of other numbers.
    pub(super) fn follow(&mut self, before: &[State], changes: &[Change], now: i64) {
        let is_stored = self.has_stored_cuts();
        let limits = self.policy.limits().iter().zip(before.iter().zip(&self.states));
        for ((cuts, (named, (before, after))), change) in self.cuts.iter_mut().zip(limits).zip(changes) {
            change.apply_to_cuts(cuts, named.limit(), before, after, now);
            // Tokens given back to a full bucket may still matter to earlier takes.
            if matches!(change, Change::Refund(1..) | Change::Reset) && is_stored {
                self.need = self.need.max(Need::Now);
            }
        }
        let is_inline = self.policy.is_inline();
        for ((named, state), change) in self.policy.limits().iter().zip(&self.states).zip(changes) {
            let in_force = (named.account(), named.limit());
            if change.apply_to_others(in_force, *state, is_inline, &mut self.dormant, now) {
                self.need = self.need.max(Need::Spent);
            }
        }
        let mut is_lower = false;
        let resets = self.policy.limits().iter().zip(changes).enumerate();
        for (index, (named, _)) in resets.filter(|(_, (_, change))| matches!(change, Change::Reset)) {
            let of_name = self.dormant.iter_mut().filter(|dormant| dormant.name.as_deref() == named.account());
            for log in of_name.map(|dormant| &mut dormant.log).chain(self.logs.get_mut(index)) {
                is_lower |= log.reset();
            }
        }
        self.follow_logs(false, is_lower);
        self.fit_logs(now);
    }

    /// Makes the logs of rolling windows add up again, after states have changed.
    fn fit_logs(&mut self, now: i64) {
        let (mut is_lower, mut is_any) = (false, false);
        let awake = self.policy.limits().iter().map(NamedLimit::limit).zip(&self.states).zip(&mut self.logs);
        let dormant = self.dormant.iter_mut().map(|dormant| ((&dormant.limit, &dormant.state), &mut dormant.log));
        for ((limit, state), log) in awake.chain(dormant).filter(|((limit, _), _)| limit.is_rolling()) {
            is_any = true;
            is_lower |= log.fit(limit, state, now);
        }
        self.follow_logs(is_any, is_lower);
    }

    /// After a change of the logs, by which what is in storage may say that something comes back which was given back already: then it must
    /// be written at once. What a settlement changes is in the logs, and not in the cuts.
    fn follow_logs(&mut self, is_any: bool, is_lower: bool) {
        if is_lower {
            self.need(Need::Now);
        }
        if !is_any || self.openings.is_empty() {
            return;
        }
        let count = self.openings.len();
        let awake = self.policy.limits().iter().map(NamedLimit::limit).zip(&self.states).zip(&mut self.cuts);
        let dormant = self.dormant.iter_mut().filter_map(|dormant| {
            let NamedState { limit, state, cuts, .. } = dormant;
            Some(((&*limit, &*state), cuts.as_mut()?))
        });
        for ((_, state), cuts) in awake.chain(dormant).filter(|((limit, _), _)| limit.is_rolling()) {
            *cuts = Cuts::void(*state, count);
        }
    }

    /// Brings back what is back of rolling windows by now, with the grains of the policy.
    pub(super) fn bring_back(&mut self, now: i64) {
        if !self.has_logs() {
            return;
        }
        self.logs.resize(self.states.len(), Log::default());
        for (log, named) in self.logs.iter_mut().zip(self.policy.limits()) {
            log.set_grain(named.grain_ms());
        }
        let mut has_stepped = false;
        let count = self.states.len().saturating_add(self.dormant.len());
        let awake = self.policy.limits().iter().map(NamedLimit::limit).zip(&mut self.states).zip(&mut self.logs);
        let dormant = self.dormant.iter_mut().map(|dormant| {
            let NamedState { limit, state, log, .. } = dormant;
            ((&*limit, state), log)
        });
        for (index, ((limit, state), log)) in awake.chain(dormant).enumerate() {
            if !limit.is_rolling() {
                continue;
            }
            has_stepped |= log.follow_clock(now);
            let back = log.bring_back(limit, now);
            *state = limit.raised(state, back.tokens);
            // An object that reads the row now would find as much of it back; twice, if it also has the newest piece.
            for place in [index, index.saturating_add(count)] {
                let stored = self.persisted.as_mut().and_then(|states| states.get_mut(place));
                let in_flight = self.in_flight.as_mut().and_then(|(_, states)| states.get_mut(place));
                for (stored, back) in [(stored, back.saved.0), (in_flight, back.saved.1)] {
                    if let Some(stored) = stored {
                        *stored = limit.raised(stored, back);
                    }
                }
            }
        }
        if has_stepped {
            self.need(Need::Exact);
        }
        self.follow_logs(true, false);
    }

    pub(super) fn has_logs(&self) -> bool {
        self.policy.has_own_rolling_windows() || self.dormant.iter().any(|dormant| dormant.limit.is_rolling())
    }

    /// When a cost passes that a rolling window has just refused, without the tokens that are `held`. `others` come back at their moments; what
    /// `expiring` openings have taken comes back at theirs at the latest.
    pub(super) fn refusal(
        &self,
        index: usize,
        (cost, verb): (u64, Verb),
        held: u64,
        others: impl IntoIterator<Item = (i64, u64)>,
        expiring: &[(u64, i64)],
    ) -> Decision {
        let never = Decision::Never { max: 0 };
        let (Some(named), Some(state)) = (self.policy.limits().get(index), self.states.get(index)) else {
            return never;
        };
        let limit = named.limit();
        let there = i128::from(limit.snapshot(state).tokens).saturating_sub(held.into());
        let coming_back = self.coming_back(index, limit, others, expiring);
        limit.refusal_of_rolling(there, cost, verb, coming_back.iter()).unwrap_or(never)
    }

    /// What comes back of a rolling window; `others` and `expiring` as for its refusals.
    fn coming_back(
        &self,
        index: usize,
        limit: &Limit,
        others: impl IntoIterator<Item = (i64, u64)>,
        expiring: &[(u64, i64)],
    ) -> ComingBack {
        let others = others.into_iter().chain(self.lease_back(index, limit));
        self.logs.get(index).map(|log| log.coming_back(limit, others, expiring)).unwrap_or_default()
    }

    /// What comes back of each rolling window of the policy while nothing is held or reserved.
    pub(super) fn all_coming_back(&self) -> impl Iterator<Item = ComingBack> {
        let limits =
            self.policy.limits().iter().map(NamedLimit::limit).enumerate().filter(|(_, limit)| limit.is_rolling());
        limits.map(|(index, limit)| self.coming_back(index, limit, [], &[]).summary())
    }

    /// When all of a rolling window is back, if anything is missing; `None` of another limit.
    pub(super) fn over_at(&self, index: usize) -> Option<i64> {
        let limit = self.policy.limits().get(index)?.limit();
        let log = self.logs.get(index).filter(|_| limit.is_rolling())?;
        log.over_at(limit).max(self.lease_back(index, limit).map(|(at, _)| at))
    }

    /// When leased tokens of a rolling window are back, and how many: from before it was one, they count as taken when their leases are over.
    fn lease_back(&self, index: usize, limit: &Limit) -> Option<(i64, u64)> {
        let tokens = Some(self.leases.of(index)).filter(|tokens| *tokens > 0)?;
        Some((self.logs.get(index)?.back_if_taken(limit, self.leases.over_at(i64::MIN)), tokens))
    }

    /// Debits leases that are over.
    pub(super) fn end_leases(&mut self, now: i64) {
        if self.leases.is_any_over(now) {
            self.with_all(|leases, accounts, is_inline| leases.end(accounts, is_inline, (now, now)));
            self.fit_logs(now);
            self.bring_back(now); // they may have been over for long
        }
    }

    /// Debits what was spent of leases, also from dormant limits.
    pub(super) fn spend(&mut self, spent: &[Vec<u64>], at: i64) {
        self.with_all(|leases, accounts, is_inline| {
            for tokens in spent {
                leases.spend(accounts, tokens, is_inline, at);
            }
        });
        self.fit_logs(at);
    }

    /// Changes all accounts; the last argument says whether numbers come with requests.
    fn with_all(&mut self, change: impl FnOnce(&mut Leases, &mut [NamedState], bool)) {
        let mut all: Vec<_> = self.all_of(&self.policy).collect();
        change(&mut self.leases, &mut all, self.policy.is_inline());
        self.dormant = all.split_off(self.states.len().min(all.len()));
        self.states = all.iter().map(|account| account.state).collect();
        self.logs = logs_of(&self.policy, &all);
        self.cuts = all.into_iter().filter_map(|account| account.cuts).collect();
    }

    /// A row with leases has the newest pieces as of now. What no longer fits them is in the others.
    fn prepare_cuts(&mut self, now: i64) {
        if self.leases.is_any() {
            self.refill_cuts(now);
        }
    }

    /// Credits all refills up to now to what depends on open reservations.
    pub(super) fn refill_cuts(&mut self, now: i64) {
        for (named, cuts) in self.policy.limits().iter().zip(&mut self.cuts) {
            cuts.refill(named.limit(), now);
        }
        for dormant in &mut self.dormant {
            if let Some(cuts) = &mut dormant.cuts {
                cuts.refill(&dormant.limit, now);
            }
        }
    }

    /// The states of the policy's limits, for [`Bucket::follow`].
    pub(super) fn states_before(&self) -> Vec<State> {
        if self.cuts.is_empty() { Vec::new() } else { self.states.clone() }
    }

    /// The last take may still change: see [`Bucket::settle`].
    pub(super) fn open(&mut self, id: u64, is_stored: bool, now: i64) {
        self.openings.push(Opening { id, is_stored, is_returned: false });
        self.forget_returns();
        if self.cuts.is_empty() {
            self.cuts = self.states.iter().copied().map(Cuts::new).collect();
        }
        for (named, cuts) in self.policy.limits().iter().zip(&mut self.cuts) {
            cuts.open(named.limit(), now);
        }
        for (named, log) in self.policy.limits().iter().zip(&mut self.logs) {
            if named.limit().is_rolling() {
                log.open(id, now);
            }
        }
        for NamedState { limit, state, cuts, log, .. } in &mut self.dormant {
            cuts.get_or_insert_with(|| Cuts::new(*state)).open(limit, now);
            if limit.is_rolling() {
                log.open(id, now);
            }
        }
        self.follow_logs(self.has_logs(), false);
        self.need(if is_stored { Need::Now } else { Need::Spent });
    }

    /// The moment at which to settle an expired reservation without a request: the latest up to which the bucket has credited refills.
    /// After it the policy may have changed before the bucket followed. An earlier moment gives the same result.
    pub(super) fn closing_at(&self, now: i64) -> i64 {
        let limits = || self.policy.limits().iter().map(NamedLimit::limit);
        let states = limits().zip(&self.states).chain(limits().zip(self.cuts.iter().map(Cuts::newest)));
        let awake = states.map(|(limit, state)| limit.snapshot(state).at);
        awake.chain(self.dormant.iter().map(NamedState::at)).max().unwrap_or(now).min(now)
    }

    /// Whether an opening with this id exists.
    pub(super) fn is_open(&self, id: u64) -> bool {
        self.place_of(id).is_some()
    }

    /// What open reservations will give back, if computed since the last change.
    pub(super) fn returns(&self) -> Option<Arc<[Return]>> {
        let known = self.returns.as_ref().filter(|returns| returns.is_from(&self.states, &self.cuts));
        known.map(|returns| Arc::clone(&returns.all))
    }

    /// Computes what open reservations will give back. `expiring` has each one's expiry, id, and tokens of each limit.
    pub(super) fn find_returns(&mut self, expiring: &[(i64, u64, Vec<u64>)]) -> Arc<[Return]> {
        // After a crash the clock may be behind an expiry at which it was given back. Sorted once: a `SortedMap` inserts each.
        let mut places: Vec<(u64, usize)> = self
            .openings
            .iter()
            .enumerate()
            .filter(|(_, opening)| !opening.is_returned)
            .map(|(place, opening)| (opening.id, place))
            .collect();
        crate::sorted::sort_by(&mut places, |one, other| one.0.cmp(&other.0));
        let place_of = |id: u64| {
            let index = places.binary_search_by_key(&id, |(id, _)| *id).ok()?;
            places.get(index).map(|(_, place)| *place)
        };
        let expiring = expiring.iter().filter_map(|(at, id, tokens)| Some((*at, place_of(*id)?, tokens.as_slice())));
        let found = Returns::find(&self.policy, &self.states, &self.cuts, expiring);
        Arc::clone(&self.returns.insert(found).all)
    }

    /// Must be called when reservations change, or the expiry of one.
    pub(super) fn forget_returns(&mut self) -> Option<Returns> {
        self.returns.take()
    }

    /// After a change of reservations was undone.
    pub(super) fn know_returns(&mut self, returns: Option<Returns>) {
        self.returns = returns;
    }

    /// The index of its cut.
    pub(super) fn place_of(&self, id: u64) -> Option<usize> {
        self.openings.iter().position(|opening| opening.id == id)
    }

    /// Settles the opening with this id: for each limit `tokens` has how many were taken and how many should have been. A charge that would
    /// leave less than the largest debt allows is reduced. Limits that the policy no longer has are settled as `others` says. Returns how
    /// many were taken in the end, and how many more there are now.
    pub(super) fn settle(
        &mut self,
        id: u64,
        tokens: &[(u64, u64)],
        others: Others<'_>,
        held: &[u64],
        now: i64,
    ) -> Vec<(u64, u64)> {
        let Some(cut) = self.place_of(id) else { return Vec::new() };
        let mut booked = Vec::new();
        let may_owe = self.policy.standing() != Standing::Unlimited;
        let limits = self.policy.limits().iter().zip(&mut self.states).zip(&mut self.cuts).enumerate();
        for ((index, ((named, state), cuts)), (&(taken, real), &held)) in limits.zip(tokens.iter().zip(held)) {
            let limit = named.limit();
            if let Some(log) = self.logs.get_mut(index).filter(|_| limit.is_rolling()) {
                let room = limit.remaining(state, now).saturating_sub(held);
                booked.push(log.settle(limit, id, (taken, real), room, state));
                continue;
            }
            cuts.refill(limit, now);
            let more = real.saturating_sub(taken);
            let real = taken.min(real).saturating_add(cuts.room(limit, cut, held, may_owe).min(more));
            booked.push((real, cuts.settle(limit, cut, (taken, real), state, now)));
        }
        let (policy, dormant, leases) = (&self.policy, &self.dormant, &self.leases);
        let limits = policy.limits().iter().zip(&self.states);
        let floors = limits
            .map(|(named, state)| Floor::of((named.account(), named.limit()), state, policy.is_inline(), dormant));
        let floors: Vec<_> = floors.collect();
        for NamedState { name, limit, state, cuts, log } in &mut self.dormant {
            let Some(cuts) = cuts else { continue };
            cuts.refill(limit, now);
            let mut charged = policy.limits().iter().zip(tokens.iter().zip(&booked)).zip(&floors);
            let change = charged.find(|((named, _), _)| named.account() == name.as_deref());
            let own = change.map(|((_, (&(taken, _), &(booked, _))), _)| (taken, booked));
            let (taken, real) = own.unwrap_or_else(|| {
                let (taken, real) = others.of(name.as_deref());
                let room = cuts.room(limit, cut, leases.of_name(name.as_deref()), may_owe);
                (taken, real.min(taken.saturating_add(room)))
            });
            if limit.is_rolling() {
                let room = limit.remaining(state, now).saturating_sub(leases.of_name(name.as_deref()));
                log.settle(limit, id, (taken, real), room, state);
                continue;
            }
            let before = *state;
            cuts.settle(limit, cut, (taken, real), state, now);
            let after = limit.refilled(state, now);
            if real > taken
                && let Some((_, floor)) = change
                && let Some(floor) = floor.above(limit, &before, &after, now)
            {
                cuts.raise_to(&floor);
                *state = floor;
            }
        }
        self.need(if self.has_stored_cuts() || self.has_logs() { Need::Now } else { Need::Spent });
        self.follow_logs(self.has_logs(), false);
        booked
    }

    /// Records that all of it was given back because its reservation expired. It may still be settled.
    pub(super) fn mark_returned(&mut self, id: u64) {
        for opening in self.openings.iter_mut().filter(|opening| opening.id == id) {
            opening.is_returned = true;
        }
    }

    /// Whether all of it was given back because its reservation expired.
    pub(super) fn is_returned(&self, id: u64) -> bool {
        self.openings.iter().any(|opening| opening.id == id && opening.is_returned)
    }

    /// The openings whose reservation has expired and given back what it held.
    pub(super) fn returned(&self) -> Vec<u64> {
        self.openings.iter().filter(|opening| opening.is_returned).map(|opening| opening.id).collect()
    }

    /// Closes the opening with this id.
    pub(super) fn close(&mut self, id: u64) {
        self.retain(|opening| opening != id);
    }

    /// Closes all openings except those with these ids.
    pub(super) fn retain(&mut self, is_open: impl Fn(u64) -> bool) {
        while let Some(cut) = self.openings.iter().position(|opening| !is_open(opening.id)) {
            let opening = self.openings.remove(cut);
            self.forget_returns();
            let dormant = self.dormant.iter_mut().filter_map(|dormant| dormant.cuts.as_mut());
            self.cuts.iter_mut().chain(dormant).for_each(|cuts| cuts.close(cut));
            let dormant = self.dormant.iter_mut().map(|dormant| &mut dormant.log);
            self.logs.iter_mut().chain(dormant).for_each(|log| log.close(opening.id));
            self.need(if opening.is_stored { Need::Now } else { Need::Spent });
        }
        self.drop_cuts();
    }

    fn has_stored_cuts(&self) -> bool {
        self.openings.iter().any(|opening| opening.is_stored)
    }

    /// The cuts of all limits, dormant ones last, as stored: only those that survive a crash.
    fn stored_cuts(&self) -> Vec<Cow<'_, Cuts>> {
        if !self.has_stored_cuts() {
            return Vec::new();
        }
        let cuts = self.cuts.iter().chain(self.dormant.iter().filter_map(|dormant| dormant.cuts.as_ref()));
        let mut cuts: Vec<_> = cuts.map(Cow::Borrowed).collect();
        for (cut, _) in self.openings.iter().enumerate().rev().filter(|(_, opening)| !opening.is_stored) {
            for cuts in &mut cuts {
                cuts.to_mut().close(cut);
            }
        }
        cuts
    }

    /// Slots are never taken from the bucket, but held by reservations: whatever numbers it had before, it is full.
    pub(super) fn fill_slots(&mut self, now: i64, phase: u64) {
        let count = self.openings.len();
        for (index, (named, state)) in self.policy.limits().iter().zip(&mut self.states).enumerate() {
            let limit = named.limit();
            if named.is_slots() && limit.remaining(state, now) < limit.config().capacity {
                *state = limit.new_state(now, phase);
                if let Some(cuts) = self.cuts.get_mut(index) {
                    *cuts = Cuts::void(*state, count);
                }
            }
        }
    }

    /// Drops the cuts when nothing is open.
    fn drop_cuts(&mut self) {
        if self.openings.is_empty() {
            self.cuts.clear();
            self.returns = None;
            self.dormant.iter_mut().for_each(|dormant| dormant.cuts = None);
        }
    }

    /// Creates missing cuts. For a limit added after an opening, that opening has no effect.
    fn cut_all(&mut self) {
        let count = self.openings.len();
        if count == 0 {
            return self.drop_cuts();
        }
        for (index, state) in self.states.iter().enumerate() {
            match self.cuts.get_mut(index) {
                Some(cuts) if cuts.steps().len() == count => {}
                Some(cuts) => *cuts = Cuts::void(*state, count),
                None => self.cuts.push(Cuts::void(*state, count)),
            }
        }
        for dormant in &mut self.dormant {
            if dormant.cuts.as_ref().is_none_or(|cuts| cuts.steps().len() != count) {
                dormant.cuts = Some(Cuts::void(dormant.state, count));
            }
        }
    }

    fn with_all_cut(mut self) -> Self {
        self.cut_all();
        self
    }

    /// All limits with their states, dormant ones last.
    fn all(&self) -> impl Iterator<Item = NamedState> {
        self.all_of(&self.policy)
    }

    /// The same, if the states belong to this policy.
    fn all_of(&self, policy: &Policy) -> impl Iterator<Item = NamedState> {
        let awake = policy.limits().iter().zip(&self.states).enumerate();
        let awake = awake.map(|(index, (limit, &state))| NamedState {
            cuts: self.cuts.get(index).cloned(),
            log: self.logs.get(index).cloned().unwrap_or_default(),
            ..NamedState::of(limit, state)
        });
        awake.chain(self.dormant.iter().cloned())
    }

    /// The row to write now, if any; it counts as written from now on. `ticket` identifies a background row and must be unique.
    pub(super) fn row(&mut self, now: i64, ticket: u32) -> Row {
        let need = std::mem::replace(&mut self.need, Need::Nothing);
        if need == Need::Nothing {
            return Row::Nothing;
        }
        self.awake_since = self.awake_since.min(now);
        self.end_leases(now); // before crediting later refills
        self.prepare_cuts(now);
        let was_busy = self.spent_at.is_some_and(|at| now.abs_diff(at) < Writes::IDLE_MS);
        if need != Need::Exact {
            self.spent_at = Some(now);
            self.is_busy = true;
        }
        // A crash must not forget a lease: until it is over, the bucket would be too full.
        let slack = match need {
            Need::Spent if !self.leases.is_unsaved() => self.slack(now),
            _ => Slack::None,
        };
        match slack {
            Slack::Enough => {
                if self.lag == Lag::No {
                    self.lag = Lag::Block; // otherwise a refund that needs no row now would never get one
                }
                Row::Nothing
            }
            Slack::Little if self.in_flight.is_some() => Row::Nothing,
            Slack::Little => {
                let next = self.lowered(now);
                let row = self.encode(&next, now);
                self.leases.mark_in_flight();
                self.all_logs().for_each(Log::mark_in_flight);
                self.in_flight = Some((ticket, next));
                Row::Background(row)
            }
            Slack::None => {
                let may_lag = need != Need::Exact && self.policy.limits().iter().any(|limit| block(limit) > 0);
                let covered = if may_lag { self.covered(now) } else { None };
                let next;
                (self.lag, next) = match covered {
                    Some(covered) => (Lag::Cover, covered),
                    None if was_busy && may_lag => (Lag::Block, self.lowered(now)),
                    // A quiet key is written exactly: no further spending is expected.
                    None => (Lag::No, self.all_states(now)),
                };
                let mut row = self.encode(&next, now);
                if self.lag == Lag::Cover {
                    mark_covered(&mut row, now);
                }
                self.leases.mark_saved();
                self.all_logs().for_each(Log::mark_saved);
                self.persisted = Some(next);
                self.in_flight = None;
                self.has_row = true;
                Row::BeforeReply(row)
            }
        }
    }

    /// Records that the row with this ticket is persisted.
    pub(super) fn confirm(&mut self, ticket: u32) {
        if let Some((_, states)) = self.in_flight.take_if(|(of, _)| *of == ticket) {
            self.leases.mark_arrived();
            self.all_logs().for_each(Log::mark_arrived);
            self.persisted = Some(states);
        }
    }

    /// Whether storage lags behind on purpose, and [`Bucket::flush_idle`] should be called in [`Writes::IDLE_MS`].
    pub(super) const fn is_ahead_of_storage(&self) -> bool {
        matches!(self.lag, Lag::Block)
    }

    /// The row of the exact states, if nothing was spent since the last call. `ticket` is as for [`Bucket::row`].
    pub(super) fn flush_idle(&mut self, now: i64, ticket: u32) -> Option<Vec<u8>> {
        let is_busy = std::mem::replace(&mut self.is_busy, false);
        if is_busy || !self.is_ahead_of_storage() || self.in_flight.is_some() {
            return None;
        }
        self.lag = Lag::No;
        self.end_leases(now); // before crediting later refills
        self.prepare_cuts(now);
        let exact = self.all_states(now);
        let row = self.encode(&exact, now);
        self.leases.mark_in_flight();
        self.all_logs().for_each(Log::mark_in_flight);
        self.in_flight = Some((ticket, exact));
        Some(row)
    }

    /// When the bucket may be forgotten, if ever.
    pub(super) fn expires_at(&self, now: i64) -> Option<i64> {
        let all = self.all_states(now);
        let awake = self.policy.limits().iter().zip(&all).enumerate();
        let awake = awake.map(|(index, (named, state))| {
            let limit = named.limit();
            if limit.is_rolling() {
                return Some(self.over_at(index).unwrap_or(now).max(now));
            }
            limit.expires_at(state, now)
        });
        let awake = awake.chain([Some(self.leases.over_at(now))]);
        let dormant = self.dormant.iter().zip(all.iter().skip(self.states.len()));
        let limits = || self.policy.limits().iter().map(|named| (named.account(), named.limit()));
        let is_needed =
            |dormant: &NamedState| !is_of_slots(dormant.name.as_deref()) && !is_dominated(dormant, limits());
        let dormant = dormant.filter(|(dormant, _)| is_needed(dormant));
        latest(now, awake.chain(dormant.map(|(dormant, state)| dormant.full_at(state, now))))
    }

    /// The least surplus of any limit over its persisted state plus what a crash would let frontends return again. A row in flight may or
    /// may not arrive: whichever state a crash leaves must be neither above the bucket nor more than a block below it.
    fn slack(&self, now: i64) -> Slack {
        let Some(persisted) = &self.persisted else {
            return Slack::None;
        };
        let in_flight = self.in_flight.as_ref().map(|(_, states)| states);
        let mut slack = Slack::Enough;
        let names = self.names().chain(self.cut_again(self.names()));
        for (index, (((limit, block), state), name)) in self.lines().zip(&self.all_states(now)).zip(names).enumerate() {
            let returned = self.leases.returned(name);
            for (stored, returned, is_there) in [(Some(persisted), returned.0, true), (in_flight, returned.1, false)] {
                let Some(stored) = stored.and_then(|states| states.get(index)) else {
                    continue;
                };
                // Even when it starts to refill, if later: the bucket is furthest above it then.
                let is_too_low = limit.surplus_over(&limit.raised(stored, block), state, now).is_none()
                    || !limit.fills_with(stored, state, now);
                match limit.surplus_over(state, &limit.raised(stored, returned), now) {
                    Some(surplus) if !is_too_low => {
                        // A quarter is left for spending while the next row is written. More would cost more rows.
                        if is_there && self.is_ahead_of_storage() && surplus < block.div_ceil(4) {
                            slack = Slack::Little;
                        }
                    }
                    _ => return Slack::None,
                }
            }
        }
        slack
    }

    /// The states of a row that does not refill for a while, if the bucket is nearly full. None while tokens are leased: the row must
    /// exclude them, and they are taken from it when spent.
    fn covered(&self, now: i64) -> Option<Vec<State>> {
        let is_alone =
            !self.policy.is_inline() && self.dormant.is_empty() && !self.leases.is_any() && !self.has_stored_cuts();
        let awake_ms = now.saturating_sub(self.awake_since);
        if is_alone { cover(&self.policy, &self.states, awake_ms, now) } else { None }
    }

    fn lowered(&self, now: i64) -> Vec<State> {
        self.lines().zip(&self.all_states(now)).map(|((limit, block), state)| limit.behind(state, block, now)).collect()
    }

    /// All limits, dormant ones last, and how many tokens of each a crash may cost. Grants are charged to all accounts of a name, so the block
    /// applies to all; but what is little of a large plan would lock the key out of a small one for long: no more than is usual for its own.
    fn lines(&self) -> impl Iterator<Item = (&Limit, u64)> {
        let awake = self.policy.limits().iter().map(|named| (named.limit(), block(named)));
        let of_name = |dormant: &NamedState| {
            let mut limits = self.policy.limits().iter();
            let in_force = limits.find(|named| named.account() == dormant.name.as_deref());
            in_force.map_or(0, block).min(usual_block(dormant.limit.config()))
        };
        let all =
            move || awake.clone().chain(self.dormant.iter().map(move |dormant| (&dormant.limit, of_name(dormant))));
        all().chain(self.cut_again(all()))
    }

    /// The names of all limits, dormant ones last.
    fn names(&self) -> impl Iterator<Item = Option<&str>> {
        let awake = self.policy.limits().iter().map(NamedLimit::account);
        awake.chain(self.dormant.iter().map(|dormant| dormant.name.as_deref()))
    }

    /// The same items again, for the newest pieces of all limits, if there are any.
    fn cut_again<T>(&self, all: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
        all.take(if self.has_stored_cuts() { usize::MAX } else { 0 })
    }

    /// The states of all limits, dormant ones last, without leased tokens; then those of their newest pieces, if a reservation is open:
    /// storage must not exceed these either. Then it does not exceed the other pieces either, since it has none further above.
    fn all_states(&self, now: i64) -> Vec<State> {
        let limits = self.policy.limits().iter().enumerate();
        let limits = limits.map(|(index, named)| (named.limit(), self.leases.of(index)));
        let dormant = self.dormant.iter().enumerate().map(|(index, dormant)| {
            let name = dormant.name.as_deref();
            let mut before = self.names().take(self.states.len().saturating_add(index));
            (&dormant.limit, self.leases.withheld(name, before.all(|other| other != name)))
        });
        let limits = || limits.clone().chain(dormant.clone());
        let states = self.states.iter().chain(self.dormant.iter().map(|dormant| &dormant.state));
        let cuts = self.stored_cuts();
        let states = states.zip(limits()).chain(cuts.iter().map(|cuts| cuts.newest()).zip(limits()));
        states.map(|(state, (limit, leased))| without(limit, state, leased, now)).collect()
    }

    fn all_logs(&mut self) -> impl Iterator<Item = &mut Log> {
        self.logs.iter_mut().chain(self.dormant.iter_mut().map(|dormant| &mut dormant.log))
    }

    fn encode(&self, states: &[State], now: i64) -> Vec<u8> {
        let (awake, rest) = states.split_at_checked(self.states.len()).unwrap_or((states, &[]));
        let dormant: Vec<_> =
            self.dormant.iter().zip(rest).map(|(dormant, &state)| NamedState { state, ..dormant.clone() }).collect();
        let mut row =
            encode_row(&self.policy, self.as_of, awake, &dormant, self.reached, states == self.all_states(now));
        self.leases.encode(self.names(), &mut row);
        let newest = rest.get(self.dormant.len()..).unwrap_or_default();
        let openings = self.openings.iter().filter(|opening| opening.is_stored).map(|opening| opening.encode());
        let cuts = self.stored_cuts();
        encode_cuts(openings, newest.iter().zip(cuts.iter().map(|cuts| cuts.steps())), &mut row);
        let stored = self.openings.iter().filter(|opening| opening.is_stored).map(|opening| (opening.id, ()));
        let stored: SortedMap<u64, ()> = if self.has_logs() { stored.collect() } else { SortedMap::default() };
        let is_stored = |id| stored.contains_key(&id);
        let rolling = self.policy.limits().iter().map(|named| named.limit().is_rolling()).zip(&self.logs).enumerate();
        let rolling = rolling.filter(|(_, (is_rolling, _))| *is_rolling).map(|(place, (_, log))| (place, log));
        let dormant = self.dormant.iter().enumerate().filter(|(_, dormant)| dormant.limit.is_rolling());
        let dormant = dormant.map(|(place, dormant)| (place.saturating_add(self.states.len()), &dormant.log));
        for (place, log) in rolling.chain(dormant) {
            encode_log(place, log.encode(is_stored), &mut row);
        }
        row
    }
}

enum Slack {
    Enough,
    Little,
    None,
}

/// When a stored bucket may be forgotten under the numbers it was stored with. `None` if never, or if the row is unreadable.
pub(super) fn row_expires_at(row: &[u8], now: i64) -> Option<i64> {
    let row = StoredRow::read(row).ok()?;
    let mut limits = row.limits(now).ok()?;
    let mut leases = Leases::stored(&row, limits.iter_mut().map(NamedState::parts));
    leases.end(&mut limits, row.is_inline, (now, now));
    let own = row.policy("").ok()?.limits().len();
    let numbers = || limits.iter().map(|limit| (limit.name.as_deref(), &limit.limit));
    let is_first = |(index, limit): &(usize, &NamedState)| {
        numbers().position(|(name, _)| name == limit.name.as_deref()) == Some(*index)
    };
    let expires_at = |(index, account): (usize, &NamedState)| {
        let NamedState { limit, state, .. } = account;
        let state = without(limit, state, leases.of(index), now);
        if limit.is_rolling() {
            let mut account = NamedState { state, ..account.clone() };
            account.fit_log(now);
            return account.full_at(&state, now);
        }
        if index < own { limit.expires_at(&state, now) } else { limit.full_at(&state, now) }
    };
    // Slots are held by their reservations.
    let is_needed = |one: &(usize, &NamedState)| {
        let is_dormant_slots = one.0 >= own && is_of_slots(one.1.name.as_deref());
        !is_dormant_slots && (is_first(one) || !is_dominated(one.1, numbers().take(one.0)))
    };
    latest(leases.over_at(now), limits.iter().enumerate().filter(is_needed).map(expires_at))
}

/// Whether the first of these limits with its name grants at least as much as the account, which then adds nothing once that limit is full.
fn is_dominated<'a>(account: &NamedState, mut limits: impl Iterator<Item = (Option<&'a str>, &'a Limit)>) -> bool {
    let in_force = limits.find(|(name, _)| *name == account.name.as_deref());
    in_force.is_some_and(|(_, limit)| is_as_generous(limit.config(), account.limit.config()))
}

fn latest(now: i64, mut all: impl Iterator<Item = Option<i64>>) -> Option<i64> {
    all.try_fold(now, |latest, at| Some(latest.max(at?)))
}

/// The first change of the numbers of any of these accounts after the version `since`; for each name, the first is in force.
fn changed_at(policy: &Policy, old: &[NamedState], since: i64) -> Option<i64> {
    let timeline = policy.timeline();
    let earlier = timeline.earlier_after(since).map(|version| {
        let numbers = version.limits.iter().map(|(name, limit)| (name.as_deref(), limit));
        (version.since, version.carry, numbers.collect::<Vec<_>>())
    });
    let numbers = policy.limits().iter().map(|limit| (limit.account(), limit.limit())).collect();
    let latest = (timeline.since(), timeline.carry(), numbers);
    let is_other = |(name, limit): &(Option<&str>, &Limit)| {
        let own = old.iter().find(|account| account.name.as_deref() == *name);
        own.is_some_and(|own| own.limit != **limit)
    };
    let mut changes = earlier.chain([latest].into_iter().filter(|(at, ..)| *at > since));
    changes.find(|(_, carry, numbers)| *carry == Carry::Reset || numbers.iter().any(is_other)).map(|(at, ..)| at)
}

/// A bucket that has followed its policy.
struct Followed {
    states: Vec<State>,
    cuts: Vec<Cuts>,
    logs: Vec<Log>,
    dormant: Vec<NamedState>,
}

impl Followed {
    /// Whether the bucket is as it was.
    fn is_of(&self, bucket: &Bucket) -> bool {
        self.states == bucket.states
            && self.cuts == bucket.cuts
            && self.logs == bucket.logs
            && self.dormant == bucket.dormant
    }
}

/// One for each limit of the policy, if one of them is a rolling window.
fn logs_of(policy: &Policy, accounts: &[NamedState]) -> Vec<Log> {
    let has_logs = policy.has_own_rolling_windows();
    accounts.iter().filter(|_| has_logs).map(|account| account.log.clone()).collect()
}

/// The states of `policy`'s limits with their cuts, if any, and the dormant ones, of a bucket that was at the version `since` and has
/// followed versions up to `reached`.
fn followed(
    old: &[NamedState],
    (since, reached): (i64, i64),
    policy: &Policy,
    meanwhile: &mut Meanwhile<'_>,
    phase: u64,
) -> Followed {
    let mut all = follow(old.to_vec(), (since, reached), policy, meanwhile, phase);
    let dormant = all.split_off(policy.limits().len().min(all.len()));
    let states = all.iter().map(|limit| limit.state).collect();
    let logs = logs_of(policy, &all);
    let is_cut = all.iter().any(|limit| limit.cuts.is_some());
    let cuts = all.into_iter().filter(|_| is_cut).map(|limit| limit.cuts.unwrap_or_else(|| Cuts::new(limit.state)));
    Followed { states, cuts: cuts.collect(), logs, dormant }
}
