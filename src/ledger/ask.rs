//! A request, from its arrival to its answer and the rows to write.

use std::sync::Arc;

use super::accounts::MAX_INLINE;
use super::replay::shard_of;
use super::reserve::is_theirs;
use super::row::{Registered, StoredRow};
use super::{Ledger, LedgerError, Slot, Writes};
use crate::limit::{Decision, Verb};
use crate::policy::{Ban, NamedLimit, NoticeKind, Policy};
use crate::protocol::{
    Action, ComingBack, Decided, DueNotice, LimitAnswer, ObjectReply, ObjectRequest, RequestId, Spread,
};

impl Ledger {
    /// Answers a request about the buckets of the policies `asked`; `random` gives the ids of reservations. A bucket last requested under
    /// another [`Policy`] with that name is carried over to this one.
    ///
    /// # Errors
    /// If the costs do not fit the limits, a relevant row is unreadable, or there is no source of randomness.
    pub fn ask(
        &mut self,
        asked: &[Arc<Policy>],
        request: &ObjectRequest,
        now: i64,
        mut random: impl FnMut() -> Option<u64>,
    ) -> Result<(ObjectReply, Writes), LedgerError> {
        let limits = asked.iter().map(|policy| policy.limits().len());
        let omits_costs = request.costs.is_empty() && matches!(request.action, Action::Settle(_) | Action::Cancel(_));
        if !omits_costs && !limits.eq(request.costs.iter().map(Vec::len)) {
            return Err(LedgerError("the costs do not fit the limits of the policies".to_owned()));
        }
        let id = match request.action {
            Action::Reserve(_) | Action::Hold(0) => self.unused_id(&mut random)?,
            Action::Hold(id) | Action::Settle(id) | Action::Cancel(id) | Action::Extend(id) => id,
            Action::Look(_) | Action::Take(_) => 0,
        };
        let as_of = request.known.as_ref().map_or(0, |known| known.as_of);
        let newer = if request.known.is_some() { self.newer(asked, as_of)? } else { Vec::new() };
        let replaced: Vec<Arc<Policy>>;
        let began_with = asked;
        let asked = match (newer.as_slice(), request.action) {
            ([], _) => asked,
            // A batch ends under the policies it began with.
            (_, Action::Settle(id) | Action::Cancel(id)) if self.is_held(id) => {
                let of_bucket = |policy: &Arc<Policy>| newer.iter().find(|(newer, _)| newer.name() == policy.name());
                replaced =
                    asked.iter().map(|policy| of_bucket(policy).map_or(policy, |(newer, _)| newer)).cloned().collect();
                &replaced
            }
            _ => return Ok((outdated(&newer), Writes::default())),
        };
        let mut writes = Writes::default();
        self.check_rows(request, now)?; // nothing has changed yet
        self.end_holds(now);
        self.bans.follow(now);
        let is_about_one = matches!(request.action, Action::Settle(_) | Action::Cancel(_) | Action::Extend(_));
        let is_missing = |policy: &&Arc<Policy>| self.slot(policy.name()).is_none();
        let missing: Vec<_> = asked.iter().filter(is_missing).map(|policy| policy.name()).collect();
        let is_repeated = !missing.is_empty() && self.has_answered(request.request_id, now);
        let may_be_unknown = !missing.is_empty() && is_about_one && !is_repeated;
        if may_be_unknown && !self.has_opened(asked, id, request.request_id, now) {
            return Ok((ObjectReply::NoReservation, writes)); // no bucket is made for it
        }
        // Repeated requests, and those about a reservation, need no lasting room: the bucket exists, or is full.
        if !is_about_one && !is_repeated && self.has_no_room_for_inline(asked, now, &mut writes) {
            return Ok((ObjectReply::TooManyInline { max: MAX_INLINE as u64 }, writes));
        }
        for policy in asked {
            self.open(policy, as_of, now)?;
        }
        self.open_shadows(asked, as_of, now);
        self.end_expired(now);
        self.return_leases(asked, request.lease.as_ref(), now)?;
        let levels_before = self.levels_before(asked, request.action, now)?;
        // Before a replay: a try must share what another try of its batch holds or has committed.
        let of_hold = match request.action {
            Action::Look(verb) => self.look_beside_own_hold(asked, verb, request, now)?,
            Action::Hold(_) => self.prepared(asked, request.request_id, id, now)?,
            Action::Settle(_) => self.commit(asked, request.request_id, id, now)?,
            Action::Cancel(_) if self.is_held(id) => Some(self.abort(asked, id, now)?),
            _ => None,
        };
        let mut reply = match of_hold {
            Some(reply) => reply,
            None => match self.replayed(asked, request, now)? {
                Some(reply) => reply,
                None => self.perform(asked, request, now, id, &mut random, &mut writes)?,
            },
        };
        if let ObjectReply::Decided(decided) = &mut reply {
            // What comes back of a rolling window is said only with a refusal: a grant makes the frontend forget.
            let is_rolling = asked.iter().any(|policy| policy.has_own_rolling_windows());
            let is_refusal = !decided.decision().is_allow();
            decided.may_be_kept = !decided.is_replayed && (is_refusal || !is_rolling) && !self.may_give_back(asked);
            if decided.may_be_kept && is_rolling {
                decided.coming_back = self.coming_back(asked);
            }
            self.count_refusals(asked, request, decided, &mut writes);
            self.recent.record(asked, request, decided);
            decided.notices = self.give_notices(asked, request, (levels_before.as_deref(), decided), &mut writes);
            if !decided.is_replayed {
                self.lease(asked, request, decided, random)?;
            }
        }
        if let (ObjectReply::Decided(decided), false) = (&mut reply, newer.is_empty()) {
            decided.limits = self.answers_of(began_with, asked, &decided.limits, now);
            decided.notices.retain_mut(|due| is_of(due, began_with, asked));
        }
        if is_repeated {
            // The missing ones were made for the answer alone, and nothing was taken from them.
            self.buckets.retain(|(name, slot)| slot.has_row() || !missing.contains(&name.as_str()));
        }
        self.collect_writes(now, &mut writes);
        if asked.iter().any(|policy| policy.is_inline()) {
            self.forget_full_inline(asked, now, &mut writes);
        }
        if !writes.before_reply.is_empty() || !writes.consequences.is_empty() {
            self.set_alarm(now, &mut writes);
        }
        Ok((reply, writes))
    }

