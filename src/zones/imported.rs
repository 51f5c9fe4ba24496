//! Time zones as JavaScript knows them: the only import of the package's modules.
#![expect(unsafe_code, reason = "an import")]

use super::{Found, scan};

#[link(wasm_import_module = "tollgate")]
unsafe extern "C" {
    /// Writes a moment in the zone of that name, as `Intl` formats it, to `text`, and returns how many bytes it has written: none if there
    /// is no such zone.
    fn moment_in(name: *const u8, name_len: usize, ms: f64, text: *mut u8, room: usize) -> usize;
}

/// Lets policies have time zones.
pub(crate) fn install() {
    super::install(|name| {
        let offsets = scan::scanned(|ms| {
            let mut text = [0; 64];
            #[expect(clippy::cast_precision_loss, reason = "moments are below 2⁵³")]
            // SAFETY: the name and the room for the text are that long.
            let len = unsafe { moment_in(name.as_ptr(), name.len(), ms as f64, text.as_mut_ptr(), text.len()) };
            scan::offset_in(std::str::from_utf8(text.get(..len)?).ok()?)
        })?;
        // Programs name zones here, not visitors.
        Some(Found { offsets, is_exact: true })
    });
}
