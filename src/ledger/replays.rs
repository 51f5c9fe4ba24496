//! Earlier answers, for repeated requests.
//!
//! Replays with an `Idempotency-Key`, and those of closed reservations, survive a crash: they are stored in pages, each a row. All replays
//! of a page are kept for the same time. It is open for [`PAGE_MS`] or until its weight is [`MAX_PAGE_WEIGHT`], and is deleted as a whole
//! when its last replay is forgotten. So a replay costs one row, and a fraction of another.

use std::collections::{BTreeMap, VecDeque};

use super::page::{Replay, decode_page, encode_page};
use super::quota::of_grants;
use crate::policy::FrontendTerms;
use crate::protocol::RequestId;

/// How long a closed reservation is remembered, even across crashes: an hour.
pub const REPLAY_TTL_MS: u64 = 3_600_000;

/// Maximum lasting request ids. Further requests are refused until enough are forgotten.
pub const MAX_REQUEST_IDS: usize = FrontendTerms::MAX_IDEMPOTENCY_KEYS;

/// Maximum closed reservations kept without a request id; large replays count as several. The oldest are evicted first: a request that
/// closes one again then gets the answer that the reservation does not exist.
pub const MAX_CLOSED: usize = 4_096;

/// How long the frontend's own request ids are kept: it retries at once or never.
const RETRY_MS: u64 = 10_000;

/// Maximum number of these; large replays count as several. The oldest are evicted first.
pub const MAX_RECENT: usize = 16_384;

/// Small enough to be rewritten with each of its replays: usually 3 KB, with large replays at most 30 KB.
const MAX_PAGE_WEIGHT: usize = 64;

/// An unreadable page blocks repeatable requests until everything it can hold has expired, so it must not stay open for
/// long.
const PAGE_MS: u64 = 600_000;

/// The name of a page's row: `i:`, then in hexadecimal the moment it was opened and how long its replays are kept.
pub(super) const PAGE: &str = "i:";

/// Grants and closed reservations, but not refusals: a repeated request that was refused is decided anew.
#[derive(Debug, Default)]
pub(super) struct Replays {
    /// In order of opening; if two are opened at once, the second counts as a millisecond later.
    pages: Vec<Page>,
    /// The pages that replays are added to, one for each lifetime.
    current: Vec<i64>,
    /// The places of replays with a request id.
    by_request_id: Places,
    /// The places of replays of closed reservations.
    by_reservation: Places,
    /// The weights of all replays in pages.
    weights: Weights,
    /// Replays of the frontend's own ids, oldest first. They do not survive a crash.
    recent: VecDeque<Replay>,
    /// The number of the first one.
    first_recent: usize,
    recent_by_id: Places,
    recent_weight: usize,
    /// Unreadable pages: when they were opened, and how long their replays are kept.
    unreadable: Vec<(i64, u64)>,
}

#[derive(Debug, Default)]
struct Weights {
    /// Of the replays with a request id.
    identified: usize,
    /// Of those among them from holders of grants.
    by_grants: usize,
    /// Of those without one, which all closed a reservation.
    only_closed: usize,
    /// Of those among them from holders of grants.
    only_closed_by_grants: usize,
}

impl Weights {
    /// Counts a replay that is added.
    fn add(&mut self, replay: &Replay) {
        self.change(replay, usize::saturating_add);
    }

    /// Counts a replay that is removed.
    fn remove(&mut self, replay: &Replay) {
        self.change(replay, usize::saturating_sub);
    }

    fn change(&mut self, replay: &Replay, change: fn(usize, usize) -> usize) {
        let weight = replay.weight();
        if replay.is_only_closed() {
            self.only_closed = change(self.only_closed, weight);
            if replay.by_grant {
                self.only_closed_by_grants = change(self.only_closed_by_grants, weight);
            }
            return;
        }
        self.identified = change(self.identified, weight);
        if replay.by_grant {
            self.by_grants = change(self.by_grants, weight);
        }
    }
}

/// By id. One type for all of them, because the code of a map is large.
pub(super) type Places = BTreeMap<u128, Place>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// When the page was opened; 0 for replays in memory only.
    page: i64,
    /// The position in the page, or the number of the replay in memory.
    pub(super) index: usize,
}

impl Place {
    pub(super) const fn in_memory(index: usize) -> Self {
        Self { page: 0, index }
    }
}

#[derive(Debug)]
struct Page {
    opened_at: i64,
    /// How long its replays are kept.
    ttl_ms: u64,
    /// `None` where one was removed early.
    replays: Vec<Option<Replay>>,
    has_row: bool,
    change: Change,
}

/// Rows by name; `None` deletes one.
type Rows = Vec<(String, Option<Vec<u8>>)>;

/// Whether a page differs from its row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    #[default]
    None,
    MayWait,
    Due,
}

