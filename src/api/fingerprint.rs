//! The meaning of a request in 64 bits, so that an `Idempotency-Key` is valid for one request only.
//!
//! It is computed from the request as the client wrote it, not from the frontend's interpretation. So it stays the same when a deployment
//! changes the policies or the protocol, and a client may repeat its request after that.

use sha2::{Digest, Sha256};

use super::cost::Cost;
use super::endpoint::Endpoint;
use super::request::{Item, Request};
use crate::limit::Verb;
use crate::protocol::Action;

impl Request<'_> {
    /// The fingerprint of the request: the endpoint, the mode with its longest wait or the reservation, and for each item the policy, the
    /// key's object and the cost. `object_names` are the objects of the items, in their order, and stand for the keys. Limits in an item
    /// count by their meaning, not their spelling. The order of items and costs does not count, nor does `snapshot`, which changes only the
    /// response.
    ///
    /// Frontends of neighbouring versions must agree on it, and objects keep it with each replay. Another encoding needs
    /// another version.
    #[must_use]
    pub fn fingerprint(&self, object_names: &[String]) -> u64 {
        // No two items are equal: such a batch is refused.
        let items = self.items.iter().zip(object_names).map(|(item, name)| self.encode(item, name));
        let mut hash = Sha256::new_with_prefix(VERSION);
        hash.update(text(self.endpoint.path()));
        hash.update(self.encode_action());
        for item in sorted(items) {
            hash.update(item);
        }
        hash.finalize().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// The mode, and its longest wait if it waits, or the reservation.
    fn encode_action(&self) -> Vec<u8> {
        let (mode, number) = match self.action {
            Action::Reserve(verb) | Action::Take(verb) | Action::Look(verb) => match verb {
                Verb::Reserve { max_wait_ms } => ("reserve", max_wait_ms),
                Verb::Borrow { max_wait_ms } => ("borrow", max_wait_ms),
                Verb::ConsumeUpTo => ("up_to", None),
                Verb::Consume | Verb::Charge | Verb::Refund | Verb::Reset => ("", None),
            },
            Action::Settle(id) | Action::Cancel(id) | Action::Extend(id) => ("", Some(id)),
            Action::Hold(_) => ("", None),
        };
        let mut bytes = text(mode);
        bytes.extend(number.map_or(0, |number| number.saturating_add(1)).to_le_bytes());
        bytes
    }

    fn encode(&self, item: &Item<'_>, object_name: &str) -> Vec<u8> {
        let mut bytes = [text(&item.policy), text(object_name)].concat();
        let is_free = matches!(
            self.endpoint,
            Endpoint::Reset
                | Endpoint::ResetKey
                | Endpoint::Inspect
                | Endpoint::Settle
                | Endpoint::Cancel
                | Endpoint::Extend
        );
        match item.cost.as_ref().or((!is_free).then_some(&Cost::DEFAULT)) {
            None => bytes.push(0),
            Some(Cost::Each(cost)) => {
                bytes.push(1);
                bytes.extend(cost.to_le_bytes());
            }
            Some(Cost::ByLimit(costs)) => {
                bytes.push(2);
                for (name, cost) in sorted(costs.iter()) {
                    bytes.extend(text(name));
                    bytes.extend(cost.to_le_bytes());
                }
                bytes.extend(END);
            }
        }
        if let Some(policy) = &item.inline {
            // Not the length of the next item's first text: with the numbers' length after it, that would exceed any body.
            bytes.push(INLINE);
            bytes.extend(text(policy.numbers()));
        }
        bytes
    }
}

const VERSION: &str = "tollgate fingerprint 1\n";

/// A text after its length, so that different lists of texts have different encodings. None is 4 GiB long.
fn text(text: &str) -> Vec<u8> {
    let len = u32::try_from(text.len()).unwrap_or(u32::MAX);
    [&len.to_le_bytes(), text.as_bytes()].concat()
}

/// Sorted, without duplicates. For short lists: the library's sort is more code than this file.
fn sorted<T: Ord>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut sorted = Vec::new();
    for item in items {
        if let Err(position) = sorted.binary_search(&item) {
            sorted.insert(position, item);
        }
    }
    sorted
}

const INLINE: u8 = 3;

/// After the last named cost: not a valid length.
const END: [u8; 4] = [0xff; 4];

#[cfg(test)]
mod tests {
    use super::*;

    /// The fingerprint of a request whose keys are the names of their objects.
    fn of(endpoint: Endpoint, body: &str) -> u64 {
        let request = Request::parse(endpoint, body.as_bytes()).unwrap();
        let names: Vec<_> = request
            .items
            .iter()
            .map(|item| String::from_utf8(item.key.as_ref().unwrap().to_bytes(64)).unwrap())
            .collect();
        request.fingerprint(&names)
    }

