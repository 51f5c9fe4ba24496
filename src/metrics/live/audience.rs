//! The registry's side: who listens, and what has come for them. In memory alone.

use std::collections::VecDeque;
use std::rc::Rc;

use super::batch::LiveBatch;
use super::filter::LiveFilter;
use super::listeners::{Listener, Listeners};

/// Who listens, and what they have not yet seen.
#[derive(Debug)]
pub struct Audience {
    seats: Vec<Seat>,
    next_id: u64,
    /// The second in which decisions are being taken over, and how many there were in it.
    second: i64,
    taken: usize,
}

/// A listener. Those who want to see the same share one.
#[derive(Debug)]
struct Seat {
    listener: Listener,
    /// When it is given up.
    until: i64,
    /// The number of the last decision that came for it, kept or left out.
    last: u64,
    /// The latest ones by their numbers, which grow.
    kept: VecDeque<(u64, Rc<str>)>,
}

/// Up to where a listener has seen decisions: its number, and that of the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    listener: u64,
    last: u64,
}

/// What a listener is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Decisions as JSON, in the order in which they came.
    pub decisions: Vec<Rc<str>>,
    /// How many more there were since the cursor.
    pub omitted: u64,
    /// Where to go on.
    pub cursor: Cursor,
    /// Whether the registry no longer knows the cursor: then it is unknown what there was since.
    pub is_interrupted: bool,
}

/// There are [`MAX_LISTENERS`] others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany;

/// A listener that has not asked for so long is gone. Isolates poll every five seconds: each hears of a listener who stays.
pub const LISTEN_MS: i64 = 15_000;

/// How long a listener waits until it asks again: as fast as one reads, and no faster than isolates send.
pub const POLL_AFTER_MS: u64 = 1_000;

/// The most listeners who want to see something different.
pub const MAX_LISTENERS: usize = 16;

/// So many decisions are kept for a listener: more than two seconds of [`MAX_PER_SECOND`], some 100 KB.
pub const KEPT: usize = 500;

/// So many decisions are taken over in a second, for all listeners together.
pub const MAX_PER_SECOND: usize = 200;

/// The shortest time from one batch of an isolate to the next.
const PAUSE_MS: u64 = 1_000;

/// The longest: it is shorter than a listener is waited for, or isolates would forget it between two batches.
const MAX_PAUSE_MS: u64 = 10_000;

/// So much longer for each isolate, so that all of them together send a hundred batches in a second: a tenth of what an object can
/// answer.
const PAUSE_MS_PER_ISOLATE: u64 = 10;

impl Audience {
    /// No listeners. `random` tells its cursors from those of another.
    #[must_use]
    pub const fn new(random: u64) -> Self {
        // Below 2⁵³, as numbers in JSON should be, and far from its end.
        Self { seats: Vec::new(), next_id: random >> 12, second: 0, taken: 0 }
    }

    /// What has come since `after` for a listener with this filter, who from now on is one.
    ///
    /// # Errors
    /// [`TooMany`].
    pub fn listen(&mut self, filter: LiveFilter, after: Option<Cursor>, now: i64) -> Result<Heard, TooMany> {
        self.forget(now);
        let until = now.saturating_add(LISTEN_MS);
        if let Some(seat) = self.seats.iter_mut().find(|seat| seat.listener.filter == filter) {
            seat.until = until;
            return Ok(seat.since(after));
        }
        if self.seats.len() >= MAX_LISTENERS {
            return Err(TooMany);
        }
        self.next_id = self.next_id.saturating_add(1);
        let listener = Listener { id: self.next_id, filter };
        let seat = Seat { listener, until, last: 0, kept: VecDeque::new() };
        let heard = seat.since(after);
        self.seats.push(seat);
        Ok(heard)
    }

    /// Takes over what an isolate has sent.
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

