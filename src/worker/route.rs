//! What a request is for, by its URL, how it is gone on with, and whether its caller may have it.

use wasm_bindgen::prelude::wasm_bindgen;
use worker::console_error;

use super::clock;
use super::settings::{Callers, Settings};
use crate::access::Caller;
use crate::api::{AdminPath, Endpoint, Problem, SESSION_PATH};
use crate::frontend::{Address, Target};

/// How `frontend.mjs` goes on with a request, which it never reads from the URL.
#[wasm_bindgen]
#[derive(Clone, Copy, Debug)]
pub enum Route {
    /// Sends the contract.
    Contract,
    /// See `Frontend::ask`.
    Ask,
    /// The same, and has the act recorded: see `Frontend::key_act`.
    ActOnKey,
    /// See `Frontend::inspect_key`.
    InspectKey,
    /// See `Frontend::block_key`.
    BlockKey,
    /// See `Frontend::ask_session`.
    Session,
    /// See `Frontend::administer`.
    Administer,
    /// The same, after the registry has all that was counted here.
    Measure,
}

impl From<Target<'_>> for Route {
    fn from(target: Target<'_>) -> Self {
        match target {
            Target::Contract | Target::Health => Self::Contract, // the health is a reply of its own
            Target::Session => Self::Session,
            Target::Endpoint(Endpoint::Explain | Endpoint::ResetKey | Endpoint::Credit) => Self::ActOnKey,
            Target::Endpoint(_) => Self::Ask,
            Target::InspectKey => Self::InspectKey,
            Target::BlockKey => Self::BlockKey,
            Target::Admin(AdminPath::Metrics | AdminPath::TopRefused) => Self::Measure,
            Target::Admin(_) => Self::Administer,
        }
    }
}

/// Who sends this `Authorization` header, or holds a binding with these `props`.
pub(super) fn caller<'a>(settings: &'a Settings, authorization: Option<&str>) -> Result<Caller<'a>, Problem> {
    match &settings.callers {
        Callers::WithCredentials(credentials) => {
            credentials.check(authorization, clock::now()).map_err(|denied| Problem::Unauthorized { denied })
        }
        Callers::Bound => Caller::binding(authorization).map_err(|errors| {
            for error in errors {
                console_error!("the service binding's {error}");
            }
            Problem::Misconfigured { missing: Vec::new() }
        }),
        Callers::Trusted => Ok(Caller::TRUSTED),
    }
}

/// Who sends this `Authorization` header, who may have `target`. Checked again where it is carried out: a grant may have ended while the
/// body arrived.
pub(super) fn permitted<'a, 't>(
    settings: &'a Settings,
    authorization: Option<&str>,
    target: Target<'t>,
) -> Result<(Caller<'a>, Target<'t>), Problem> {
    let caller = caller(settings, authorization)?;
    target.require(&caller)?;
    Ok((caller, target))
}

/// What a URL is for.
pub(super) fn target(url: &str) -> Result<Target<'_>, Problem> {
    Target::of(Address::parse(url)?)
}

/// Without a registry there is only what this isolate has counted.
pub(super) fn require_registry(settings: &Settings, at: AdminPath<'_>) -> Result<(), Problem> {
    if settings.snapshot.is_none() && !matches!(at, AdminPath::Metrics | AdminPath::TopRefused) {
        return Err(Problem::NoRegistry);
    }
    Ok(())
}

pub(super) fn no_sessions() -> Problem {
    Problem::NotFound { path: SESSION_PATH.to_owned() }
}

/// The answer for a URL that is not for what carries it out.
pub(super) fn not_found(url: &str) -> Problem {
    Problem::NotFound { path: Address::parse(url).map_or_else(|_| String::new(), |address| address.path().to_owned()) }
}
