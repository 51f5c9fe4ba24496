//! What the front asks an object, and what the object answers: values here, numbers on the way.
//!
//! Reader, because they are the cheapest that JavaScript carries from one to the other; each of them is whole and below
//! 2⁵³, so that it stays exact. While a deployment spreads, a front may meet an object of another version: the first
//! number is the [`FORMAT`], and numbers of another format are neither a request nor an answer.

use crate::limit::{Decision, Snapshot, Verb};

/// A request to the object of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRequest {
    /// What is to be done.
    pub action: Action,
    /// By what a repetition of this request is known.
    pub request_id: Option<RequestId>,
    /// For each policy the cost of each of its limits. The names of the policies travel beside the numbers.
    pub costs: Vec<Vec<u64>>,
}

/// What is to be done with the buckets of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Say what the verb would do.
    Look(Verb),
    /// Do what the verb does.
    Take(Verb),
    /// That, and open a reservation that can be settled later.
    Reserve(Verb),
    /// Consume, until somebody says whether it is to stay: the first half of a batch over several keys.
    Hold,
    /// Close a reservation: at its real costs, or, with no costs, at those reserved.
    Settle(u64),
    /// Close a reservation and give everything back.
    Cancel(u64),
}

/// By what a repetition is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId {
    /// The same for each repetition: from the client's `Idempotency-Key`, or made up by the front for its own retry.
    pub id: u128,
    /// Of everything that is asked: the same id with another one is a mistake.
    pub fingerprint: u64,
    /// Whether the answer must be remembered over a crash.
    pub is_lasting: bool,
}

/// What an object answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectReply {
    /// Done, or refused.
    Decided(Decided),
    /// There is no such reservation, or no more.
    NoReservation,
    /// The id was used for another request.
    RequestIdReused,
    /// As many reservations of the key are open as there can be.
    TooManyReservations {
        /// How many that is.
        max: u64,
    },
}

/// A decision with all that its response says. All moments are Unix milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    /// The moment of the decision.
    pub now: i64,
    /// Whether this is the answer to an earlier, equal request.
    pub is_replayed: bool,
    /// How many reservations of the key are open.
    pub open_reservations: u64,
    /// The reservation that was opened.
    pub reservation: Option<Reserved>,
    /// One for each limit of each policy.
    pub limits: Vec<LimitAnswer>,
}

/// A reservation as its owner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// Below 2⁵².
    pub id: u64,
    /// When it ends unless it is settled.
    pub expires_at: i64,
}

/// The answer of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitAnswer {
    /// Its own decision.
    pub decision: Decision,
    /// Whole tokens left after it.
    pub remaining: u64,
    /// Tokens owed after it.
    pub owed: u64,
    /// When the bucket is full again, if ever.
    pub reset_at: Option<i64>,
    /// The state after it, in which what is held for batches counts as taken.
    pub snapshot: Snapshot,
}

impl Decided {
    /// The answer of all limits together.
    #[must_use]
    pub fn decision(&self) -> Decision {
        let start = Decision::Allow { tokens: 0, ready_at: self.now };
        self.limits.iter().fold(start, |all, limit| all.and(limit.decision))
    }
}

impl ObjectRequest {
    /// The request as numbers.
    #[must_use]
    pub fn to_numbers(&self) -> Vec<f64> {
        let (action, (verb, max_wait_ms), id) = match self.action {
            Action::Look(verb) => (0, verb.to_number(), 0),
            Action::Take(verb) => (1, verb.to_number(), 0),
            Action::Reserve(verb) => (2, verb.to_number(), 0),
            Action::Hold => (3, (0, None), 0),
            Action::Settle(id) => (4, (0, None), id),
            Action::Cancel(id) => (5, (0, None), id),
        };
        let mut numbers = vec![f64::from(FORMAT), f64::from(action), f64::from(verb), maybe(max_wait_ms), whole(id)];
        match self.request_id {
            None => numbers.push(0.0),
            Some(request_id) => {
                numbers.push(if request_id.is_lasting { 2.0 } else { 1.0 });
                let words =
                    [request_id.id >> 96, request_id.id >> 64, request_id.id >> 32, request_id.id].map(low_word);
                numbers.extend(words);
                numbers.extend(
                    [u128::from(request_id.fingerprint) >> 32, u128::from(request_id.fingerprint)].map(low_word),
                );
            }
        }
        for costs in &self.costs {
            numbers.push(whole(costs.len() as u64));
            numbers.extend(costs.iter().copied().map(whole));
        }
        numbers
    }

