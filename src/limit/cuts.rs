//! A bucket with a past that may still change: the costs of reservations are known only when they are settled.
//!
//! A level is the least that any moment of the past has left of a full bucket:
//!
//! ```text
//! level(t) = min over s <= t of (full + refill(s, t) - spent(s, t))
//! ```
//!
//! Had a reservation cost less, everything since its opening would have been fuller by the difference, but no fuller than the capacity
//! allowed at any later moment. So the minimum is *cut* at the opening of each open reservation: into pieces, oldest first. Settling one
//! raises the pieces before its opening, whose minimum includes what it has taken, and leaves those after it unchanged. The level is the
//! minimum of all pieces. Then the cut is no longer needed, and its two neighbours become one piece.
//!
//! All pieces refill alike and lack everything taken. Only the newest piece has moments at which the bucket is full: it is clipped, and all
//! others fall behind it. So it is kept as a [`State`], which refills like any bucket; each cut is kept as the distance of the piece before
//! it above the piece after it.
//!
//! The result equals replaying the whole history with the real cost in place of the reserved one, as `tests/ledger/late.rs` does.

use super::arithmetic::{Limit, product};
use super::carry::Carry;
use super::state::{MAX_DROPS, State};

/// The pieces of one bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cuts {
    /// The level if the pieces before the last cut did not count.
    newest: State,
    /// For each cut, oldest first, by how many drops the piece before it is above the piece after it; [`VOID`] if the pieces before it no
    /// longer count.
    steps: Vec<i64>,
}

/// The pieces before this cut are older than a reset, so they no longer matter. Greater than every distance that does.
const VOID: i64 = 1 << 62;

impl Cuts {
    /// A bucket without a cut.
    pub(crate) const fn new(state: State) -> Self {
        Self { newest: state, steps: Vec::new() }
    }

    /// A bucket with this many `cuts`, all of them older than anything that matters to it.
    pub(crate) fn void(state: State, cuts: usize) -> Self {
        Self { newest: state, steps: vec![VOID; cuts] }
    }

    /// The same cuts in a bucket in this state, where what was taken at them is not known: settling one takes more, and gives nothing back.
    pub(crate) fn restarted(self, state: State) -> Self {
        Self { newest: state, steps: vec![0; self.steps.len()] }
    }

    /// The cuts as they were stored.
    pub(crate) fn stored(newest: State, steps: Vec<i64>) -> Self {
        Self { newest, steps: steps.into_iter().map(|step| step.clamp(-VOID, VOID)).collect() }
    }

    pub(crate) const fn newest(&self) -> &State {
        &self.newest
    }

    pub(crate) fn steps(&self) -> &[i64] {
        &self.steps
    }

    /// Credits all refills up to `now`.
    pub(crate) fn refill(&mut self, limit: &Limit, now: i64) {
        let (newest, lost) = limit.refilled_and_lost(&self.newest, now);
        self.newest = newest;
        self.lose(lost);
    }

    /// Cuts after the last take, at `now`: for the new piece, the bucket counts as full.
    pub(crate) fn open(&mut self, limit: &Limit, now: i64) {
        self.refill(limit, now);
        if limit.is_from_first_use() && self.level() >= limit.full {
            self.newest.at = self.newest.at.max(now); // if it costs anything in the end, it has opened a window
        }
        self.steps.push(self.newest.level.saturating_sub(limit.full));
        self.newest.level = limit.full;
    }

    /// Takes the difference between the bucket's states `before` and `after`.
    pub(crate) fn take(&mut self, limit: &Limit, before: &State, after: &State, now: i64) {
        if before == after {
            return;
        }
        self.refill(limit, now);
        let taken = limit.refilled(before, now).level.saturating_sub(limit.refilled(after, now).level);
        self.newest.level = self.newest.level.saturating_sub(taken).max(-MAX_DROPS);
        if limit.is_from_first_use() {
            self.newest.at = limit.ticked(after, now).at; // it may have opened a window
        }
    }

    /// Gives tokens back.
    pub(crate) fn refund(&mut self, limit: &Limit, tokens: u64, now: i64) {
        self.refill(limit, now);
        let level = self.newest.level.saturating_add(limit.clipped_drops(tokens));
        self.newest.level = level.min(limit.full);
        self.lose(level.saturating_sub(self.newest.level));
    }

    /// The bucket is `full` now, and the past no longer matters.
    pub(crate) fn reset(&mut self, full: State) {
        self.newest = full;
        self.lose(VOID);
    }

    /// The stored cuts beside this state, which may be from another moment: what a crash cost the pieces, it did not cost the state. A clock
    /// that stepped back may be behind one of them, and then neither has refilled up to the other's moment.
    pub(crate) fn beside(mut self, limit: &Limit, state: &State, now: i64) -> Self {
        let at = limit.unix_time(self.newest.at.max(state.at)).min(now);
        self.refill(limit, at);
        self.raise_to(&limit.refilled(state, at));
        self
    }

