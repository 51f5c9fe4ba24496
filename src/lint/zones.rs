//! Time zones as JavaScript knows them: the module's only import.

use crate::zones;

#[link(wasm_import_module = "tollgate")]
unsafe extern "C" {
    /// The offset from UTC in seconds of the zone with that name at a moment; not a number if there is none.
    fn zone_offset(name: *const u8, len: usize, ms: f64) -> f64;
}

/// Lets policies have time zones.
pub(super) fn install() {
    zones::install(|name| {
        zones::scanned(|ms| {
            #[expect(clippy::cast_precision_loss, reason = "moments are below 2⁵³")]
            // SAFETY: the name is that many bytes at this address.
            let seconds = unsafe { zone_offset(name.as_ptr(), name.len(), ms as f64) };
            #[expect(clippy::cast_possible_truncation, reason = "an offset is less than a day")]
            (!seconds.is_nan()).then_some(seconds as i32)
        })
    });
}
