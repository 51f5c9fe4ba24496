//! A `tower` layer with which a server in plain Rust limits its callers, with the service's answers. It also works in a client.
//!
//! The buckets are in this process's memory, in a [`KeyedLimiter`], and not shared with other processes.
//!
//! A server with axum that admits 100 requests a minute from each address:
//!
//! ```rust,no_run
//! # #[cfg(feature = "axum")]
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     use std::net::SocketAddr;
//!     use axum::{Router, routing::get};
//!     use tollgate::tower::RateLimitLayer;
//!
//!     let app = Router::new().route("/", get(async || "Hello")).layer(RateLimitLayer::per_ip("100/1m")?);
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
//!     Ok(())
//! }
//! # #[cfg(not(feature = "axum"))]
//! # fn main() {}
//! ```
#![forbid(unsafe_code)]

mod address;
mod budgets;
mod response;

use core::fmt;
use core::hash::Hash;
use core::task::{Context, Poll};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use http::request::Parts;
use http::{Method, Request, Response};
use serde_json::Value;
use tower_layer::Layer;
use tower_service::Service;

use crate::access::Network;
use crate::json::Json;
#[cfg(doc)]
use crate::keyed::KeyedLimiter;
use crate::policy::{Policy, PolicyError};
use crate::unix_ms;
use budgets::{Budgets, FromRequest, Keys};
use response::Fields;
pub use response::{ResponseBody, ResponseFuture};

/// Limits each key's requests by a policy.
///
/// Unless a method says otherwise, the key is the peer's address ([`RateLimitLayer::ip`]), a request costs one token of each limit, and the
/// time is the system's.
///
/// * Granted: the request proceeds, and `RateLimit-Policy` and `RateLimit` are appended to the response.
/// * Refused: 429 with the same fields, `Retry-After` and `application/problem+json`, without calling the inner service. What that has
///   reserved in `poll_ready`, such as a permit of a `ConcurrencyLimit`, stays reserved until the service is called again or dropped.
/// * A cost larger than a limit can ever grant: 400, as from the service. A cost of 0 takes nothing and is granted. A limit that can
///   grant nothing, with no capacity, refuses every other cost: 429 without `Retry-After`.
/// * A new key while all entries are in use (see [`crate::keyed`]): 503, since the caller has not used up anything. With `Retry-After`, unless
///   none ever leaves: a rate of 0, or an `initial` below the capacity.
/// * A request without a key: 500 `misconfigured`, and nothing is taken. A shared budget for all such requests would let one caller lock
///   out the others.
/// * A policy with slots: 500 `misconfigured`. They are for reservations, and a server in one process has `tower`'s own `ConcurrencyLimit`.
/// * A CORS preflight: it proceeds and takes nothing. Browsers send it by themselves, without credentials.
///
/// Limits in shadow are not tried, since no answer could report them. `shards` has no effect: a key's budget is in one place. A policy with
/// one budget for all has one here too; keys are ignored.
///
/// Clones share their budgets, as do the services that the layer makes: all routes of a router spend the same ones. With another key or
/// `max_keys`, a layer has its own.
///
/// # Several layers
/// Layers can be stacked. A response has the fields of all that granted it, and a refusal names the limit that refused it: with
/// [`new`](RateLimitLayer::new), since by [`per_ip`](RateLimitLayer::per_ip) all have the same name. Tokens that
/// the outer layers have taken by then stay taken: limits with the same key are better in one policy, which takes from all or from none.
///
/// ```
/// use http::request::Parts;
/// use tollgate::policy::Policies;
/// use tollgate::tower::RateLimitLayer;
///
/// let policies = Policies::parse(r#"{"address":"100/1m","user":{"limits":[
///     {"name":"minute","rate":"60/1m burst 100"},{"name":"day","rate":"10000/1d"}]}}"#)?;
/// let user = |request: &Parts| request.extensions.get::<u64>().copied(); // from a layer further out
/// let app: axum::Router = axum::Router::new()
///     .layer(RateLimitLayer::new(policies.get("user").unwrap()).key(user).skip(|request| request.uri.path() == "/health"))
///     .layer(RateLimitLayer::new(policies.get("address").unwrap()).trusted_proxies(1));
/// # Ok::<(), tollgate::policy::PolicyErrors>(())
/// ```
#[derive(Clone)]
pub struct RateLimitLayer {
    settings: Arc<Settings>,
}

#[derive(Clone)]
struct Settings {
    policy: Arc<Policy>,
    max_keys: usize,
    budgets: Arc<dyn Budgets>,
    cost: FromRequest<u64>,
    skip: FromRequest<bool>,
    clock: Arc<dyn Fn() -> i64 + Send + Sync>,
    refusal: Refusal,
}