    /// Counts a refusal for each policy that refuses and is to ban for that. A key that is banned by it is answered so. A reset ends its ban.
    fn count_refusals(
        &mut self,
        asked: &[Arc<Policy>],
        request: &ObjectRequest,
        decided: &mut Decided,
        writes: &mut Writes,
    ) {
        let is_reset = request.action == Action::Take(Verb::Reset) && !decided.is_replayed;
        let is_counted = request.has_consequences && request.action.is_attempt() && !decided.is_replayed;
        let id = request.request_id.filter(|of| !of.is_lasting()).map(|of| of.id);
        let mut rest = decided.limits.as_mut_slice();
        for policy in asked {
            let Some((own, others)) = rest.split_at_mut_checked(policy.limits().len()) else { return };
            rest = others;
            if is_reset {
                self.bans.lift(policy.name(), &mut writes.before_reply);
                for answer in own.iter_mut() {
                    answer.ban = None;
                }
            }
            let Some(terms) = policy.object().ban.filter(|_| is_counted) else { continue };
            let is_refused = own.iter().any(|answer| !answer.decision.is_allow());
            if !is_refused || own.iter().any(|answer| answer.ban.is_some()) {
                continue;
            }
            let until = self.bans.refused(policy.name(), terms, (decided.now, id), writes);
            if let Some(ban) = until.map(|until| Ban { until: Some(until) }) {
                for answer in own {
                    (answer.decision, answer.ban) = (ban.decision(answer.decision), Some(ban));
                }
            }
        }
    }

    /// The answers for the limits of `began_with`, by account, from those for the limits of the `asked` policies that replace them. One that
    /// is no longer a limit is full.
    fn answers_of(
        &self,
        began_with: &[Arc<Policy>],
        asked: &[Arc<Policy>],
        answers: &[LimitAnswer],
        now: i64,
    ) -> Vec<LimitAnswer> {
        let mut rest = answers.iter();
        let mut all = Vec::new();
        for (before, policy) in began_with.iter().zip(asked) {
            let own: Vec<_> = policy.limits().iter().zip(rest.by_ref()).collect();
            for limit in before.limits() {
                let answer = own.iter().find(|(other, _)| other.account() == limit.account());
                all.push(answer.map_or_else(
                    || {
                        let nothing = Decision::Allow { tokens: 0, ready_at: now };
                        LimitAnswer::new(limit.limit(), nothing, &limit.limit().new_state(now, self.phase), now)
                    },
                    |(_, answer)| **answer,
                ));
            }
        }
        all
    }

