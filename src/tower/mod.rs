//! A `tower` layer with which a server in plain Rust limits its callers, with the service's answers.
//!
//! The buckets are in this process's memory, in a [`KeyedLimiter`], and not shared with other processes.
//!
//! A server with axum that limits each address:
//!
//! ```rust,no_run
//! use std::{net::SocketAddr, time::SystemTime};
//! use axum::{Router, extract::{ConnectInfo, Request}, routing::get};
//! use tollgate::{policy::Policies, tower::RateLimitLayer, unix_ms};
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() {
//!     let policies = Policies::parse(r#"{"api":{"rate":100,"period":"1m","capacity":200}}"#).unwrap();
//!     let peer = |request: &Request| request.extensions().get().map(|ConnectInfo::<SocketAddr>(peer)| peer.ip());
//!     let limit = RateLimitLayer::by_address(policies.get("api").unwrap(), 100_000, peer, || unix_ms(SystemTime::now()));
//!     let app = Router::new().route("/", get(async || "Hello")).layer(limit.unwrap());
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await.unwrap();
//!     axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await.unwrap();
//! }
//! ```
#![forbid(unsafe_code)]

mod budgets;

use core::future::Future;
use core::hash::Hash;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::net::IpAddr;
use std::sync::Arc;

use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use http::{HeaderName, HeaderValue, Method, Request, Response};
use tower_layer::Layer;
use tower_service::Service;

use crate::access::Network;
use crate::api::{CORS_PREFIX, Problem, Reply};
#[cfg(doc)]
use crate::keyed::KeyedLimiter;
use crate::policy::Policy;
use budgets::Budgets;

/// Limits each key's requests by a policy. Each request costs one token of each limit, or the cost set by [`RateLimitLayer::cost`].
///
/// * Granted: the request proceeds, and the response gets `RateLimit-Policy` and `RateLimit`.
/// * Refused: 429 with the same fields, `Retry-After` and `application/problem+json`, without calling the inner service.
/// * A cost larger than a limit can ever grant: 400, as from the service. A cost of 0 takes nothing and is granted. A limit that can
///   grant nothing, with a rate of 0 and no capacity, refuses every other cost: 429 without `Retry-After`.
/// * A new key while all entries are in use (see [`crate::keyed`]): 503 with `Retry-After`, since the caller has not used up anything.
/// * A request without a key: 500 `misconfigured`, and nothing is taken. A shared budget for all such requests would let one caller lock
///   out the others.
/// * A CORS preflight: it proceeds and takes nothing. Browsers send it by themselves, without credentials.
///
/// Limits in shadow are not tried, since no answer could report them. `shards` has no effect: a key's budget is in one place.
///
/// `key` returns the key of a request, and `clock` Unix milliseconds. A key must be something that a caller cannot choose freely: an
/// authenticated user, or the peer's [address](RateLimitLayer::by_address); a header only if a proxy of yours sets it.
///
/// ```
/// use std::time::SystemTime;
///
/// use tollgate::policy::Policies;
/// use tollgate::tower::RateLimitLayer;
/// use tollgate::unix_ms;
///
/// let policies = Policies::parse(r#"{"api":{"rate":100,"period":"1m"}}"#).unwrap();
/// let user = |request: &http::Request<axum::body::Body>| request.extensions().get::<u64>().copied();
/// let layer = RateLimitLayer::new(policies.get("api").unwrap(), 100_000, user, || unix_ms(SystemTime::now()));
/// let app: axum::Router = axum::Router::new().layer(layer.unwrap());
/// ```
#[derive(Debug)]
pub struct RateLimitLayer<K, F, C, W = One> {
    budgets: Arc<Budgets<K>>,
    key: F,
    clock: C,
    cost: W,
}

impl<K: Hash + Eq + Clone + Send + 'static, F, C> RateLimitLayer<K, F, C> {
    /// A layer that limits by `policy`, for at most `max_keys` keys at once. `key` is a function of the request that
    /// returns an `Option<K>`.
    ///
    /// # Errors
    /// [`Problem::Misconfigured`] for a policy with one budget for all, unless the key is `()`.
    pub fn new(policy: &Arc<Policy>, max_keys: usize, key: F, clock: C) -> Result<Self, Problem> {
        Ok(Self { budgets: Arc::new(Budgets::new(policy, max_keys)?), key, clock, cost: One })
    }
}

impl RateLimitLayer<Network, (), ()> {
    /// The same with the peer's address as the key: for IPv6, its network by the policy's `ipv6_prefix`.
    ///
    /// ```
    /// use std::net::SocketAddr;
    /// use std::time::SystemTime;
    ///
    /// use axum::extract::{ConnectInfo, Request};
    /// use tollgate::policy::Policies;
    /// use tollgate::tower::RateLimitLayer;
    /// use tollgate::unix_ms;
    ///
    /// let policies = Policies::parse(r#"{"api":{"rate":100,"period":"1m"}}"#).unwrap();
    /// // There is one only where the server is made with `into_make_service_with_connect_info`.
    /// let peer = |request: &Request| request.extensions().get().map(|ConnectInfo::<SocketAddr>(peer)| peer.ip());
    /// let layer = RateLimitLayer::by_address(policies.get("api").unwrap(), 100_000, peer, || unix_ms(SystemTime::now()));
    /// let app: axum::Router = axum::Router::new().layer(layer.unwrap());
    /// ```
    ///
    /// # Errors
    /// Those of [`RateLimitLayer::new`].
    #[expect(clippy::type_complexity, reason = "the type of a closure cannot be named")]
    pub fn by_address<B, A, C>(
        policy: &Arc<Policy>,
        max_keys: usize,
        address: A,
        clock: C,
    ) -> Result<RateLimitLayer<Network, impl Fn(&Request<B>) -> Option<Network> + Clone + use<B, A, C>, C>, Problem>
    where
        A: Fn(&Request<B>) -> Option<IpAddr> + Clone,
    {
        let ipv6_prefix = policy.frontend().ipv6_prefix;
        let network = move |request: &Request<B>| Some(Network::of(address(request)?, ipv6_prefix));
        RateLimitLayer::new(policy, max_keys, network, clock)
    }
}