    /// What isolates are told, of which so many report; `None` if nobody listens.
    pub fn listeners(&mut self, isolates: usize, now: i64) -> Option<Listeners> {
        self.forget(now);
        let until = self.seats.iter().map(|seat| seat.until).max()?;
        let for_ms = u64::try_from(until.saturating_sub(now)).unwrap_or(0);
        let isolates = u64::try_from(isolates).unwrap_or(u64::MAX);
        let pause_ms = isolates.saturating_mul(PAUSE_MS_PER_ISOLATE).clamp(PAUSE_MS, MAX_PAUSE_MS);
        Some(Listeners { for_ms, pause_ms, all: self.seats.iter().map(|seat| seat.listener.clone()).collect() })
    }

    /// Forgets who has not asked for too long. A clock that steps back ends it too: they ask again.
    fn forget(&mut self, now: i64) {
        self.seats.retain(|seat| (1..=LISTEN_MS).contains(&seat.until.saturating_sub(now)));
    }
}

impl Seat {
    /// Adds a decision, or counts one that is left out.
    fn add(&mut self, decision: Option<Rc<str>>) {
        self.last = self.last.saturating_add(1);
        if let Some(decision) = decision {
            if self.kept.len() >= KEPT {
                self.kept.pop_front();
            }
            self.kept.push_back((self.last, decision));
        }
    }

    fn since(&self, after: Option<Cursor>) -> Heard {
        let cursor = Cursor { listener: self.listener.id, last: self.last };
        let is_known = |after: &Cursor| after.listener == cursor.listener && after.last <= cursor.last;
        let is_interrupted = after.is_some_and(|after| !is_known(&after));
        let from = after.filter(is_known).map_or(self.last, |after| after.last);
        let news = self.kept.iter().skip(self.kept.partition_point(|(number, _)| *number <= from));
        let decisions: Vec<_> = news.map(|(_, decision)| Rc::clone(decision)).collect();
        let shown = u64::try_from(decisions.len()).unwrap_or(u64::MAX);
        Heard { omitted: self.last.saturating_sub(from).saturating_sub(shown), decisions, cursor, is_interrupted }
    }
}

impl Cursor {
    /// As it is written.
    #[must_use]
    pub fn to_text(self) -> String {
        format!("{:x}-{:x}", self.listener, self.last)
    }

    /// Reads one; `None` if it is not one.
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

    /// What it hears, in short: how many decisions, and how many were left out.
    fn hear(audience: &mut Audience, filter: LiveFilter, cursor: &mut Option<Cursor>, now: i64) -> (usize, u64, bool) {
        let heard = audience.listen(filter, *cursor, now).unwrap();
        *cursor = Some(heard.cursor);
        (heard.decisions.len(), heard.omitted, heard.is_interrupted)
    }

    #[test]
    fn a_listener_hears_what_passes_from_its_first_question_on_and_each_decision_once() {
        let (mut audience, mut api, mut all) = (Audience::new(0), None, None);
        audience.take(&batch("api", 3), 0);
        assert_eq!(hear(&mut audience, filter("api"), &mut api, 0), (0, 0, false));
        assert_eq!(hear(&mut audience, LiveFilter::default(), &mut all, 0), (0, 0, false));
        audience.take(&batch("api", 2), 1);
        audience.take(&batch("llm", 1), 1);
        assert_eq!(hear(&mut audience, filter("api"), &mut api, 2), (2, 0, false));
        assert_eq!(hear(&mut audience, filter("api"), &mut api, 3), (0, 0, false));
        assert_eq!(hear(&mut audience, LiveFilter::default(), &mut all, 3), (3, 0, false));
        // Another with the same filter hears the same, from where it was.
        let mut other = None;
        assert_eq!(hear(&mut audience, filter("api"), &mut other, 3), (0, 0, false));
        audience.take(&batch("api", 1), 4);
        for cursor in [&mut api, &mut other] {
            assert_eq!(hear(&mut audience, filter("api"), cursor, 5), (1, 0, false));
        }
    }