    /// The policies of buckets last requested by a frontend that knows more than `as_of`, and what it knew.
    pub(super) fn newer(&self, asked: &[Arc<Policy>], as_of: i64) -> Result<Vec<(Arc<Policy>, i64)>, LedgerError> {
        let mut newer = Vec::new();
        for policy in asked.iter().filter(|policy| !policy.is_inline()) {
            match self.slot(policy.name()) {
                Some(Slot::Open(bucket)) if bucket.is_newer_than(policy, as_of) => {
                    newer.push((Arc::clone(bucket.policy()), bucket.as_of()));
                }
                Some(Slot::Stored(row)) => {
                    let error = |error| LedgerError::of_bucket(policy.name(), error);
                    let stored = StoredRow::read(row).map_err(error)?;
                    let Registered { as_of: stored_as_of, id, .. } = stored.registered;
                    if stored_as_of > as_of && id != policy.id() {
                        let is_shard = policy.shard().is_some(); // a row does not say which
                        let of_row = || stored.policy(policy.name()).map_err(error);
                        newer.push((if is_shard { Arc::clone(policy) } else { of_row()? }, stored_as_of));
                    }
                }
                _ => {}
            }
        }
        Ok(newer)
    }

    /// Answers a request seen for the first time. `id` is that of the reservation or hold that it opens or closes.
    fn perform(
        &mut self,
        asked: &[Arc<Policy>],
        request: &ObjectRequest,
        now: i64,
        id: u64,
        random: &mut dyn FnMut() -> Option<u64>,
        writes: &mut Writes,
    ) -> Result<ObjectReply, LedgerError> {
        // The other shards do what the first has done, which had room to remember it.
        let is_continued = shard_of(asked).is_some_and(|shard| shard.index > 0);
        if must_be_remembered(request)
            && !is_continued
            && let Some(reply) = self.no_room_for(request.request_id, now)
        {
            return Ok(reply);
        }
        match request.action {
            Action::Look(verb) => self.look(asked, verb, request, now),
            // Nothing was reserved, so there is nothing to settle.
            Action::Reserve(verb) if asks_for_any(request) => self.reserve(asked, verb, request, now, id, writes),
            Action::Take(verb) | Action::Reserve(verb) => self.take(asked, verb, request, now),
            Action::Hold(_) => self.prepare(asked, request, now, id),
            Action::Settle(_) => self.settle(asked, id, request, now, writes),
            Action::Cancel(_) => self.cancel(asked, id, request, now, writes),
            Action::Extend(_) => self.extend(asked, id, request, now, random, writes),
        }
    }

    /// Whether the same request was granted before.
    fn has_answered(&self, request_id: Option<RequestId>, now: i64) -> bool {
        request_id.is_some_and(|of| {
            let replay = self.replays.by_request_id(of.id, now);
            let is_same = |(_, fingerprint)| fingerprint == of.fingerprint;
            replay.is_some_and(|replay| replay.request_id.is_none_or(is_same))
        })
    }

    /// Whether the id or the request belongs to a known reservation, hold or committed batch of these policies.
    fn has_opened(&self, asked: &[Arc<Policy>], id: u64, request_id: Option<RequestId>, now: i64) -> bool {
        let is_closed = || self.replays.by_reservation(id, now).is_some_and(|replay| is_theirs(asked, replay));
        let is_committed = || request_id.is_some_and(|of| self.holds.committed_of_request(of.id).is_some());
        self.found(asked, id).is_some() || self.is_held(id) || is_closed() || is_committed()
    }

    pub(super) fn look(
        &mut self,
        asked: &[Arc<Policy>],
        verb: Verb,
        request: &ObjectRequest,
        now: i64,
    ) -> Result<ObjectReply, LedgerError> {
        let (limits, _) = self.decide(asked, verb, &request.costs, now, false)?;
        let shadow = self.decide_shadow(asked, verb, request, &limits, now, false);
        Ok(ObjectReply::Decided(Decided { shadow, ..self.decided(now, limits) }))
    }

