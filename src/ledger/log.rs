//! What was taken of a rolling window, and when: each token comes back a period later.
//!
//! By itself the bucket of a rolling window never refills. Its log says what is missing, moment by moment, and brings it back: the state's
//! level and the log's tokens always add up to the capacity. So everything else treats it like any bucket. What is missing for another
//! reason (a crash, a change of numbers, a lease that is over) is taken at the moment at which that is noticed: never too early.
//!
//! Takes of one grain share a moment, its end, so a log is short. Only what a reservation has taken keeps a moment of its own, until it can
//! no longer be settled: a settlement changes what was taken at its opening.

use super::bytes::Bytes;
use crate::limit::{Limit, MAX_GRAINS, State, ahead_ms, grain_ms, moment};
use crate::protocol::ComingBack;

/// The log of one account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Log {
    /// How long a grain is, in milliseconds; 0 if each take has its own moment.
    grain_ms: u64,
    /// When something was last taken.
    taken_at: i64,
    /// In the order of their moments.
    takes: Vec<Take>,
    /// Tokens of the last take, which may be those of a reservation that is about to be opened.
    last: u64,
}

/// Tokens that come back together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Take {
    /// The moment that counts.
    at: i64,
    tokens: u64,
    /// The id of the opening whose tokens they are; 0 if they are final.
    opening: u64,
    /// How many of them are in the stored row, and in the row in flight.
    saved: (u64, u64),
}

/// What has come back: in memory, for the stored row, and for the row in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Back {
    pub(super) tokens: u64,
    pub(super) saved: (u64, u64),
}

/// Maximum moments besides those of openings: twice the most grains, since the numbers may change from coarse to fine.
const MAX_MOMENTS: usize = 2 * MAX_GRAINS as usize;

impl Log {
    pub(super) const fn set_grain(&mut self, grain_ms: u64) {
        self.grain_ms = grain_ms;
    }

    /// Brings back what is back by now.
    pub(super) fn bring_back(&mut self, limit: &Limit, now: i64) -> Back {
        let over = self.takes.partition_point(|take| take.back_at(limit) <= now);
        let add = |back: Back, take: Take| Back {
            tokens: back.tokens.saturating_add(take.tokens),
            saved: sum(back.saved, take.saved),
        };
        self.takes.drain(..over).fold(Back::default(), add)
    }

    /// Follows a clock that stepped back far: otherwise a key would wait for the old clock. Returns whether it did.
    pub(super) fn follow_clock(&mut self, now: i64) -> bool {
        let Some(ahead_ms) = ahead_ms(self.taken_at, now).filter(|_| !self.takes.is_empty()) else { return false };
        self.taken_at = now;
        for take in &mut self.takes {
            take.at = take.at.saturating_sub(ahead_ms);
        }
        true
    }

    /// Makes it add up again, after the state has changed at `now`. Returns whether some of it was given back: the oldest first.
    pub(super) fn fit(&mut self, limit: &Limit, state: &State, now: i64) -> bool {
        let change = self.missing(limit, state);
        let tokens = u64::try_from(change.unsigned_abs()).unwrap_or(u64::MAX);
        self.last = 0;
        // It may have come and gone within one change of several, without the grains of a policy.
        if self.grain_ms == 0 {
            self.grain_ms = grain_ms(limit.config(), MAX_GRAINS);
        }
        if change > 0 {
            self.last = tokens;
            self.add(now, tokens, 0);
        } else {
            self.give_back(tokens);
        }
        change < 0
    }

    /// All of it is given back, and the past no longer matters: no settlement changes it. Returns whether there was any.
    pub(super) fn reset(&mut self) -> bool {
        let is_lower = self.tokens() > 0;
        self.takes.clear();
        is_lower
    }

    /// The tokens of the last take may still change: those of the opening with this id. Also if there are none.
    pub(super) fn open(&mut self, opening: u64, now: i64) {
        let tokens = std::mem::take(&mut self.last);
        let at = self.moment(now);
        if let Some(place) = self.final_at(at).filter(|_| tokens > 0) {
            self.lower(place, tokens);
        }
        self.add(now, tokens, opening);
    }

