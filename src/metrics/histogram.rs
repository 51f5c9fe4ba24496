//! The durations of calls, counted in buckets.

/// The upper bounds of the buckets, inclusive, in milliseconds; a last bucket has all above.
///
/// A Worker's clock has whole milliseconds, so nothing is below 1. An object in the same data center answers in 1 to 5 ms, one at the
/// other end of the world in 200 to 400 ms. Two calls may time out within the five seconds of a request, after 2 s each.
pub const BOUNDS_MS: [u64; 12] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000];

/// A histogram of durations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// The number in each bucket and not in an earlier one; the last has those above all bounds.
    buckets: [u64; BUCKETS],
    sum_ms: u64,
}

const BUCKETS: usize = BOUNDS_MS.len() + 1;

impl Histogram {
    /// The histogram with these buckets; `None` if their number is wrong.
    #[must_use]
    pub fn of(buckets: &[u64], sum_ms: u64) -> Option<Self> {
        Some(Self { buckets: buckets.try_into().ok()?, sum_ms })
    }

    /// Counts a duration.
    pub fn add(&mut self, ms: u64) {
        let index = BOUNDS_MS.partition_point(|&bound| bound < ms);
        if let Some(bucket) = self.buckets.get_mut(index) {
            *bucket = bucket.saturating_add(1);
        }
        self.sum_ms = self.sum_ms.saturating_add(ms);
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &Self) {
        for (bucket, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *bucket = bucket.saturating_add(*more);
        }
        self.sum_ms = self.sum_ms.saturating_add(other.sum_ms);
    }

    /// The number in each bucket alone.
    #[must_use]
    pub const fn buckets(&self) -> &[u64] {
        &self.buckets
    }

    /// The number within each bound, and then within none, which is the total.
    pub fn cumulative(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        let bounds = BOUNDS_MS.iter().copied().map(Some).chain([None]);
        let counts = self.buckets.iter().scan(0_u64, |sum, &count| {
            *sum = sum.saturating_add(count);
            Some(*sum)
        });
        bounds.zip(counts)
    }

    /// The number of all durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().copied().fold(0, u64::saturating_add)
    }

    /// The sum of all durations.
    #[must_use]
    pub const fn sum_ms(&self) -> u64 {
        self.sum_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        for (ms, index) in
            [(0, 0), (1, 0), (2, 1), (3, 2), (5, 2), (6, 3), (2_000, 10), (2_001, 11), (5_000, 11), (5_001, 12)]
        {
            let mut histogram = Histogram::default();
            histogram.add(ms);
            assert_eq!(histogram.buckets.iter().position(|&count| count == 1), Some(index), "{ms}");
            assert_eq!((histogram.count(), histogram.sum_ms()), (1, ms));
        }
    }

    #[test]
    fn buckets_are_cumulative_and_add_up() {
        let (mut histogram, mut other) = (Histogram::default(), Histogram::default());
        for ms in [1, 1, 4, 9_000] {
            histogram.add(ms);
        }
        for ms in [u64::MAX, 3] {
            other.add(ms);
        }
        histogram.merge(&other);
        let shown: Vec<_> = histogram.cumulative().collect();
        assert_eq!((shown[0], shown[1], shown[2]), ((Some(1), 2), (Some(2), 2), (Some(5), 4)));
        assert_eq!((shown[11], shown[12]), ((Some(5_000), 4), (None, 6)));
        assert_eq!(histogram.sum_ms(), u64::MAX);
    }
}