    /// Whether a reservation or a hold may end and give something back to a bucket of these policies. A committed hold may be undone.
    fn may_give_back(&self, asked: &[Arc<Policy>]) -> bool {
        let reserved = self.reservations.iter().flat_map(|(_, open)| &open.parts);
        let mut parts = reserved.chain(self.holds.open().chain(self.holds.committed()).flat_map(|hold| &hold.parts));
        parts.any(|part| asked.iter().any(|policy| policy.name() == part.policy))
    }

    /// What comes back of each rolling window.
    fn coming_back(&self, asked: &[Arc<Policy>]) -> Box<[ComingBack]> {
        let buckets = asked.iter().filter_map(|policy| match self.slot(policy.name()) {
            Some(Slot::Open(bucket)) => Some(bucket.all_coming_back()),
            _ => None,
        });
        buckets.flatten().collect()
    }

    fn take(
        &mut self,
        asked: &[Arc<Policy>],
        verb: Verb,
        request: &ObjectRequest,
        now: i64,
    ) -> Result<ObjectReply, LedgerError> {
        let before = if verb.takes() { Vec::new() } else { self.levels(asked, now)? };
        let (limits, decision) = self.decide(asked, verb, &request.costs, now, true)?;
        if decision.is_allow() && must_be_remembered(request) {
            self.remember(asked, request.request_id, now, None, &limits);
        }
        let shadow = self.decide_shadow(asked, verb, request, &limits, now, true);
        let shard = shard_of(asked).filter(|_| !verb.takes());
        let spread = shard.map(|shard| Spread { at: now, shards: shard.count });
        Ok(ObjectReply::Decided(Decided { shadow, before, spread, ..self.decided(now, limits) }))
    }
}

/// Tells a frontend which policies to retry under.
fn outdated(newer: &[(Arc<Policy>, i64)]) -> ObjectReply {
    let definitions: Vec<_> = newer.iter().map(|(policy, _)| policy.definition()).collect();
    // The minimum, because it is claimed for all of them.
    let as_of = newer.iter().map(|(_, as_of)| *as_of).min().unwrap_or(0);
    ObjectReply::PolicyOutdated { as_of, definitions: definitions.join("\n") }
}

/// Whether the request may move anything. Limits in shadow count only if there are no others: beside enforced ones they must not change
/// what is remembered. A reservation under a policy that enforces nothing has an id like any other.
pub(super) fn asks_for_any(request: &ObjectRequest) -> bool {
    let is_any = |costs: &Vec<u64>| costs.iter().any(|&cost| cost > 0);
    let shadows = request.costs.iter().zip(&request.shadow_costs).filter(|(costs, _)| costs.is_empty());
    let is_reserved = matches!(request.action, Action::Reserve(_)) && request.costs.iter().all(Vec::is_empty);
    request.costs.iter().chain(shadows.map(|(_, costs)| costs)).any(is_any) || is_reserved
}

/// Whether a grant must be remembered. A request that takes nothing is safe to repeat. A hold is remembered once committed; what closes a
/// reservation is remembered with it, even without room for its request id.
fn must_be_remembered(request: &ObjectRequest) -> bool {
    match request.action {
        Action::Look(_) | Action::Hold(_) | Action::Settle(_) | Action::Cancel(_) => false,
        Action::Take(verb) | Action::Reserve(verb) => asks_for_any(request) || !verb.takes(),
        // Extending it once more makes no difference.
        Action::Extend(_) => asks_for_any(request),
    }
}

/// Gives a notice about a limit of the `asked` policies the position of that limit in those that they replace. `false` if it is not there.
fn is_of(due: &mut DueNotice, began_with: &[Arc<Policy>], asked: &[Arc<Policy>]) -> bool {
    // It is about no limit.
    if due.kind == NoticeKind::Refused {
        return true;
    }
    let place = |number: u64| usize::try_from(number).ok();
    let of = |policies: &[Arc<Policy>]| policies.get(place(due.policy)?).map(Arc::clone);
    let Some((before, after)) = of(began_with).zip(of(asked)) else { return false };
    let account = place(due.limit).and_then(|limit| after.limits().get(limit)).map(NamedLimit::account);
    let limit = account.and_then(|account| before.limits().iter().position(|limit| limit.account() == account));
    due.limit = limit.map_or(due.limit, |limit| limit as u64);
    limit.is_some()
}
