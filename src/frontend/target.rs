//! A request's target, and the right it requires.

use std::iter;

use super::address::Address;
use crate::access::{Caller, Scope};
use crate::api::{AdminPath, BLOCK_PATH, Endpoint, INSPECT_KEY_PATH, Problem, SESSION_PATH};

/// A request's target, by its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// `/v1/openapi.json`.
    Contract,
    /// `/healthz`.
    Health,
    /// `/v1/session`.
    Session,
    /// An endpoint served by objects.
    Endpoint(Endpoint),
    /// `/v1/keys/inspect`.
    InspectKey,
    /// An endpoint served by the registry.
    Admin(AdminPath<'a>),
}

impl<'a> Target<'a> {
    /// The target at this address.
    ///
    /// # Errors
    /// [`Problem::NotFound`].
    pub fn of(address: Address<'a>) -> Result<Self, Problem> {
        let path = address.path();
        let target = match path {
            "/v1/openapi.json" => Some(Self::Contract),
            "/healthz" => Some(Self::Health),
            SESSION_PATH => Some(Self::Session),
            INSPECT_KEY_PATH => Some(Self::InspectKey),
            _ => Endpoint::of(path).map(Self::Endpoint).or_else(|| AdminPath::of(path).map(Self::Admin)),
        };
        target.ok_or_else(|| Problem::NotFound { path: path.to_owned() })
    }

    /// Checks whether `caller` has the right. Call it in every handler, since earlier checks may have been for another target.
    ///
    /// # Errors
    /// [`Problem::Forbidden`].
    pub fn require(self, caller: &Caller<'_>) -> Result<(), Problem> {
        match self {
            Self::Contract | Self::Health | Self::Session => {}
            Self::Endpoint(endpoint) => caller.may(endpoint.scope(), endpoint.verb())?,
            Self::InspectKey => caller.may(Scope::Admin, "inspect")?,
            Self::Admin(at) => {
                caller.may(Scope::Admin, at.word())?;
                if let AdminPath::Policy(name) = at {
                    caller.may_use(name)?;
                }
            }
        }
        Ok(())
    }

    /// Whether the target accepts `method`.
    ///
    /// # Errors
    /// [`Problem::MethodNotAllowed`].
    pub fn require_method(self, method: &str) -> Result<(), Problem> {
        let (methods, allow): (&[&str], _) = match self {
            Self::Contract | Self::Health => (&["GET", "HEAD"], "GET, HEAD"),
            Self::Session | Self::Endpoint(_) | Self::InspectKey => (&["POST"], "POST"),
            Self::Admin(at) => return at.act(method).map(|_| ()),
        };
        if methods.contains(&method) {
            return Ok(());
        }
        Err(Problem::MethodNotAllowed { method: method.to_owned(), allow })
    }

    /// The maximum length of a body, in bytes.
    #[must_use]
    pub const fn max_body_len(self) -> usize {
        match self {
            Self::Admin(AdminPath::Overrides) => MAX_OVERRIDES_LEN,
            _ => MAX_BODY_LEN,
        }
    }

    /// Checks a body's length, in bytes.
    ///
    /// # Errors
    /// [`Problem::BodyTooLarge`].
    pub(super) const fn require_len(self, len: u64) -> Result<(), Problem> {
        let max = self.max_body_len();
        if len > max as u64 { Err(Problem::BodyTooLarge { max }) } else { Ok(()) }
    }
}

/// Timeout of a body in milliseconds: enough for [`Target::max_body_len`] over the slowest connections still in use. Slower clients only
/// occupy memory.
pub const BODY_MS: u32 = 5_000;

/// Maximum length of a body, in bytes. A batch of the longest keys, all of them escaped, would be four times as long; callers with such
/// keys must send smaller batches.
const MAX_BODY_LEN: usize = 16 * 1024;

/// Maximum length of a change of overrides, in bytes: about 500 per override.
const MAX_OVERRIDES_LEN: usize = 1_024 * 1_024;

/// The endpoints for callers in a Worker, by their verbs. It has the objects beside it and needs no lease.
pub fn verbs() -> impl Iterator<Item = (&'static str, &'static str)> {
    endpoints(|endpoint| endpoint.scope() != Scope::Admin && endpoint != Endpoint::Lease)
}

