//! What operators do with one key, as far as it is not a [`Call`](super::call::Call). `keys.mjs` calls this.

use std::sync::Arc;

use js_sys::Array;
use wasm_bindgen::prelude::{JsValue, wasm_bindgen};

use super::clock;
use super::frontend::{Frontend, text_of};
use super::route::{caller, permitted, target};
use crate::access::{Caller, key_hash_in};
use crate::api::{
    AdminQuestion, BlockRequest, InspectKeyRequest, KeyQuestion, Problem, Reply, key_act, merged_key_states,
};
use crate::frontend::Target;
use crate::policy::{MAX_SHARDS, Policy};

#[wasm_bindgen]
#[expect(clippy::needless_pass_by_value, reason = "wasm-bindgen has no optional texts by reference")]
#[expect(clippy::unused_self, reason = "only calls on an object revive an instance that has panicked")]
impl Frontend {
    /// What to do about a request to inspect a key: the text of a reply, or the names of the key's objects, each with a question to it,
    /// whose answer is a text for [`Frontend::inspected`]: object, question, object, question, ...
    #[must_use]
    pub fn inspect_key(&self, authorization: Option<String>, body: &[u8]) -> JsValue {
        match self.key_questions(authorization.as_deref(), body) {
            Ok(questions) => {
                let parts = questions.into_iter().flat_map(|(object, question)| [object, question.to_text()]);
                parts.map(JsValue::from).collect::<Array>().into()
            }
            Err(problem) => text_of(&problem).into(),
        }
    }

    /// The reply, from the answers in the order of the questions.
    #[must_use]
    pub fn inspected(&self, answers: Vec<String>) -> String {
        merged_key_states(&answers)
    }

    /// What to do about a request to block a key: see [`Frontend::administer`].
    #[must_use]
    pub fn block_key(&self, authorization: Option<String>, body: &[u8]) -> JsValue {
        match self.block_question(authorization.as_deref(), body) {
            Ok(question) => Array::of2(&question.into(), &true.into()).into(),
            Err(problem) => text_of(&problem).into(),
        }
    }

    /// The act to be recorded, a text, after a request to `url` about the key of this object was answered so; `undefined` if
    /// nothing was done.
    #[must_use]
    pub fn key_act(&self, url: &str, authorization: Option<String>, object: &str, reply: &str) -> Option<String> {
        let by = caller(self.settings().ok()?, authorization.as_deref());
        // It was done, whatever the caller may do now.
        let by = by.as_ref().map_or("a former token", Caller::name);
        let Ok(Target::Endpoint(endpoint)) = target(url) else { return None };
        key_act(endpoint, by, key_hash_in(object), reply).map(|act| act.to_text())
    }

    /// The reply, a text, which says whether the act was recorded.
    #[must_use]
    pub fn recorded(&self, reply: &str, is_recorded: bool) -> String {
        Reply::recorded(reply, is_recorded)
    }
}

impl Frontend {
    fn key_questions(&self, authorization: Option<&str>, body: &[u8]) -> Result<Vec<(String, KeyQuestion)>, Problem> {
        let settings = self.settings()?;
        let (caller, _) = permitted(settings, authorization, Target::InspectKey)?;
        let request = InspectKeyRequest::parse(body)?;
        let key = request.key();
        let (all, now) = (settings.policies(), clock::now());
        // A bucket whose policy depends on the key's text is shown under the one that it was last asked under.
        let is_clear = |policy: &Arc<Policy>| !request.is_by_hash() || !all.has_prefixes(policy.name());
        let may_use = |policy: &Arc<Policy>| caller.may_use(policy.name()).is_ok();
        let policies: Vec<_> = all.iter().filter(|policy| may_use(policy) && is_clear(policy)).collect();
        let as_of = settings.as_of(policies.iter().map(|policy| policy.name())).unwrap_or(0);
        let policies: Vec<_> = policies.into_iter().map(|policy| all.for_key(policy, &key, now)).collect();
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
            (settings.names.shard_name(&key, shard), question)
        });
        // The key's own object has more than the policies of now.
        Ok(questions
            .enumerate()
            .filter(|(index, (_, question))| *index == 0 || !question.policies.is_empty())
            .map(|(_, one)| one)
            .collect())
    }

    fn block_question(&self, authorization: Option<&str>, body: &[u8]) -> Result<String, Problem> {
        let settings = self.settings()?;
        let (caller, _) = permitted(settings, authorization, Target::BlockKey)?;
        let block = BlockRequest::parse(body)?;
        caller.may_use(&block.policy)?;
        if settings.snapshot.is_none() {
            return Err(Problem::NoRegistry);
        }
        let question = AdminQuestion {
            method: "PUT".into(),
            path: "/v1/overrides".into(),
            if_match: None,
            if_none_match: None,
            by: caller.name().into(),
            only: caller.policies().map(<[String]>::to_vec),
            body: block.overrides(clock::now()).into(),
        };
        Ok(question.to_text())
    }
}
