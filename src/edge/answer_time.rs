//! When an answer was given, and which of two came first.

use std::cmp::Ordering;

/// When an object decided, by its clock, and when the isolate's call began and was answered, by the isolate's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_field_names, reason = "`_at` says that they are moments")]
pub(crate) struct AnswerTime {
    pub(crate) decided_at: i64,
    pub(crate) called_at: i64,
    pub(crate) answered_at: i64,
}

impl AnswerTime {
    /// Orders this decision in time against `earlier`, an answer that arrived earlier. A call made after that answer is decided later,
    /// whatever the object's clock shows; of concurrent calls, its clock decides. Within one millisecond they are equal.
    pub(super) fn order(&self, earlier: &Self) -> Ordering {
        if self.called_at > earlier.answered_at { Ordering::Greater } else { self.decided_at.cmp(&earlier.decided_at) }
    }

    /// Whether it is the earlier one. Within a millisecond, the call that began first counts as earlier.
    pub(super) fn is_before(&self, earlier: &Self) -> bool {
        self.order(earlier).then(self.called_at.cmp(&earlier.called_at)).is_lt()
    }

    /// Whether the isolate's clock stepped back during the call, which makes its measurements useless.
    pub(super) const fn has_stepped_back(&self) -> bool {
        self.answered_at < self.called_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_objects_time_orders_two_overlapping_calls() {
        let earlier = AnswerTime { decided_at: 1_000, called_at: 10, answered_at: 30 };
        // called_at, decided_at, order, whether it is before
        for (called_at, decided_at, order, is_before) in [
            (20, 999, Ordering::Less, true),
            (20, 1_000, Ordering::Equal, false),
            (10, 1_000, Ordering::Equal, false),
            (9, 1_000, Ordering::Equal, true),
            (20, 1_001, Ordering::Greater, false),
            (30, 999, Ordering::Less, true),
            // The object's clock stepped back.
            (31, 999, Ordering::Greater, false),
        ] {
            let answer = AnswerTime { decided_at, called_at, answered_at: 50 };
            assert_eq!((answer.order(&earlier), answer.is_before(&earlier)), (order, is_before), "{answer:?}");
        }
    }
}
