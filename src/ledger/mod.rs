//! What is kept for one key: its buckets, its open reservations, what it was answered; and when storage hears of it.
//!
//! A row for every request would cost more than the request, and each would wait for it. So memory is ahead of storage,
//! by a bounded number of tokens and always on the safe side (see `bucket.rs`). What a client was promised to outlast a
//! crash, a reservation or the answer to an `Idempotency-Key`, is written before it is told.
//!
//! Nothing here knows where rows are kept. Time is an argument, and so is what was stored; what is to be stored is a
//! result, [`Writes`]. So a crash is a matter of dropping a [`Ledger`] and making another from the rows, which the tests
//! do thousands of times a second.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

mod bucket;
mod bytes;
mod replays;
mod reservation;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use self::bucket::{Bucket, IDLE_MS, Need, Row, row_expires_at};
use self::replays::Replay;
use self::reservation::{End, Reservation};
use crate::limit::{Decision, Limit, Part, State, Verb, decide_all};
use crate::policy::{Policies, Policy, Unsettled};
use crate::protocol::{Action, Decided, LimitAnswer, ObjectReply, ObjectRequest, RequestId, Reserved};

/// All that is kept for one key.
#[derive(Debug)]
pub struct Ledger {
    /// Places the windows of limits without an offset; the same for the key always.
    phase: u64,
    /// By the policy's name.
    buckets: BTreeMap<String, Slot>,
    /// By their id.
    reservations: BTreeMap<u64, Reservation>,
    /// Whether an alarm is scheduled.
    has_alarm: bool,
    /// The ticket of the next background row.
    next_ticket: u32,
}

#[derive(Debug)]
enum Slot {
    /// As it was found, not yet asked for.
    Stored(Vec<u8>),
    Open(Bucket),
}

/// What storage must be told.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Writes {
    /// Rows by name, to be written together or not at all before the answer is given; `None` deletes one.
    pub before_reply: Vec<(String, Option<Vec<u8>>)>,
    /// Rows that may be written while nobody waits. Once they are there for good, say so to [`Ledger::confirm`].
    pub background: Vec<Background>,
    /// Everything goes, and this is all.
    pub clear: bool,
    /// The moment at which to ask [`Ledger::clean`], unless there is one already.
    pub alarm_at: Option<i64>,
    /// Whether to ask [`Ledger::flush_idle`] in [`Writes::IDLE_MS`].
    pub wants_flush: bool,
}

/// A row that nobody waits for.
#[derive(Debug, PartialEq, Eq)]
pub struct Background {
    /// Its name.
    pub name: String,
    /// What to write.
    pub row: Vec<u8>,
    /// What to say to [`Ledger::confirm`].
    pub ticket: u32,
}

impl Writes {
    /// After how many milliseconds a pause in spending is noticed.
    pub const IDLE_MS: u64 = IDLE_MS;
}

/// Why nothing can be decided. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerError(String);

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LedgerError {}

/// The most open reservations of a key. Each is a row and some hundred bytes of memory, of which an object has 128 MB
/// at most.
pub const MAX_RESERVATIONS: usize = 1_000;

/// For how long the first half of a batch is held while its other keys are asked: much longer than that takes, and no
/// longer than a budget may be short of it when the one who asked has vanished.
const HOLD_MS: u64 = 10_000;

/// Nothing is cleaned up sooner: to be woken and to set the next alarm costs more than to keep a row for an hour.
const LINGER_MS: i64 = 3_600_000;

/// Nor is it looked after later, even if it can never be forgotten.
const LOOK_MS: i64 = 30 * 86_400_000;

impl Ledger {
    /// The ledger of a key for which storage has `rows`. `phase` is that of
    /// [`Limit::new_state`](crate::limit::Limit::new_state).
    ///
    /// # Errors
    /// When there is a row that no version of this could have written. Nothing may be decided then.
    pub fn new(rows: impl IntoIterator<Item = (String, Vec<u8>)>, phase: u64) -> Result<Self, LedgerError> {
        let (mut buckets, mut reservations) = (BTreeMap::new(), BTreeMap::new());
        for (name, row) in rows {
            if let Some(policy) = name.strip_prefix(BUCKET) {
                buckets.insert(policy.to_owned(), Slot::Stored(row));
                continue;
            }
            let id = name.strip_prefix(RESERVATION).and_then(|id| u64::from_str_radix(id, 16).ok());
            match id.zip(Reservation::decode(&row)) {
                Some((id, reservation)) => _ = reservations.insert(id, reservation),
                None => return Err(LedgerError(format!("the row {name:?} cannot be read"))),
            }
        }
        // The first row is never written without an alarm, and the last alarm never leaves one behind.
        let has_alarm = !buckets.is_empty() || !reservations.is_empty();
        // 0 is for rows that nobody asks about.
        Ok(Self { phase, buckets, reservations, has_alarm, next_ticket: 1 })
    }

