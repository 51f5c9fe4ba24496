//! The registry's answers about policies.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::value::RawValue;

use super::super::problem::Problem;
use super::super::reply::Reply;
use super::super::text::shortened;
use super::{AdminQuestion, AdminReply};
use crate::json::Json;
use crate::protocol::{ChangeError, Changed, PolicyChange, Standing};

impl AdminQuestion<'_> {
    /// All policies that the token may name.
    ///
    /// # Errors
    /// None.
    pub fn policies(&self, as_of: i64, policies: impl Iterator<Item = Standing>) -> AdminReply {
        #[derive(Serialize)]
        struct Body<'a> {
            as_of: i64,
            policies: Vec<StandingBody<'a>>,
        }
        let policies: Vec<_> = policies.filter(|standing| self.may_name(standing.policy.name())).collect();
        let body = Body { as_of, policies: policies.iter().map(StandingBody::of).collect() };
        Ok(Reply::json(200, "application/json", &body))
    }

    /// One policy.
    ///
    /// # Errors
    /// [`Problem::UnknownPolicy`].
    pub fn policy(&self, name: &str, standing: Option<Standing>) -> AdminReply {
        let standing = standing.ok_or_else(|| unknown(name))?;
        Ok(Reply::json(200, "application/json", &StandingBody::of(&standing)).with("etag", etag(standing.version)))
    }

    /// The change, made or only tried.
    #[must_use]
    pub fn changed(&self, change: &PolicyChange<'_>, changed: &Changed) -> Reply {
        #[derive(Serialize)]
        struct Body<'a> {
            dry_run: bool,
            changes: &'a [String],
            policy: Option<StandingBody<'a>>,
        }
        let status = if changed.is_new && !change.is_dry_run { 201 } else { 200 };
        let policy = changed.standing.as_ref().map(StandingBody::of);
        let body = Body { dry_run: change.is_dry_run, changes: &changed.changes, policy };
        let reply = Reply::json(status, "application/json", &body);
        match &changed.standing {
            Some(standing) if !change.is_dry_run => reply.with("etag", etag(standing.version)),
            _ => reply,
        }
    }

    /// Acts from the audit log: of the policies that the token may name, and on the key with that hash, if given. `rows` are at most
    /// `limit`, or, for a key, all of them.
    #[must_use]
    pub fn audit(&self, rows: &[String], limit: usize, hash: Option<&str>) -> Reply {
        #[derive(Serialize)]
        struct Body<'a> {
            acts: Vec<&'a RawValue>,
            next: Option<u64>,
        }
        let field =
            |row: &str, name: &str| Json::parse(row).ok()?.fields().ok()?.get(name).map(|value| value.raw().to_owned());
        let text = |row: &str, name: &str| Json::parse(&field(row, name)?).ok()?.string().map(Cow::into_owned);
        let is_on_key = |row: &&String| hash.is_none_or(|hash| text(row, "key").as_deref() == Some(hash));
        let mut rows: Vec<_> = rows.iter().filter(is_on_key).collect();
        let has_more = rows.len() > limit || (hash.is_none() && rows.len() == limit);
        rows.truncate(limit);
        // There may be earlier ones: the number to continue from.
        let last = rows.last().filter(|_| has_more).and_then(|row| field(row, "number")?.parse().ok());
        let may_name = |row: &&&String| self.may_name(&text(row, "policy").unwrap_or_default());
        let acts = rows.iter().filter(may_name).filter_map(|row| serde_json::from_str(row).ok()).collect();
        Reply::json(200, "application/json", &Body { acts, next: last.filter(|&number: &u64| number > 0) })
    }

    /// Whether the token may name that policy.
    #[must_use]
    pub fn may_name(&self, policy: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|name| name == policy))
    }
}

impl Problem {
    /// Why a policy was not changed.
    #[must_use]
    pub fn of_change(name: &str, error: ChangeError) -> Self {
        let policy = name.to_owned();
        match error {
            ChangeError::Unknown => unknown(name),
            ChangeError::Version(version) => Self::PreconditionFailed { policy, version },
            ChangeError::Fixed => Self::PolicyFixed { policy },
            ChangeError::TooMany { max } => Self::TooManyPolicies { max },
            ChangeError::TooLong { max } => Self::BadRequest { detail: format!("a policy has at most {max} bytes") },
            ChangeError::SetsFixed => {
                let detail = "fixed: only a deployment can set it, in wrangler.toml";
                Self::BadRequest { detail: detail.to_owned() }
            }
            ChangeError::Invalid(errors) => {
                // Its errors do not refer to wrangler.toml.
                let lines: Vec<_> = errors.iter().map(|error| error.in_policy(name)).collect();
                Self::BadRequest {
                    detail: format!("the policy has errors: {}", shortened(&lines.join("; "), MOST_OF_ERRORS)),
                }
            }
        }
    }
}

fn unknown(name: &str) -> Problem {
    Problem::UnknownPolicy { policy: name.to_owned(), known: Vec::new(), request: None }
}

fn etag(version: i64) -> String {
    format!("\"{version}\"")
}

/// The current policy.
#[derive(Serialize)]
struct StandingBody<'a> {
    name: &'a str,
    version: i64,
    source: &'static str,
    fixed: bool,
    policy: Option<&'a RawValue>,
    lint: Vec<String>,
}

impl<'a> StandingBody<'a> {
    fn of(standing: &'a Standing) -> Self {
        Self {
            name: standing.policy.name(),
            version: standing.version,
            source: standing.source.word(),
            fixed: standing.is_fixed,
            policy: serde_json::from_str(&standing.text).ok(),
            lint: standing.policy.lint().to_string().lines().map(str::trim).map(str::to_owned).collect(),
        }
    }
}

/// An error may list all fields of a policy, and there may be several errors.
const MOST_OF_ERRORS: usize = 400;
