//! Deliveries of notices from an isolate to the operator's receivers: how many at once, when to try again, and those lost.

use std::borrow::Cow;

/// Who receives notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// The queue.
    Queue,
    /// The webhook.
    Webhook,
}

/// How an attempt to deliver a notice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt<'a> {
    /// The queue took it.
    Taken,
    /// The webhook answered with this status.
    Answered(u16),
    /// The receiver did not answer, for this reason.
    Failed(&'a str),
}

impl<'a> Attempt<'a> {
    /// Why the notice did not arrive; `None` if it did.
    #[must_use]
    pub fn failure(self) -> Option<Cow<'a, str>> {
        match self {
            Self::Taken | Self::Answered(200..=299) => None,
            Self::Answered(status) => Some(format!("the webhook answered {status}").into()),
            Self::Failed(reason) => Some(reason.into()),
        }
    }
}

/// The deliveries under way, and those lost since the last log line.
#[derive(Debug, Default)]
pub struct Deliveries {
    /// The oldest first.
    under_way: Vec<Delivery>,
    /// How many have begun.
    begun: u32,
    failed: u32,
    dropped: u32,
    /// Why the last one was lost.
    reason: String,
    logged_at: Option<i64>,
}

#[derive(Clone, Copy, Debug)]
struct Delivery {
    number: u32,
    to: Receiver,
    began_at: i64,
}

impl Deliveries {
    /// Timeout in milliseconds for each attempt.
    pub const ATTEMPT_MS: u32 = 5_000;

    /// Starts a delivery at `now`: its number. `None` if too many to that receiver are under way, and it is lost.
    pub fn begin(&mut self, to: Receiver, now: i64) -> Option<u32> {
        self.under_way.retain(|one| now.saturating_sub(one.began_at) < LIFE_MS);
        if self.under_way.iter().filter(|one| one.to == to).count() >= MAX_UNDER_WAY {
            self.dropped = self.dropped.saturating_add(1);
            "too many are under way".clone_into(&mut self.reason);
            return None;
        }
        let number = self.begun;
        self.begun = number.wrapping_add(1);
        self.under_way.push(Delivery { number, to, began_at: now });
        Some(number)
    }

    /// Records that one arrived. What another instance had begun has no number.
    pub fn arrived(&mut self, number: Option<u32>) {
        self.under_way.retain(|one| Some(one.number) != number);
    }

    /// Records that the last of this many `attempts` failed. Returns the milliseconds before the next; `None` if it is given up.
    pub fn failed(&mut self, number: Option<u32>, attempts: usize, reason: &str) -> Option<u32> {
        if let Some(&pause_ms) = attempts.checked_sub(1).and_then(|index| PAUSES_MS.get(index)) {
            return Some(pause_ms);
        }
        self.arrived(number);
        self.failed = self.failed.saturating_add(1);
        self.reason = without_addresses(reason);
        None
    }

    /// The line to log about those lost; `None` if nothing was lost since the last line, or that was less than a minute ago.
    pub fn loss_line(&mut self, now: i64) -> Option<String> {
        let is_silent = |at: i64| (0..LOG_MS).contains(&now.saturating_sub(at));
        if (self.failed, self.dropped) == (0, 0) || self.logged_at.is_some_and(is_silent) {
            return None;
        }
        let Self { failed, dropped, reason, .. } = self;
        let line = format!("notices are lost: {failed} failed, {dropped} dropped; the last: {reason}");
        (self.failed, self.dropped, self.logged_at) = (0, 0, Some(now));
        Some(line)
    }
}

/// The text with each URL replaced: the receiver's may contain a secret.
fn without_addresses(text: &str) -> String {
    let (mut safe, mut rest) = (String::new(), text);
    while let Some((before, from)) = rest.find(SCHEME).and_then(|at| rest.split_at_checked(at)) {
        let is_url = ["http:", "https:"].iter().any(|scheme| from.starts_with(scheme));
        let end = if is_url { from.find(char::is_whitespace).unwrap_or(from.len()) } else { SCHEME.len() };
        safe.push_str(before);
        safe.push_str(if is_url { "the webhook" } else { SCHEME });
        rest = from.get(end..).unwrap_or_default();
    }
    safe.push_str(rest);
    safe
}

const SCHEME: &str = "http";

/// Maximum deliveries under way to each receiver: a flood of keys must not flood it, and a hung one does not hold up the other. One that
/// answers in 100 ms gets about 300 per second.
const MAX_UNDER_WAY: usize = 32;

/// Pauses before the second attempt and later ones. With [`Deliveries::ATTEMPT_MS`] for each, all end within 21 seconds: the runtime stops
/// them after 30.
const PAUSES_MS: [u32; 2] = [1_000, 5_000];

/// The age at which a delivery counts as killed by the runtime.
const LIFE_MS: i64 = 30_000;

