//! The registry's side: the listeners, and their pending decisions. In memory only.

use std::collections::VecDeque;
use std::rc::Rc;

use super::batch::LiveBatch;
use super::filter::LiveFilter;
use super::listeners::{Listener, Listeners};

/// The listeners, and the decisions they have not yet seen.
#[derive(Debug)]
pub struct Audience {
    seats: Vec<Seat>,
    next_id: u64,
    /// The second in which decisions are currently accepted, and their number so far.
    second: i64,
    taken: usize,
}

/// A listener. Those with the same filter share one.
#[derive(Debug)]
struct Seat {
    listener: Listener,
    /// When the last of those who share it expires.
    until: i64,
    /// When the last unrestricted one expires.
    unrestricted_until: i64,
    /// The restricted tokens among them, and when each expires.
    restricted: Vec<(String, i64)>,
    /// The number of its last decision, kept or omitted.
    last: u64,
    /// The latest decisions, by increasing number.
    kept: VecDeque<(u64, Rc<str>)>,
}

/// A listener's position: its number, and that of the last decision it has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    listener: u64,
    last: u64,
}

/// The answer to a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LivePage {
    /// Decisions as JSON, in order of arrival.
    pub decisions: Vec<Rc<str>>,
    /// How many more there were since the cursor.
    pub omitted: u64,
    /// The cursor after these decisions.
    pub cursor: Cursor,
    /// Whether the registry no longer knows the cursor, so that decisions since may be missing.
    pub is_interrupted: bool,
}

/// Why there is no room for a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooMany {
    /// There are [`MAX_LISTENERS`].
    All,
    /// Restricted tokens have [`MAX_RESTRICTED_LISTENERS`] together.
    Restricted,
    /// The restricted token has [`MAX_OWN_LISTENERS`].
    Own,
}

/// A listener silent for this long is gone. Isolates poll every five seconds, so each learns about a listener who stays.
pub const LISTEN_MS: i64 = 15_000;

/// Interval between a listener's requests: as fast as one reads, and no faster than isolates send.
pub const POLL_AFTER_MS: u64 = 1_000;

/// Maximum listeners with different filters.
pub const MAX_LISTENERS: usize = 16;

/// Maximum listeners of all restricted tokens together: half, so that unrestricted ones always find room.
pub const MAX_RESTRICTED_LISTENERS: usize = 8;

/// Maximum listeners of one restricted token: half of these, so that no team locks out the others.
pub const MAX_OWN_LISTENERS: usize = 4;

/// Maximum decisions kept for a listener: more than two seconds of [`MAX_PER_SECOND`], about 100 KB.
pub const KEPT: usize = 500;

/// Maximum decisions accepted per second, for all listeners together.
pub const MAX_PER_SECOND: usize = 200;

/// Minimum interval between batches of an isolate.
const PAUSE_MS: u64 = 1_000;

/// Maximum interval between batches: shorter than [`LISTEN_MS`], or isolates would forget a listener between two batches.
const MAX_PAUSE_MS: u64 = 10_000;

/// Extra pause per isolate, so that all of them together send a hundred batches per second: a tenth of an object's capacity.
const PAUSE_MS_PER_ISOLATE: u64 = 10;

impl Audience {
    /// Starts without listeners. `random` distinguishes its cursors from those of another instance.
    #[must_use]
    pub const fn new(random: u64) -> Self {
        // Below 2⁵³, as numbers in JSON should be, and far below it.
        Self { seats: Vec::new(), next_id: random >> 12, second: 0, taken: 0 }
    }