    /// Answers a request about the buckets of the policies `names`, by their [wire names](Policy::wire_name), separated
    /// by commas. `random` gives the ids of reservations.
    ///
    /// # Errors
    /// When the request does not fit the policies, a stored bucket cannot be read, or there is nothing random.
    pub fn ask(
        &mut self,
        policies: &Policies,
        names: &str,
        request: &ObjectRequest,
        now: i64,
        random: impl FnMut() -> Option<u64>,
    ) -> Result<(ObjectReply, Writes), LedgerError> {
        let find = |name| {
            policies
                .by_wire_name(name)
                .map(Arc::as_ref)
                .ok_or_else(|| LedgerError(format!("this version has no policy {name:?}")))
        };
        let asked = names.split(',').map(find).collect::<Result<Vec<_>, _>>()?;
        let limits = asked.iter().map(|policy| policy.limits().len());
        let omits_costs = request.costs.is_empty() && matches!(request.action, Action::Settle(_) | Action::Cancel(_));
        if !omits_costs && !limits.eq(request.costs.iter().map(Vec::len)) {
            return Err(LedgerError("this version has other limits".to_owned()));
        }
        let id = match request.action {
            Action::Reserve(_) | Action::Hold(0) => self.unused_id(random)?,
            Action::Hold(id) => id,
            _ => 0,
        };
        for policy in &asked {
            self.open(policy, now)?;
        }
        let mut writes = Writes::default();
        self.end_expired(policies, now, &mut writes);
        let reply = match self.remembered(&asked, request.request_id, now)? {
            Some(reply) => reply,
            None => self.perform(&asked, request, now, id, &mut writes)?,
        };
        self.collect_writes(policies, now, &mut writes);
        if !self.has_alarm && !writes.before_reply.is_empty() {
            writes.alarm_at = Some(self.next_alarm(policies, now));
            self.has_alarm = true;
        }
        Ok((reply, writes))
    }

    /// Takes note that an [`Background`] row is in storage for good.
    pub fn confirm(&mut self, name: &str, ticket: u32) {
        if let Some(Slot::Open(bucket)) = name.strip_prefix(BUCKET).and_then(|policy| self.buckets.get_mut(policy)) {
            bucket.confirm(ticket);
        }
    }

    /// What to write when spending has paused: the exact levels, so that nothing is lost when the object is put to sleep.
    pub fn flush_idle(&mut self, policies: &Policies, now: i64) -> Writes {
        let mut writes = Writes::default();
        for (name, slot) in &mut self.buckets {
            if let (Slot::Open(bucket), Some(policy)) = (slot, policies.get(name)) {
                if let Some(row) = bucket.flush_idle(policy, now) {
                    writes.background.push(Background { name: format!("{BUCKET}{name}"), row, ticket: 0 });
                }
                writes.wants_flush |= bucket.is_ahead_of_storage();
            }
        }
        writes
    }

    /// Forgets what is as good as never having been: buckets that are full again, reservations that have ended.
    pub fn clean(&mut self, policies: &Policies, now: i64) -> Writes {
        let mut writes = Writes::default();
        self.has_alarm = false;
        self.end_expired(policies, now, &mut writes);
        let names: Vec<String> = self.buckets.keys().cloned().collect();
        for name in names {
            let has_ended = self.expires_at(policies, &name, now).is_some_and(|at| at <= now);
            let is_reserved = self.reservations.values().any(|open| open.parts.iter().any(|part| part.policy == name));
            if has_ended && !is_reserved {
                self.buckets.remove(&name);
                writes.before_reply.push((format!("{BUCKET}{name}"), None));
            }
        }
        if self.buckets.is_empty() && self.reservations.is_empty() {
            return Writes { clear: true, ..Writes::default() };
        }
        self.collect_writes(policies, now, &mut writes);
        writes.alarm_at = Some(self.next_alarm(policies, now));
        self.has_alarm = true;
        writes
    }
}

