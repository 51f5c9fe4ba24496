//! What the class needs of JavaScript.

use wasm_bindgen::prelude::wasm_bindgen;

#[wasm_bindgen(module = "/src/js/host.mjs")]
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

    /// Throws a `RangeError`.
    #[wasm_bindgen(js_name = throwNumber)]
    pub(super) fn throw_number(name: &str, given: f64, min: f64, max: f64);

    /// Throws a `TypeError`.
    #[wasm_bindgen(js_name = throwState)]
    pub(super) fn throw_state(code: &str, message: &str);
}
