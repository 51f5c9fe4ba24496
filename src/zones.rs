//! Time zones by their names. Their offsets come from the platform: in a Worker and in the npm package from `Intl`, and natively, with the
//! feature `zones`, from the database in the crate `jiff`.

use std::collections::BTreeMap;
use std::sync::{OnceLock, PoisonError, RwLock};

use crate::limit::Zone;
#[cfg(feature = "serde")]
use crate::limit::{Calendar, CalendarText};

/// The offsets of the zone of that name, as for [`Zone::new`]; `None` if there is no such zone.
pub type Source = fn(&str) -> Option<Vec<(i64, i32)>>;

/// The offsets of a zone from 2020 to 2040, found by asking for one moment after the other; `None` if there is no such zone. It asks some 1200
/// times, and may miss what holds for less than two weeks.
#[cfg_attr(not(any(feature = "worker", tollgate_module)), allow(dead_code))]
pub(crate) fn scanned(mut offset_at: impl FnMut(i64) -> Option<i32>) -> Option<Vec<(i64, i32)>> {
    let mut at = FROM;
    let mut offset = offset_at(at)?;
    let mut offsets = vec![(at, offset)];
    while at < UNTIL {
        let mut next = at.saturating_add(STEP_MS);
        if offset_at(next)? != offset {
            // It has changed after `at`, and at `next` at the latest.
            while next.saturating_sub(at) > CHANGE_MS {
                let minutes = next.saturating_sub(at) / CHANGE_MS / 2;
                let between = at.saturating_add(minutes.saturating_mul(CHANGE_MS));
                if offset_at(between)? == offset { at = between } else { next = between }
            }
            offset = offset_at(next)?;
            offsets.push((next, offset));
        }
        at = next;
    }
    Some(offsets)
}

/// The offset in a moment that JavaScript's `Intl` has formatted with `timeZoneName: "longOffset"`, in seconds: `…GMT`, `…GMT-03:00`.
#[cfg_attr(not(feature = "worker"), allow(dead_code))]
pub(crate) fn offset_in(text: &str) -> Option<i32> {
    let (_, offset) = text.rsplit_once("GMT")?;
    if offset.is_empty() {
        return Some(0);
    }
    let (sign, digits) = match offset.split_at_checked(1)? {
        ("+", digits) => (1, digits),
        ("-" | "\u{2212}", digits) => (-1, digits),
        _ => return None,
    };
    let mut seconds = 0_i32;
    for (part, unit) in digits.split(':').zip([3_600, 60, 1]) {
        seconds = seconds.checked_add(part.parse::<i32>().ok()?.checked_mul(unit)?)?;
    }
    seconds.checked_mul(sign)
}

/// 1 January 2020 and 2040. In October 2040, Gaza is to have summer time for a week.
const FROM: i64 = 1_577_836_800_000;
const UNTIL: i64 = 2_208_988_800_000;

/// Shorter than any time since 2020 between two changes of a zone: some go back to their standard time for Ramadan.
const STEP_MS: i64 = 14 * 24 * 3_600_000;

/// Clocks change on the minute, mostly on the hour.
const CHANGE_MS: i64 = 60_000;

/// Lets zones' offsets come from this source, unless another was there before.
pub fn install(source: Source) {
    _ = SOURCE.set(source);
}

static SOURCE: OnceLock<Source> = OnceLock::new();

/// The zones asked for until now. They stay: a limit refers to its own.
static KNOWN: RwLock<BTreeMap<&'static str, &'static Zone>> = RwLock::new(BTreeMap::new());

/// Maximum zones that stay. The database has 600 names, of which a source may know each in several spellings.
const MAX_ZONES: usize = 4_096;

/// The zone of that name.
pub(crate) fn named(name: &str) -> Option<&'static Zone> {
    if name == Zone::UTC.name() {
        return Some(&Zone::UTC);
    }
    if let Some(zone) = KNOWN.read().unwrap_or_else(PoisonError::into_inner).get(name) {
        return Some(zone);
    }
    let offsets = SOURCE.get_or_init(|| default_source)(name)?;
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    if let Some(zone) = known.get(name) {
        return Some(zone); // somebody else asked meanwhile
    }
    if known.len() >= MAX_ZONES {
        return None;
    }
    let name: &'static str = Box::leak(name.into());
    let zone: &'static Zone = Box::leak(Box::new(Zone::new(name, Vec::leak(offsets))));
    known.insert(name, zone);
    Some(zone)
}

/// Without the feature `zones`, only UTC's.
#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Calendar {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(CalendarText(named))
    }
}

#[cfg(not(feature = "zones"))]
fn default_source(_name: &str) -> Option<Vec<(i64, i32)>> {
    None
}

#[cfg(feature = "zones")]
use with_jiff::offsets as default_source;

#[cfg(feature = "zones")]
mod with_jiff {
    use jiff::Timestamp;
    use jiff::tz::TimeZone;

    use crate::limit::Zone;

    impl Zone {
        /// The zone of this name in the IANA's database, such as `America/Sao_Paulo`; `None` if there is none.
        #[must_use]
        pub fn named(name: &str) -> Option<&'static Self> {
            super::named(name)
        }
    }

    /// From 1800, before the first change of any clock, to 2200.
    pub(super) fn offsets(name: &str) -> Option<Vec<(i64, i32)>> {
        let zone = TimeZone::get(name).ok()?;
        let moment = |seconds| Timestamp::from_second(seconds).ok();
        let (from, until) = (moment(-5_364_662_400)?, moment(7_258_118_400)?);
        let first = (from.as_millisecond(), zone.to_offset(from).seconds());
        let changes = zone.following(from).take_while(|change| change.timestamp() < until);
        let changes = changes.map(|change| (change.timestamp().as_millisecond(), change.offset().seconds()));
        Some(std::iter::once(first).chain(changes).collect())
    }
}

#[cfg(all(test, feature = "zones"))]
mod tests {
    use jiff::Timestamp;
    use jiff::tz::{self, TimeZone};

    use super::*;

    #[test]
    fn scanning_finds_all_changes_of_all_zones() {
        for name in tz::db().available() {
            let zone = TimeZone::get(name.as_str()).unwrap();
            let offset_at = |ms| Some(zone.to_offset(Timestamp::from_millisecond(ms).unwrap()).seconds());
            let scanned = scanned(offset_at).unwrap();
            let known = with_jiff::offsets(name.as_str()).unwrap();
            let later = known.iter().filter(|(at, _)| (FROM + 1..UNTIL).contains(at)).copied();
            // What changes a name and not the offset is no change here.
            let mut expected = vec![(FROM, offset_at(FROM).unwrap())];
            for change in later {
                if expected.last().unwrap().1 != change.1 {
                    expected.push(change);
                }
            }
            let scanned: Vec<_> = scanned.into_iter().filter(|(at, _)| *at < UNTIL).collect();
            assert_eq!(scanned, expected, "{}", name.as_str());
        }
    }

    #[test]
    fn a_zone_is_known_by_its_name() {
        assert_eq!(named("UTC"), Some(&Zone::UTC));
        let paulo = Zone::named("America/Sao_Paulo").unwrap();
        assert!(std::ptr::eq(paulo, Zone::named("America/Sao_Paulo").unwrap()));
        for unknown in ["", "America", "America/Sao_Paolo", "UTC+3"] {
            assert_eq!(named(unknown), None, "{unknown}");
        }
    }
}
