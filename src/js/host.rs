//! What the class needs of JavaScript. Nothing here throws, or calls the class; `host.js` says why.

use wasm_bindgen::prelude::wasm_bindgen;

use super::bucket::Bucket;

#[wasm_bindgen(module = "/src/js/host.js")]
extern "C" {
    /// A `Uint8Array`, or whatever else JavaScript passes in its place.
    #[wasm_bindgen(typescript_type = "Uint8Array")]
    pub type Bytes;

    /// The number at `i`, or NaN if there is none.
    #[wasm_bindgen(js_name = byteAt)]
    pub(super) fn byte_at(bytes: &Bytes, i: u32) -> f64;

    /// Puts `value` at `i` and reports whether it is there.
    #[wasm_bindgen(js_name = setByte)]
    pub(super) fn set_byte(bytes: &Bytes, i: u32, value: u8) -> bool;

    /// Makes the method that is being called throw a `RangeError` once it has returned.
    #[wasm_bindgen(js_name = faultNumber)]
    pub(super) fn fault_number(name: &str, given: f64, min: f64, max: f64);

    /// Makes the method that is being called throw a `TypeError` once it has returned.
    #[wasm_bindgen(js_name = faultState)]
    pub(super) fn fault_state(code: &str, message: &str);

    /// Makes the methods of this bucket's class do so.
    #[wasm_bindgen(js_name = throwFaults)]
    pub(super) fn throw_faults(bucket: Bucket);
}
