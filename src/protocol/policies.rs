//! The policies under which an object decides.

use std::collections::VecDeque;
use std::sync::Arc;

use super::request::Known;
use crate::policy::{Policies, Policy};
use crate::sorted::SortedMap;

/// The policies in definitions from frontends, by id. All objects of an isolate share them.
#[derive(Debug, Default)]
pub struct Definitions {
    by_id: SortedMap<u64, Arc<Policy>>,
    /// Their ids, oldest first.
    ids: VecDeque<u64>,
}

impl Definitions {
    /// Maximum number kept. A policy takes about a kilobyte; a dropped one is sent again.
    pub const MAX: usize = 1_024;

    /// Starts without any.
    #[must_use]
    pub const fn new() -> Self {
        Self { by_id: SortedMap::new(), ids: VecDeque::new() }
    }

    /// The policies with these [names](names_of). Those with an id in `known` are the requested versions. The others are the object's own,
    /// if it has them, so that all frontends get the same decisions; else the frontend's, if it sent their
    /// [definitions](definitions_of). `None` requests the definitions: see [`PolicyUnknown`](super::ObjectReply::PolicyUnknown).
    #[must_use]
    pub fn asked(
        &mut self,
        own: &Policies,
        names: &str,
        known: Option<&Known>,
        definitions: Option<&str>,
    ) -> Option<Vec<Arc<Policy>>> {
        let mut definitions = definitions.unwrap_or_default().lines();
        let mut ids = known.map(|known| known.ids.as_slice()).unwrap_or_default().iter().copied();
        let mut asked = Vec::new();
        for name in names.split(',') {
            let (definition, id) = (definitions.next(), ids.next().filter(|&id| id != 0));
            let found = match id {
                Some(id) => self.by_id.get(&id).filter(|policy| policy.wire_name() == name),
                None => own.by_wire_name(name),
            };
            asked.push(match found {
                Some(policy) => Arc::clone(policy),
                None => self.learn(name, id, definition?)?,
            });
        }
        Some(asked)
    }

    /// The policy in that definition, if it is the requested one.
    fn learn(&mut self, name: &str, id: Option<u64>, definition: &str) -> Option<Arc<Policy>> {
        let policy = Policy::from_definition(definition).ok().map(Arc::new)?;
        if policy.wire_name() != name || id.is_some_and(|id| policy.id() != id) {
            return None;
        }
        if let Some(id) = id
            && self.by_id.insert(id, Arc::clone(&policy)).is_none()
        {
            self.ids.push_back(id);
            if self.ids.len() > Self::MAX
                && let Some(oldest) = self.ids.pop_front()
            {
                self.by_id.remove(&oldest);
            }
        }
        Some(policy)
    }
}

/// The [wire names](Policy::wire_name) of a request's policies, separated by commas.
pub fn names_of<'a>(policies: impl IntoIterator<Item = &'a Policy>) -> String {
    joined(policies.into_iter().map(Policy::wire_name), ',')
}

/// Their [definitions](Policy::definition), one to a line.
pub fn definitions_of<'a>(policies: impl IntoIterator<Item = &'a Policy>) -> String {
    joined(policies.into_iter().map(Policy::definition), '\n')
}

