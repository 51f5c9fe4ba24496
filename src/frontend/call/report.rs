//! What is told of a request and of its calls: to the counters, to those who watch, to the log of points, and to the receivers of notices.

use super::super::Now;
use super::super::event::{End, Event};
use super::super::settings::Receivers;
use super::Call;
use crate::access::key_hash_in;
use crate::api::{Notice, Noticed, Tally};
use crate::edge::Outcome;
use crate::metrics::CallOutcome;

impl Call {
    /// Tells what became of each budget, once there is a reply; nothing of requests that take no tokens.
    pub fn events<'a>(&'a self, now: Now, tell: &mut dyn FnMut(&Event<'a>)) {
        let shards = self.asked.of_shards.as_ref().map(|_| self.plan.objects.len());
        let mut tell = |tally: Tally<'a>| {
            let key = self.plan.objects.get(tally.object).map(|object| key_hash_in(&object.name));
            tell(&Event::of(tally, now.at, self.plan.decided_by, key, shards));
        };
        match (self.end, self.plan.calls.outcome()) {
            (Some(End::Decided), Some(Outcome::Decided(replies))) => {
                let objects = self.plan.objects.iter().map(|object| &*object.items);
                self.asked.whole.tally(objects.zip(replies), tell);
            }
            (Some(End::Undecided(outcome, cause)), _) => self.asked.whole.tally_undecided(outcome, cause, &mut tell),
            _ => {}
        }
    }

    /// The notices that are due, once there is a reply.
    #[must_use]
    pub fn notices(&self) -> Vec<Notice> {
        let (Some(End::Decided), Some(Outcome::Decided(replies))) = (self.end, self.plan.calls.outcome()) else {
            return Vec::new();
        };
        let all = self.plan.objects.iter().zip(replies);
        let all = all.map(|(object, reply)| Noticed { object: &object.name, items: &object.items, reply });
        self.asked.whole.notices(all, self.asked.terms.receivers == Receivers::OfKeys)
    }

    /// How many milliseconds it has taken so far.
    #[must_use]
    pub fn took_ms(&self, now: Now) -> u64 {
        length_ms(self.began_at, now.waiting)
    }

    /// Records how it ended, and tells that.
    pub(super) fn end(&mut self, end: End, now: Now) {
        self.end = Some(end);
        let isolate = self.isolate.clone();
        isolate.tell(now, |tell| self.events(now, tell));
    }

    /// Counts a call that is over.
    pub(super) fn count_call(&self, index: usize, outcome: CallOutcome, now: Now) {
        if let Some(object) = self.plan.objects.get(index) {
            self.isolate.count(|counts| counts.called(outcome, length_ms(object.called_at, now.waiting)));
        }
    }
}

/// From one moment to another; 0 if the clock has stepped back.
fn length_ms(from: i64, to: i64) -> u64 {
    u64::try_from(to.saturating_sub(from)).unwrap_or(0)
}