impl Ledger {
    /// Answers a request that was not asked before. `id` is for the reservation that it may open.
    fn perform(
        &mut self,
        asked: &[&Policy],
        request: &ObjectRequest,
        now: i64,
        id: u64,
        writes: &mut Writes,
    ) -> Result<ObjectReply, LedgerError> {
        match request.action {
            Action::Look(verb) => {
                let (limits, _) = self.decide(asked, verb, &request.costs, now, false)?;
                Ok(ObjectReply::Decided(self.decided(now, limits)))
            }
            // There is nothing to settle of nothing.
            Action::Reserve(verb) if !asks_for_any(request) => self.take(asked, verb, request, now),
            Action::Take(verb) => self.take(asked, verb, request, now),
            Action::Reserve(verb) => self.reserve(asked, verb, request, now, id, writes),
            Action::Hold(_) => self.hold(asked, request, now, id, writes),
            Action::Settle(id) => self.settle(asked, id, request, now, writes),
            Action::Cancel(id) => self.cancel(asked, id, request, now, writes),
        }
    }

    /// Makes sure that the bucket of `policy` is open.
    fn open(&mut self, policy: &Policy, now: i64) -> Result<(), LedgerError> {
        let bucket = match self.buckets.get(policy.name()) {
            Some(Slot::Open(_)) => return Ok(()),
            Some(Slot::Stored(row)) => Bucket::read(policy, row, now, self.phase)
                .map_err(|error| LedgerError(format!("the bucket of policy {}: {error}", policy.name())))?,
            None => Bucket::new(policy, now, self.phase),
        };
        self.buckets.insert(policy.name().to_owned(), Slot::Open(bucket));
        Ok(())
    }

    fn bucket(&mut self, policy: &Policy) -> Result<&mut Bucket, LedgerError> {
        match self.buckets.get_mut(policy.name()) {
            Some(Slot::Open(bucket)) => Ok(bucket),
            _ => Err(LedgerError(format!("the bucket of policy {} is not open", policy.name()))),
        }
    }

    /// Asks all limits of all policies together, all or none. What a refusal leaves is kept whoever asked: it differs only
    /// after a clock has stepped back far, and then the moment to retry at is counted from there.
    fn decide(
        &mut self,
        asked: &[&Policy],
        verb: Verb,
        costs: &[Vec<u64>],
        now: i64,
        is_kept: bool,
    ) -> Result<(Vec<LimitAnswer>, Decision), LedgerError> {
        let held: Vec<Vec<u64>> = asked.iter().map(|policy| self.held(policy)).collect();
        // What is held is not there for whoever takes; to give back or to charge it makes no difference.
        let takes = verb.takes();
        let mut parts = Vec::new();
        for ((policy, costs), held) in asked.iter().zip(costs).zip(&held) {
            let bucket = self.bucket(policy)?;
            for (((limit, state), &cost), &held) in policy.limits().iter().zip(&bucket.states).zip(costs).zip(held) {
                let limit = limit.limit();
                let there = if takes && held > 0 { limit.lowered(&limit.refilled(state, now), held) } else { *state };
                parts.push(Part::new(limit, there, cost));
            }
        }
        let decision = decide_all(&mut parts, now, verb);
        let mut decided = parts.iter();
        let mut answers = Vec::with_capacity(parts.len());
        for (policy, held) in asked.iter().zip(&held) {
            let bucket = self.bucket(policy)?;
            let mut need = Need::Nothing;
            for ((state, part), &held) in bucket.states.iter_mut().zip(decided.by_ref()).zip(held) {
                let after = match decision {
                    Decision::Allow { .. } if !is_kept => *state,
                    Decision::Allow { .. } if takes && held > 0 => part.limit.raised(&part.state, held),
                    _ if takes && held > 0 => *state,
                    _ => part.state,
                };
                answers.push(answer(part.limit, part.decision, &after, held, now));
                if after != *state {
                    *state = after;
                    need = if decision.is_allow() { Need::Spent } else { Need::Exact };
                }
            }
            bucket.need(need);
        }
        Ok((answers, decision))
    }

    fn take(
        &mut self,
        asked: &[&Policy],
        verb: Verb,
        request: &ObjectRequest,
        now: i64,
    ) -> Result<ObjectReply, LedgerError> {
        let (limits, decision) = self.decide(asked, verb, &request.costs, now, true)?;
        // Who consumes nothing only looks, and may look again.
        if decision.is_allow() && (asks_for_any(request) || !verb.takes()) {
            self.remember(asked, request.request_id, now, None, &limits)?;
        }
        Ok(ObjectReply::Decided(self.decided(now, limits)))
    }

