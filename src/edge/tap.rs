//! An isolate's decisions on their way to live listeners. Without listeners nothing is queued.
//!
//! The registry's answers to polls include the [listeners](crate::metrics::Listeners) and their filters. A decision that matches one waits
//! for the next batch. Batches are sent in the background, one at a time, with at most [`MAX_DECISIONS`] each. Decisions that do not fit or
//! are lost on the way are counted for each listener.

use std::mem;

use crate::metrics::{Listener, Listeners, LiveBatch, LiveDecision, MAX_DECISIONS, Outcome};
use crate::sorted::SortedMap;

/// Decisions waiting to be sent.
#[derive(Debug, Default)]
pub struct Tap {
    listeners: Vec<Listener>,
    /// When the listeners expire, unless renewed.
    until: i64,
    pause_ms: i64,
    /// The Cloudflare location that receives this isolate's requests.
    colo: String,
    waiting: Waiting,
    /// Since when a batch has been due or in flight.
    busy_since: Option<i64>,
    /// Since when the latest request has sent batches.
    sends_since: i64,
    /// When the last batch was sent.
    sent_at: Option<i64>,
    /// How many decisions in the batch in flight match each listener.
    in_flight: SortedMap<u64, u64>,
}

/// The contents of the next batch.
#[derive(Debug, Default)]
struct Waiting {
    /// Decisions, and how many of them match each listener.
    decisions: Vec<String>,
    awaited: SortedMap<u64, u64>,
    /// How many decisions each listener will miss.
    omitted: SortedMap<u64, u64>,
}

/// How long decisions are gathered into one batch.
const GATHER_MS: i64 = 100;

/// A batch unanswered for this long never will be: its request was cancelled. Longer than the longest pause between batches, and than
/// [`Tap::ANSWER_MS`].
const LOST_AFTER_MS: i64 = 20_000;

/// The longest time for which an isolate assumes listeners, whatever the registry said.
const MAX_LISTEN_MS: i64 = 60_000;

impl Tap {
    /// Timeout in milliseconds for the registry's answer to a batch.
    pub const ANSWER_MS: u32 = 4_000;

    /// How long one request sends batches, in milliseconds. The runtime stops work 30 seconds after an answer: with the last pause and answer,
    /// this ends before.
    const SEND_MS: u32 = 14_000;

    /// Takes the listeners from the registry's answer at `now`; `None` if there are none.
    pub fn on_listeners(&mut self, listeners: Option<&str>, now: i64) {
        let Listeners { for_ms, pause_ms, all } = listeners.and_then(Listeners::from_text).unwrap_or_default();
        let ms = |ms: u64| i64::try_from(ms).unwrap_or(MAX_LISTEN_MS).min(MAX_LISTEN_MS);
        (self.until, self.pause_ms, self.listeners) = (now.saturating_add(ms(for_ms)), ms(pause_ms), all);
        let is_there = |id: &u64| self.listeners.iter().any(|listener| listener.id == *id);
        for counts in [&mut self.waiting.awaited, &mut self.waiting.omitted, &mut self.in_flight] {
            counts.retain(|id, _| is_there(id));
        }
        if self.listeners.is_empty() {
            self.waiting = Waiting::default();
        }
    }

    /// Whether there were listeners in the last answer. Check this first: it needs no clock.
    #[must_use]
    pub const fn has_listeners(&self) -> bool {
        !self.listeners.is_empty()
    }

    /// Sets the location that receives requests from now on.
    pub fn set_colo(&mut self, colo: &str) {
        if self.colo != colo {
            colo.clone_into(&mut self.colo);
        }
    }

    /// Whether a listener wants such a decision.
    #[must_use]
    pub fn wants(&self, policy: &str, outcome: Outcome, now: i64) -> bool {
        self.is_watched(now) && self.listeners.iter().any(|listener| listener.filter.passes(policy, outcome))
    }

    /// Adds a decision that a listener [wants](Tap::wants), or counts it.
    pub fn add(&mut self, decision: &LiveDecision<'_>) {
        let Waiting { decisions, awaited, omitted } = &mut self.waiting;
        let counts = if decisions.len() < MAX_DECISIONS {
            decisions.push(decision.to_text(&self.colo));
            awaited
        } else {
            omitted
        };
        for listener in &self.listeners {
            if listener.filter.passes(decision.policy, decision.outcome) {
                add(counts, listener.id, 1);
            }
        }
    }