    /// Registers a listener with this filter, and returns the decisions for it since `after`. `restricted` is the name of its token, if
    /// that is restricted to some policies.
    ///
    /// # Errors
    /// [`TooMany`].
    pub fn listen(
        &mut self,
        filter: LiveFilter,
        restricted: Option<&str>,
        after: Option<Cursor>,
        now: i64,
    ) -> Result<LivePage, TooMany> {
        self.forget(now);
        let until = now.saturating_add(LISTEN_MS);
        if let Some(seat) = self.seats.iter_mut().find(|seat| seat.listener.filter == filter) {
            seat.hold(restricted, until);
            return Ok(seat.since(after));
        }
        self.check_room(restricted, now)?;
        self.next_id = self.next_id.saturating_add(1);
        let listener = Listener { id: self.next_id, filter };
        let (restricted_too, kept) = (Vec::new(), VecDeque::new());
        let mut seat = Seat { listener, until, unrestricted_until: now, restricted: restricted_too, last: 0, kept };
        seat.hold(restricted, until);
        let page = seat.since(after);
        self.seats.push(seat);
        Ok(page)
    }

    /// Checks that there is room for one more. A seat shared with an unrestricted listener does not count as restricted.
    fn check_room(&self, restricted: Option<&str>, now: i64) -> Result<(), TooMany> {
        if self.seats.len() >= MAX_LISTENERS {
            return Err(TooMany::All);
        }
        let Some(name) = restricted else { return Ok(()) };
        let of_restricted = || self.seats.iter().filter(|seat| !is_near(seat.unrestricted_until, now));
        if of_restricted().filter(|seat| seat.is_held_by(name)).count() >= MAX_OWN_LISTENERS {
            return Err(TooMany::Own);
        }
        if of_restricted().count() >= MAX_RESTRICTED_LISTENERS {
            return Err(TooMany::Restricted);
        }
        Ok(())
    }

    /// Accepts an isolate's batch.
    pub fn take(&mut self, batch: &LiveBatch, now: i64) {
        self.forget(now);
        let second = now.div_euclid(1_000);
        if second != self.second {
            (self.second, self.taken) = (second, 0);
        }
        for decision in &batch.decisions {
            let Some((policy, outcome)) = LiveBatch::subject(decision) else { continue };
            let is_kept = self.taken < MAX_PER_SECOND;
            let text: Rc<str> = decision.as_str().into();
            let mut seats =
                self.seats.iter_mut().filter(|seat| seat.listener.filter.passes(&policy, outcome)).peekable();
            self.taken = self.taken.saturating_add(usize::from(is_kept && seats.peek().is_some()));
            seats.for_each(|seat| seat.add(is_kept.then(|| Rc::clone(&text))));
        }
        for (id, count) in &batch.omitted {
            if let Some(seat) = self.seats.iter_mut().find(|seat| seat.listener.id == *id) {
                seat.last = seat.last.saturating_add(*count);
            }
        }
    }

    /// The listeners for the isolates, `isolates` of which report; `None` if there are none.
    pub fn listeners(&mut self, isolates: usize, now: i64) -> Option<Listeners> {
        self.forget(now);
        let until = self.seats.iter().map(|seat| seat.until).max()?;
        let for_ms = u64::try_from(until.saturating_sub(now)).unwrap_or(0);
        let isolates = u64::try_from(isolates).unwrap_or(u64::MAX);
        let pause_ms = isolates.saturating_mul(PAUSE_MS_PER_ISOLATE).clamp(PAUSE_MS, MAX_PAUSE_MS);
        Some(Listeners { for_ms, pause_ms, all: self.seats.iter().map(|seat| seat.listener.clone()).collect() })
    }

    /// Forgets expired listeners. A clock that steps back makes listeners expire, too: they request again.
    fn forget(&mut self, now: i64) {
        self.seats.retain_mut(|seat| {
            seat.restricted.retain(|(_, until)| is_near(*until, now));
            is_near(seat.until, now)
        });
    }
}

/// Whether a listener that expires then is still there.
fn is_near(until: i64, now: i64) -> bool {
    (1..=LISTEN_MS).contains(&until.saturating_sub(now))
}