impl Page {
    /// Places of removed replays count too, so that places never exceed the weight.
    fn weight(&self) -> usize {
        let weights = self.replays.iter().map(|slot| slot.as_ref().map_or(1, Replay::weight));
        weights.fold(0, usize::saturating_add)
    }

    fn row(&mut self) -> (String, Option<Vec<u8>>) {
        (self.has_row, self.change) = (true, Change::None);
        (self.row_name(), Some(encode_page(self.replays.iter().flatten())))
    }

    fn row_name(&self) -> String {
        row_name((self.opened_at, self.ttl_ms))
    }
}

impl Replays {
    /// Takes a page's row, readable or not. `false` if the name is another kind of row's.
    pub(super) fn load(&mut self, name: &str, row: &[u8]) -> bool {
        let digits = name.strip_prefix(PAGE).and_then(|digits| digits.split_at_checked(16));
        let number = |digits| u64::from_str_radix(digits, 16).ok();
        let Some((opened_at, ttl_ms)) = digits.and_then(|(at, ttl)| Some((number(at)?.cast_signed(), number(ttl)?)))
        else {
            return false;
        };
        let Some(replays) = decode_page(row) else {
            self.unreadable.push((opened_at, ttl_ms));
            return true;
        };
        for (index, replay) in replays.iter().enumerate() {
            self.index(replay, Place { page: opened_at, index });
        }
        let replays = replays.into_iter().map(Some).collect();
        self.add_page(Page { opened_at, ttl_ms, replays, has_row: true, change: Change::None });
        if self.current_page(ttl_ms).is_none_or(|current| current.opened_at < opened_at) {
            self.make_current(opened_at, ttl_ms);
        }
        true
    }

    pub(super) fn by_request_id(&self, id: u128, now: i64) -> Option<&Replay> {
        let recent = || {
            let Place { index, .. } = self.recent_by_id.get(&id)?;
            let replay = self.recent.get(index.wrapping_sub(self.first_recent))?;
            (now.abs_diff(replay.decided_at) < RETRY_MS).then_some(replay)
        };
        self.by_request_id.get(&id).and_then(|place| self.at(*place, now)).or_else(recent)
    }

    pub(super) fn by_reservation(&self, id: u64, now: i64) -> Option<&Replay> {
        self.by_reservation.get(&id.into()).and_then(|place| self.at(*place, now))
    }

    /// Whether some replays may be unreadable: then a repetition looks like a new request.
    pub(super) fn is_incomplete(&self, now: i64) -> bool {
        self.unreadable.iter().any(|page| page_expires_at(*page) > now)
    }

    /// If there is no room for another lasting request id, how many are kept, and when there will be room; for grants alone, if these have
    /// used up their part. `expected` ones, from a grant or not, already have a weight.
    pub(super) fn full_until(&mut self, expected: &[(bool, usize)], by_grant: bool, now: i64) -> Option<(usize, i64)> {
        self.forget_expired(now);
        let weight_of = |counts: fn(bool) -> bool| {
            let expected = expected.iter().filter(|(by_grant, _)| counts(*by_grant));
            expected.map(|(_, weight)| *weight).fold(0, usize::saturating_add)
        };
        let all: fn(bool) -> bool = |_| true;
        let grants: fn(bool) -> bool = |by_grant| by_grant;
        let of_all = self.weights.identified.saturating_add(weight_of(all));
        let of_them = self.weights.by_grants.saturating_add(weight_of(grants));
        let max = of_grants(MAX_REQUEST_IDS);
        let (weight, max, counts) = if by_grant && of_them >= max {
            (of_them, max, grants)
        } else if of_all >= MAX_REQUEST_IDS {
            (of_all, MAX_REQUEST_IDS, all)
        } else {
            return None;
        };
        let counted = || {
            let all =
                self.pages.iter().flat_map(|page| page.replays.iter().flatten().map(move |replay| (page, replay)));
            let counted = all.filter(|(_, replay)| !replay.is_only_closed() && counts(replay.by_grant));
            counted.map(|(page, replay)| (expires_at(replay.decided_at, page.ttl_ms), replay.weight()))
        };
        let used = counted().count().saturating_add(expected.iter().filter(|(by_grant, _)| counts(*by_grant)).count());
        let (mut left, mut until) = (weight, now.saturating_add(1));
        // Usually the first one to expire is enough, so nothing is sorted.
        let mut ended = now;
        while left >= max
            && let Some(next) = counted().map(|(at, _)| at).filter(|at| *at > ended).min()
        {
            let ending = counted().filter(|(at, _)| *at == next).map(|(_, weight)| weight);
            left = left.saturating_sub(ending.fold(0, usize::saturating_add));
            (ended, until) = (next, until.max(next));
        }
        Some((used, until))
    }

