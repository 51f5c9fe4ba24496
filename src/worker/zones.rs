//! Time zones as the runtime knows them.

use js_sys::{Array, Function, Intl, Object, Reflect};
use wasm_bindgen::JsCast;
use wasm_bindgen::prelude::{JsValue, wasm_bindgen};

use crate::zones::{self, Found};

/// When this instance starts.
#[wasm_bindgen(start)]
fn start() {
    zones::install(offsets);
}

fn offsets(name: &str) -> Option<Found> {
    let (format, is_exact) = format_of(name)?;
    let offsets = zones::scan::scanned(|ms| {
        #[expect(clippy::cast_precision_loss, reason = "moments are below 2⁵³")]
        let text = format.call1(&JsValue::UNDEFINED, &(ms as f64).into()).ok()?.as_string()?;
        zones::scan::offset_in(&text)
    })?;
    Some(Found { offsets, is_exact })
}

/// Formats a moment in that zone, and whether no other spelling does; `None` if the runtime does not know it.
fn format_of(name: &str) -> Option<(Function, bool)> {
    let options = Object::new();
    for (option, value) in [("timeZone", name), ("timeZoneName", "longOffset")] {
        Reflect::set(&options, &option.into(), &value.into()).ok()?;
    }
    // Not its constructor in `js_sys`, which cannot fail.
    let class = Reflect::get(&js_sys::global(), &"Intl".into()).ok()?;
    let class: Function = Reflect::get(&class, &"DateTimeFormat".into()).ok()?.unchecked_into();
    let made = Reflect::construct(&class, &Array::of2(&"en".into(), &options)).ok()?;
    let format: Intl::DateTimeFormat = made.unchecked_into();
    let known = Reflect::get(&format.resolved_options(), &"timeZone".into()).ok()?.as_string()?;
    Some((format.format(), zones::is_exact(name, &known)?))
}