    /// The cuts of a bucket in this state. A full piece has no window of its own.
    pub(crate) fn in_window_of(mut self, limit: &Limit, state: &State) -> Self {
        if limit.is_from_first_use() && state.level < limit.full {
            self.newest.at = state.at;
        }
        self
    }

    /// Raises each piece to at least this level, which may be negative.
    pub(crate) fn raise_to(&mut self, least: &State) {
        let mut levels = self.levels();
        for level in &mut levels {
            *level = (*level).max(least.level.into());
        }
        self.set_levels(&levels);
    }

    /// Lowers each piece to that of `other` if that is lower. Both have the same cuts.
    pub(crate) fn lower_of(&mut self, mut other: Self, limit: &Limit, now: i64) {
        self.refill(limit, now);
        other.refill(limit, now);
        // One of them may be ahead of a clock that stepped back.
        self.newest.at = self.newest.at.max(other.newest.at);
        let mut levels = self.levels();
        for (level, other) in levels.iter_mut().zip(other.levels()) {
            *level = (*level).min(other);
        }
        self.set_levels(&levels);
    }

    /// Carries the bucket over to a limit with other numbers, as [`Limit::carry`] does with its level: each piece by itself.
    pub(crate) fn carry(&mut self, new: &Limit, old: &Limit, how: Carry, now: i64, phase: u64) {
        self.refill(old, now);
        let carried = new.carry(old, self.newest, how, now, phase);
        if how == Carry::Reset || new.config().kind != old.config().kind {
            return self.reset(carried);
        }
        self.carry_levels(new, old, how);
        let lost = self.newest.level.saturating_sub(carried.level);
        self.newest = State { at: self.opened_at(new, old, &carried), ..carried };
        self.lose(lost.max(0));
    }

    /// Carries the bucket over to a limit of any kind, with this newest piece: as many tokens, minus the `excess`.
    pub(crate) fn take_over(&mut self, new: &Limit, old: &Limit, newest: State, excess: i128, now: i64) {
        self.refill(old, now);
        self.carry_levels(new, old, Carry::AsIs);
        let excess = excess.saturating_mul(new.drops_per_token.get().into());
        let level = i128::from(self.newest.level).saturating_sub(excess);
        // The other pieces do not share the difference between it and the carried level.
        self.lose(clamped(level.saturating_sub(newest.level.into())));
        self.newest = State { at: self.opened_at(new, old, &newest), ..newest };
    }

    /// The moment of the newest piece, `carried` over to a limit. A full one may have opened a window, which stays open if the limits share
    /// windows.
    fn opened_at(&self, new: &Limit, old: &Limit, carried: &State) -> i64 {
        let is_same = new.is_from_first_use() && new.config().shares_windows_with(old.config());
        if is_same { self.newest.at } else { carried.at }
    }

    /// Carries over the level of each piece, so that each is rounded once. Rounding distances would accumulate.
    fn carry_levels(&mut self, new: &Limit, old: &Limit, how: Carry) {
        let mut levels = self.levels();
        for level in levels.iter_mut().filter(|level| **level != i128::MAX) {
            *level = new.carried_level(old, *level, how);
        }
        self.set_levels(&levels);
    }

    /// Gives back tokens that were only withheld, even above the capacity.
    pub(crate) fn raise(&mut self, limit: &Limit, tokens: u64) {
        self.newest = limit.raised(&self.newest, tokens);
    }

    /// How many more tokens can have been taken at the opening of that cut, such that the level without those `withheld` is no lower than
    /// the largest debt allows, if it `may_owe` any, or than it is. All refills up to now are credited.
    pub(crate) fn room(&self, limit: &Limit, cut: usize, withheld: u64, may_owe: bool) -> u64 {
        let withheld = limit.clipped_drops(withheld);
        let debt = if may_owe { limit.debt } else { 0 };
        let floor = self.level().saturating_sub(withheld).min(debt.saturating_neg());
        let older = self.levels().into_iter().take(cut.saturating_add(1)).min().unwrap_or_default();
        let room = older.saturating_sub(withheld.into()).saturating_sub(floor.into());
        limit.whole_tokens(clamped(room))
    }

