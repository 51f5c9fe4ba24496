//! A key's reservations, open or over, found by id and by expiry.

use super::reservation::Reservation;
use crate::limit::MAX_STEP_BACK_MS;
use crate::sorted::SortedMap;

/// Reservations of a key.
#[derive(Clone, Debug, Default)]
pub(super) struct Reservations {
    all: SortedMap<u64, Reservation>,
    /// Each one's expiry, with its id.
    ends: SortedMap<(i64, u64), ()>,
    openings: Openings,
    /// No reservation was opened later than this.
    latest: Option<i64>,
}

/// The number of openings: one for each reservation, and one more for each raise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Openings {
    pub(super) all: usize,
    /// Those of reservations that holders of grants have made or raised.
    pub(super) by_grants: usize,
}

impl Reservations {
    pub(super) fn get(&self, id: u64) -> Option<&Reservation> {
        self.all.get(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Reservation)> {
        self.all.iter().map(|(id, open)| (*id, open))
    }

    /// In order of expiry.
    pub(super) fn by_end(&self) -> impl Iterator<Item = (u64, &Reservation)> {
        self.ends.keys().filter_map(|(_, id)| Some((*id, self.all.get(id)?)))
    }

    /// Neither their ends nor their openings may be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut Reservation)> {
        self.all.iter_mut().map(|(id, open)| (*id, open))
    }

    pub(super) const fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) const fn openings(&self) -> Openings {
        self.openings
    }

    /// Their expiries, earliest first.
    pub(super) fn ends(&self) -> impl Iterator<Item = i64> {
        self.ends.keys().map(|(at, _)| *at)
    }

    /// Replaces the one with that id, if there is one.
    pub(super) fn insert(&mut self, id: u64, reservation: Reservation) {
        self.remove(id);
        self.openings.add(&reservation);
        self.ends.insert((reservation.expires_at, id), ());
        self.latest = self.latest.max(Some(reservation.opened_at));
        self.all.insert(id, reservation);
    }

    /// Where the clock stepped back to a moment before one was opened, by more than what counts as no time elapsed, it begins anew. Returns
    /// the ids.
    pub(super) fn follow_clock(&mut self, now: i64) -> Vec<u64> {
        let is_ahead = |opened_at: i64| opened_at.saturating_sub(now) > MAX_STEP_BACK_MS;
        if !self.latest.is_some_and(is_ahead) {
            return Vec::new();
        }
        let ahead: Vec<_> = self.iter().filter(|(_, open)| is_ahead(open.opened_at)).map(|(id, _)| id).collect();
        for id in &ahead {
            if let Some(open) = self.remove(*id) {
                let expires_at = now.saturating_add(open.expires_at.saturating_sub(open.opened_at));
                self.insert(*id, Reservation { opened_at: now, expires_at, ..open });
            }
        }
        self.latest = self.iter().map(|(_, open)| open.opened_at).max();
        ahead
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Reservation> {
        let open = self.all.remove(&id)?;
        self.ends.remove(&(open.expires_at, id));
        self.openings.remove(&open);
        Some(open)
    }

    /// Removes those that have expired by `now`, in order of expiry.
    pub(super) fn take_expired(&mut self, now: i64) -> Vec<(u64, Reservation)> {
        let expired = self.ends.keys().take_while(|(at, _)| *at <= now).map(|(_, id)| *id);
        let expired: Vec<_> = expired.collect();
        expired.into_iter().filter_map(|id| Some((id, self.remove(id)?))).collect()
    }
}

impl Openings {
    fn add(&mut self, reservation: &Reservation) {
        let count = reservation.openings();
        self.all = self.all.saturating_add(count);
        if reservation.by_grant {
            self.by_grants = self.by_grants.saturating_add(count);
        }
    }

    fn remove(&mut self, reservation: &Reservation) {
        let count = reservation.openings();
        self.all = self.all.saturating_sub(count);
        if reservation.by_grant {
            self.by_grants = self.by_grants.saturating_sub(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::reservation::{End, Raise};
    use super::*;

    #[test]
    fn those_opened_after_the_clock_begin_anew() {
        let mut open = Reservations::default();
        for (id, opened_at) in [(1, 0), (2, 100_000)] {
            open.insert(id, Reservation { opened_at, ..reservation(opened_at + 1_000, false, 0) });
        }
        let ends = |open: &Reservations| open.by_end().map(|(id, one)| (id, one.expires_at)).collect::<Vec<_>>();
        let back = 100_000 - MAX_STEP_BACK_MS;
        assert_eq!((open.follow_clock(back), ends(&open)), (Vec::new(), vec![(1, 1_000), (2, 101_000)]));
        assert_eq!((open.follow_clock(back - 1), ends(&open)), (vec![2], vec![(1, 1_000), (2, back - 1 + 1_000)]));
        assert_eq!(open.follow_clock(back - 1), [0_u64; 0]);
        assert_eq!((open.follow_clock(i64::MIN), open.len()), (vec![1, 2], 2));
    }

    fn reservation(expires_at: i64, by_grant: bool, raises: u64) -> Reservation {
        let raises = (0..raises).map(|id| Raise { id, parts: Vec::new() }).collect();
        Reservation { opened_at: 0, expires_at, end: End::Charged, by_grant, parts: Vec::new(), raises }
    }

    #[test]
    fn an_open_reservation_is_found_and_counted_until_it_expires() {
        let mut open = Reservations::default();
        for (id, expires_at, by_grant, raises) in [(7, 30, false, 0), (3, 10, true, 2), (5, 20, false, 1)] {
            open.insert(id, reservation(expires_at, by_grant, raises));
        }
        assert_eq!((open.len(), open.openings()), (3, Openings { all: 6, by_grants: 3 }));
        assert_eq!(open.iter().map(|(id, _)| id).collect::<Vec<_>>(), [3, 5, 7]);
        // A grant's holder extends and raises it.
        open.insert(5, reservation(40, true, 2));
        assert_eq!((open.openings(), open.ends().next()), (Openings { all: 7, by_grants: 6 }, Some(10)));
        let expired =
            |open: &mut Reservations, now| open.take_expired(now).into_iter().map(|(id, _)| id).collect::<Vec<_>>();
        assert_eq!(expired(&mut open, 9), [0_u64; 0]);
        assert_eq!(expired(&mut open, 30), [3, 7]);
        assert_eq!((open.ends().next(), open.openings()), (Some(40), Openings { all: 3, by_grants: 3 }));
        assert!(open.get(3).is_none() && open.remove(3).is_none() && open.remove(5).is_some());
        assert_eq!((open.len(), open.openings(), open.ends().next()), (0, Openings::default(), None));
    }
}