    /// Delay in milliseconds before the next batch: then call [`Tap::take`]. `None` if there is nothing to send, or if the delay was
    /// already returned. The request that asks then sends all batches until [`Tap::due_again`] returns `None`.
    pub fn due(&mut self, now: i64) -> Option<u32> {
        let delay_ms = self.delay_ms(now)?;
        self.sends_since = now;
        Some(delay_ms)
    }

    /// The same for the request that has sent the last batch. Past [`Tap::SEND_MS`], later requests go on, each with its own time from the
    /// runtime.
    pub fn due_again(&mut self, now: i64) -> Option<u32> {
        let has_time = now.saturating_sub(self.sends_since) < i64::from(Self::SEND_MS);
        has_time.then(|| self.delay_ms(now)).flatten()
    }

    fn delay_ms(&mut self, now: i64) -> Option<u32> {
        let is_busy = |since: i64| (0..LOST_AFTER_MS).contains(&now.saturating_sub(since));
        if self.waiting.is_empty() || self.busy_since.is_some_and(is_busy) {
            return None;
        }
        self.busy_since = Some(now);
        let next_at = self.sent_at.map_or(now, |at| at.saturating_add(self.pause_ms));
        let ms = next_at.saturating_sub(now).clamp(GATHER_MS, self.pause_ms.max(GATHER_MS));
        u32::try_from(ms).ok()
    }

    /// The batch to send at `now`, as text. Then call [`Tap::answered`] or [`Tap::fail`]. `None` if no listeners are left.
    pub fn take(&mut self, now: i64) -> Option<String> {
        self.fail(); // the previous batch failed, or it would have been answered
        let Waiting { decisions, awaited, omitted } = mem::take(&mut self.waiting);
        if !self.is_watched(now) {
            self.on_listeners(None, now);
            return None;
        }
        (self.sent_at, self.busy_since, self.in_flight) = (Some(now), Some(now), awaited);
        add_all(&mut self.in_flight, &omitted);
        let omitted = omitted.iter().map(|(id, count)| (*id, *count)).collect();
        Some(LiveBatch { decisions, omitted }.to_text())
    }

    /// Takes the registry's answer to a batch: the listeners, if any.
    pub fn answered(&mut self, listeners: Option<&str>, now: i64) {
        (self.busy_since, self.in_flight) = (None, SortedMap::new());
        self.on_listeners(listeners, now);
    }

    /// Records that the registry did not answer: the batch counts as omitted.
    pub fn fail(&mut self) {
        self.busy_since = None;
        add_all(&mut self.waiting.omitted, &mem::take(&mut self.in_flight));
    }

    /// Whether there are listeners. After a step back of the clock there are none until the next poll.
    fn is_watched(&self, now: i64) -> bool {
        self.has_listeners() && (1..=MAX_LISTEN_MS).contains(&self.until.saturating_sub(now))
    }
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.decisions.is_empty() && self.omitted.is_empty()
    }
}

fn add_all(counts: &mut SortedMap<u64, u64>, more: &SortedMap<u64, u64>) {
    more.iter().for_each(|(id, more)| add(counts, *id, *more));
}