    /// Settles the opening of this cut, where `taken` tokens were taken instead of `real`, and updates `state`. Returns how many more
    /// tokens it has.
    pub(crate) fn settle(
        &mut self,
        limit: &Limit,
        cut: usize,
        (taken, real): (u64, u64),
        state: &mut State,
        now: i64,
    ) -> u64 {
        self.refill(limit, now);
        let Some(step) = self.steps.get_mut(cut) else { return 0 };
        let back = limit.clipped_drops(taken).saturating_sub(limit.clipped_drops(real));
        if back == 0 {
            return 0; // the pieces may have followed a clock that stepped back since, where the state did not
        }
        *step = plus(*step, back);
        // At the pieces' moment, of which a clock that stepped back is short.
        let (before, level) = (limit.refilled(state, now.max(limit.unix_time(self.newest.at))).level, self.level());
        // Refills beyond the capacity since the state's moment may be passed on to other numbers: less of them, if more was taken. A bucket
        // that is full again was fuller at that moment, if less was taken.
        if back < 0 || level != before || (back > 0 && level == limit.full) {
            *state = State { level, at: self.newest.at };
        }
        limit.whole_tokens(level.saturating_sub(before))
    }

    /// The states after each of these settlements at no cost: the moment, the cut, and what was taken. Equal to [`Cuts::settle`] one after
    /// the other, but each takes time logarithmic in the number of cuts.
    pub(crate) fn settled(
        &self,
        limit: &Limit,
        mut state: State,
        settlements: impl Iterator<Item = (i64, usize, u64)>,
    ) -> Vec<State> {
        let Self { mut newest, mut steps } = self.clone();
        let mut sums = LeastSums::of(&steps);
        let newest_step = steps.len().saturating_sub(1);
        let mut states = Vec::new();
        for (at, cut, taken) in settlements {
            let (refilled, lost) = limit.refilled_and_lost(&newest, at);
            newest = refilled;
            for (place, drops) in [(newest_step, lost), (cut, limit.clipped_drops(taken))] {
                if let Some(step) = steps.get_mut(place).filter(|_| drops != 0) {
                    *step = plus(*step, drops);
                    sums.set(place, *step);
                }
            }
            let level = i128::from(newest.level).saturating_add(sums.least().min(0));
            let level = clamped(level).max(-MAX_DROPS);
            let is_full_again = level == limit.full;
            if taken > 0
                && cut < steps.len()
                && (is_full_again || level != limit.refilled(&state, at.max(limit.unix_time(newest.at))).level)
            {
                state = State { level, at: newest.at };
            }
            states.push(state);
        }
        states
    }

    /// Closes a cut: what was taken at its opening is now final.
    pub(crate) fn close(&mut self, cut: usize) {
        if cut >= self.steps.len() {
            return;
        }
        let step = self.steps.remove(cut);
        // The lower of its neighbours stays. What the other lacks is added to the distance to that one's neighbour.
        let (above, below) = (step.max(0), step.min(0));
        let (older, newer) = self.steps.split_at_mut_checked(cut).unwrap_or_default();
        if let Some(older) = older.last_mut() {
            *older = plus(*older, above);
        }
        match newer.first_mut() {
            Some(newer) => *newer = plus(*newer, below),
            None => self.newest.level = self.newest.level.saturating_add(below).max(-MAX_DROPS),
        }
    }

    /// The minimum of all pieces.
    fn level(&self) -> i64 {
        let mut level = i128::from(self.newest.level);
        let mut least = level;
        for &step in self.steps.iter().rev().take_while(|step| **step < VOID) {
            level = level.saturating_add(step.into());
            least = least.min(level);
        }
        clamped(least).max(-MAX_DROPS)
    }

    /// The levels of all pieces, oldest first.
    fn levels(&self) -> Vec<i128> {
        let mut level = i128::from(self.newest.level);
        let mut is_void = false;
        let mut levels = vec![level];
        for &step in self.steps.iter().rev() {
            is_void |= step >= VOID;
            level = if is_void { i128::MAX } else { level.saturating_add(step.into()) };
            levels.push(level);
        }
        levels.reverse();
        levels
    }

    /// The inverse of [`Cuts::levels`].
    fn set_levels(&mut self, levels: &[i128]) {
        for (step, pair) in self.steps.iter_mut().zip(levels.windows(2)) {
            if let [older, newer] = pair {
                *step = if *older == i128::MAX { VOID } else { clamped(older.saturating_sub(*newer)) };
            }
        }
        self.newest.level = levels.last().map_or(self.newest.level, |level| clamped(*level));
    }

    /// The newest piece lost this much because it did not fit: all others are above it by as much more.
    fn lose(&mut self, drops: i64) {
        if let Some(last) = self.steps.last_mut() {
            *last = plus(*last, drops);
        }
    }
}

/// A tree over steps, in which each node has the sum of its steps, and the minimum over all sums of its last ones.
struct LeastSums(Vec<(i128, i128)>);

impl LeastSums {
    /// The distance of pieces before a void step above the newest: more than any that counts.
    const ABOVE_ALL: i128 = 1 << 100;

