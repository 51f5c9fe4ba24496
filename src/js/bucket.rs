//! The class.

use wasm_bindgen::prelude::wasm_bindgen;

use super::fault::{Fault, value_or_throw};
use super::host::{Bytes, byte_at, set_byte, throw_faults};
use super::number::{f64_from_i64, f64_from_u64, moment_from_f64, u8_from_f64, u64_from_f64};
use crate::limit::{Config, Decision, Kind, Limit, Record, State, Verb, encode};

/// One limit, and how much of it one key has used.
///
/// Every number is a whole one. Moments (`now`, `readyAt`, `retryAt`) are Unix milliseconds, from any clock; one that
/// steps back by up to a minute counts as standing still, and after a larger step the bucket goes on from the new time.
/// Costs and capacities are tokens, 0 to `Number.MAX_SAFE_INTEGER`. What is not such a number is refused with an error,
/// and changes nothing: a `RangeError` with a `code` such as `"cost_too_large"`, and `min` and `max`, between which the
/// number has to be. Arguments of other types are converted as JavaScript does for `Math`: `"5"` is 5.
///
/// A method that asks for tokens returns whether it got them. More about the last such answer is in `tokens` and
/// `readyAt` if it was yes, in `retryAt` if it was "not now", and in `maxCost` if it was "never"; whichever does not
/// apply is `undefined`. When two such calls matter, read these between them.
///
/// ```js
/// const bucket = Bucket.tokenBucket(Date.now(), 10, 1000, 20); // 10 per second, at most 20 at once
/// const now = Date.now();
/// if (bucket.consume(now)) send();
/// else if (bucket.retryAt !== undefined) setTimeout(tryAgain, bucket.retryAt - now);
/// ```
#[wasm_bindgen]
#[derive(Debug)]
pub struct Bucket {
    limit: Limit,
    state: State,
    answer: Option<Decision>,
}

#[wasm_bindgen]
impl Bucket {
    /// A token bucket: `rate` tokens come back in each `periodMs` milliseconds, evenly, one by one.
    ///
    /// `capacity` is the most it holds, and so the largest burst (as many as `rate`, if not given); `maxDebt`, how many
    /// tokens may be owed after `reserve`, `borrow` and `charge` (0); `initial`, how many are in it now (`capacity`).
    #[wasm_bindgen(js_name = tokenBucket, unchecked_return_type = "Bucket")]
    pub fn token_bucket(
        now: f64,
        rate: f64,
        #[wasm_bindgen(js_name = periodMs)] period_ms: f64,
        capacity: Option<f64>,
        #[wasm_bindgen(js_name = maxDebt)] max_debt: Option<f64>,
        initial: Option<f64>,
    ) -> Option<Bucket> {
        let numbers = Numbers { rate, period_ms, capacity, max_debt, initial, offset_ms: None };
        value_or_throw(numbers.bucket(Kind::TokenBucket, now).map(Some), None)
    }

    /// A fixed window: `rate` tokens come at once when a window of `periodMs` milliseconds opens.
    ///
    /// `capacity`, `maxDebt` and `initial` are those of `tokenBucket`; with a `capacity` above `rate`, unused tokens
    /// roll over. Windows begin `offsetMs` after the Unix epoch (0) and every period from there. Give each client
    /// another `offsetMs`, such as a hash of its key modulo `periodMs`, or all of them come back at the same moment.
    #[wasm_bindgen(js_name = fixedWindow, unchecked_return_type = "Bucket")]
    pub fn fixed_window(
        now: f64,
        rate: f64,
        #[wasm_bindgen(js_name = periodMs)] period_ms: f64,
        capacity: Option<f64>,
        #[wasm_bindgen(js_name = maxDebt)] max_debt: Option<f64>,
        initial: Option<f64>,
        #[wasm_bindgen(js_name = offsetMs)] offset_ms: Option<f64>,
    ) -> Option<Bucket> {
        let numbers = Numbers { rate, period_ms, capacity, max_debt, initial, offset_ms };
        value_or_throw(numbers.bucket(Kind::FixedWindow, now).map(Some), None)
    }

    /// Takes `cost` tokens (1) now, or none. Use this to drop excess work; to delay it instead, `reserve`.
    ///
    /// A cost of 0 takes nothing, and is refused while the bucket is in debt.
    pub fn consume(&mut self, now: f64, cost: Option<f64>) -> bool {
        value_or_throw(self.ask(now, cost, Verb::Consume), false)
    }

    /// Answers as `consume` would, and takes nothing.
    pub fn peek(&mut self, now: f64, cost: Option<f64>) -> bool {
        let state = self.state;
        let answer = self.ask(now, cost, Verb::Consume);
        self.state = state;
        value_or_throw(answer, false)
    }

