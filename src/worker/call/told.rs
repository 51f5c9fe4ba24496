//! What is told of a request and of its calls: to the counters, to those who watch, to the log of points, and to the receivers of notices.

use js_sys::Array;
use wasm_bindgen::prelude::{JsValue, wasm_bindgen};

use super::super::clock::moment;
use super::super::{live, metrics};
use super::{Call, Source};
use crate::access::key_hash_in;
use crate::api::{Notice, Noticed, Tally};
use crate::edge::Outcome;
use crate::metrics::{CallOutcome, LiveDecision, Outcome as BudgetOutcome, Word};
use crate::policy::Cause;

/// What became of a request.
#[derive(Clone, Copy)]
pub(super) enum End {
    /// As the objects have decided.
    Decided,
    /// The same for each of its budgets, because of this.
    Undecided(BudgetOutcome, Cause),
}

#[wasm_bindgen]
impl Call {
    /// What became of each budget, once there is a reply at `now`: the policy, the outcome, where it was decided, the cost, and how many
    /// milliseconds it took; policy, outcome, ... Empty for requests that take no tokens.
    #[must_use]
    pub fn points(&self, now: f64) -> Array {
        #[expect(clippy::cast_precision_loss, reason = "costs are below 2⁵³, and so are seconds")]
        let number = |number: u64| JsValue::from(number as f64);
        let points = Array::new();
        let took_ms = length_ms(self.began_at, moment(now));
        self.tally(|one| {
            for part in [one.policy, one.outcome.word(), self.source(one.outcome)] {
                points.push(&part.into());
            }
            points.push(&number(one.cost));
            points.push(&number(took_ms));
        });
        points
    }

    /// The notices that are due, once there is a reply: id, JSON, id, JSON, ...
    #[must_use]
    pub fn notices(&self) -> Array {
        let notices = Array::new();
        if let (Some(End::Decided), Some(Outcome::Decided(replies))) = (self.end.get(), self.calls.outcome()) {
            let all = self.objects.iter().zip(replies);
            let all = all.map(|(object, reply)| Noticed { object: &object.name, items: &object.items, reply });
            for Notice { id, body } in self.whole().notices(all, self.notices_get_keys) {
                notices.push(&id.into());
                notices.push(&body.into());
            }
        }
        notices
    }
}

impl Call {
    /// Counts what became of it.
    pub(super) fn end(&self, end: End) {
        self.end.set(Some(end));
        metrics::count(|counts| {
            self.tally(|one| {
                counts.decided(one.policy, one.outcome, one.is_refused_in_shadow);
                match self.source {
                    Source::Cache => counts.remembered(one.policy),
                    Source::Lease => counts.leased(one.policy),
                    Source::Object => {}
                }
                if matches!(one.outcome, BudgetOutcome::Refused | BudgetOutcome::Never | BudgetOutcome::Banned) {
                    let key =
                        self.objects.get(one.object).map(|object| u128::from_str_radix(key_hash_in(&object.name), 16));
                    counts.refused(one.policy, key.and_then(Result::ok).unwrap_or_default(), || one.key_prefix());
                }
            });
        });
        live::observe(|now, show| {
            self.tally(|one| {
                let decisive = one.decisive().filter(|_| one.outcome != BudgetOutcome::Unlimited);
                show(&LiveDecision {
                    at: now,
                    policy: one.policy,
                    outcome: one.outcome,
                    source: self.source(one.outcome),
                    cost: one.cost,
                    remaining: decisive.map(|(_, answer)| answer.remaining),
                    retry_at: decisive.and_then(|(_, answer)| answer.retry_at()),
                    limit: decisive.and_then(|(limit, _)| limit.name()),
                    object: self.objects.get(one.object).map(|object| key_hash_in(&object.name)),
                    shards: self.whole.as_ref().map(|_| self.objects.len()),
                    cause: one.cause,
                    is_refused_in_shadow: one.is_refused_in_shadow,
                });
            });
        });
    }

    /// Counts a call that is over.
    pub(super) fn count_call(&self, index: usize, outcome: CallOutcome, now: f64) {
        if let Some(object) = self.objects.get(index) {
            metrics::count(|counts| counts.called(outcome, length_ms(object.called_at, moment(now))));
        }
    }

    /// Tells what became of each budget.
    fn tally<'a>(&'a self, tell: impl FnMut(Tally<'a>)) {
        match (self.end.get(), self.calls.outcome()) {
            (Some(End::Decided), Some(Outcome::Decided(replies))) => {
                self.whole().tally(self.objects.iter().map(|object| &*object.items).zip(replies), tell);
            }
            (Some(End::Undecided(outcome, cause)), _) => self.whole().tally_undecided(outcome, cause, tell),
            _ => {}
        }
    }

    /// Where a request was decided.
    const fn source(&self, outcome: BudgetOutcome) -> &'static str {
        match outcome {
            BudgetOutcome::Degraded | BudgetOutcome::Unavailable => "frontend",
            _ => self.source.word(),
        }
    }
}

/// From one moment to another; 0 if the clock has stepped back.
fn length_ms(from: i64, to: i64) -> u64 {
    u64::try_from(to.saturating_sub(from)).unwrap_or(0)
}
