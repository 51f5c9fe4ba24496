//! What comes back of a rolling window, and when: its state does not say.

use super::numbers::{Reader, Unreadable, Writer};

/// Moments and the tokens that come back at each, soonest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ComingBack(Vec<(i64, u64)>);

/// Maximum moments in an answer: those of a window with the usual grains. A larger cost than these let pass is unknown.
const MAX_MOMENTS: usize = 64;

impl ComingBack {
    /// These moments, in any order.
    #[must_use]
    pub fn new(mut all: Vec<(i64, u64)>) -> Self {
        crate::sorted::sort_by(&mut all, |one, other| one.0.cmp(&other.0));
        Self(all)
    }

    /// The same, as an answer says it: each moment once, and not too many.
    #[must_use]
    pub fn summary(&self) -> Self {
        let mut all: Vec<(i64, u64)> = Vec::new();
        for &(at, tokens) in self.0.iter().filter(|(_, tokens)| *tokens > 0) {
            let is_enough = all.len() == MAX_MOMENTS;
            match all.last_mut().filter(|last| last.0 == at) {
                Some(last) => last.1 = last.1.saturating_add(tokens),
                None if is_enough => break,
                None => all.push((at, tokens)),
            }
        }
        Self(all)
    }

    /// The tokens that are back by then.
    #[must_use]
    pub fn by(&self, now: i64) -> u64 {
        self.0.iter().take_while(|(at, _)| *at <= now).fold(0, |sum, (_, tokens)| sum.saturating_add(*tokens))
    }

    /// The moments, each with its tokens.
    pub fn iter(&self) -> impl Iterator<Item = (i64, u64)> {
        self.0.iter().copied()
    }

    /// How many numbers it is written as.
    pub(super) const fn len(&self) -> usize {
        self.0.len().saturating_mul(2).saturating_add(1)
    }

    /// Writes how many moments there are, and each with its tokens. The moments count from `now`, which is shorter.
    pub(super) fn write(&self, now: i64, writer: &mut Writer) {
        writer.whole(self.0.len() as u64);
        for (at, tokens) in &self.0 {
            writer.signed(at.saturating_sub(now));
            writer.whole(*tokens);
        }
    }

    pub(super) fn read(now: i64, section: &mut Reader<'_>) -> Result<Self, Unreadable> {
        let moments = (0..section.whole()?).map(|_| Ok((now.saturating_add(section.signed()?), section.whole()?)));
        moments.collect::<Result<_, _>>().map(Self)
    }
}