impl Seat {
    /// Prolongs the seat until `until`, for the restricted token with that name or for an unrestricted one.
    fn hold(&mut self, restricted: Option<&str>, until: i64) {
        self.until = until;
        let Some(name) = restricted else {
            self.unrestricted_until = until;
            return;
        };
        match self.restricted.iter_mut().find(|(other, _)| other == name) {
            Some((_, known)) => *known = until,
            None => self.restricted.push((name.to_owned(), until)),
        }
    }

    fn is_held_by(&self, name: &str) -> bool {
        self.restricted.iter().any(|(other, _)| other == name)
    }

    /// Adds a decision, or counts an omitted one.
    fn add(&mut self, decision: Option<Rc<str>>) {
        self.last = self.last.saturating_add(1);
        if let Some(decision) = decision {
            if self.kept.len() >= KEPT {
                self.kept.pop_front();
            }
            self.kept.push_back((self.last, decision));
        }
    }

    fn since(&self, after: Option<Cursor>) -> LivePage {
        let cursor = Cursor { listener: self.listener.id, last: self.last };
        let is_known = |after: &Cursor| after.listener == cursor.listener && after.last <= cursor.last;
        let is_interrupted = after.is_some_and(|after| !is_known(&after));
        let from = after.filter(is_known).map_or(self.last, |after| after.last);
        let news = self.kept.iter().skip(self.kept.partition_point(|(number, _)| *number <= from));
        let decisions: Vec<_> = news.map(|(_, decision)| Rc::clone(decision)).collect();
        let shown = u64::try_from(decisions.len()).unwrap_or(u64::MAX);
        LivePage { omitted: self.last.saturating_sub(from).saturating_sub(shown), decisions, cursor, is_interrupted }
    }
}

impl Cursor {
    /// The cursor as text.
    #[must_use]
    pub fn to_text(self) -> String {
        format!("{:x}-{:x}", self.listener, self.last)
    }

