//! A key's holds, found by the tries that share them.
//!
//! At most [`MAX_RESERVATIONS`](super::MAX_RESERVATIONS) withhold tokens from others, and each request scans those. There may be thousands
//! of committed ones, since each is kept while its batch may be undone: a request finds one of them by its ids.

use std::collections::VecDeque;

use super::hold::Hold;
use super::replays::{Place, Places};
use crate::protocol::RequestId;

#[derive(Clone, Debug, Default)]
pub(super) struct Holds {
    /// Holds that withhold tokens from others.
    open: Vec<Hold>,
    /// In order of commit; `None` where one was undone.
    committed: VecDeque<Option<Hold>>,
    /// The number of the first committed one.
    first_committed: usize,
    committed_by_try: Places,
    committed_by_request_id: Places,
}

impl Holds {
    pub(super) fn push(&mut self, hold: Hold) {
        self.open.push(hold);
    }

    /// Holds that withhold tokens from others.
    pub(super) fn open(&self) -> impl Iterator<Item = &Hold> {
        self.open.iter()
    }

    pub(super) fn committed(&self) -> impl Iterator<Item = &Hold> {
        self.committed.iter().flatten()
    }

    /// Open and committed holds.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Hold> {
        self.open.iter_mut().chain(self.committed.iter_mut().flatten())
    }

    /// The hold that this try shares.
    pub(super) fn of_try(&self, id: u64) -> Option<&Hold> {
        let committed = || self.committed.get(self.position(&self.committed_by_try, id.into())?)?.as_ref();
        self.open.iter().find(|hold| hold.is_shared_by(id)).or_else(committed)
    }

    pub(super) fn of_try_mut(&mut self, id: u64) -> Option<&mut Hold> {
        if let Some(position) = self.open.iter().position(|hold| hold.is_shared_by(id)) {
            return self.open.get_mut(position);
        }
        let position = self.position(&self.committed_by_try, id.into())?;
        self.committed.get_mut(position)?.as_mut()
    }

    /// Takes out the open hold of the same request, with its place.
    pub(super) fn take_open_of(&mut self, request_id: &RequestId) -> Option<(usize, Hold)> {
        let is_own = |hold: &Hold| hold.request_id.is_some_and(|of| of.is_of_same(request_id));
        let place = self.open.iter().position(is_own)?;
        Some((place, self.open.remove(place)))
    }

    pub(super) fn put_back(&mut self, place: usize, hold: Hold) {
        self.open.insert(place, hold);
    }

    /// The hold of a batch with this request id.
    pub(super) fn of_request(&self, request_id: u128) -> Option<&Hold> {
        let open = self.open.iter().find(|hold| hold.is_of(request_id));
        open.or_else(|| self.committed_of_request(request_id))
    }

    pub(super) fn committed_of_request(&self, request_id: u128) -> Option<&Hold> {
        self.committed.get(self.position(&self.committed_by_request_id, request_id)?)?.as_ref()
    }

    /// Lets this try share another's hold.
    pub(super) fn share(&mut self, of: u64, id: u64) {
        if let Some(hold) = self.of_try_mut(of) {
            hold.share(id);
        }
        if let Some(place) = self.committed_by_try.get(&u128::from(of)).copied() {
            self.committed_by_try.insert(id.into(), place);
        }
    }

    /// Moves this try's open hold to the committed ones.
    pub(super) fn commit(&mut self, id: u64) {
        let Some(position) = self.open.iter().position(|hold| hold.is_shared_by(id)) else { return };
        let hold = self.open.remove(position);
        let place = Place::in_memory(self.first_committed.wrapping_add(self.committed.len()));
        for id in &hold.ids {
            self.committed_by_try.insert((*id).into(), place);
        }
        if let Some(request_id) = hold.request_id {
            self.committed_by_request_id.insert(request_id.id, place);
        }
        self.committed.push_back(Some(hold));
    }

    /// Removes this try from its hold. If no other needs it, it ends, and is returned if it was committed.
    pub(super) fn abort(&mut self, id: u64) -> Option<Hold> {
        if let Some(position) = self.open.iter().position(|hold| hold.is_shared_by(id)) {
            if self.open.get_mut(position)?.leave(id) {
                self.open.remove(position);
            }
            return None;
        }
        let place = self.committed_by_try.remove(&u128::from(id))?;
        let slot = self.committed.get_mut(place.index.wrapping_sub(self.first_committed))?;
        let undone = slot.take_if(|hold| hold.leave(id));
        if let Some(hold) = &undone {
            self.forget(hold);
        }
        undone
    }

    /// Ends expired holds, and returns the committed ones among them.
    pub(super) fn end(&mut self, now: i64) -> Vec<Hold> {
        let mut all = Vec::new();
        self.open.retain(|hold| !hold.is_over(now));
        // After a step back of the clock, holds committed since wait for earlier ones: no longer than the step.
        let is_over = |slot: &Option<Hold>| slot.as_ref().is_none_or(|hold| hold.is_over(now));
        while self.committed.front().is_some_and(is_over) {
            let ended = self.committed.pop_front().flatten();
            self.first_committed = self.first_committed.wrapping_add(1);
            if let Some(hold) = ended {
                self.forget(&hold);
                all.push(hold);
            }
        }
        all
    }

    fn position(&self, places: &Places, id: u128) -> Option<usize> {
        Some(places.get(&id)?.index.wrapping_sub(self.first_committed))
    }

    /// Forgets where an ended hold was.
    fn forget(&mut self, hold: &Hold) {
        for id in &hold.ids {
            self.committed_by_try.remove(&u128::from(*id));
        }
        if let Some(request_id) = hold.request_id {
            self.committed_by_request_id.remove(&request_id.id);
        }
    }
}