/// Minimum interval between log lines, so that a receiver that is down for a day costs one line per minute and isolate.
const LOG_MS: i64 = 60_000;

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_700_000_000_000;

    #[test]
    fn at_most_thirty_two_are_under_way_to_each_receiver() {
        let mut deliveries = Deliveries::default();
        let mut begin = |to, now| deliveries.begin(to, now);
        for number in 0..32 {
            assert_eq!(begin(Receiver::Webhook, NOW), Some(number));
        }
        assert_eq!(begin(Receiver::Webhook, NOW), None);
        assert_eq!(begin(Receiver::Queue, NOW), Some(32), "a hung receiver does not hold up the other");
        assert_eq!(begin(Receiver::Webhook, NOW + 29_999), None);
        assert_eq!(begin(Receiver::Webhook, NOW + 30_000), Some(33), "the runtime has stopped the others");

        let mut deliveries = Deliveries::default();
        for number in 0..32 {
            deliveries.begin(Receiver::Queue, NOW);
            assert_eq!(deliveries.failed(Some(number), 1, "busy"), Some(1_000), "still under way");
        }
        assert_eq!(deliveries.begin(Receiver::Queue, NOW), None);
        deliveries.arrived(Some(7));
        assert_eq!(deliveries.begin(Receiver::Queue, NOW), Some(32));
        assert_eq!(deliveries.begin(Receiver::Queue, NOW), None);
        deliveries.arrived(None);
        assert_eq!(deliveries.failed(None, 3, "busy"), None, "begun by another instance");
        assert_eq!(deliveries.begin(Receiver::Queue, NOW), None);
        assert_eq!(deliveries.failed(Some(8), 3, "busy"), None);
        assert_eq!(deliveries.begin(Receiver::Queue, NOW), Some(33));
    }

    #[test]
    fn one_is_tried_three_times_and_given_up_before_the_runtime_stops_it() {
        let mut deliveries = Deliveries::default();
        let mut took_ms = 0;
        for attempts in 1.. {
            took_ms += Deliveries::ATTEMPT_MS;
            let Some(pause_ms) = deliveries.failed(Some(0), attempts, "down") else {
                assert_eq!(attempts, 3);
                break;
            };
            took_ms += pause_ms;
        }
        assert!(i64::from(took_ms) < LIFE_MS);
    }

    #[test]
    fn a_notice_has_arrived_when_the_queue_took_it_or_the_webhook_answered_with_success() {
        for (attempt, failure) in [
            (Attempt::Taken, None),
            (Attempt::Answered(199), Some("the webhook answered 199")),
            (Attempt::Answered(200), None),
            (Attempt::Answered(299), None),
            (Attempt::Answered(300), Some("the webhook answered 300")), // no redirect is followed
            (Attempt::Failed("down"), Some("down")),
        ] {
            assert_eq!(attempt.failure().as_deref(), failure, "{attempt:?}");
        }
    }

    #[test]
    fn losses_are_logged_once_a_minute() {
        let mut deliveries = Deliveries::default();
        assert_eq!(deliveries.loss_line(NOW), None);
        assert_eq!(deliveries.failed(Some(0), 2, "busy"), Some(5_000));
        assert_eq!(deliveries.loss_line(NOW), None, "not lost yet");
        deliveries.failed(Some(0), 3, "the webhook answered 500");
        let line = "notices are lost: 1 failed, 0 dropped; the last: the webhook answered 500";
        assert_eq!(deliveries.loss_line(NOW).as_deref(), Some(line));
        assert_eq!(deliveries.loss_line(NOW + LOG_MS), None, "nothing since");
        deliveries.failed(Some(1), 3, "down");
        for number in 0..33 {
            assert_eq!(deliveries.begin(Receiver::Webhook, NOW), (number < 32).then_some(number));
        }
        assert_eq!(deliveries.loss_line(NOW + LOG_MS - 1), None);
        let line = "notices are lost: 1 failed, 1 dropped; the last: too many are under way";
        assert_eq!(deliveries.loss_line(NOW + LOG_MS).as_deref(), Some(line));
        deliveries.failed(Some(2), 3, "down");
        assert!(deliveries.loss_line(NOW).is_some(), "the clock was set back");
    }

    #[test]
    fn addresses_are_not_logged() {
        for (text, safe) in [
            ("", ""),
            ("the webhook answered 500", "the webhook answered 500"),
            ("cannot reach https://example.com/hook?token=t now", "cannot reach the webhook now"),
            ("http://a/b", "the webhook"),
            ("http://a\thttps://b\n", "the webhook\tthe webhook\n"),
            ("(http://a/http://b) no http here, https neither", "(the webhook no http here, https neither"),
        ] {
            let mut deliveries = Deliveries::default();
            deliveries.failed(Some(0), 3, text);
            let line = deliveries.loss_line(NOW).unwrap();
            assert_eq!(line.strip_prefix("notices are lost: 1 failed, 0 dropped; the last: "), Some(safe));
        }
    }
}