    /// Takes the tokens, and opens a reservation.
    fn reserve(
        &mut self,
        asked: &[&Policy],
        verb: Verb,
        request: &ObjectRequest,
        now: i64,
        id: u64,
        writes: &mut Writes,
    ) -> Result<ObjectReply, LedgerError> {
        if let Some(reply) = self.too_many(|end| end != End::Released) {
            return Ok(reply);
        }
        let (limits, decision) = self.decide(asked, verb, &request.costs, now, true)?;
        let (Decision::Allow { ready_at, .. }, Some(first)) = (decision, asked.first()) else {
            return Ok(ObjectReply::Decided(self.decided(now, limits)));
        };
        let terms = first.reservations();
        let end = match terms.unsettled {
            Unsettled::Keep => End::Charged,
            Unsettled::Refund => End::Refunded,
        };
        let expires_at = ready_at.saturating_add_unsigned(terms.ttl_ms);
        let reserved = Reserved { id, expires_at };
        self.open_reservation(asked, reserved, end, None, &limits, now, writes);
        self.remember(asked, request.request_id, now, Some(reserved), &limits)?;
        Ok(ObjectReply::Decided(Decided { reservation: Some(reserved), ..self.decided(now, limits) }))
    }

    /// Takes nothing yet, but keeps others from taking it: the first half of a batch over several keys.
    fn hold(
        &mut self,
        asked: &[&Policy],
        request: &ObjectRequest,
        now: i64,
        id: u64,
        writes: &mut Writes,
    ) -> Result<ObjectReply, LedgerError> {
        if let Some(reply) = self.held_before(asked, request.request_id, now)? {
            return Ok(reply);
        }
        if let Some(reply) = self.too_many(|end| end == End::Released) {
            return Ok(reply);
        }
        let (mut limits, decision) = self.decide(asked, Verb::Consume, &request.costs, now, false)?;
        if !decision.is_allow() {
            return Ok(ObjectReply::Decided(self.decided(now, limits)));
        }
        let reserved = Reserved { id, expires_at: now.saturating_add_unsigned(HOLD_MS) };
        self.open_reservation(asked, reserved, End::Released, request.request_id, &limits, now, writes);
        let grants: Vec<_> = limits.iter().map(|limit| (tokens(limit), now)).collect();
        limits = self.standing(asked, &grants, now)?;
        Ok(ObjectReply::Decided(Decided { reservation: Some(reserved), ..self.decided(now, limits) }))
    }

    #[expect(clippy::too_many_arguments, reason = "they are what a reservation has")]
    fn open_reservation(
        &mut self,
        asked: &[&Policy],
        Reserved { id, expires_at }: Reserved,
        end: End,
        request_id: Option<RequestId>,
        limits: &[LimitAnswer],
        now: i64,
        writes: &mut Writes,
    ) {
        let mut taken = limits.iter().map(tokens);
        let part =
            |policy: &&Policy| reservation::ReservedPart::new(policy, taken.by_ref().take(policy.limits().len()));
        let parts = asked.iter().map(part).collect();
        let reservation = Reservation { opened_at: now, expires_at, end, request_id, parts };
        writes.before_reply.push((reservation_row(id), Some(reservation.encode())));
        self.reservations.insert(id, reservation);
    }

    fn too_many(&self, is_same_kind: impl Fn(End) -> bool) -> Option<ObjectReply> {
        let open = self.reservations.values().filter(|open| is_same_kind(open.end)).count();
        (open >= MAX_RESERVATIONS).then_some(ObjectReply::TooManyReservations { max: MAX_RESERVATIONS as u64 })
    }

    fn unused_id(&self, mut random: impl FnMut() -> Option<u64>) -> Result<u64, LedgerError> {
        // Of 2⁵² at most some thousand are in use: a second try is as rare as anything, and a fourth means that the
        // numbers are not random.
        let id = (0..4).map_while(|_| random()).map(|id| id & MAX_ID).find(|id| !self.reservations.contains_key(id));
        id.ok_or_else(|| LedgerError("no random numbers for a reservation's id".to_owned()))
    }