fn add(counts: &mut SortedMap<u64, u64>, id: u64, more: u64) {
    counts.change(id, |count| *count = count.saturating_add(more));
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSALS: &str =
        r#"{"for_ms":15000,"pause_ms":1000,"listeners":[{"id":7,"policies":["api"],"outcomes":["refused"]}]}"#;

    fn decision(policy: &str, outcome: Outcome) -> LiveDecision<'_> {
        LiveDecision {
            at: 1,
            policy,
            outcome,
            source: crate::metrics::DecidedBy::Object,
            cost: 1,
            remaining: None,
            retry_at: None,
            limit: None,
            object: None,
            shards: None,
            cause: None,
            is_refused_in_shadow: false,
        }
    }

    fn refused(tap: &mut Tap, now: i64, count: usize) {
        assert!(tap.wants("api", Outcome::Refused, now));
        (0..count).for_each(|_| tap.add(&decision("api", Outcome::Refused)));
    }

    fn listening(now: i64) -> Tap {
        let mut tap = Tap::default();
        tap.on_listeners(Some(REFUSALS), now);
        tap
    }

    fn taken(tap: &mut Tap, now: i64) -> (usize, Vec<(u64, u64)>) {
        let batch = LiveBatch::from_text(&tap.take(now).unwrap()).unwrap();
        (batch.decisions.len(), batch.omitted)
    }

    #[test]
    fn nothing_is_queued_without_a_matching_listener() {
        let mut tap = Tap::default();
        assert!(!tap.has_listeners() && !tap.wants("api", Outcome::Refused, 0));
        assert_eq!((tap.due(0), tap.take(0)), (None, None));
        let mut tap = listening(0);
        for (policy, outcome, now, wants) in [
            ("api", Outcome::Refused, 0, true),
            ("api", Outcome::Allowed, 0, false),
            ("llm", Outcome::Refused, 0, false),
            ("api", Outcome::Refused, 14_999, true),
            ("api", Outcome::Refused, 15_000, false),
            ("api", Outcome::Refused, -50_000, false), // the clock stepped back
        ] {
            assert_eq!(tap.wants(policy, outcome, now), wants, "{policy} at {now}");
        }
        assert_eq!(tap.due(0), None);
        for answer in [None, Some("?"), Some(r#"{"for_ms":1,"pause_ms":1,"listeners":[]}"#)] {
            refused(&mut tap, 0, 1);
            tap.on_listeners(answer, 0);
            assert!(!tap.has_listeners() && tap.due(0).is_none(), "{answer:?}");
            tap.on_listeners(Some(REFUSALS), 0);
        }
    }

    #[test]
    fn decisions_are_sent_in_batches_with_pauses_between_them() {
        let mut tap = listening(0);
        tap.set_colo("AMS");
        refused(&mut tap, 0, 1);
        assert_eq!(tap.due(0), Some(100));
        refused(&mut tap, 50, 1);
        assert_eq!(tap.due(50), None, "that has been said");
        let sent = tap.take(100).unwrap();
        assert_eq!(sent.matches(r#""colo":"AMS""#).count(), 2);
        refused(&mut tap, 110, 1);
        assert_eq!(tap.due(110), None, "one is on its way");
        tap.answered(Some(REFUSALS), 150);
        assert_eq!(tap.due(150), Some(950), "a second after the last");
        assert_eq!(taken(&mut tap, 1_100), (1, vec![]));
        tap.answered(None, 1_200);
        assert!(!tap.has_listeners());
    }

    #[test]
    fn a_flood_is_bounded_and_counted() {
        let mut tap = listening(0);
        refused(&mut tap, 0, MAX_DECISIONS + 9);
        tap.due(0);
        assert_eq!(taken(&mut tap, 100), (MAX_DECISIONS, vec![(7, 9)]));
        refused(&mut tap, 100, 3);
        tap.fail();
        assert_eq!(tap.due(100), Some(1_000));
        assert_eq!(taken(&mut tap, 1_100), (3, vec![(7, MAX_DECISIONS as u64 + 9)]), "what was lost counts");
    }

    #[test]
    fn a_batch_whose_request_was_cancelled_delays_others_only_briefly() {
        let mut tap = listening(0);
        refused(&mut tap, 0, 2);
        assert_eq!(tap.due(0), Some(100));
        taken(&mut tap, 100);
        refused(&mut tap, 200, 1);
        tap.on_listeners(Some(REFUSALS), 20_000);
        assert_eq!((tap.due(20_099), tap.due(20_100)), (None, Some(100)));
        assert_eq!(taken(&mut tap, 20_200), (1, vec![(7, 2)]));
    }

    #[test]
    fn a_request_sends_batches_for_a_time_and_later_ones_go_on() {
        let mut tap = listening(0);
        refused(&mut tap, 0, 1);
        assert_eq!((tap.due(0), tap.due_again(0)), (Some(100), None));
        for (now, has_time) in [(1, true), (13_999, true), (14_000, false)] {
            taken(&mut tap, now);
            tap.answered(Some(REFUSALS), now);
            refused(&mut tap, now, 1);
            assert_eq!(tap.due_again(now).is_some(), has_time, "{now}");
        }
        assert_eq!((tap.due(14_000), tap.due_again(14_000)), (Some(1_000), None), "another request");
        taken(&mut tap, 15_000);
        tap.answered(Some(REFUSALS), 15_000);
        refused(&mut tap, 15_000, 1);
        assert_eq!(tap.due_again(15_000), Some(1_000));
    }

    #[test]
    fn a_departed_listener_gets_nothing() {
        let mut tap = listening(0);
        refused(&mut tap, 0, MAX_DECISIONS + 1);
        tap.due(0);
        tap.on_listeners(Some(&REFUSALS.replace(":7,", ":8,")), 50);
        assert_eq!(taken(&mut tap, 100), (MAX_DECISIONS, vec![]), "what was left out was for another");
        refused(&mut tap, 100, 1);
        tap.fail();
        tap.due(100);
        assert_eq!((tap.take(15_050), tap.due(15_050)), (None, None));
    }
}