type Refusal = Arc<dyn Fn(&Parts, Response<Bytes>) -> Response<Bytes> + Send + Sync>;

/// Default of [`RateLimitLayer::max_keys`]: about 6 MB when all are in use, at 57 bytes for an address and one limit.
const MAX_KEYS: usize = 100_000;

impl RateLimitLayer {
    /// A layer that limits each client's address by one limit, written as a policy's `rate`: `"100/1m"`, `"20/s burst 40"` or
    /// `"100/s burst 60s"`. The policy's name in responses is `per_ip`; one for
    /// [`RateLimitLayer::new`] has a name of its own.
    ///
    /// ```
    /// use tollgate::tower::RateLimitLayer;
    ///
    /// let layer = RateLimitLayer::per_ip("100/1m burst 200")?.max_keys(1_000_000);
    /// # Ok::<(), tollgate::policy::PolicyError>(())
    /// ```
    ///
    /// # Errors
    /// If `limit` does not parse or cannot be counted exactly.
    pub fn per_ip(limit: &str) -> Result<Self, PolicyError> {
        const NAME: &str = "per_ip";
        let json = Value::from(limit).to_string();
        let json = Json::parse(&json).map_err(|error| PolicyError::of(NAME, "rate", error.to_string()))?;
        Ok(Self::new(&Arc::new(Policy::inline(NAME, json)?)))
    }

    /// A layer that limits each client's address by `policy`.
    #[must_use]
    pub fn new(policy: &Arc<Policy>) -> Self {
        let peers = networks(policy, address::peer, address::NO_PEER);
        Self {
            settings: Arc::new(Settings {
                policy: Arc::clone(policy),
                max_keys: MAX_KEYS,
                budgets: budgets::new(policy, MAX_KEYS, peers),
                cost: Arc::new(|_| 1),
                skip: Arc::new(|_| false),
                clock: Arc::new(system_time),
                refusal: Arc::new(|_, response| response),
            }),
        }
    }

    /// The same with the client's address from a function, in place of the peer's: a [`SocketAddr`](std::net::SocketAddr) in the request's
    /// extensions, or with the feature `axum` the `ConnectInfo<SocketAddr>` that axum puts there.
    ///
    /// The key is a [`Network`]: IPv4 in IPv6 is IPv4, and an IPv6 address counts by the policy's `ipv6_prefix`, by default as its /64.
    ///
    /// ```
    /// use http::request::Parts;
    /// use tollgate::tower::RateLimitLayer;
    ///
    /// // A CDN that overwrites the header, in front of a server that only the CDN can reach.
    /// let ip = |request: &Parts| request.headers.get("cf-connecting-ip")?.to_str().ok()?.parse().ok();
    /// let layer = RateLimitLayer::per_ip("100/1m")?.ip(ip);
    /// # Ok::<(), tollgate::policy::PolicyError>(())
    /// ```
    #[must_use]
    pub fn ip(self, ip: impl Fn(&Parts) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        let networks = networks(&self.settings.policy, ip, budgets::NO_KEY);
        self.keys(networks)
    }

    /// The same with the client's address from `X-Forwarded-For`, for a server that is reached only through this many proxies, one behind
    /// the other, each of which appends the address of its own peer. With 0 it is the peer's address.
    ///
    /// The client is entry number `count` from the right, counted over all lines of the field, with or without a port: with 2, `c` in
    /// `a, b, c, d`. The client may have written the entries further left. If there is no such entry, or it is not an address, the answer is
    /// the 500 of a request without a key.
    #[must_use]
    pub fn trusted_proxies(self, count: usize) -> Self {
        let policy = &self.settings.policy;
        let networks = match count {
            0 => networks(policy, address::peer, address::NO_PEER),
            _ => networks(policy, move |request| address::forwarded(request, count), address::NOT_FORWARDED),
        };
        self.keys(networks)
    }

    /// The same with a key of each request. It must be something that a caller cannot choose freely, such as an authenticated user; a header
    /// only if a proxy of yours sets it. For an address, use [`RateLimitLayer::ip`].
    ///
    /// ```
    /// # use http::request::Parts;
    /// # use tollgate::tower::RateLimitLayer;
    /// # let layer = RateLimitLayer::per_ip("100/1m")?;
    /// let layer = layer.key(|request: &Parts| request.extensions.get::<u64>().copied());
    /// # Ok::<(), tollgate::policy::PolicyError>(())
    /// ```
    #[must_use]
    pub fn key<K>(self, key: impl Fn(&Parts) -> Option<K> + Send + Sync + 'static) -> Self
    where
        K: Hash + Eq + Clone + Send + 'static,
    {
        self.keys(Keys::new(key, budgets::NO_KEY))
    }

    fn keys<K: Hash + Eq + Clone + Send + 'static>(self, keys: Keys<K>) -> Self {
        self.with(|settings| settings.budgets = budgets::new(&settings.policy, settings.max_keys, keys))
    }

