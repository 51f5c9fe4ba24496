//! A key's object without the runtime: answers frontends, text in, text out.

use std::rc::Rc;
use std::sync::Arc;

use super::call::SentRequest;
use super::environment::{Environment, own_policies};
use crate::api::{KeyQuestion, key_state};
use crate::ledger::{Kept, KeptError, Ledger, LedgerError, Storage};
use crate::policy::{Policies, Policy};
use crate::protocol::{Definitions, Format, Known, ObjectReply, ObjectRequest, Rows, Unreadable};

/// A key: its ledger, and the policies under which it decides.
#[derive(Debug)]
pub struct KeyService<S> {
    /// The policies of its own deployment.
    own: Arc<Policies>,
    /// The policies of the latest request: most requests for a key have the same.
    latest: Option<Asked>,
    kept: Kept<S>,
}

/// A request's policy names, ids and definitions, and the policies they stand for.
#[derive(Debug)]
struct Asked {
    names: String,
    ids: Vec<u64>,
    definitions: Option<String>,
    policies: Rc<[Arc<Policy>]>,
}

impl<S: Storage> KeyService<S> {
    /// The key of the object with that id in hexadecimal, and errors in the deployment's policies, for the log.
    ///
    /// # Errors
    /// Without randomness, which tells its rows from those that its predecessor had in flight when a panic replaced it.
    pub fn new(
        storage: S,
        id: &str,
        random: Option<u64>,
        env: &dyn Environment,
    ) -> Result<(Self, Vec<String>), LedgerError> {
        let random = random.ok_or_else(|| LedgerError::new("there is no randomness"))?;
        let kept = Kept::new(storage, Ledger::phase_of(id), (random >> 32) as u32);
        let (own, errors) = own_policies(env);
        Ok((Self { own, latest: None, kept }, errors))
    }

    /// Answers with an [`ObjectReply`] as text: see [`crate::protocol`]. `sent` are the definitions that the isolate knows.
    ///
    /// # Errors
    /// [`KeptError`].
    pub fn decide(
        &mut self,
        SentRequest { names, request, definitions }: SentRequest,
        sent: &mut Definitions,
        now: i64,
        random: impl FnMut() -> Option<u64>,
    ) -> Result<String, KeptError<S::Error>> {
        let (request, format) = match ObjectRequest::from_text(&request) {
            Ok(request) => request,
            Err(Unreadable::Format) => {
                let reply = ObjectReply::FormatUnknown { newest: Format::NEWEST.number().into() };
                return Ok(reply.to_text(Format::NEWEST, Rows::default()));
            }
            Err(Unreadable::Malformed) => return Err(LedgerError::new("the request's numbers are malformed").into()),
        };
        let Some(policies) = self.asked(&names, request.known.as_ref(), definitions, sent) else {
            return Ok(ObjectReply::PolicyUnknown.to_text(format, Rows::default()));
        };
        let reply = self.kept.ask(&policies, &request, now, random)?;
        Ok(reply.to_text(format, self.kept.take_rows()))
    }

    /// Answers a [`KeyQuestion`] with the key's state, both as text. Nothing is changed or written.
    ///
    /// # Errors
    /// [`KeptError`].
    pub fn inspect(&mut self, question: &str, now: i64) -> Result<String, KeptError<S::Error>> {
        let question = KeyQuestion::from_text(question);
        let question = question.ok_or_else(|| LedgerError::new("the question of a frontend cannot be read"))?;
        Ok(key_state(&question, &self.kept.inspect(&question.policies, question.as_of, now)?))
    }

    /// The ledger, for alarms, timers and persisted rows.
    pub const fn kept(&mut self) -> &mut Kept<S> {
        &mut self.kept
    }

    /// The policies under which to decide; `None` if unknown.
    fn asked(
        &mut self,
        names: &str,
        known: Option<&Known>,
        definitions: Option<String>,
        sent: &mut Definitions,
    ) -> Option<Rc<[Arc<Policy>]>> {
        let ids = known.map(|known| known.ids.as_slice()).unwrap_or_default();
        if let Some(latest) = &self.latest
            && latest.names == names
            && latest.ids == ids
            && latest.definitions == definitions
        {
            return Some(Rc::clone(&latest.policies));
        }
        let policies: Rc<[_]> = sent.asked(&self.own, names, known, definitions.as_deref())?.into();
        let (names, ids) = (names.to_owned(), ids.to_vec());
        self.latest = Some(Asked { names, ids, definitions, policies: Rc::clone(&policies) });
        Some(policies)
    }
}
