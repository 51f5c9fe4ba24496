//! Time zones by their names. Their offsets come from the platform: in a Worker and in the npm package's lint and kinds from `Intl`, and natively, with the
//! feature `zones`, from the database in the crate `jiff`.

// In a build for a browser's tests, nothing would provide the import.
#[cfg(all(any(feature = "lint", feature = "kinds"), target_arch = "wasm32", tollgate_module))]
pub(crate) mod imported;
#[cfg(any(
    test,
    feature = "worker",
    all(any(feature = "lint", feature = "kinds"), target_arch = "wasm32", tollgate_module)
))]
pub(crate) mod scan;

use std::sync::{OnceLock, PoisonError, RwLock};

use crate::limit::Zone;
#[cfg(feature = "serde")]
use crate::limit::{Calendar, CalendarText};
use crate::sorted::SortedMap;

/// The zone of that name, if there is one.
pub(crate) type Source = fn(&str) -> Option<Found>;

/// A zone that a source has found.
pub(crate) struct Found {
    /// As for [`Zone::new`].
    pub(crate) offsets: Vec<(i64, i32)>,
    /// Whether a source has so few of such names that they need no bound: not in any spelling.
    pub(crate) is_exact: bool,
}

/// Whether a source that knows the zone `name` as `known` takes no other spelling of `name`. `None` if `name` is another spelling of `known`:
/// it would be a zone of its own. Any other name is an older one of the zone, which the source may know in any spelling.
#[cfg(any(feature = "worker", feature = "zones"))]
pub(crate) fn is_exact(name: &str, known: &str) -> Option<bool> {
    let is_exact = name == known;
    (is_exact || !name.eq_ignore_ascii_case(known)).then_some(is_exact)
}

/// Sets the source of offsets, unless one is set.
#[cfg(any(feature = "worker", all(any(feature = "lint", feature = "kinds"), target_arch = "wasm32", tollgate_module)))]
pub(crate) fn install(source: Source) {
    _ = SOURCE.set(source);
}

static SOURCE: OnceLock<Source> = OnceLock::new();

/// The zones read so far. They are never freed: limits refer to them.
static KNOWN: RwLock<SortedMap<&'static str, &'static Zone>> = RwLock::new(SortedMap::new());

/// Maximum zones that stay because of names that a source may know in several spellings: requests may bring them.
const MAX_ZONES: usize = 4_096;

/// Whether each word of a name has capitals as in the database, up to a few spellings of short ones.
fn has_capitals(name: &str) -> bool {
    const OTHERS: [&str; 10] = [
        "of",
        "es",
        "au",
        "BajaNorte",
        "BajaSur",
        "ComodRivadavia",
        "DeNoronha",
        "DumontDUrville",
        "EasterIsland",
        "McMurdo",
    ];
    name.split(|c: char| !c.is_ascii_alphabetic()).all(|word| {
        let (first, rest) = word.split_at_checked(1).unwrap_or_default();
        let is_upper = |part: &str| part.bytes().all(|byte| byte.is_ascii_uppercase());
        let is_name = is_upper(first) && rest.bytes().all(|byte| byte.is_ascii_lowercase());
        is_name || word.len() <= 4 && is_upper(word) || OTHERS.contains(&word)
    })
}

/// The zone of that name.
pub(crate) fn named(name: &str) -> Option<&'static Zone> {
    if name == Zone::UTC.name() {
        return Some(&Zone::UTC);
    }
    // `Intl` accepts offsets such as `+03:00` too; the database has no such zones.
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) || !has_capitals(name) {
        return None;
    }
    if let Some(zone) = KNOWN.read().unwrap_or_else(PoisonError::into_inner).get(name) {
        return Some(zone);
    }
    let Found { offsets, is_exact } = match SOURCE.get() {
        Some(source) => source(name),
        None => default_source(name),
    }?;
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    if let Some(zone) = known.get(name) {
        return Some(zone); // another thread has read it meanwhile
    }
    if !is_exact && known.len() >= MAX_ZONES {
        return None;
    }
    let name: &'static str = Box::leak(name.into());
    let zone: &'static Zone = Box::leak(Box::new(Zone::new(name, Vec::leak(offsets))?));
    known.insert(name, zone);
    Some(zone)
}

/// With a zone of this build's database, or UTC.
#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Calendar {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(CalendarText(named))
    }
}