    /// Closes a reservation at its real costs.
    fn settle(
        &mut self,
        asked: &[&Policy],
        id: u64,
        request: &ObjectRequest,
        now: i64,
        writes: &mut Writes,
    ) -> Result<ObjectReply, LedgerError> {
        let Some(reservation) = self.close(asked, id, writes) else {
            return Ok(ObjectReply::NoReservation);
        };
        let mut limits = Vec::new();
        let mut all_taken = Vec::new();
        for (index, (policy, part)) in asked.iter().zip(&reservation.parts).enumerate() {
            let taken = part.tokens(policy);
            let real = request.costs.get(index).unwrap_or(&taken);
            if reservation.end == End::Released {
                self.take_held(policy, &taken, now)?;
            }
            let changes = taken.iter().zip(real).map(|(taken, real)| match real.checked_sub(*taken) {
                Some(more) => (Verb::Charge, more),
                None => (Verb::Refund, taken.saturating_sub(*real)),
            });
            limits.extend(self.adjust(policy, changes, now)?);
            all_taken.extend(taken);
        }
        match reservation.request_id {
            None => self.remember(asked, request.request_id, now, None, &limits)?,
            // What a batch has held is remembered as what it has taken.
            Some(request_id) => {
                let at = reservation.opened_at;
                let grants = all_taken.into_iter().map(|tokens| (tokens, at)).collect();
                self.push(asked, Replay { request_id, decided_at: at, reservation: None, grants })?;
            }
        }
        Ok(ObjectReply::Decided(self.decided(now, limits)))
    }

    /// Closes a reservation and gives back all that was taken, clipped to what fits. What others were told about when
    /// theirs is ready stays true.
    fn cancel(
        &mut self,
        asked: &[&Policy],
        id: u64,
        request: &ObjectRequest,
        now: i64,
        writes: &mut Writes,
    ) -> Result<ObjectReply, LedgerError> {
        let Some(reservation) = self.close(asked, id, writes) else {
            return Ok(ObjectReply::NoReservation);
        };
        let mut limits = Vec::new();
        for (policy, part) in asked.iter().zip(&reservation.parts) {
            let taken =
                if reservation.end == End::Released { vec![0; policy.limits().len()] } else { part.tokens(policy) };
            limits.extend(self.adjust(policy, taken.into_iter().map(|taken| (Verb::Refund, taken)), now)?);
        }
        self.remember(asked, request.request_id, now, None, &limits)?;
        Ok(ObjectReply::Decided(self.decided(now, limits)))
    }

    /// Takes the reservation off the list, if it is one of these policies.
    fn close(&mut self, asked: &[&Policy], id: u64, writes: &mut Writes) -> Option<Reservation> {
        let open = self.reservations.get(&id)?;
        let is_theirs = open.parts.iter().map(|part| part.policy.as_str()).eq(asked.iter().map(|policy| policy.name()));
        if !is_theirs {
            return None;
        }
        writes.before_reply.push((reservation_row(id), None));
        self.reservations.remove(&id)
    }

    /// Ends the reservations whose time is over. It makes no difference that this is late: tokens given back now leave the
    /// bucket as if they had been then.
    fn end_expired(&mut self, policies: &Policies, now: i64, writes: &mut Writes) {
        if self.reservations.values().all(|open| open.expires_at > now) {
            return;
        }
        let expired = self.reservations.extract_if(.., |_, open| open.expires_at <= now);
        for (id, reservation) in expired.collect::<Vec<_>>() {
            if reservation.end == End::Refunded && self.give_back(policies, &reservation, now).is_err() {
                self.reservations.insert(id, reservation); // until its bucket can be read
                continue;
            }
            writes.before_reply.push((reservation_row(id), None));
        }
    }

    fn give_back(&mut self, policies: &Policies, reservation: &Reservation, now: i64) -> Result<(), LedgerError> {
        // Of a policy that is no more, there is nothing to give back to.
        let parts = reservation.parts.iter().filter_map(|part| policies.get(&part.policy).map(|policy| (policy, part)));
        let parts: Vec<_> = parts.collect();
        for (policy, _) in &parts {
            self.open(policy, now)?;
        }
        for (policy, part) in parts {
            self.adjust(policy, part.tokens(policy).into_iter().map(|taken| (Verb::Refund, taken)), now)?;
        }
        Ok(())
    }