    /// The same, with full budgets, for at most `max_keys` keys at once; by default 100 000, which is about 6 MB with one
    /// limit of addresses.
    #[must_use]
    pub fn max_keys(self, max_keys: usize) -> Self {
        self.with(|settings| {
            settings.max_keys = max_keys;
            settings.budgets = settings.budgets.with_max_keys(max_keys);
        })
    }

    /// The same with a cost for each request, taken from each limit.
    ///
    /// ```
    /// # use tollgate::tower::RateLimitLayer;
    /// # let layer = RateLimitLayer::per_ip("100/1m")?;
    /// let layer = layer.cost(|request| if request.method == "POST" { 5 } else { 1 });
    /// # Ok::<(), tollgate::policy::PolicyError>(())
    /// ```
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.cost = Arc::new(cost))
    }

    /// The same, except that requests for which `skip` returns true proceed without a key, take nothing and get no fields.
    #[must_use]
    pub fn skip(self, skip: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.skip = Arc::new(skip))
    }

    /// The same with another clock than the system's: Unix milliseconds, such as a test's. In WebAssembly without an operating system there
    /// is no system's clock, and without another the first request panics.
    #[must_use]
    pub fn clock(self, clock: impl Fn() -> i64 + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.clock = Arc::new(clock))
    }

    /// The same with a function that may change or replace the layer's own responses: 429 and 400, 500, 503 (see [`RateLimitLayer`]).
    /// It gets the request and the complete response.
    ///
    /// ```
    /// use tollgate::tower::RateLimitLayer;
    ///
    /// // A gRPC client expects a status of its own, and takes a problem in JSON for a broken message.
    /// let layer = RateLimitLayer::per_ip("100/1m")?.refusal(|_, refusal| match refusal.status().as_u16() {
    ///     429 => tonic::Status::resource_exhausted("too many requests").into_http(),
    ///     _ => tonic::Status::unavailable("no decision").into_http(),
    /// });
    /// # Ok::<(), tollgate::policy::PolicyError>(())
    /// ```
    #[must_use]
    pub fn refusal(self, refusal: impl Fn(&Parts, Response<Bytes>) -> Response<Bytes> + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.refusal = Arc::new(refusal))
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }
}

fn networks(
    policy: &Policy,
    ip: impl Fn(&Parts) -> Option<IpAddr> + Send + Sync + 'static,
    if_missing: &'static str,
) -> Keys<Network> {
    let ipv6_prefix = policy.frontend().ipv6_prefix;
    Keys::new(move |request| Some(Network::of(ip(request)?, ipv6_prefix)), if_missing)
}

impl Settings {
    /// The fields for the response to a request that may proceed, or the response to a refused one.
    fn decide(&self, request: &Parts) -> Result<Fields, Box<Response<Bytes>>> {
        if is_preflight(request) || (self.skip)(request) {
            return Ok(Fields::new());
        }
        let decided = self.budgets.consume(request, (self.clock)(), (self.cost)(request));
        decided.map_err(|reply| Box::new((self.refusal)(request, response::refusal(&reply))))
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "only the default of `RateLimitLayer::clock`, so that servers need not give one"
)]
fn system_time() -> i64 {
    unix_ms(SystemTime::now())
}

fn is_preflight(request: &Parts) -> bool {
    let has = |name| request.headers.contains_key(name);
    request.method == Method::OPTIONS && has(ORIGIN) && has(ACCESS_CONTROL_REQUEST_METHOD)
}

impl fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings { policy, max_keys, .. } = &*self.settings;
        f.debug_struct("RateLimitLayer").field("policy", policy).field("max_keys", max_keys).finish_non_exhaustive()
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit { inner, layer: self.clone() }
    }
}

/// A service behind a [`RateLimitLayer`].
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    inner: S,
    layer: RateLimitLayer,
}

impl<S, A, B> Service<Request<A>> for RateLimit<S>
where
    S: Service<Request<A>, Response = Response<B>>,
{
    type Response = Response<ResponseBody<B>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let (parts, body) = request.into_parts(); // so that the layer's functions do not depend on the body
        match self.layer.settings.decide(&parts) {
            Ok(fields) => ResponseFuture::granted(self.inner.call(Request::from_parts(parts, body)), fields),
            Err(refusal) => ResponseFuture::refused(refusal),
        }
    }
}