fn joined(texts: impl Iterator<Item = impl AsRef<str>>, separator: char) -> String {
    let mut all = String::new();
    for (index, text) in texts.enumerate() {
        if index > 0 {
            all.push(separator);
        }
        all.push_str(text.as_ref());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policies(json: &str) -> Policies {
        Policies::parse(json).unwrap()
    }

    #[test]
    fn an_object_keeps_its_own_policies_and_adopts_only_those_it_lacks() {
        let rate = |rate| format!(r#"{{"rate":{rate},"period":"1s"}}"#);
        let limit = |name, rate| format!(r#"{{"name":"{name}","rate":{rate},"period":"1s"}}"#);
        let list = |limits: &[String]| format!(r#"{{"limits":[{}]}}"#, limits.join(","));
        let (a, b) = (limit("a", 1), limit("b", 2));
        let older =
            policies(&format!(r#"{{"same":{},"list":{},"gone":{}}}"#, rate(5), list(&[a.clone(), b.clone()]), rate(7)));
        let newer = |list: &str| policies(&format!(r#"{{"same":{},"list":{list},"new":{}}}"#, rate(6), rate(8)));
        let asked = |own: &Policies, asked: &Policies, names: &[&str], sends: bool| {
            let policies = || names.iter().map(|name| &**asked.get(name).unwrap());
            let definitions = sends.then(|| definitions_of(policies()));
            let found = Definitions::new().asked(own, &names_of(policies()), None, definitions.as_deref())?;
            let rates = found.iter().flat_map(|policy| policy.limits()).map(|limit| limit.limit().config().rate);
            Some(rates.collect::<Vec<_>>())
        };

        // Other numbers under the same names: the object's own apply.
        let as_before = newer(&list(&[a.clone(), b.clone()]));
        assert_eq!(asked(&older, &as_before, &["same", "list"], false), Some(vec![5, 1, 2]));
        assert_eq!(asked(&older, &as_before, &["same", "list"], true), Some(vec![5, 1, 2]));
        // A policy that it lacks, alone and among others; and in the other direction.
        for (own, other, name, expected) in [(&older, &as_before, "new", [5, 8]), (&as_before, &older, "gone", [6, 7])]
        {
            assert_eq!(asked(own, other, &[name], false), None);
            assert_eq!(asked(own, other, &["same", name], false), None);
            assert_eq!(asked(own, other, &["same", name], true), Some(expected.to_vec()));
        }
        // Other limits: the costs are in the frontend's order.
        for (limits, expected) in [
            (vec![a.clone()], vec![1]),
            (vec![b.clone(), a.clone()], vec![2, 1]),
            (vec![a.clone(), b.clone(), limit("c", 3)], vec![1, 2, 3]),
        ] {
            let newer = newer(&list(&limits));
            assert_eq!(asked(&older, &newer, &["list"], false), None);
            assert_eq!(asked(&older, &newer, &["list"], true), Some(expected));
            assert_eq!(asked(&newer, &older, &["list"], false), None);
            assert_eq!(asked(&newer, &older, &["list"], true), Some(vec![1, 2]));
        }
    }

    #[test]
    fn a_definition_that_does_not_fit_its_name_is_not_used() {
        let own = policies(r#"{"own":{"rate":1,"period":"1s"}}"#);
        let other = policies(r#"{"other":{"rate":1,"period":"1s"}}"#);
        let definition = other.get("other").unwrap().definition();
        let asked = |names: &str, definitions: &str| Definitions::new().asked(&own, names, None, Some(definitions));
        assert!(asked("other", &definition).is_some());
        for (names, definitions) in [("others", definition.clone()), ("other,own", format!("{{}}\n{definition}"))] {
            assert!(asked(names, &definitions).is_none(), "{names}: {definitions}");
        }
    }

    #[test]
    fn a_registry_version_is_known_by_its_id_once_sent() {
        let own = policies(r#"{"p":{"rate":1,"period":"1s"}}"#);
        let version = |rate: u32, since| {
            let policies = policies(&format!(r#"{{"p":{{"rate":{rate},"period":"1s"}}}}"#));
            Policy::clone(policies.get("p").unwrap()).in_force_since(since)
        };
        let mut definitions = Definitions::new();
        let mut asked = |policy: &Policy, id: u64, sends: bool| {
            let (known, definition) = (Known { as_of: 9, ids: vec![id] }, policy.definition());
            let found = definitions.asked(&own, "p", Some(&known), sends.then_some(definition.as_str()))?;
            Some(found[0].limits()[0].limit().config().rate)
        };
        let (one, two) = (version(2, 5), version(3, 6));
        assert_eq!(asked(&one, 0, false), Some(1), "its own");
        assert_eq!(asked(&one, one.id(), false), None);
        assert_eq!(asked(&one, one.id(), true), Some(2));
        assert_eq!(asked(&one, one.id(), false), Some(2), "from now on");
        assert_eq!(asked(&one, two.id(), true), None, "a definition under another id");
        assert_eq!(asked(&two, two.id(), true), Some(3));
        for since in (0..).take(Definitions::MAX) {
            let policy = version(4, 100 + since);
            assert_eq!(asked(&policy, policy.id(), true), Some(4));
        }
        assert_eq!(asked(&two, two.id(), false), None, "only the latest are kept");
        assert_eq!(asked(&two, two.id(), true), Some(3));
    }
}