    /// How many tokens of each limit of `policy` are held for batches.
    fn held(&self, policy: &Policy) -> Vec<u64> {
        let mut held = vec![0_u64; policy.limits().len()];
        let holds = self.reservations.values().filter(|open| open.end == End::Released);
        for part in holds.flat_map(|open| &open.parts).filter(|part| part.policy == policy.name()) {
            for (held, tokens) in held.iter_mut().zip(part.tokens(policy)) {
                *held = held.saturating_add(tokens);
            }
        }
        held
    }

    /// Takes what was held. It is there: nobody could take it.
    fn take_held(&mut self, policy: &Policy, held: &[u64], now: i64) -> Result<(), LedgerError> {
        let bucket = self.bucket(policy)?;
        for ((limit, state), &held) in policy.limits().iter().zip(&mut bucket.states).zip(held) {
            if held > 0 {
                *state = limit.limit().lowered(&limit.limit().refilled(state, now), held);
            }
        }
        bucket.need(Need::Spent);
        Ok(())
    }

    /// Charges or refunds each limit of `policy`. Neither is ever refused.
    fn adjust(
        &mut self,
        policy: &Policy,
        changes: impl Iterator<Item = (Verb, u64)>,
        now: i64,
    ) -> Result<Vec<LimitAnswer>, LedgerError> {
        let held = self.held(policy);
        let bucket = self.bucket(policy)?;
        let mut answers = Vec::new();
        let before = bucket.states.clone();
        let limits = policy.limits().iter().zip(&mut bucket.states).zip(held);
        for (((limit, state), held), (verb, cost)) in limits.zip(changes) {
            let (decision, after) = limit.limit().decide(*state, now, cost, verb);
            *state = after;
            answers.push(answer(limit.limit(), decision, state, held, now));
        }
        if bucket.states != before {
            bucket.need(Need::Spent);
        }
        Ok(answers)
    }

    /// The first answer to a request that is asked again.
    fn remembered(
        &mut self,
        asked: &[&Policy],
        request_id: Option<RequestId>,
        now: i64,
    ) -> Result<Option<ObjectReply>, LedgerError> {
        let (Some(request_id), Some(first)) = (request_id, asked.first()) else {
            return Ok(None);
        };
        let Some(grant) = self.bucket(first)?.replays.get(request_id.id) else {
            return Ok(None);
        };
        if grant.request_id.fingerprint != request_id.fingerprint {
            return Ok(Some(ObjectReply::RequestIdReused));
        }
        let Replay { grants, reservation, .. } = grant.clone();
        Ok(Some(self.replay(asked, &grants, reservation, now)?))
    }

    /// The first answer to the first half of a batch that is asked again before the second.
    fn held_before(
        &mut self,
        asked: &[&Policy],
        request_id: Option<RequestId>,
        now: i64,
    ) -> Result<Option<ObjectReply>, LedgerError> {
        let Some(request_id) = request_id else {
            return Ok(None);
        };
        let same = |open: &Reservation| open.request_id.is_some_and(|other| other.id == request_id.id);
        let Some((&id, open)) = self.reservations.iter().find(|(_, open)| same(open)) else {
            return Ok(None);
        };
        if open.request_id.is_some_and(|other| other.fingerprint != request_id.fingerprint) {
            return Ok(Some(ObjectReply::RequestIdReused));
        }
        let (at, expires_at) = (open.opened_at, open.expires_at);
        let taken = asked.iter().zip(&open.parts).flat_map(|(policy, part)| part.tokens(policy));
        let grants: Vec<_> = taken.map(|tokens| (tokens, at)).collect();
        Ok(Some(self.replay(asked, &grants, Some(Reserved { id, expires_at }), now)?))
    }

    /// A grant of before, with what is left now.
    fn replay(
        &mut self,
        asked: &[&Policy],
        grants: &[(u64, i64)],
        reservation: Option<Reserved>,
        now: i64,
    ) -> Result<ObjectReply, LedgerError> {
        let limits = self.standing(asked, grants, now)?;
        let decided = self.decided(now, limits);
        Ok(ObjectReply::Decided(Decided { is_replayed: true, reservation, ..decided }))
    }

    /// What is left now, beside what was granted.
    fn standing(
        &mut self,
        asked: &[&Policy],
        grants: &[(u64, i64)],
        now: i64,
    ) -> Result<Vec<LimitAnswer>, LedgerError> {
        let mut limits = Vec::new();
        let mut grants = grants.iter();
        for policy in asked {
            let held = self.held(policy);
            let bucket = self.bucket(policy)?;
            let states = policy.limits().iter().zip(&bucket.states).zip(held);
            for (((limit, state), held), &(tokens, ready_at)) in states.zip(grants.by_ref()) {
                limits.push(answer(limit.limit(), Decision::Allow { tokens, ready_at }, state, held, now));
            }
        }
        Ok(limits)
    }

