//! The questions to the objects of an inspected key.

use std::sync::Arc;

use super::Now;
use super::settings::Settings;
use crate::access::{Caller, key_hash_in, shard_name};
use crate::api::{InspectKeyRequest, KeyQuestion, Problem};
use crate::policy::{MAX_SHARDS, Policy};

/// The questions for the objects of an inspected key, by object name.
pub(super) fn questions(
    settings: &Settings,
    caller: &Caller<'_>,
    body: &[u8],
    now: Now,
) -> Result<Vec<(String, KeyQuestion)>, Problem> {
    let request = InspectKeyRequest::parse(body)?;
    let (key, in_force) = (request.key(), settings.in_force(None));
    let all = in_force.policies();
    // A bucket whose policy depends on the key's text is shown under the policy of its last request.
    let is_clear = |policy: &Arc<Policy>| !request.is_by_hash() || !all.has_prefixes(policy.name());
    let may_use = |policy: &Arc<Policy>| caller.may_use(policy.name()).is_ok();
    let policies: Vec<_> = all.iter().filter(|policy| may_use(policy) && is_clear(policy)).collect();
    let as_of = in_force.as_of(policies.iter().map(|policy| policy.name())).unwrap_or(0);
    let policies: Vec<_> = policies.into_iter().map(|policy| all.for_key(policy, &key, now.at)).collect();
    let object = settings.names.object_name(&key);
    let questions = (0..MAX_SHARDS).map(|shard| {
        let part = |policy: &Arc<Policy>| match policy.shards() {
            [] => Some(Arc::clone(policy)).filter(|_| shard == 0),
            shards => shards.get(usize::from(shard)).cloned(),
        };
        let question = KeyQuestion {
            object: key_hash_in(&object).to_owned(),
            as_of,
            only: caller.policies().map(<[String]>::to_vec),
            policies: policies.iter().filter_map(part).collect(),
        };
        (shard_name(&object, shard), question)
    });
    // The key's own object has more than the current policies.
    Ok(questions
        .enumerate()
        .filter(|(index, (_, question))| *index == 0 || !question.policies.is_empty())
        .map(|(_, one)| one)
        .collect())
}