    /// Openings from before this was a rolling window: what they cost more in the end is taken at the moment of the change. What they have
    /// taken is among what was missing then, and is not given back.
    pub(super) fn adopt(&mut self, openings: impl Iterator<Item = u64>, now: i64) {
        self.last = 0;
        for opening in openings {
            if self.place_of(opening).is_none() {
                self.open(opening, now);
            }
        }
    }

    /// The opening with this id can no longer change.
    pub(super) fn close(&mut self, opening: u64) {
        let Some(place) = self.place_of(opening) else { return };
        let take = Take { opening: 0, ..self.takes.remove(place) };
        if take.tokens == 0 {
            return;
        }
        match self.final_at(take.at).and_then(|place| self.takes.get_mut(place)) {
            Some(other) => {
                other.tokens = other.tokens.saturating_add(take.tokens);
                other.saved = sum(other.saved, take.saved);
            }
            None => self.takes.insert(place, take),
        }
    }

    /// Settles the opening with this id, for which `taken` tokens were taken instead of `real`, and updates `state`. At most `room` more can
    /// be taken. Nothing changes if all of it is back. Returns how many were taken in the end, and how many more there are now.
    pub(super) fn settle(
        &mut self,
        limit: &Limit,
        opening: u64,
        (taken, real): (u64, u64),
        room: u64,
        state: &mut State,
    ) -> (u64, u64) {
        let Some(place) = self.place_of(opening) else { return (real, 0) };
        let more = real.saturating_sub(taken).min(room);
        if let Some(take) = self.takes.get_mut(place) {
            take.tokens = take.tokens.saturating_add(more);
            *state = limit.lowered(state, more);
        }
        let back = self.lower(place, taken.saturating_sub(real));
        *state = limit.raised(state, back);
        (taken.min(real).saturating_add(more), back)
    }

    /// When everything is back, if anything is missing.
    pub(super) fn over_at(&self, limit: &Limit) -> Option<i64> {
        self.takes.iter().filter(|take| take.tokens > 0).map(|take| take.back_at(limit)).max()
    }

    /// When what is taken then is back.
    pub(super) fn back_if_taken(&self, limit: &Limit, at: i64) -> i64 {
        Take { at: self.moment(at), ..Take::default() }.back_at(limit)
    }

    /// What comes back: from here, and from others, which come with their moments. What these openings have taken comes back at their
    /// moments at the latest.
    pub(super) fn coming_back(
        &self,
        limit: &Limit,
        others: impl IntoIterator<Item = (i64, u64)>,
        expiring: &[(u64, i64)],
    ) -> ComingBack {
        let own = self.takes.iter().map(|take| {
            let mut of_opening = expiring.iter().filter(|_| take.opening > 0);
            let expires_at = of_opening.find(|(id, _)| *id == take.opening).map(|(_, at)| *at);
            (expires_at.unwrap_or(i64::MAX).min(take.back_at(limit)), take.tokens)
        });
        ComingBack::new(own.chain(others).collect())
    }

    /// Records that a row has all of it.
    pub(super) fn mark_saved(&mut self) {
        self.takes.iter_mut().for_each(|take| take.saved = (take.tokens, 0));
    }

    /// Records that a row with all of it is in flight.
    pub(super) fn mark_in_flight(&mut self) {
        self.takes.iter_mut().for_each(|take| take.saved.1 = take.tokens);
    }

    /// Records that the row in flight has arrived.
    pub(super) fn mark_arrived(&mut self) {
        self.takes.iter_mut().for_each(|take| take.saved.0 = take.saved.1);
    }