    /// Takes `cost` tokens (1) in advance, to be used from `readyAt` on, when they will have come back.
    ///
    /// Refused if that is more than `maxWaitMs` away, or owes more than `maxDebt`. A `maxWaitMs` of 0 is now or not at
    /// all; without one it may take however long.
    pub fn reserve(
        &mut self,
        now: f64,
        cost: Option<f64>,
        #[wasm_bindgen(js_name = maxWaitMs)] max_wait_ms: Option<f64>,
    ) -> bool {
        let verb = optional("maxWaitMs", max_wait_ms).map(|max_wait_ms| Verb::Reserve { max_wait_ms });
        value_or_throw(verb.and_then(|verb| self.ask(now, cost, verb)), false)
    }

    /// Takes `cost` tokens (1) to be used from `readyAt` on, which is as soon as earlier debt is paid: this cost delays
    /// whoever comes next. Refused as `reserve` is.
    pub fn borrow(
        &mut self,
        now: f64,
        cost: Option<f64>,
        #[wasm_bindgen(js_name = maxWaitMs)] max_wait_ms: Option<f64>,
    ) -> bool {
        let verb = optional("maxWaitMs", max_wait_ms).map(|max_wait_ms| Verb::Borrow { max_wait_ms });
        value_or_throw(verb.and_then(|verb| self.ask(now, cost, verb)), false)
    }

    /// Takes what is there, at most `cost` tokens (1); `tokens` says how many. Refused when there is not even one.
    #[wasm_bindgen(js_name = consumeUpTo)]
    pub fn consume_up_to(&mut self, now: f64, cost: Option<f64>) -> bool {
        value_or_throw(self.ask(now, cost, Verb::ConsumeUpTo), false)
    }

    /// Debits `cost` tokens (1) that were already used, down to a debt of `maxDebt`. Use this for a cost that is known
    /// only afterwards. Never refused; `tokens` says how many were debited.
    pub fn charge(&mut self, now: f64, cost: Option<f64>) {
        value_or_throw(self.ask(now, cost, Verb::Charge).map(drop), ());
    }

    /// Gives `cost` tokens (1) back, up to the capacity. Use this for work that was cancelled. Never refused; `tokens`
    /// says how many were given back.
    pub fn refund(&mut self, now: f64, cost: Option<f64>) {
        value_or_throw(self.ask(now, cost, Verb::Refund).map(drop), ());
    }

    /// Makes the bucket full. Never refused; `tokens` says how many were missing.
    pub fn reset(&mut self, now: f64) {
        value_or_throw(self.ask(now, None, Verb::Reset).map(drop), ());
    }

    /// How many whole tokens were taken, or given back by `refund` and `reset`. `undefined` if the last answer was no.
    #[wasm_bindgen(getter)]
    #[must_use]
    pub fn tokens(&self) -> Option<f64> {
        match self.answer {
            Some(Decision::Allow { tokens, .. }) => Some(f64_from_u64(tokens)),
            _ => None,
        }
    }

    /// From when the tokens may be used: the `now` of the call, or later after `reserve` and `borrow`. `undefined` if
    /// the last answer was no.
    #[wasm_bindgen(getter, js_name = readyAt)]
    #[must_use]
    pub fn ready_at(&self) -> Option<f64> {
        match self.answer {
            Some(Decision::Allow { ready_at, .. }) => Some(f64_from_i64(ready_at)),
            _ => None,
        }
    }

    /// The first moment at which the same call would be granted, if nobody else asks. `undefined` if the last answer
    /// was not "not now".
    #[wasm_bindgen(getter, js_name = retryAt)]
    #[must_use]
    pub fn retry_at(&self) -> Option<f64> {
        match self.answer {
            Some(Decision::Wait { retry_at }) => Some(f64_from_i64(retry_at)),
            _ => None,
        }
    }

    /// The largest cost that could ever be granted to the same call. `undefined` if the last answer was not "never".
    #[wasm_bindgen(getter, js_name = maxCost)]
    #[must_use]
    pub fn max_cost(&self) -> Option<f64> {
        match self.answer {
            Some(Decision::Never { max }) => Some(f64_from_u64(max)),
            _ => None,
        }
    }

    /// How many whole tokens could be consumed; 0 when in debt.
    #[must_use]
    pub fn remaining(&self, now: f64) -> f64 {
        value_or_throw(moment_from_f64(now).map(|now| f64_from_u64(self.limit.remaining(&self.state, now))), 0.0)
    }