    /// Keeps a replay. `request_id` is its request's, if any.
    pub(super) fn push(&mut self, request_id: Option<RequestId>, mut replay: Replay, now: i64) {
        let ids = |id: RequestId| (id.id, id.fingerprint);
        replay.request_id = request_id.filter(RequestId::is_lasting).map(ids);
        replay.by_grant = request_id.is_some_and(|id| id.by_grant);
        if replay.request_id.is_some() || replay.closed.is_some() {
            let ttl_ms = request_id.map_or(0, |id| id.ttl_ms);
            // The closed reservation also identifies it.
            let ttl_ms = if replay.closed.is_some() { ttl_ms.max(REPLAY_TTL_MS) } else { ttl_ms };
            self.push_lasting(replay, ttl_ms, now, Change::Due);
        } else if let Some(request_id) = request_id {
            self.push_recent(Replay { request_id: Some(ids(request_id)), ..replay }, request_id.id, now);
        }
    }

    /// Forgets the replay of a request that was undone.
    pub(super) fn forget(&mut self, id: u128) {
        self.recent_by_id.remove(&id);
        if let Some(Place { page, index }) = self.by_request_id.remove(&id)
            && let Some(page) = self.page_mut(page)
            && let Some(replay) = page.replays.get_mut(index).and_then(Option::take)
        {
            page.change = Change::Due;
            self.weights.remove(&replay);
        }
    }

    /// Adds the rows of pages to write before the reply.
    pub(super) fn collect_writes(&mut self, rows: &mut Rows) {
        let due = self.pages.iter_mut().filter(|page| page.change == Change::Due);
        rows.extend(due.map(Page::row));
    }

    /// Adds rows that may wait until something else is written: the deletion of expired pages, and replays still stored in a bucket's row,
    /// which must not be overwritten before them.
    pub(super) fn collect_late_writes(&mut self, now: i64, rows: &mut Rows) {
        self.forget_expired(now);
        let current = std::mem::take(&mut self.current);
        self.pages.retain_mut(|page| {
            let is_over = page.replays.iter().all(Option::is_none) && !current.contains(&page.opened_at);
            if is_over && page.has_row {
                rows.push((page.row_name(), None));
            } else if !is_over && page.change == Change::MayWait {
                rows.push(page.row());
            }
            !is_over
        });
        self.current = current;
        self.unreadable.retain(|&page| {
            let is_over = page_expires_at(page) <= now;
            if is_over {
                rows.push((row_name(page), None));
            }
            !is_over
        });
    }

    /// Drops the current pages too, if everything in them has expired.
    pub(super) fn close_pages(&mut self) {
        self.current.clear();
    }

    /// When the next page can be deleted.
    pub(super) fn expires_at(&self) -> Option<i64> {
        let last = |page: &Page| {
            let ends = page.replays.iter().flatten().map(|replay| expires_at(replay.decided_at, page.ttl_ms));
            ends.max()
        };
        let pages = self.pages.iter().filter_map(last);
        pages.chain(self.unreadable.iter().map(|page| page_expires_at(*page))).min()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pages.is_empty() && self.unreadable.is_empty()
    }

    fn at(&self, Place { page, index }: Place, now: i64) -> Option<&Replay> {
        let page = self.page(page)?;
        let replay = page.replays.get(index)?.as_ref()?;
        (expires_at(replay.decided_at, page.ttl_ms) > now).then_some(replay)
    }

    fn push_lasting(&mut self, replay: Replay, ttl_ms: u64, now: i64, change: Change) {
        let place = self.next_place(ttl_ms, now);
        self.index(&replay, place);
        if let Some(page) = self.page_mut(place.page) {
            page.replays.push(Some(replay));
            page.change = page.change.max(change);
        }
        let of_grants = of_grants(MAX_CLOSED);
        while self.weights.only_closed_by_grants > of_grants && self.forget_oldest_closed(|replay| replay.by_grant) {}
        while self.weights.only_closed > MAX_CLOSED && self.forget_oldest_closed(|_| true) {}
    }

    /// The place of the next replay with this lifetime: in a new page if the current one is full or old.
    fn next_place(&mut self, ttl_ms: u64, now: i64) -> Place {
        if let Some(page) = self.current_page(ttl_ms)
            && page.weight() < MAX_PAGE_WEIGHT
            && now.abs_diff(page.opened_at) < PAGE_MS
        {
            return Place { page: page.opened_at, index: page.replays.len() };
        }
        let mut opened_at = now;
        while self.page(opened_at).is_some() || self.unreadable.iter().any(|(at, _)| *at == opened_at) {
            opened_at = opened_at.saturating_add(1);
        }
        self.add_page(Page { opened_at, ttl_ms, replays: Vec::new(), has_row: false, change: Change::None });
        self.make_current(opened_at, ttl_ms);
        Place { page: opened_at, index: 0 }
    }