/// Whether there are zones besides UTC.
pub(crate) fn are_known() -> bool {
    cfg!(feature = "zones") || SOURCE.get().is_some()
}

#[cfg(not(feature = "zones"))]
fn default_source(_name: &str) -> Option<Found> {
    None
}

#[cfg(feature = "zones")]
use with_jiff::found as default_source;

#[cfg(feature = "zones")]
mod with_jiff {
    use jiff::Timestamp;
    use jiff::tz::TimeZone;

    use super::{Found, is_exact};
    use crate::limit::Zone;

    impl Zone {
        /// The zone of this name in the IANA's database, such as `America/Sao_Paulo`; `None` if there is none.
        #[must_use]
        pub fn named(name: &str) -> Option<&'static Self> {
            super::named(name)
        }
    }

    /// From 1800, before the first change of any clock, to 2200.
    pub(super) fn found(name: &str) -> Option<Found> {
        let zone = TimeZone::get(name).ok()?;
        let is_exact = is_exact(name, zone.iana_name()?)?;
        let moment = |seconds| Timestamp::from_second(seconds).ok();
        let (from, until) = (moment(-5_364_662_400)?, moment(7_258_118_400)?);
        let first = (from.as_millisecond(), zone.to_offset(from).seconds());
        let changes = zone.following(from).take_while(|change| change.timestamp() < until);
        let changes = changes.map(|change| (change.timestamp().as_millisecond(), change.offset().seconds()));
        Some(Found { offsets: std::iter::once(first).chain(changes).collect(), is_exact })
    }
}

#[cfg(all(test, feature = "zones"))]
mod tests {
    use super::*;

    /// `Intl` knows a name in any spelling, and each would be a zone of its own.
    #[test]
    fn a_name_has_the_capitals_of_the_database() {
        let mut count = 0;
        for name in jiff::tz::db().available() {
            let name = name.as_str();
            assert!(has_capitals(name), "{name}");
            assert!(!has_capitals(&name.to_ascii_lowercase()), "{name}");
            count += 1;
        }
        assert!(count > 500, "{count} zones");
        for other in ["Asia/KOLKATA", "Asia/kolkata", "asia/Kolkata", "US/EASTERN", "America/New_york", "Europe/kYIV"] {
            assert!(!has_capitals(other), "{other}");
        }
    }

    #[test]
    fn a_known_zone_has_no_other_spellings_but_may_have_older_names() {
        for (name, known, expected) in [
            ("Asia/Kathmandu", "Asia/Kathmandu", Some(true)),
            ("Asia/KATHMANDU", "Asia/Kathmandu", None),
            ("Asia/Katmandu", "Asia/Kathmandu", Some(false)),
            ("Asia/KATMANDU", "Asia/Kathmandu", Some(false)),
        ] {
            assert_eq!(is_exact(name, known), expected, "{name}");
        }
    }

    #[test]
    fn a_zone_is_known_by_its_name() {
        assert_eq!(named("UTC"), Some(&Zone::UTC));
        let paulo = Zone::named("America/Sao_Paulo").unwrap();
        assert!(std::ptr::eq(paulo, Zone::named("America/Sao_Paulo").unwrap()));
        for unknown in ["", "+03:00", "America", "America/Sao_Paolo", "UTC+3", "utc", "america/sao_paulo"] {
            assert_eq!(named(unknown), None, "{unknown}");
        }
    }

    /// As of `Intl`: requests may bring names in several spellings. Those known stay, and the database's own names are always found.
    #[test]
    fn names_that_may_have_many_spellings_are_bounded() {
        // Only this test has such names.
        let source: Source = |name| match name.strip_prefix("Spelling/") {
            Some(_) => Some(Found { offsets: vec![(0, 3_600)], is_exact: false }),
            None => default_source(name),
        };
        _ = SOURCE.set(source);
        let spelling = |number: usize| named(&format!("Spelling/{number}"));
        let found = (0..=MAX_ZONES).take_while(|number| spelling(*number).is_some()).count();
        let known = KNOWN.read().unwrap().len();
        assert!(found <= MAX_ZONES && known >= MAX_ZONES, "{found} of {known}");
        assert_eq!(spelling(found), None);
        assert!(std::ptr::eq(spelling(0).unwrap(), spelling(0).unwrap()) && spelling(found - 1).is_some());
        assert!(named("Asia/Kathmandu").is_some() && named("Asia/Atlantis").is_none());
    }
}