    fn remember(
        &mut self,
        asked: &[&Policy],
        request_id: Option<RequestId>,
        now: i64,
        reservation: Option<Reserved>,
        limits: &[LimitAnswer],
    ) -> Result<(), LedgerError> {
        let Some(request_id) = request_id else {
            return Ok(());
        };
        let grants = limits.iter().filter_map(|limit| match limit.decision {
            Decision::Allow { tokens, ready_at } => Some((tokens, ready_at)),
            _ => None,
        });
        let grants: Vec<_> = grants.collect();
        self.push(asked, Replay { request_id, decided_at: now, reservation, grants })
    }

    /// Remembers a grant in the bucket of the first policy that was asked, where a repetition looks for it.
    fn push(&mut self, asked: &[&Policy], grant: Replay) -> Result<(), LedgerError> {
        if let Some(first) = asked.first() {
            let bucket = self.bucket(first)?;
            if grant.request_id.is_lasting {
                bucket.need(Need::Lasting);
            }
            bucket.replays.push(grant);
        }
        Ok(())
    }

    fn decided(&self, now: i64, limits: Vec<LimitAnswer>) -> Decided {
        let open_reservations = self.reservations.len() as u64;
        Decided { now, is_replayed: false, open_reservations, reservation: None, limits }
    }

    /// Collects what storage must be told of the buckets.
    fn collect_writes(&mut self, policies: &Policies, now: i64, writes: &mut Writes) {
        for (name, slot) in &mut self.buckets {
            if let (Slot::Open(bucket), Some(policy)) = (slot, policies.get(name)) {
                match bucket.row(policy, now, self.next_ticket) {
                    Row::Nothing => {}
                    Row::BeforeReply(row) => writes.before_reply.push((format!("{BUCKET}{name}"), Some(row))),
                    Row::Background(row, ticket) => {
                        writes.background.push(Background { name: format!("{BUCKET}{name}"), row, ticket });
                        self.next_ticket = self.next_ticket.checked_add(1).unwrap_or(1);
                    }
                }
                writes.wants_flush |= bucket.is_ahead_of_storage();
            }
        }
    }

    fn expires_at(&self, policies: &Policies, name: &str, now: i64) -> Option<i64> {
        match self.buckets.get(name)? {
            Slot::Stored(row) => row_expires_at(row, now),
            Slot::Open(bucket) => bucket.expires_at(policies.get(name)?, now),
        }
    }

    /// When there will be something to forget.
    fn next_alarm(&self, policies: &Policies, now: i64) -> i64 {
        let buckets = self.buckets.keys().filter_map(|name| self.expires_at(policies, name, now));
        let all = buckets.chain(self.reservations.values().map(|open| open.expires_at));
        let first = all.min().unwrap_or(i64::MAX);
        first.clamp(now.saturating_add(LINGER_MS), now.saturating_add(LOOK_MS))
    }
}

/// The rows of storage: `b:` and a policy's name, `r:` and a reservation's id.
const BUCKET: &str = "b:";
const RESERVATION: &str = "r:";

/// 52 bits: exact as a JavaScript number.
const MAX_ID: u64 = (1 << 52) - 1;

fn asks_for_any(request: &ObjectRequest) -> bool {
    request.costs.iter().flatten().any(|&cost| cost > 0)
}

fn reservation_row(id: u64) -> String {
    format!("{RESERVATION}{id:013x}")
}

fn tokens(answer: &LimitAnswer) -> u64 {
    match answer.decision {
        Decision::Allow { tokens, .. } => tokens,
        _ => 0,
    }
}

/// What `limit` says, and how it stands when `held` tokens are not to be had.
fn answer(limit: &Limit, decision: Decision, state: &State, held: u64, now: i64) -> LimitAnswer {
    let there = if held == 0 { *state } else { limit.lowered(&limit.refilled(state, now), held) };
    LimitAnswer {
        decision,
        remaining: limit.remaining(&there, now),
        owed: limit.owed(&there, now),
        reset_at: limit.full_at(&there, now),
        snapshot: limit.snapshot(&there),
    }
}
