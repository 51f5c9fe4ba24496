//! Time zones by their names. Their offsets come from the platform: in a Worker and in the npm package from `Intl`, and natively, with the
//! feature `zones`, from the database in the crate `jiff`.

use std::collections::BTreeMap;
use std::sync::{OnceLock, PoisonError, RwLock};

use crate::limit::Zone;
#[cfg(feature = "serde")]
use crate::limit::{Calendar, CalendarText};

/// The offsets of the zone of that name, as for [`Zone::new`]; `None` if there is no such zone.
pub type Source = fn(&str) -> Option<Vec<(i64, i32)>>;

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
