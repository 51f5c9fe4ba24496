//! What all public types and errors have in common.

mod anywhere;

use core::error::Error;
use core::fmt::Debug;

use anywhere::test;

/// Usable from any thread, and visible in a log.
const fn is_value<T: Send + Sync + Debug>() {}

/// Usable with `?` wherever errors are boxed.
const fn is_error<T: Error + Send + Sync + 'static>() {}

const _: () = {
    use tollgate::limit::{
        Carry, Config, ConfigError, Decision, Kind, Limit, Moment, Part, Record, RecordError, RollingState,
        RollingWindow, Snapshot, State, Verb,
    };
    is_value::<Carry>();
    is_value::<Config>();
    is_value::<Decision>();
    is_value::<Kind>();
    is_value::<Limit>();
    is_value::<Part<'_>>();
    is_value::<Record<'_>>();
    is_value::<Snapshot>();
    is_value::<State>();
    is_value::<Verb>();
    is_value::<Moment>();
    is_value::<RollingState<Vec<Moment>>>();
    is_value::<RollingWindow>();
    is_error::<ConfigError>();
    is_error::<tollgate::Error>();
    is_error::<RecordError>();
};

#[cfg(feature = "std")]
const _: () = {
    use tollgate::keyed::{Answer, Full, Granted, KeyedLimiter, KeyedQueue, Rule, WaitError};
    is_value::<Rule>();
    is_value::<Answer<'_, 2>>();
    is_value::<Granted<'_, 2>>();
    is_value::<KeyedLimiter<String, 2>>();
    is_value::<KeyedQueue<String, 2>>();
    is_error::<Full>();
    is_error::<WaitError>();
};

#[cfg(feature = "api")]
const _: () = {
    use tollgate::keyed::Network;
    use tollgate::policy::{
        Admitted, Cause, Code, CrashCost, DebtFacts, Finding, FrontendTerms, LeaseTerms, Level, LimitFacts, Lint,
        LongRun, NamedLimit, NoticeKind, Notify, ObjectTerms, OnError, Policies, Policy, PolicyError, PolicyErrors,
        RegistryTerms, ReservationTerms, Unsettled,
    };
    is_value::<Network>();
    is_value::<Admitted>();
    is_value::<Cause>();
    is_value::<Code>();
    is_value::<CrashCost>();
    is_value::<DebtFacts>();
    is_value::<Finding>();
    is_value::<FrontendTerms>();
    is_value::<LeaseTerms>();
    is_value::<Level>();
    is_value::<LimitFacts>();
    is_value::<Lint>();
    is_value::<LongRun>();
    is_value::<NamedLimit>();
    is_value::<NoticeKind>();
    is_value::<Notify>();
    is_value::<ObjectTerms>();
    is_value::<OnError>();
    is_value::<Policies>();
    is_value::<Policy>();
    is_value::<RegistryTerms>();
    is_value::<ReservationTerms>();
    is_value::<Unsettled>();
    is_error::<PolicyError>();
    is_error::<PolicyErrors>();
};

#[cfg(feature = "tower")]
const _: () = {
    use core::future::Ready;
    use tollgate::tower::{RateLimit, RateLimitLayer, ResponseBody, ResponseFuture};
    is_value::<RateLimitLayer>();
    is_value::<RateLimit<()>>();
    is_value::<ResponseBody<()>>();
    is_value::<ResponseFuture<Ready<()>>>();
};

#[test]
fn the_documentation_names_the_oldest_rust() {
    let words = format!("Rust {} or newer.", env!("CARGO_PKG_RUST_VERSION"));
    for (file, text) in [("lib.rs", include_str!("../src/lib.rs")), ("README.md", include_str!("../src/README.md"))] {
        assert!(text.contains(&words), "src/{file} has no {words:?}");
    }
}