    fn consume(more: &str) -> u64 {
        of(Endpoint::Consume, &format!(r#"{{"policy":"api","key":"alice"{more}}}"#))
    }

    /// Frontends of neighbouring versions must agree, and objects have stored it. If this changes, so must [`VERSION`], and a request that
    /// is repeated during the roll-out gets a 422.
    #[test]
    fn the_fingerprint_is_unchanged() {
        assert_eq!(consume(""), 0x2c6d_35af_272f_ad26);
        let more = r#","mode":"reserve","max_wait_ms":5,"cost":{"a":2,"b":3}"#;
        assert_eq!(consume(more), 0x1c15_cadc_a41a_10ec);
        let settle = r#"{"policy":"api","key":"alice","reservation":"00000000000ff"}"#;
        assert_eq!(of(Endpoint::Settle, settle), 0x7b2c_02ad_d3d2_6183);
        assert_eq!(consume(r#","limits":"9/1m""#), 0x3909_d479_d8ec_3370);
        let batch = r#"{"requests":[{"policy":"a","key":"x"},{"policy":"b","key":"y","cost":7}]}"#;
        assert_eq!(of(Endpoint::Batch, batch), 0xdbaf_e9ec_a45f_c4da);
    }

    #[test]
    fn equivalent_requests_have_one_fingerprint() {
        for (one, other) in [
            ("", r#","cost":1"#),
            ("", r#","mode":"take""#),
            ("", r#","snapshot":true"#),
            (r#","cost":1"#, r#","cost":1.0"#),
            (r#","cost":{"a":2,"b":3}"#, r#","cost":{"b":3,"a":2}"#),
            (r#","limits":"9/1m""#, r#","limits":{"period":"60s","rate":9.0}"#),
        ] {
            assert_eq!(consume(one), consume(other), "{one} {other}");
        }
        let batch = |items: [&str; 2]| of(Endpoint::Batch, &format!(r#"{{"requests":[{}]}}"#, items.join(",")));
        let items = [r#"{"policy":"a","key":"x"}"#, r#"{"policy":"b","key":"x","cost":2}"#];
        assert_eq!(batch(items), batch([items[1], items[0]]));
    }

    #[test]
    fn different_requests_have_different_fingerprints() {
        let mut all = Vec::new();
        for more in [
            "",
            r#","cost":0"#,
            r#","cost":2"#,
            r#","cost":{"a":1}"#,
            r#","cost":{"a":1,"b":1}"#,
            r#","cost":{"a":1,"b":2}"#,
            r#","cost":{"a":2,"b":1}"#,
            r#","cost":{}"#,
            r#","mode":"up_to""#,
            r#","mode":"reserve""#,
            r#","mode":"reserve","max_wait_ms":0"#,
            r#","mode":"reserve","max_wait_ms":1"#,
            r#","mode":"borrow""#,
            r#","mode":"borrow","max_wait_ms":1"#,
            r#","limits":"9/1m""#,
            r#","limits":"8/1m""#,
            r#","limits":[{"name":"a","rate":"9/1m"}]"#,
        ] {
            all.push((more.to_owned(), consume(more)));
        }
        for (policy, key) in [("api", "bob"), ("other", "alice"), ("apia", "lice")] {
            let body = format!(r#"{{"policy":"{policy}","key":"{key}"}}"#);
            all.push((body.clone(), of(Endpoint::Consume, &body)));
        }
        let body = r#"{"policy":"api","key":"alice"}"#;
        for endpoint in [Endpoint::Peek, Endpoint::Charge, Endpoint::Refund, Endpoint::Reset, Endpoint::Inspect] {
            all.push((format!("{endpoint:?}"), of(endpoint, body)));
        }
        for more in [r#""reservation":"1""#, r#""reservation":"2""#, r#""reservation":"1","cost":1"#] {
            let body = format!(r#"{{"policy":"api","key":"alice",{more}}}"#);
            all.push((format!("settle {more}"), of(Endpoint::Settle, &body)));
            if !more.contains("cost") {
                all.push((format!("cancel {more}"), of(Endpoint::Cancel, &body)));
            }
        }
        for items in [
            r#"{"policy":"api","key":"alice"}"#,
            r#"{"policy":"api","key":"alice"},{"policy":"api","key":"bob"}"#,
            r#"{"policy":"api","key":"alice","cost":2},{"policy":"api","key":"bob"}"#,
            r#"{"policy":"api","key":"alice"},{"policy":"api","key":"bob","cost":2}"#,
        ] {
            all.push((items.to_owned(), of(Endpoint::Batch, &format!(r#"{{"requests":[{items}]}}"#))));
        }
        for (index, (name, one)) in all.iter().enumerate() {
            let same = all.iter().take(index).find(|(_, other)| other == one);
            assert_eq!(same, None, "{name}");
        }
    }
}