    /// The request that [`ObjectRequest::to_numbers`] was made of, or `None` for numbers that are none.
    #[must_use]
    pub fn from_numbers(numbers: &[f64]) -> Option<Self> {
        let mut rest = Reader::new(numbers)?;
        let (action, verb, max_wait_ms, id) = (rest.whole()?, rest.whole()?, rest.maybe().ok()?, rest.whole()?);
        let verb = || Verb::from_number(verb, max_wait_ms);
        let action = match action {
            0 => Action::Look(verb()?),
            1 => Action::Take(verb()?),
            2 => Action::Reserve(verb()?),
            3 => Action::Hold,
            4 => Action::Settle(id),
            5 => Action::Cancel(id),
            _ => return None,
        };
        let request_id = match rest.whole()? {
            0 => None,
            kind => {
                let mut word = || rest.whole().map(u128::from);
                let id = (word()? << 96) | (word()? << 64) | (word()? << 32) | word()?;
                let fingerprint = (rest.whole()? << 32) | rest.whole()?;
                Some(RequestId { id, fingerprint, is_lasting: kind == 2 })
            }
        };
        let mut costs = Vec::new();
        while !rest.is_empty() {
            let count = rest.whole()?;
            costs.push((0..count).map(|_| rest.whole()).collect::<Option<_>>()?);
        }
        Some(Self { action, request_id, costs })
    }
}

impl ObjectReply {
    /// The answer as numbers.
    #[must_use]
    pub fn to_numbers(&self) -> Vec<f64> {
        let kind = |kind: u8| vec![f64::from(FORMAT), f64::from(kind)];
        let decided = match self {
            Self::Decided(decided) => decided,
            Self::NoReservation => return kind(1),
            Self::RequestIdReused => return kind(2),
            Self::TooManyReservations { max } => return [kind(3), vec![whole(*max)]].concat(),
        };
        let Decided { now, is_replayed, open_reservations, reservation, ref limits } = *decided;
        let mut numbers = Vec::with_capacity(HEAD.saturating_add(limits.len().saturating_mul(PER_LIMIT)));
        numbers.extend(kind(0));
        numbers.extend([signed(now), f64::from(u8::from(is_replayed)), whole(open_reservations)]);
        numbers.push(maybe(reservation.map(|reserved| reserved.id)));
        numbers.push(signed(reservation.map_or(0, |reserved| reserved.expires_at)));
        for LimitAnswer { decision, remaining, owed, reset_at, snapshot } in limits {
            numbers.extend(match *decision {
                Decision::Allow { tokens, ready_at } => [0.0, whole(tokens), signed(ready_at)],
                Decision::Wait { retry_at } => [1.0, 0.0, signed(retry_at)],
                Decision::Never { max } => [2.0, whole(max), 0.0],
            });
            numbers.push(if *owed > 0 { -whole(*owed) } else { whole(*remaining) });
            numbers.push(reset_at.map_or(NEVER, signed));
            numbers.extend([signed(snapshot.tokens), whole(snapshot.drops), signed(snapshot.at)]);
        }
        numbers
    }

    /// The answer that [`ObjectReply::to_numbers`] was made of, or `None` for numbers that are none.
    #[must_use]
    pub fn from_numbers(numbers: &[f64]) -> Option<Self> {
        let mut rest = Reader::new(numbers)?;
        match rest.whole()? {
            0 => {}
            1 => return Some(Self::NoReservation),
            2 => return Some(Self::RequestIdReused),
            3 => return Some(Self::TooManyReservations { max: rest.whole()? }),
            _ => return None,
        }
        let (now, is_replayed, open_reservations) = (rest.signed()?, rest.whole()? == 1, rest.whole()?);
        let (id, expires_at) = (rest.maybe().ok()?, rest.signed()?);
        let mut limits = Vec::new();
        while !rest.is_empty() {
            let (kind, tokens, at) = (rest.whole()?, rest.whole()?, rest.signed()?);
            let decision = match kind {
                0 => Decision::Allow { tokens, ready_at: at },
                1 => Decision::Wait { retry_at: at },
                2 => Decision::Never { max: tokens },
                _ => return None,
            };
            let left = rest.signed()?;
            let (remaining, owed) = if left < 0 { (0, left.unsigned_abs()) } else { (left.unsigned_abs(), 0) };
            let reset_at = rest.moment_or_never().ok()?;
            let snapshot = Snapshot { tokens: rest.signed()?, drops: rest.whole()?, at: rest.signed()? };
            limits.push(LimitAnswer { decision, remaining, owed, reset_at, snapshot });
        }
        let reservation = id.map(|id| Reserved { id, expires_at });
        Some(Self::Decided(Decided { now, is_replayed, open_reservations, reservation, limits }))
    }
}

/// The version of this way to write questions and answers.
const FORMAT: u8 = 2;

/// How many numbers come before those of the limits, and how many each of these has.
const HEAD: usize = 7;
const PER_LIMIT: usize = 8;

/// For a moment that never comes: no moment is so early.
const NEVER: f64 = -9_007_199_254_740_991.0;

#[expect(clippy::cast_precision_loss, reason = "tokens, waits and ids are at most 2⁵³ − 1")]
const fn whole(value: u64) -> f64 {
    value as f64
}

