//! A key's state, for operators. Inspection changes and writes nothing: the ledger is only read, and what the next request would do (expire
//! reservations, end holds, follow policies) happens in a copy.

use std::sync::Arc;

use super::decide::Holds;
use super::notices::Notices;
use super::recent::Recent;
use super::replays::Replays;
use super::row::StoredRow;
use super::{Ledger, Slot};
use crate::limit::Decision;
use crate::policy::Policy;
use crate::protocol::{BucketState, HoldState, KeyState, LimitState, PolicyTokens, ReservationState};
use crate::sorted::sort_by;

impl Ledger {
    /// The key's state at `now`. `policies` are those of a frontend that knows the registry's changes up to `as_of`: a bucket is reported
    /// as a request under them would find it. One without such a policy, or last requested under a newer one, is reported under its own.
    #[must_use]
    pub fn inspect(&self, policies: &[Arc<Policy>], as_of: i64, now: i64) -> KeyState {
        let mut copy = self.copy();
        copy.end_holds(now);
        copy.bans.follow(now);
        let mut policies: Vec<_> =
            policies.iter().flat_map(|policy| [Some(policy), policy.shadow()]).flatten().collect();
        // A key without a bucket may be banned.
        policies.retain(|policy| self.slot(policy.name()).is_some() || copy.ban(policy, now).is_some());
        for policy in policies {
            let is_newer = copy.newer(std::slice::from_ref(policy), as_of).is_ok_and(|newer| !newer.is_empty());
            if !is_newer {
                _ = copy.open(policy, as_of, now); // an unreadable one is reported as such
            }
        }
        copy.end_expired(now);
        let names: Vec<_> = copy.buckets.iter().map(|(name, _)| name.clone()).collect();
        let state = |policy: String| {
            let limits = copy.limits_of(&policy, now);
            let ban = limits.as_ref().ok().and_then(|(policy, _)| copy.ban(policy, now));
            BucketState { policy, limits, ban }
        };
        let buckets: Vec<_> = names.into_iter().map(state).collect();
        let called = |tokens: Vec<PolicyTokens>| tokens.into_iter().map(|tokens| called(tokens, &buckets)).collect();
        let reservations = copy.reservations.iter().map(|(id, reservation)| ReservationState {
            id,
            opened_at: reservation.opened_at,
            expires_at: reservation.expires_at,
            is_refunded: reservation.is_refunded(),
            tokens: called(reservation.to_tokens()),
        });
        let holds = copy.hold_states().into_iter();
        let holds = holds.map(|hold| HoldState { tokens: called(hold.tokens), ..hold }).collect();
        let mut reservations: Vec<_> = reservations.collect();
        sort_by(&mut reservations, |one, other| (one.opened_at, one.id).cmp(&(other.opened_at, other.id)));
        KeyState { now, buckets, reservations, holds, decisions: self.recent.list() }
    }

    /// Everything that levels depend on.
    fn copy(&self) -> Self {
        Self {
            phase: self.phase,
            buckets: self.buckets.clone(),
            reservations: self.reservations.clone(),
            ended: self.ended.clone(),
            unwritten: Vec::new(),
            holds: self.holds.clone(),
            replays: Replays::default(),
            notices: Notices::default(),
            bans: self.bans.clone(),
            unreadable: Vec::new(),
            recent: Recent::default(),
            has_alarm: true,
            next_ticket: 1,
        }
    }

    /// The states of the policy's limits. It has a bucket.
    fn limits_of(&mut self, name: &str, now: i64) -> Result<(Arc<Policy>, Vec<LimitState>), String> {
        let policy = match self.slot(name) {
            Some(Slot::Open(bucket)) => Arc::clone(bucket.policy()),
            Some(Slot::Stored(row)) => {
                StoredRow::read(row).and_then(|row| row.policy(name)).map_err(|error| error.to_string())?
            }
            None => return Err("there is no bucket".to_owned()),
        };
        self.open(&policy, 0, now).map_err(|error| error.to_string())?;
        self.bucket(&policy).map_err(|error| error.to_string())?.end_leases(now);
        let holds = Holds::of(self, &policy);
        let bucket = self.bucket(&policy).map_err(|error| error.to_string())?;
        let bucket = &*bucket;
        let limits = policy.limits().iter().zip(&bucket.states).enumerate();
        let nothing = Decision::Allow { tokens: 0, ready_at: now };
        let answers = limits.map(|(index, (limit, state))| {
            holds.answer(index, limit, nothing, (&limit.limit().refilled(state, now), 0), now)
        });
        let mut answers: Vec<_> = answers.collect();
        holds.say_when_full(bucket, &mut answers, now);
        let states = answers.into_iter().zip(&holds.held).map(|(found, &held)| LimitState {
            remaining: found.remaining,
            owed: found.owed,
            held,
            reset_at: found.reset_at,
            snapshot: found.snapshot,
        });
        let states = states.collect();
        Ok((policy, states))
    }
}

/// With the limit that had no name at first renamed.
fn called(mut tokens: PolicyTokens, buckets: &[BucketState]) -> PolicyTokens {
    let bucket = buckets.iter().find(|bucket| bucket.policy == tokens.policy);
    if let Some(Ok((policy, _))) = bucket.map(|bucket| &bucket.limits) {
        for (name, _) in tokens.limits.iter_mut().filter(|(name, _)| name.is_none()) {
            *name = policy.timeline().unnamed().map(str::to_owned);
        }
    }
    tokens
}