    /// How many tokens are owed, a part of one counted as one; 0 when not in debt.
    #[must_use]
    pub fn owed(&self, now: f64) -> f64 {
        value_or_throw(moment_from_f64(now).map(|now| f64_from_u64(self.limit.owed(&self.state, now))), 0.0)
    }

    /// The first moment, `now` or later, at which the bucket is full if nobody asks; `undefined` if it never will be.
    #[wasm_bindgen(js_name = fullAt)]
    #[must_use]
    pub fn full_at(&self, now: f64) -> Option<f64> {
        value_or_throw(moment_from_f64(now).map(|now| self.limit.full_at(&self.state, now).map(f64_from_i64)), None)
    }

    /// Writes the state into `bytes`, a `Uint8Array` of 25, for `restore`.
    ///
    /// `version` is any number, 0 to `Number.MAX_SAFE_INTEGER`, that changes whenever the limit's numbers do: a level
    /// that was counted under other numbers means something else.
    pub fn save(&self, bytes: &Bytes, version: f64) {
        value_or_throw(self.write(bytes, version), ());
    }

    /// Takes over a state that `save` wrote under the same `version`.
    ///
    /// Throws a `TypeError` for anything else, with the `code` `"state_version_mismatch"` if only the version is
    /// another, `"state_format_unknown"` if another version of this library wrote it, or `"state_malformed"`.
    pub fn restore(&mut self, bytes: &Bytes, version: f64) {
        value_or_throw(read(bytes, version).map(|state| self.state = state), ());
    }

    fn ask(&mut self, now: f64, cost: Option<f64>, verb: Verb) -> Result<bool, Fault> {
        let now = moment_from_f64(now)?;
        let cost = u64_from_f64("cost", cost.unwrap_or(1.0))?;
        let (decision, state) = self.limit.decide(self.state, now, cost, verb);
        self.state = state;
        self.answer = Some(decision);
        Ok(decision.is_allow())
    }

    fn write(&self, bytes: &Bytes, version: f64) -> Result<(), Fault> {
        let version = u64_from_f64("version", version)?;
        let mut record = (0..).zip(encode(version, [self.state]));
        if record.all(|(i, byte)| set_byte(bytes, i, byte)) && byte_at(bytes, STATE_LEN).is_nan() {
            Ok(())
        } else {
            Err(Fault::StateMalformed)
        }
    }
}

/// Makes the methods of [`Bucket`] throw what is wrong with their arguments. Runs by itself when the module is
/// initialised; only wasm-bindgen's test runner leaves that out, so there one calls it, once.
#[wasm_bindgen(start, private)]
pub fn start() {
    let numbers = Numbers { rate: 0.0, period_ms: 1.0, capacity: None, max_debt: None, initial: None, offset_ms: None };
    if let Ok(bucket) = numbers.bucket(Kind::TokenBucket, 0.0) {
        throw_faults(bucket);
    }
}

fn read(bytes: &Bytes, version: f64) -> Result<State, Fault> {
    let version = u64_from_f64("version", version)?;
    let mut record = [0; STATE_LEN as usize];
    for (i, byte) in (0..).zip(&mut record) {
        *byte = u8_from_f64(byte_at(bytes, i)).ok_or(Fault::StateMalformed)?;
    }
    if !byte_at(bytes, STATE_LEN).is_nan() {
        return Err(Fault::StateMalformed);
    }
    let record = Record::parse(&record)?;
    if record.policy_version() != version {
        return Err(Fault::StateVersionMismatch);
    }
    record.states().next().ok_or(Fault::StateMalformed)
}

/// A limit's numbers as JavaScript gives them.
struct Numbers {
    rate: f64,
    period_ms: f64,
    capacity: Option<f64>,
    max_debt: Option<f64>,
    initial: Option<f64>,
    offset_ms: Option<f64>,
}

impl Numbers {
    fn bucket(&self, kind: Kind, now: f64) -> Result<Bucket, Fault> {
        let now = moment_from_f64(now)?;
        let rate = u64_from_f64("rate", self.rate)?;
        let limit = Limit::new(&Config {
            kind,
            rate,
            period_ms: u64_from_f64("periodMs", self.period_ms)?,
            capacity: optional("capacity", self.capacity)?.unwrap_or(rate),
            max_debt: optional("maxDebt", self.max_debt)?.unwrap_or(0),
            initial: optional("initial", self.initial)?,
            offset_ms: optional("offsetMs", self.offset_ms)?,
        })?;
        Ok(Bucket { limit, state: limit.new_state(now, 0), answer: None })
    }
}

