//! Under which policies an object decides.

use std::sync::Arc;

use crate::policy::{Policies, Policy};

/// The policies of these [wire names](Policy::wire_name), separated by commas: the object's own if it has them, so that
/// all frontends get the same decisions; else the frontend's, if it sent their [definitions](Policy::definition), one
/// to a line. `None` asks for the definitions: see [`PolicyUnknown`](super::ObjectReply::PolicyUnknown).
#[must_use]
pub fn policies_asked(own: &Policies, names: &str, definitions: Option<&str>) -> Option<Vec<Arc<Policy>>> {
    let mut definitions = definitions.unwrap_or_default().lines();
    let mut asked = Vec::new();
    for name in names.split(',') {
        let definition = definitions.next();
        asked.push(match own.by_wire_name(name) {
            Some(policy) => Arc::clone(policy),
            None => Arc::new(Policy::from_definition(definition?).ok().filter(|policy| policy.wire_name() == name)?),
        });
    }
    Some(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policies(json: &str) -> Policies {
        Policies::parse(json).unwrap()
    }

    #[test]
    fn an_object_decides_under_its_own_policies_and_takes_over_only_those_it_does_not_have() {
        let rate = |rate| format!(r#"{{"rate":{rate},"period":"1s"}}"#);
        let limit = |name, rate| format!(r#"{{"name":"{name}","rate":{rate},"period":"1s"}}"#);
        let list = |limits: &[String]| format!(r#"{{"limits":[{}]}}"#, limits.join(","));
        let (a, b) = (limit("a", 1), limit("b", 2));
        let older =
            policies(&format!(r#"{{"same":{},"list":{},"gone":{}}}"#, rate(5), list(&[a.clone(), b.clone()]), rate(7)));
        let newer = |list: &str| policies(&format!(r#"{{"same":{},"list":{list},"new":{}}}"#, rate(6), rate(8)));
        let asked = |own: &Policies, asked: &Policies, names: &[&str], sends: bool| {
            let policies: Vec<_> = names.iter().map(|name| asked.get(name).unwrap()).collect();
            let join = |of: fn(&Policy) -> String, with: &str| {
                policies.iter().map(|policy| of(policy)).collect::<Vec<_>>().join(with)
            };
            let names = join(|policy| policy.wire_name().to_owned(), ",");
            let definitions = sends.then(|| join(Policy::definition, "\n"));
            let found = policies_asked(own, &names, definitions.as_deref())?;
            let rates = found.iter().flat_map(|policy| policy.limits()).map(|limit| limit.limit().config().rate);
            Some(rates.collect::<Vec<_>>())
        };

        // Other numbers under the same names: the object's own.
        let as_before = newer(&list(&[a.clone(), b.clone()]));
        assert_eq!(asked(&older, &as_before, &["same", "list"], false), Some(vec![5, 1, 2]));
        assert_eq!(asked(&older, &as_before, &["same", "list"], true), Some(vec![5, 1, 2]));
        // A policy that it does not have, alone and among others; and so in the other direction.
        for (own, other, name, expected) in [(&older, &as_before, "new", [5, 8]), (&as_before, &older, "gone", [6, 7])]
        {
            assert_eq!(asked(own, other, &[name], false), None);
            assert_eq!(asked(own, other, &["same", name], false), None);
            assert_eq!(asked(own, other, &["same", name], true), Some(expected.to_vec()));
        }
        // Other limits: the costs are in their order.
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
        assert!(policies_asked(&own, "other", Some(&definition)).is_some());
        for (names, definitions) in [("others", definition.clone()), ("other,own", format!("{{}}\n{definition}"))] {
            assert!(policies_asked(&own, names, Some(&definitions)).is_none(), "{names}: {definitions}");
        }
    }
}