    /// As in its row. Only openings that `survive` a crash are known after it.
    pub(super) fn encode(&self, survives: impl Fn(u64) -> bool) -> Vec<u8> {
        let mut bytes = [self.grain_ms.to_le_bytes(), self.taken_at.to_le_bytes()].concat();
        let mut kept: Vec<Take> = Vec::new();
        let mut last_final: Option<usize> = None;
        for take in &self.takes {
            if take.opening > 0 && survives(take.opening) {
                kept.push(*take);
                continue;
            }
            match last_final.and_then(|place| kept.get_mut(place)).filter(|last| last.at == take.at) {
                Some(last) => last.tokens = last.tokens.saturating_add(take.tokens),
                None if take.tokens == 0 => {}
                None => {
                    last_final = Some(kept.len());
                    kept.push(Take { opening: 0, ..*take });
                }
            }
        }
        for Take { at, tokens, opening, .. } in kept {
            bytes.extend(at.to_le_bytes());
            bytes.extend(tokens.to_le_bytes());
            bytes.extend(opening.to_le_bytes());
        }
        bytes
    }

    /// `None` for bytes not encoded here.
    pub(super) fn decode(bytes: &mut Bytes<'_>) -> Option<Self> {
        let mut log = Self { grain_ms: bytes.u64()?, taken_at: bytes.i64()?, ..Self::default() };
        while !bytes.is_empty() {
            let (at, tokens, opening) = (bytes.i64()?, bytes.u64()?, bytes.u64()?);
            log.takes.push(Take { at, tokens, opening, saved: (tokens, 0) });
        }
        Some(log)
    }

    /// Whether a row with it lacks what a crash may have cost.
    pub(super) fn is_behind(&self, limit: &Limit, state: &State) -> bool {
        self.missing(limit, state) > 0
    }

    /// How many more tokens the state lacks than the log has; negative if it has more.
    fn missing(&self, limit: &Limit, state: &State) -> i128 {
        let level = i128::from(limit.snapshot(state).tokens);
        i128::from(limit.config().capacity).saturating_sub(level).saturating_sub(self.tokens().into())
    }

    fn tokens(&self) -> u64 {
        self.takes.iter().fold(0, |sum, take| sum.saturating_add(take.tokens))
    }

    /// The moment that counts for what is taken now.
    fn moment(&self, now: i64) -> i64 {
        moment(now, self.takes.last().map(|last| last.at), self.grain_ms)
    }

    /// Adds tokens that are taken now: to the final ones of their moment, or as those of an opening.
    fn add(&mut self, now: i64, tokens: u64, opening: u64) {
        let at = self.moment(now);
        self.taken_at = if self.takes.is_empty() { now } else { self.taken_at.max(now) };
        match self.final_at(at).filter(|_| opening == 0).and_then(|place| self.takes.get_mut(place)) {
            Some(take) => take.tokens = take.tokens.saturating_add(tokens),
            None => self.takes.push(Take { at, tokens, opening, saved: (0, 0) }),
        }
        let is_final = |take: &&Take| take.opening == 0;
        if self.takes.iter().filter(is_final).count() > MAX_MOMENTS {
            self.merge_oldest();
        }
    }

    /// The two oldest final moments become one, the later.
    fn merge_oldest(&mut self) {
        let mut finals = self.takes.iter().enumerate().filter(|(_, take)| take.opening == 0).map(|(place, _)| place);
        let (Some(first), Some(second)) = (finals.next(), finals.next()) else { return };
        let Take { tokens, saved, .. } = self.takes.remove(first);
        if let Some(next) = self.takes.get_mut(second.saturating_sub(1)) {
            next.tokens = next.tokens.saturating_add(tokens);
            // In the rows they come back sooner: less is counted on than is there.
            next.saved = sum(next.saved, saved);
        }
    }

    /// Gives back the oldest ones.
    fn give_back(&mut self, mut tokens: u64) {
        for take in &mut self.takes {
            let back = take.tokens.min(tokens);
            take.lower(back);
            tokens = tokens.saturating_sub(back);
        }
        self.takes.retain(|take| take.tokens > 0 || take.opening > 0);
    }