fn optional(name: &'static str, value: Option<f64>) -> Result<Option<u64>, Fault> {
    value.map(|value| u64_from_f64(name, value)).transpose()
}

/// The length of a record with one state.
const STATE_LEN: u32 = 25;

#[wasm_bindgen(typescript_custom_section)]
const ERRORS: &str = r#"
/** What a `Bucket` throws for its arguments: a `RangeError` for a number, a `TypeError` for a state. */
export interface BucketError extends Error {
  /** What was wrong with what, in words that do not change. */
  readonly code:
    | `${BucketParameter}_${"not_whole" | "too_small" | "too_large"}`
    | "state_format_unknown" | "state_malformed" | "state_version_mismatch";
  /** The smallest that the number could be. */
  readonly min?: number;
  /** The largest that the number could be. */
  readonly max?: number;
}
export type BucketParameter =
  | "now" | "cost" | "max_wait_ms" | "version"
  | "rate" | "period_ms" | "capacity" | "max_debt" | "initial" | "offset_ms";
"#;

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBERS: Numbers =
        Numbers { rate: 3.0, period_ms: 1000.0, capacity: None, max_debt: None, initial: None, offset_ms: None };

    fn bucket() -> Bucket {
        NUMBERS.bucket(Kind::TokenBucket, 0.0).unwrap()
    }

    #[test]
    fn each_number_has_its_own_fault() {
        let two_53 = 9_007_199_254_740_992.0;
        let two_51 = 2_251_799_813_685_248.0;
        let table = [
            ("rate", 0.0, two_53 - 1.0, Numbers { rate: 0.5, ..NUMBERS }),
            ("periodMs", 0.0, two_53 - 1.0, Numbers { period_ms: f64::INFINITY, ..NUMBERS }),
            ("periodMs", 1.0, two_51, Numbers { period_ms: 0.0, ..NUMBERS }),
            ("periodMs", 1.0, two_51, Numbers { period_ms: two_51 + 1.0, ..NUMBERS }),
            ("capacity", 0.0, two_53 - 1.0, Numbers { capacity: Some(-1.0), ..NUMBERS }),
            ("capacity", 0.0, 1.0, Numbers { rate: 1.0, period_ms: two_51, capacity: Some(2.0), ..NUMBERS }),
            ("maxDebt", 0.0, two_53 - 1.0, Numbers { max_debt: Some(-1.0), ..NUMBERS }),
            ("maxDebt", 0.0, 0.0, Numbers { rate: 1.0, period_ms: two_51, max_debt: Some(1.0), ..NUMBERS }),
            ("initial", 0.0, 3.0, Numbers { initial: Some(4.0), ..NUMBERS }),
            ("offsetMs", 0.0, 999.0, Numbers { offset_ms: Some(1000.0), ..NUMBERS }),
        ];
        for (name, min, max, numbers) in table {
            match numbers.bucket(Kind::FixedWindow, 0.0) {
                Err(Fault::Number { name: named, min: smallest, max: largest, .. }) => {
                    assert_eq!((named, smallest, largest), (name, min, max));
                }
                other => panic!("{name}: {other:?}"),
            }
        }
        assert!(matches!(NUMBERS.bucket(Kind::TokenBucket, 0.5), Err(Fault::Number { name: "now", .. })));
    }

    #[test]
    fn an_answer_says_what_applies_and_nothing_else() {
        let said = |bucket: &Bucket| (bucket.tokens(), bucket.ready_at(), bucket.retry_at(), bucket.max_cost());
        let mut bucket = bucket();
        assert_eq!(said(&bucket), (None, None, None, None));
        assert_eq!(bucket.ask(0.0, Some(3.0), Verb::Consume), Ok(true));
        assert_eq!(said(&bucket), (Some(3.0), Some(0.0), None, None));
        assert_eq!(bucket.ask(0.0, None, Verb::Consume), Ok(false));
        assert_eq!(said(&bucket), (None, None, Some(334.0), None));
        assert_eq!(bucket.ask(0.0, Some(4.0), Verb::Consume), Ok(false));
        assert_eq!(said(&bucket), (None, None, None, Some(3.0)));
    }

    #[test]
    fn a_fault_leaves_the_bucket_and_the_last_answer_as_they_were() {
        let mut bucket = bucket();
        assert_eq!(bucket.ask(0.0, Some(2.0), Verb::Consume), Ok(true));
        assert!(bucket.ask(f64::NAN, None, Verb::Reset).is_err());
        assert!(bucket.ask(0.0, Some(1.5), Verb::Charge).is_err());
        assert_eq!((bucket.tokens(), bucket.remaining(0.0)), (Some(2.0), 1.0));
    }
}