impl<K, F, C, W> RateLimitLayer<K, F, C, W> {
    /// The same with a cost for each request, taken from each limit.
    ///
    /// ```
    /// # use tollgate::policy::Policies;
    /// # use tollgate::tower::RateLimitLayer;
    /// # let policies = Policies::parse(r#"{"api":{"rate":100,"period":"1m"}}"#).unwrap();
    /// # let user = |_: &http::Request<String>| Some(0);
    /// # let layer = RateLimitLayer::<u64, _, _>::new(policies.get("api").unwrap(), 100_000, user, || 0).unwrap();
    /// let layer = layer.cost(|request: &http::Request<String>| if request.method() == "POST" { 5 } else { 1 });
    /// ```
    #[must_use]
    pub fn cost<B, G: Fn(&Request<B>) -> u64>(self, cost: G) -> RateLimitLayer<K, F, C, G> {
        let Self { budgets, key, clock, .. } = self;
        RateLimitLayer { budgets, key, clock, cost }
    }
}

/// The cost of a request: for [`RateLimitLayer`], a function of the request, or [`One`].
pub trait RequestCost<B> {
    /// The tokens that it takes from each limit.
    fn of(&self, request: &Request<B>) -> u64;
}

/// One token for every request.
#[derive(Clone, Copy, Debug)]
pub struct One;

impl<B> RequestCost<B> for One {
    fn of(&self, _: &Request<B>) -> u64 {
        1
    }
}

impl<B, G: Fn(&Request<B>) -> u64> RequestCost<B> for G {
    fn of(&self, request: &Request<B>) -> u64 {
        self(request)
    }
}

impl<K, F: Clone, C: Clone, W: Clone> Clone for RateLimitLayer<K, F, C, W> {
    fn clone(&self) -> Self {
        let Self { budgets, key, clock, cost } = self;
        Self { budgets: Arc::clone(budgets), key: key.clone(), clock: clock.clone(), cost: cost.clone() }
    }
}

impl<S, K, F: Clone, C: Clone, W: Clone> Layer<S> for RateLimitLayer<K, F, C, W> {
    type Service = RateLimit<S, K, F, C, W>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit { inner, layer: self.clone() }
    }
}

/// A service behind a [`RateLimitLayer`].
#[derive(Debug)]
pub struct RateLimit<S, K, F, C, W = One> {
    inner: S,
    layer: RateLimitLayer<K, F, C, W>,
}

impl<S: Clone, K, F: Clone, C: Clone, W: Clone> Clone for RateLimit<S, K, F, C, W> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<S, K, F, C, W, B, R> Service<Request<B>> for RateLimit<S, K, F, C, W>
where
    S: Service<Request<B>, Response = Response<R>>,
    K: Hash + Eq + Clone + Send + 'static,
    F: Fn(&Request<B>) -> Option<K>,
    C: Fn() -> i64,
    W: RequestCost<B>,
    R: From<String>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, R>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if is_preflight(&request) {
            return ResponseFuture::Granted { inner: Box::pin(self.inner.call(request)), fields: Vec::new() };
        }
        let RateLimitLayer { budgets, key, clock, cost } = &self.layer;
        match budgets.consume(key(&request).as_ref(), clock(), cost.of(&request)) {
            Ok(fields) => ResponseFuture::Granted { inner: Box::pin(self.inner.call(request)), fields },
            Err(reply) => ResponseFuture::Refused(Some(Box::new(response(&reply)))),
        }
    }
}

/// The response of a [`RateLimit`].
#[expect(missing_docs, reason = "a future is awaited, not taken apart")]
#[derive(Debug)]
pub enum ResponseFuture<F, R> {
    Granted { inner: Pin<Box<F>>, fields: Vec<(&'static str, String)> },
    Refused(Option<Box<Response<R>>>),
}

// Nothing in it is structurally pinned: the inner future is on the heap.
impl<F, R> Unpin for ResponseFuture<F, R> {}

impl<F: Future<Output = Result<Response<R>, E>>, R, E> Future for ResponseFuture<F, R> {
    type Output = Result<Response<R>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Granted { inner, fields } => inner.as_mut().poll(context).map_ok(|mut response| {
                for (name, value) in fields {
                    set(&mut response, name, value);
                }
                response
            }),
            Self::Refused(response) => response.take().map_or(Poll::Pending, |response| Poll::Ready(Ok(*response))),
        }
    }
}

fn is_preflight<B>(request: &Request<B>) -> bool {
    let has = |name| request.headers().contains_key(name);
    request.method() == Method::OPTIONS && has(ORIGIN) && has(ACCESS_CONTROL_REQUEST_METHOD)
}

fn response<R: From<String>>(reply: &Reply) -> Response<R> {
    let mut response = Response::new(R::from(reply.body()));
    if let Ok(status) = reply.status.try_into() {
        *response.status_mut() = status;
    }
    for (name, value) in &reply.headers {
        if !name.starts_with(CORS_PREFIX) {
            set(&mut response, name, value);
        }
    }
    response
}

fn set<R>(response: &mut Response<R>, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(HeaderName::from_static(name), value);
    }
}