    /// Gives back these tokens of a take, or all that it has. Returns how many.
    fn lower(&mut self, place: usize, tokens: u64) -> u64 {
        let Some(take) = self.takes.get_mut(place) else { return 0 };
        let back = take.tokens.min(tokens);
        take.lower(back);
        self.takes.retain(|take| take.tokens > 0 || take.opening > 0);
        back
    }

    fn place_of(&self, opening: u64) -> Option<usize> {
        self.takes.iter().position(|take| take.opening == opening && opening > 0)
    }

    /// The final tokens of that moment, if there are any.
    fn final_at(&self, at: i64) -> Option<usize> {
        let first = self.takes.partition_point(|take| take.at < at);
        let same = self.takes.iter().enumerate().skip(first).take_while(|(_, take)| take.at == at);
        same.filter(|(_, take)| take.opening == 0).map(|(place, _)| place).next()
    }
}

impl Take {
    fn back_at(&self, limit: &Limit) -> i64 {
        limit.back_at(self.at)
    }

    fn lower(&mut self, tokens: u64) {
        self.tokens = self.tokens.saturating_sub(tokens);
        self.saved = (self.saved.0.min(self.tokens), self.saved.1.min(self.tokens));
    }
}

const fn sum(one: (u64, u64), other: (u64, u64)) -> (u64, u64) {
    (one.0.saturating_add(other.0), one.1.saturating_add(other.1))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limit::{Config, Kind};

    fn limit(capacity: u64, period_ms: u64) -> Limit {
        let config = Config::token_bucket(capacity, Duration::from_millis(period_ms));
        Limit::of_any_kind(&Config { kind: Kind::RollingWindow, ..config }).unwrap()
    }

    /// Takes tokens at that moment.
    fn take(limit: &Limit, log: &mut Log, state: &mut State, tokens: u64, now: i64) {
        *state = limit.lowered(state, tokens);
        assert!(!log.fit(limit, state, now));
    }

    /// The format in the storage of every deployment. If it changes, open windows must still be readable.
    #[test]
    fn the_stored_format_is_unchanged() {
        let (limit, mut log) = (limit(100, 1_000), Log { grain_ms: 50, ..Log::default() });
        let mut state = limit.new_state(0, 0);
        take(&limit, &mut log, &mut state, 7, 101);
        take(&limit, &mut log, &mut state, 5, 140);
        log.open(9, 140);
        take(&limit, &mut log, &mut state, 3, 151);
        log.open(8, 151);
        log.open(7, 151);
        let numbers: [u64; 11] = [50, 151, 150, 7, 0, 150, 5, 9, 200, 3, 0];
        let bytes: Vec<_> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        assert_eq!(log.encode(|id| id == 9), bytes, "the other opening does not survive a crash");
        let read = Log::decode(&mut Bytes(&bytes)).unwrap();
        assert_eq!(read.encode(|_| true), bytes);
        assert!(!read.is_behind(&limit, &state) && read.is_behind(&limit, &limit.lowered(&state, 1)));
        assert_eq!(Log::decode(&mut Bytes(&bytes[..bytes.len() - 1])), None);
        assert_eq!(read.over_at(&limit), Some(1_200));
    }

    /// However often the numbers change. What shares a moment comes back with the later one.
    #[test]
    fn the_number_of_moments_is_bounded() {
        let (limit, mut log) = (limit(10_000, 100_000), Log { grain_ms: 1, ..Log::default() });
        let mut state = limit.new_state(0, 0);
        for now in 0..1_000 {
            take(&limit, &mut log, &mut state, 2, now);
        }
        assert_eq!((log.takes.len(), log.tokens()), (MAX_MOMENTS, 2_000));
        assert_eq!(log.bring_back(&limit, 100_519).tokens, 0);
        assert_eq!(log.bring_back(&limit, 100_520).tokens, 1_042);
        assert_eq!(log.bring_back(&limit, 100_521).tokens, 2);
    }
}