/// Those of operators for one key, by their verbs.
pub fn key_verbs() -> impl Iterator<Item = (&'static str, &'static str)> {
    let others = endpoints(|endpoint| endpoint.scope() == Scope::Admin);
    iter::once(("inspect", INSPECT_KEY_PATH)).chain(others).chain([(AdminPath::Block.word(), BLOCK_PATH)])
}

fn endpoints(is_meant: impl Fn(Endpoint) -> bool) -> impl Iterator<Item = (&'static str, &'static str)> {
    let meant = Endpoint::ALL.into_iter().filter(move |endpoint| is_meant(*endpoint));
    meant.map(|endpoint| (endpoint.verb(), endpoint.path()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::access::{CredentialSettings, Credentials};

    fn target(path: &str) -> Result<Target<'_>, Problem> {
        Target::of(Address::parse(path)?)
    }

    /// The contract's paths and methods, with an example for each parameter.
    fn contract() -> Vec<(String, String)> {
        let contract: serde_json::Value = serde_json::from_str(include_str!("../api/openapi.json")).unwrap();
        let paths = contract["paths"].as_object().unwrap().iter();
        let methods = ["get", "put", "post", "delete", "head", "patch", "options", "trace"];
        let all = paths.flat_map(|(path, item)| {
            let here = methods.iter().filter(|&&method| item.get(method).is_some());
            here.map(|method| (path.replace("{name}", "api"), method.to_uppercase()))
        });
        all.collect()
    }

    /// Every target: this does not compile until a new endpoint is listed.
    fn all() -> Vec<Target<'static>> {
        let one_of_each = |target| match target {
            Target::Contract => Some(Target::Health),
            Target::Health => Some(Target::Session),
            Target::Session => Some(Target::InspectKey),
            Target::InspectKey => Some(Target::Admin(AdminPath::Block)),
            Target::Admin(AdminPath::Block) => Some(Target::Admin(AdminPath::Policies)),
            Target::Admin(AdminPath::Policies) => Some(Target::Admin(AdminPath::Policy("api"))),
            Target::Admin(AdminPath::Policy(_)) => Some(Target::Admin(AdminPath::Overrides)),
            Target::Admin(AdminPath::Overrides) => Some(Target::Admin(AdminPath::Audit)),
            Target::Admin(AdminPath::Audit) => Some(Target::Admin(AdminPath::Metrics)),
            Target::Admin(AdminPath::Metrics) => Some(Target::Admin(AdminPath::TopRefused)),
            Target::Admin(AdminPath::TopRefused) => Some(Target::Admin(AdminPath::Decisions)),
            Target::Admin(AdminPath::Decisions) | Target::Endpoint(_) => None,
        };
        let endpoints = Endpoint::ALL.into_iter().map(Target::Endpoint);
        std::iter::successors(Some(Target::Contract), |target| one_of_each(*target)).chain(endpoints).collect()
    }

    #[test]
    fn the_contract_has_every_target_with_its_methods_and_nothing_else() {
        let contract = contract();
        let methods: BTreeSet<_> =
            contract.iter().map(|(_, method)| method.as_str()).chain(["HEAD", "PATCH"]).collect();
        for (path, method) in &contract {
            let target = target(path).unwrap_or_else(|problem| panic!("{path}: {problem:?}"));
            assert_eq!(target.require_method(method), Ok(()), "{method} {path}");
        }
        for target in all() {
            let path = contract.iter().map(|(path, _)| path).find(|path| self::target(path) == Ok(target));
            let path = path.unwrap_or_else(|| panic!("{target:?} is not in the contract"));
            for method in &methods {
                let is_documented = contract.iter().any(|(at, of)| at == path && of == method);
                // HEAD is GET without a body: the contract does not repeat it.
                let is_head = *method == "HEAD" && matches!(target, Target::Contract | Target::Health);
                assert_eq!(target.require_method(method).is_ok(), is_documented || is_head, "{method} {path}");
            }
        }
    }

    #[test]
    fn near_misses_of_a_path_are_not_endpoints() {
        for path in [
            "/",
            "//v1/consume",
            "/v1//consume",
            "/v1/consume/",
            "/V1/consume",
            "/v1/Consume",
            "/v1/consume%00",
            "/v1%2Fconsume",
            "/v1\\keys\\reset",
            "/v1/keys",
            "/v1/keys/",
            "/v1/keys/reset/",
            "/v1/keys/./reset",
            "/v1/x/../keys/reset",
            "/v1/policies/../keys/reset/",
            "/v1/consume;x",
            "/healthz/",
            "/v1",
            "/v1/",
        ] {
            // Everything after `/v1/policies/` is a policy's name.
            let expected = match path.strip_prefix("/v1/policies/") {
                Some(name) => Ok(Target::Admin(AdminPath::Policy(name))),
                None => Err(Problem::NotFound { path: path.to_owned() }),
            };
            assert_eq!(target(path), expected, "{path}");
        }
        let (long, host) = (format!("/v1/{}", "x".repeat(100_000)), "http://x");
        assert!(target(&long).is_err());
        assert_eq!(target(host), Err(Problem::NotFound { path: String::new() }));
    }

    #[test]
    fn each_target_needs_its_scope_whatever_else_the_caller_has() {
        let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"; // of abc
        for target in all() {
            let needed = match target {
                Target::Contract | Target::Health | Target::Session => None,
                Target::Endpoint(endpoint) => Some(endpoint.scope()),
                Target::InspectKey | Target::Admin(_) => Some(Scope::Admin),
            };
            for scope in Scope::ALL {
                let others: Vec<_> = Scope::ALL.into_iter().filter(|other| *other != scope).map(Scope::word).collect();
                for (scopes, has) in [(vec![scope.word()], needed == Some(scope)), (others, needed != Some(scope))] {
                    let tokens = format!(r#"{{"t":{{"sha256":"{hash}","scopes":{scopes:?}}}}}"#);
                    let settings = CredentialSettings { tokens: Some(&tokens), ..CredentialSettings::default() };
                    let credentials = Credentials::new(settings).unwrap_or_else(|errors| panic!("{errors:?}"));
                    let caller = credentials.check(Some("Bearer abc"), 0).unwrap();
                    let allowed = target.require(&caller);
                    assert_eq!(allowed.is_ok(), needed.is_none() || has, "{target:?} with {scopes:?}: {allowed:?}");
                }
            }
            assert_eq!(target.require(&Caller::TRUSTED), Ok(()));
        }
    }

    #[test]
    fn a_token_for_some_policies_administers_no_other() {
        let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let tokens = format!(r#"{{"t":{{"sha256":"{hash}","scopes":["admin"],"policies":["api"]}}}}"#);
        let settings = CredentialSettings { tokens: Some(&tokens), ..CredentialSettings::default() };
        let credentials = Credentials::new(settings).unwrap_or_else(|errors| panic!("{errors:?}"));
        let caller = credentials.check(Some("Bearer abc"), 0).unwrap();
        assert_eq!(target("/v1/policies/api").unwrap().require(&caller), Ok(()));
        for other in ["/v1/policies/other", "/v1/policies/", "/v1/policies/api/", "/v1/policies/../api"] {
            assert!(matches!(target(other).unwrap().require(&caller), Err(Problem::Forbidden { .. })), "{other}");
        }
    }

    #[test]
    fn callers_in_a_worker_have_all_endpoints_of_callers_and_all_of_operators_for_one_key() {
        let names = verbs().map(|(name, _)| name).collect::<Vec<_>>();
        let expected = "consume peek charge refund reset inspect settle cancel extend batch";
        assert_eq!(names.join(" "), expected);
        let names = key_verbs().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names.join(" "), "inspect explain reset credit block");
        let paths: BTreeSet<_> = verbs().chain(key_verbs()).map(|(_, path)| path.to_owned()).collect();
        let posts = contract().into_iter().filter(|(path, method)| method == "POST" && path != SESSION_PATH);
        let posts: BTreeSet<_> = posts.map(|(path, _)| path).filter(|path| path != Endpoint::Lease.path()).collect();
        assert_eq!(paths, posts);
    }

    #[test]
    fn only_overrides_may_have_a_longer_body() {
        for target in all() {
            let is_long = target == Target::Admin(AdminPath::Overrides);
            assert_eq!(target.max_body_len(), if is_long { MAX_OVERRIDES_LEN } else { MAX_BODY_LEN }, "{target:?}");
        }
    }
}