    /// Parses a cursor; `None` if it is malformed.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let (listener, last) = text.split_once('-')?;
        let number = |digits: &str| {
            let digits = Some(digits).filter(|digits| !digits.starts_with('+'));
            u64::from_str_radix(digits?, 16).ok()
        };
        Some(Self { listener: number(listener)?, last: number(last)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(policy: &str) -> LiveFilter {
        LiveFilter { policies: Some(vec![policy.to_owned()]), outcomes: None }
    }

    fn batch(policy: &str, count: usize) -> LiveBatch {
        let decisions =
            (0..count).map(|number| format!(r#"{{"at":{number},"policy":"{policy}","outcome":"refused"}}"#));
        LiveBatch { decisions: decisions.collect(), omitted: Vec::new() }
    }

    /// A listener's answer in short: how many decisions, and how many were omitted.
    fn listen(
        audience: &mut Audience,
        filter: LiveFilter,
        cursor: &mut Option<Cursor>,
        now: i64,
    ) -> (usize, u64, bool) {
        let page = audience.listen(filter, None, *cursor, now).unwrap();
        *cursor = Some(page.cursor);
        (page.decisions.len(), page.omitted, page.is_interrupted)
    }

    #[test]
    fn a_listener_gets_each_matching_decision_once_from_its_first_request_on() {
        let (mut audience, mut api, mut all) = (Audience::new(0), None, None);
        audience.take(&batch("api", 3), 0);
        assert_eq!(listen(&mut audience, filter("api"), &mut api, 0), (0, 0, false));
        assert_eq!(listen(&mut audience, LiveFilter::default(), &mut all, 0), (0, 0, false));
        audience.take(&batch("api", 2), 1);
        audience.take(&batch("llm", 1), 1);
        assert_eq!(listen(&mut audience, filter("api"), &mut api, 2), (2, 0, false));
        assert_eq!(listen(&mut audience, filter("api"), &mut api, 3), (0, 0, false));
        assert_eq!(listen(&mut audience, LiveFilter::default(), &mut all, 3), (3, 0, false));
        // Another with the same filter gets the same, from its own cursor.
        let mut other = None;
        assert_eq!(listen(&mut audience, filter("api"), &mut other, 3), (0, 0, false));
        audience.take(&batch("api", 1), 4);
        for cursor in [&mut api, &mut other] {
            assert_eq!(listen(&mut audience, filter("api"), cursor, 5), (1, 0, false));
        }
    }

    #[test]
    fn a_silent_listener_is_forgotten_and_then_nothing_is_kept() {
        let (mut audience, mut cursor) = (Audience::new(0), None);
        assert_eq!(audience.listeners(1, 0), None);
        listen(&mut audience, filter("api"), &mut cursor, 0);
        let listeners = audience.listeners(1, 4_000).unwrap();
        assert_eq!((listeners.for_ms, listeners.all.len()), (11_000, 1));
        assert!(audience.listeners(1, LISTEN_MS - 1).is_some());
        audience.take(&batch("api", 9), LISTEN_MS);
        assert!(audience.listeners(1, LISTEN_MS).is_none() && audience.seats.is_empty());
        assert_eq!(listen(&mut audience, filter("api"), &mut cursor, LISTEN_MS), (0, 0, true), "it is reported");
        assert_eq!(listen(&mut audience, filter("api"), &mut cursor, LISTEN_MS + 1), (0, 0, false));
        assert!(audience.listeners(1, -1).is_none(), "the clock has stepped back");
    }

    #[test]
    fn dropped_decisions_are_counted() {
        let (mut audience, mut cursor) = (Audience::new(0), None);
        listen(&mut audience, filter("api"), &mut cursor, 0);
        for _ in 0..5 {
            audience.take(&batch("api", 50), 500);
        }
        audience.take(&batch("llm", 50), 500); // matches no filter: it takes no room
        assert_eq!(listen(&mut audience, filter("api"), &mut cursor, 600), (MAX_PER_SECOND, 50, false));
        let id = audience.seats[0].listener.id;
        audience.take(&LiveBatch { omitted: vec![(id, 7), (id + 1, 9)], ..batch("api", 1) }, 1_000);
        assert_eq!(listen(&mut audience, filter("api"), &mut cursor, 1_000), (1, 7, false));
        for second in 1..=4 {
            audience.take(&batch("api", MAX_PER_SECOND), second * 1_000);
        }
        let all = 4 * MAX_PER_SECOND as u64 - 1; // one was taken in the first of these seconds
        let kept = KEPT as u64;
        assert_eq!(listen(&mut audience, filter("api"), &mut cursor, 5_000), (KEPT, all + 1 - kept, false));
    }

    #[test]
    fn listeners_are_bounded_and_many_isolates_send_more_rarely() {
        let mut audience = Audience::new(u64::MAX);
        for index in 0..MAX_LISTENERS {
            assert!(audience.listen(filter(&index.to_string()), None, None, 0).is_ok());
        }
        assert_eq!(audience.listen(filter("one more"), None, None, 0), Err(TooMany::All));
        assert!(audience.listen(filter("0"), None, None, 0).is_ok(), "one that there is");
        for (isolates, pause_ms) in [(0, 1_000), (100, 1_000), (101, 1_010), (1_000, 10_000), (usize::MAX, 10_000)] {
            assert_eq!(audience.listeners(isolates, 0).unwrap().pause_ms, pause_ms);
        }
        assert!(audience.listen(filter("one more"), None, None, LISTEN_MS).is_ok());
        assert!(audience.next_id < 1 << 53);
    }

    #[test]
    fn restricted_tokens_get_half_of_the_room_and_each_half_of_that() {
        let mut audience = Audience::new(0);
        let mut listen = |policy: &str, token, now| audience.listen(filter(policy), token, None, now).map(|_| ());
        let (a, b, c) = (Some("a"), Some("b"), Some("c"));
        for index in 0..MAX_OWN_LISTENERS {
            assert_eq!(listen(&format!("a{index}"), a, 0), Ok(()));
        }
        assert_eq!(listen("a more", a, 0), Err(TooMany::Own));
        assert_eq!(listen("a0", a, 0), Ok(()), "one that it has");
        for index in MAX_OWN_LISTENERS..MAX_RESTRICTED_LISTENERS {
            assert_eq!(listen(&format!("b{index}"), b, 0), Ok(()));
        }
        assert_eq!(listen("c", c, 0), Err(TooMany::Restricted));
        assert_eq!(listen("a0", c, 0), Ok(()), "it shares one that there is");
        for index in MAX_RESTRICTED_LISTENERS..MAX_LISTENERS {
            assert_eq!(listen(&format!("o{index}"), None, 0), Ok(()));
        }
        assert_eq!(listen("one more", None, 0), Err(TooMany::All));
        assert_eq!(listen("c", c, 0), Err(TooMany::All));
        // An expired listener makes room, even if it shared a seat.
        assert_eq!(listen("a0", c, LISTEN_MS), Ok(()));
        for index in 1..MAX_OWN_LISTENERS {
            assert_eq!(listen(&format!("c{index}"), c, LISTEN_MS), Ok(()));
        }
        assert_eq!(listen("c more", c, LISTEN_MS), Err(TooMany::Own));
    }

    #[test]
    fn a_filter_shared_with_an_unrestricted_listener_counts_for_no_token() {
        let mut audience = Audience::new(0);
        let mut listen = |policy: &str, token, now| audience.listen(filter(policy), token, None, now).map(|_| ());
        for index in 0..MAX_LISTENERS - MAX_RESTRICTED_LISTENERS {
            for token in [None, Some("a")] {
                assert_eq!(listen(&format!("o{index}"), token, 0), Ok(()));
            }
        }
        for index in 0..MAX_OWN_LISTENERS {
            assert_eq!(listen(&format!("a{index}"), Some("a"), 0), Ok(()));
        }
        assert_eq!(listen("one more", Some("a"), 0), Err(TooMany::Own));
        // Once the others have expired, the seat counts as its own.
        assert_eq!(listen("o0", Some("a"), 1), Ok(()));
        for index in 1..MAX_OWN_LISTENERS {
            assert_eq!(listen(&format!("o{index}"), Some("a"), 1), Ok(()));
        }
        assert_eq!(listen("one more", Some("a"), LISTEN_MS), Err(TooMany::Own));
        assert_eq!(listen("one more", Some("a"), LISTEN_MS + 1), Ok(()));
    }

    #[test]
    fn a_cursor_of_another_registry_or_listener_is_recognized() {
        let (mut audience, mut cursor) = (Audience::new(1 << 40), None);
        listen(&mut audience, filter("api"), &mut cursor, 0);
        let own = cursor.unwrap();
        assert_eq!(Cursor::from_text(&own.to_text()), Some(own));
        let ahead = Cursor { last: own.last + 1, ..own };
        let other = Cursor { listener: own.listener + 1, ..own };
        for strange in [ahead, other] {
            assert!(audience.listen(filter("api"), None, Some(strange), 0).unwrap().is_interrupted);
        }
        for text in ["", "7", "-", "1-", "1-x", "+1-2", "1-+2", "-1-2", "1-2-3", "10000000000000000-1"] {
            assert_eq!(Cursor::from_text(text), None, "{text}");
        }
    }

    #[test]
    fn a_decision_of_a_later_version_is_left_out() {
        let (mut audience, mut cursor) = (Audience::new(0), None);
        listen(&mut audience, LiveFilter::default(), &mut cursor, 0);
        let decisions = vec![r#"{"policy":"api","outcome":"later"}"#.to_owned(), "7".to_owned()];
        audience.take(&LiveBatch { decisions, omitted: Vec::new() }, 0);
        assert_eq!(listen(&mut audience, LiveFilter::default(), &mut cursor, 0), (0, 0, false));
    }
}