#[expect(clippy::cast_precision_loss, reason = "levels are within ±2⁵³ tokens, and moments are until the year 287 000")]
const fn signed(value: i64) -> f64 {
    value as f64
}

fn maybe(value: Option<u64>) -> f64 {
    value.map_or(-1.0, whole)
}

#[expect(clippy::cast_possible_truncation, reason = "the lowest 32 bits are meant")]
fn low_word(value: u128) -> f64 {
    f64::from(value as u32)
}

/// There is no further number.
struct Ended;

/// Reader that are being read.
struct Reader<'a>(&'a [f64]);

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the numbers were whole")]
impl<'a> Reader<'a> {
    fn new(numbers: &'a [f64]) -> Option<Self> {
        let mut rest = Self(numbers);
        (rest.whole()? == u64::from(FORMAT)).then_some(rest)
    }

    fn next(&mut self) -> Option<f64> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn whole(&mut self) -> Option<u64> {
        self.next().map(|number| number as u64)
    }

    /// `Err` when there is no number, `Ok(None)` when it says that there is no value.
    fn maybe(&mut self) -> Result<Option<u64>, Ended> {
        let number = self.next().ok_or(Ended)?;
        Ok((number >= 0.0).then_some(number as u64))
    }

    fn signed(&mut self) -> Option<i64> {
        self.next().map(|number| number as i64)
    }

    /// The same.
    fn moment_or_never(&mut self) -> Result<Option<i64>, Ended> {
        let number = self.next().ok_or(Ended)?;
        Ok((number > NEVER).then_some(number as i64))
    }

    const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{MAX_SPAN_MS, MAX_TOKENS};

    #[test]
    fn a_question_comes_back_as_it_was() {
        let verbs = [
            Verb::Consume,
            Verb::Reserve { max_wait_ms: None },
            Verb::Reserve { max_wait_ms: Some(0) },
            Verb::Borrow { max_wait_ms: Some(MAX_TOKENS) },
            Verb::Charge,
            Verb::ConsumeUpTo,
            Verb::Refund,
            Verb::Reset,
        ];
        let actions = verbs.iter().flat_map(|&verb| [Action::Look(verb), Action::Take(verb), Action::Reserve(verb)]);
        let request_id = |is_lasting| Some(RequestId { id: u128::MAX - 5, fingerprint: u64::MAX - 7, is_lasting });
        for action in actions.chain([Action::Hold, Action::Settle(0), Action::Settle((1 << 52) - 1), Action::Cancel(7)])
        {
            for request_id in [None, request_id(false), request_id(true)] {
                for costs in [vec![], vec![vec![]], vec![vec![0, MAX_TOKENS], vec![1]]] {
                    let request = ObjectRequest { action, request_id, costs };
                    assert_eq!(ObjectRequest::from_numbers(&request.to_numbers()), Some(request));
                }
            }
        }
    }

    #[test]
    fn an_answer_comes_back_as_it_was() {
        let limit = |decision, remaining, owed, reset_at, (tokens, drops, at)| {
            let snapshot = Snapshot { tokens, drops, at };
            LimitAnswer { decision, remaining, owed, reset_at, snapshot }
        };
        let most = MAX_TOKENS.cast_signed();
        let limits = vec![
            limit(Decision::Allow { tokens: MAX_TOKENS, ready_at: -5 }, 3, 0, Some(-1), (most, 0, -1)),
            limit(Decision::Wait { retry_at: 1_700_000_000_000 }, 0, 9, None, (-most, MAX_SPAN_MS - 1, -most)),
            limit(Decision::Never { max: 2 }, 0, 0, Some(0), (-1, 7, most)),
        ];
        for reservation in [None, Some(Reserved { id: 0, expires_at: -1 })] {
            let limits = limits.clone();
            let decided = Decided { now: -7, is_replayed: true, open_reservations: 4, reservation, limits };
            let reply = ObjectReply::Decided(decided);
            assert_eq!(ObjectReply::from_numbers(&reply.to_numbers()), Some(reply));
        }
        for reply in
            [ObjectReply::NoReservation, ObjectReply::RequestIdReused, ObjectReply::TooManyReservations { max: 9 }]
        {
            assert_eq!(ObjectReply::from_numbers(&reply.to_numbers()), Some(reply));
        }
    }

    #[test]
    fn numbers_of_another_format_are_none() {
        let request = ObjectRequest { action: Action::Hold, request_id: None, costs: vec![vec![1]] }.to_numbers();
        assert_eq!(ObjectRequest::from_numbers(&[&[1.0], &request[1..]].concat()), None);
        assert_eq!(ObjectRequest::from_numbers(&request[..3]), None);
        assert_eq!(ObjectRequest::from_numbers(&request[..request.len() - 1]), None);
        assert_eq!(ObjectReply::from_numbers(&[1.0, 1.0]), None);
        assert_eq!(ObjectReply::from_numbers(&[2.0, 4.0]), None);
        assert_eq!(ObjectReply::from_numbers(&[]), None);
    }
}