    #[test]
    fn who_does_not_ask_is_forgotten_and_then_nothing_is_kept() {
        let (mut audience, mut cursor) = (Audience::new(0), None);
        assert_eq!(audience.listeners(1, 0), None);
        hear(&mut audience, filter("api"), &mut cursor, 0);
        let listeners = audience.listeners(1, 4_000).unwrap();
        assert_eq!((listeners.for_ms, listeners.all.len()), (11_000, 1));
        assert!(audience.listeners(1, LISTEN_MS - 1).is_some());
        audience.take(&batch("api", 9), LISTEN_MS);
        assert!(audience.listeners(1, LISTEN_MS).is_none() && audience.seats.is_empty());
        assert_eq!(hear(&mut audience, filter("api"), &mut cursor, LISTEN_MS), (0, 0, true), "it is told");
        assert_eq!(hear(&mut audience, filter("api"), &mut cursor, LISTEN_MS + 1), (0, 0, false));
        assert!(audience.listeners(1, -1).is_none(), "the clock has stepped back");
    }

    #[test]
    fn what_is_too_much_is_counted() {
        let (mut audience, mut cursor) = (Audience::new(0), None);
        hear(&mut audience, filter("api"), &mut cursor, 0);
        for _ in 0..5 {
            audience.take(&batch("api", 50), 500);
        }
        audience.take(&batch("llm", 50), 500); // nobody wants to see it: it takes no room
        assert_eq!(hear(&mut audience, filter("api"), &mut cursor, 600), (MAX_PER_SECOND, 50, false));
        let id = audience.seats[0].listener.id;
        audience.take(&LiveBatch { omitted: vec![(id, 7), (id + 1, 9)], ..batch("api", 1) }, 1_000);
        assert_eq!(hear(&mut audience, filter("api"), &mut cursor, 1_000), (1, 7, false));
        for second in 1..=4 {
            audience.take(&batch("api", MAX_PER_SECOND), second * 1_000);
        }
        let all = 4 * MAX_PER_SECOND as u64 - 1; // one was taken in the first of these seconds
        let kept = KEPT as u64;
        assert_eq!(hear(&mut audience, filter("api"), &mut cursor, 5_000), (KEPT, all + 1 - kept, false));
    }

    #[test]
    fn listeners_are_bounded_and_many_isolates_send_more_rarely() {
        let mut audience = Audience::new(u64::MAX);
        for index in 0..MAX_LISTENERS {
            assert!(audience.listen(filter(&index.to_string()), None, 0).is_ok());
        }
        assert_eq!(audience.listen(filter("one more"), None, 0), Err(TooMany));
        assert!(audience.listen(filter("0"), None, 0).is_ok(), "one that there is");
        for (isolates, pause_ms) in [(0, 1_000), (100, 1_000), (101, 1_010), (1_000, 10_000), (usize::MAX, 10_000)] {
            assert_eq!(audience.listeners(isolates, 0).unwrap().pause_ms, pause_ms);
        }
        assert!(audience.listen(filter("one more"), None, LISTEN_MS).is_ok());
        assert!(audience.next_id < 1 << 53);
    }

    #[test]
    fn a_cursor_of_another_registry_or_listener_is_told_from_its_own() {
        let (mut audience, mut cursor) = (Audience::new(1 << 40), None);
        hear(&mut audience, filter("api"), &mut cursor, 0);
        let own = cursor.unwrap();
        assert_eq!(Cursor::from_text(&own.to_text()), Some(own));
        let ahead = Cursor { last: own.last + 1, ..own };
        let other = Cursor { listener: own.listener + 1, ..own };
        for strange in [ahead, other] {
            assert!(audience.listen(filter("api"), Some(strange), 0).unwrap().is_interrupted);
        }
        for text in ["", "7", "-", "1-", "1-x", "+1-2", "1-+2", "-1-2", "1-2-3", "10000000000000000-1"] {
            assert_eq!(Cursor::from_text(text), None, "{text}");
        }
    }

    #[test]
    fn a_decision_of_a_later_version_is_left_out() {
        let (mut audience, mut cursor) = (Audience::new(0), None);
        hear(&mut audience, LiveFilter::default(), &mut cursor, 0);
        let decisions = vec![r#"{"policy":"api","outcome":"later"}"#.to_owned(), "7".to_owned()];
        audience.take(&LiveBatch { decisions, omitted: Vec::new() }, 0);
        assert_eq!(hear(&mut audience, LiveFilter::default(), &mut cursor, 0), (0, 0, false));
    }
}