    fn of(steps: &[i64]) -> Self {
        let leaves = steps.len().next_power_of_two();
        let mut nodes = vec![(0, Self::ABOVE_ALL); leaves.saturating_mul(2)];
        for (node, &step) in nodes.iter_mut().skip(leaves).zip(steps) {
            *node = Self::leaf(step);
        }
        let mut tree = Self(nodes);
        for node in (1..leaves).rev() {
            tree.join(node);
        }
        tree
    }

    fn leaf(step: i64) -> (i128, i128) {
        let step = if step >= VOID { Self::ABOVE_ALL } else { step.into() };
        (step, step)
    }

    fn set(&mut self, place: usize, step: i64) {
        let mut node = (self.0.len() / 2).saturating_add(place);
        if let Some(leaf) = self.0.get_mut(node) {
            *leaf = Self::leaf(step);
        }
        while node > 1 {
            node /= 2;
            self.join(node);
        }
    }

    fn join(&mut self, node: usize) {
        let child = |node: usize| self.0.get(node).copied().unwrap_or((0, Self::ABOVE_ALL));
        let (older, newer) = (child(node.saturating_mul(2)), child(node.saturating_mul(2).saturating_add(1)));
        let joined = (older.0.saturating_add(newer.0), newer.1.min(older.1.saturating_add(newer.0)));
        if let Some(node) = self.0.get_mut(node) {
            *node = joined;
        }
    }

    /// The minimum over all sums of the last steps, of at least one.
    fn least(&self) -> i128 {
        self.0.get(1).map_or(Self::ABOVE_ALL, |(_, least)| *least)
    }
}

impl Limit {
    /// As [`Limit::refilled`], with the number of drops that did not fit.
    ///
    /// A newest piece may be full where an older one is not: the bucket's windows go on.
    fn refilled_and_lost(&self, state: &State, now: i64) -> (State, i64) {
        let refilled = self.ticked(state, now);
        let now = self.own_time(now);
        if now < state.at {
            return (refilled, 0);
        }
        let refill = product(now.abs_diff(state.at) / self.tick_ms, self.refill.unsigned_abs()).cast_signed();
        (refilled, state.level.saturating_add(refill).saturating_sub(refilled.level))
    }
}

/// A distance increased by this many drops. A void one stays void.
fn plus(step: i64, drops: i64) -> i64 {
    if step.max(drops) >= VOID { VOID } else { step.saturating_add(drops).clamp(-VOID, VOID) }
}

fn clamped(drops: i128) -> i64 {
    i64::try_from(drops.clamp((-VOID).into(), VOID.into())).unwrap_or(VOID)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "the numbers are valid")]
#[allow(clippy::arithmetic_side_effects, reason = "clippy takes a browser's tests for code")]
mod tests {
    use core::time::Duration;

    #[cfg(target_family = "wasm")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::super::config::Config;
    use super::*;

    /// 63 bits of a multiplicative generator.
    fn random(seed: &mut u64) -> i64 {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 1).cast_signed()
    }

    #[test]
    fn settling_together_equals_settling_one_by_one() {
        let mut seed = 7;
        for case in 0..2_000 {
            let within = |seed: &mut u64, size: i64| random(seed).rem_euclid(size);
            let (capacity, rate) = (within(&mut seed, 40) + 1, within(&mut seed, 3));
            let mut config = Config::token_bucket(rate.unsigned_abs(), Duration::from_millis(7));
            (config.capacity, config.max_debt) = (capacity.unsigned_abs(), 20);
            let limit = Limit::new(&config).unwrap();
            let count = usize::try_from(within(&mut seed, 9)).unwrap() + 1;
            let drops = |seed: &mut u64| limit.full / 8 * within(seed, 17) - limit.full;
            let step = |seed: &mut u64| if within(seed, 9) == 0 { VOID } else { drops(seed) };
            // A clock that has stepped back is behind the pieces, and perhaps behind the state.
            let (newest_at, state_at) = (within(&mut seed, 90), within(&mut seed, 50));
            let newest = State { level: drops(&mut seed), at: newest_at };
            let cuts = Cuts::stored(newest, (0..count).map(|_| step(&mut seed)).collect());
            let state = State { level: cuts.level(), at: state_at };
            let mut at = 0;
            let settlements: Vec<_> = (0..count)
                .map(|_| {
                    at += within(&mut seed, 20);
                    let cut = usize::try_from(within(&mut seed, 9)).unwrap() % count;
                    (at, cut, within(&mut seed, 30).unsigned_abs())
                })
                .collect();
            let (mut alone, mut then) = (cuts.clone(), state);
            let one_by_one: Vec<_> = settlements
                .iter()
                .map(|(at, cut, taken)| {
                    alone.settle(&limit, *cut, (*taken, 0), &mut then, *at);
                    then
                })
                .collect();
            assert_eq!(cuts.settled(&limit, state, settlements.iter().copied()), one_by_one, "case {case}: {cuts:?}");
        }
    }
}
