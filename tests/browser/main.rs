//! The exports for JavaScript, called by JavaScript in a browser, with debug assertions on: what `wasm-pack test --headless
//! --chrome` runs beside the core's own tests. The tests themselves are in exports.js, and call the exports of this module.
#![cfg(target_family = "wasm")]

#[path = "../anywhere/mod.rs"]
mod anywhere;
#[path = "../vectors/files.rs"]
mod files;
// Only the feature `js` makes a module export them, and tests are compiled with the default ones.
#[cfg(not(feature = "js"))]
#[allow(unreachable_pub, unused_imports, reason = "it is a library's, and JavaScript calls it")]
#[path = "../../src/js/mod.rs"]
mod js;

use anywhere::test;
#[cfg(feature = "js")]
use tollgate as _;
#[cfg(not(feature = "js"))]
use tollgate::limit; // where `js` looks for it
use wasm_bindgen::{exports, prelude::*};
use wasm_bindgen_test::console_log;

#[wasm_bindgen(module = "/tests/browser/exports.js")]
extern "C" {
    #[wasm_bindgen(catch, js_name = runVectors)]
    fn run_vectors(exports: JsValue, json: &str) -> Result<u32, JsValue>;
    #[wasm_bindgen(catch, js_name = extremes)]
    fn extremes(exports: JsValue) -> Result<u32, JsValue>;
    #[wasm_bindgen(catch, js_name = tooLarge)]
    fn too_large(exports: JsValue) -> Result<u32, JsValue>;
    #[wasm_bindgen(catch, js_name = anything)]
    fn anything(exports: JsValue) -> Result<u32, JsValue>;
    #[wasm_bindgen(catch, js_name = memory)]
    fn memory(exports: JsValue) -> Result<u32, JsValue>;
}

#[test]
fn the_vectors_hold() -> Result<(), JsValue> {
    // The exports make no windows from first use, and no rolling ones.
    let others = ["first_use.json", "rolling.json"];
    for (name, json) in files::ALL.iter().filter(|(name, _)| !others.contains(name)) {
        let steps = run_vectors(exports(), json)?;
        assert!(steps > 0, "{name} has no steps");
        console_log!("{name}: {steps} steps");
    }
    Ok(())
}

#[test]
fn extreme_numbers_cross_unchanged() -> Result<(), JsValue> {
    assert_eq!(extremes(exports())?, 5, "moments");
    Ok(())
}

#[test]
fn a_number_that_is_too_large_is_reported_by_position_with_the_largest() -> Result<(), JsValue> {
    assert_eq!(too_large(exports())?, 5, "rows");
    Ok(())
}

#[test]
fn no_argument_does_harm() -> Result<(), JsValue> {
    let calls = anything(exports())?;
    assert!(calls > 4_000, "{calls}");
    Ok(())
}

#[test]
fn deciding_allocates_no_memory() -> Result<(), JsValue> {
    assert_eq!(memory(exports())?, 100_000, "decisions");
    Ok(())
}