    fn current_page(&self, ttl_ms: u64) -> Option<&Page> {
        self.current.iter().filter_map(|opened_at| self.page(*opened_at)).find(|page| page.ttl_ms == ttl_ms)
    }

    fn make_current(&mut self, opened_at: i64, ttl_ms: u64) {
        let before = self.current_page(ttl_ms).map(|page| page.opened_at);
        self.current.retain(|opened_at| Some(*opened_at) != before);
        self.current.push(opened_at);
    }

    fn add_page(&mut self, page: Page) {
        let (Ok(position) | Err(position)) = self.position(page.opened_at);
        self.pages.insert(position, page);
    }

    fn page(&self, opened_at: i64) -> Option<&Page> {
        self.pages.get(self.position(opened_at).ok()?)
    }

    fn page_mut(&mut self, opened_at: i64) -> Option<&mut Page> {
        let position = self.position(opened_at).ok()?;
        self.pages.get_mut(position)
    }

    /// The position of the page opened then, or else where it belongs.
    fn position(&self, opened_at: i64) -> Result<usize, usize> {
        self.pages.binary_search_by_key(&opened_at, |page| page.opened_at)
    }

    fn index(&mut self, replay: &Replay, place: Place) {
        if let Some((id, _)) = replay.request_id {
            self.by_request_id.insert(id, place);
        }
        if let Some(closed) = replay.closed {
            self.by_reservation.insert(closed.id.into(), place);
        }
        self.weights.add(replay);
    }

    fn push_recent(&mut self, replay: Replay, id: u128, now: i64) {
        let is_over = |replay: &Replay| now.abs_diff(replay.decided_at) >= RETRY_MS;
        while self.recent_weight >= MAX_RECENT || self.recent.front().is_some_and(is_over) {
            let Some(oldest) = self.recent.pop_front() else { break };
            self.recent_weight = self.recent_weight.saturating_sub(oldest.weight());
            let place = Place::in_memory(self.first_recent);
            // The id may have been reused since.
            if let Some((id, _)) = oldest.request_id
                && self.recent_by_id.get(&id) == Some(&place)
            {
                self.recent_by_id.remove(&id);
            }
            self.first_recent = self.first_recent.wrapping_add(1);
        }
        let index = self.first_recent.wrapping_add(self.recent.len());
        self.recent_weight = self.recent_weight.saturating_add(replay.weight());
        self.recent.push_back(replay);
        self.recent_by_id.insert(id, Place::in_memory(index));
    }

    /// Forgets replays, for each lifetime oldest page first, up to the first that must be kept.
    fn forget_expired(&mut self, now: i64) {
        let mut kept: Vec<u64> = Vec::new();
        for page in &mut self.pages {
            if kept.contains(&page.ttl_ms) {
                continue;
            }
            for (index, slot) in page.replays.iter_mut().enumerate() {
                let is_over = |replay: &mut Replay| expires_at(replay.decided_at, page.ttl_ms) <= now;
                let Some(replay) = slot.take_if(is_over) else {
                    if slot.is_some() {
                        kept.push(page.ttl_ms);
                        break;
                    }
                    continue;
                };
                // The id may have been reused since.
                if let Some((id, _)) = replay.request_id
                    && self.by_request_id.get(&id) == Some(&Place { page: page.opened_at, index })
                {
                    self.by_request_id.remove(&id);
                }
                if let Some(closed) = replay.closed {
                    self.by_reservation.remove(&closed.id.into());
                }
                self.weights.remove(&replay);
            }
        }
    }

    /// Forgets the oldest of the meant replays that is found only by its closed reservation; one with a request id is kept. `false` if
    /// there is none.
    fn forget_oldest_closed(&mut self, is_meant: fn(&Replay) -> bool) -> bool {
        let mut slots = self.pages.iter_mut().flat_map(|page| &mut page.replays);
        let oldest = slots.find_map(|slot| slot.take_if(|replay| replay.is_only_closed() && is_meant(replay)));
        let Some(replay) = oldest else { return false };
        if let Some(closed) = replay.closed {
            self.by_reservation.remove(&closed.id.into());
        }
        self.weights.remove(&replay);
        true
    }
}

const fn expires_at(decided_at: i64, ttl_ms: u64) -> i64 {
    decided_at.saturating_add_unsigned(ttl_ms)
}

/// When everything a page can hold has expired.
const fn page_expires_at((opened_at, ttl_ms): (i64, u64)) -> i64 {
    expires_at(opened_at.saturating_add_unsigned(PAGE_MS), ttl_ms)
}

fn row_name((opened_at, ttl_ms): (i64, u64)) -> String {
    format!("{PAGE}{:016x}{ttl_ms:08x}", opened_at.cast_unsigned())
}
