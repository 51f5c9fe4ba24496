//! What crosses between a page and the core, in a real browser, with the core's debug assertions on:
//! `wasm-pack test --headless --chrome -- --no-default-features --features js --test browser`, after `scripts/build-package`.
//!
//! The tests themselves are JavaScript, `bucket.js`: they run the package's `Bucket` on the exports of this very module.

#[cfg(all(target_arch = "wasm32", feature = "js"))]
mod in_browser {
    use tollgate as _; // its exports are what is tested
    use wasm_bindgen::{exports, prelude::*};
    use wasm_bindgen_test::{console_log, wasm_bindgen_test, wasm_bindgen_test_configure};

    use super::VECTORS;

    wasm_bindgen_test_configure!(run_in_browser);

    #[wasm_bindgen(module = "/tests/browser/bucket.js")]
    extern "C" {
        #[wasm_bindgen(catch, js_name = runVectors)]
        fn run_vectors(exports: JsValue, json: &str) -> Result<u32, JsValue>;
        #[wasm_bindgen(catch, js_name = numbersCrossUnchanged)]
        fn numbers_cross_unchanged(exports: JsValue) -> Result<(), JsValue>;
        #[wasm_bindgen(catch, js_name = whatIsTooLargeIsSaidWithTheLargest)]
        fn what_is_too_large_is_said_with_the_largest(exports: JsValue) -> Result<(), JsValue>;
        #[wasm_bindgen(catch, js_name = survivesAnything)]
        fn survives_anything(exports: JsValue) -> Result<u32, JsValue>;
        #[wasm_bindgen(catch, js_name = decidingTakesNoMemory)]
        fn deciding_takes_nothing(exports: JsValue) -> Result<(), JsValue>;
    }

    #[wasm_bindgen_test]
    fn the_vectors_hold() -> Result<(), JsValue> {
        for (name, json) in VECTORS {
            let steps = run_vectors(exports(), json)?;
            assert!(steps > 0, "{name} has no steps");
            console_log!("{name}: {steps} steps");
        }
        Ok(())
    }

    #[wasm_bindgen_test]
    fn numbers_cross_unchanged_at_their_extremes() -> Result<(), JsValue> {
        numbers_cross_unchanged(exports())
    }

    #[wasm_bindgen_test]
    fn each_number_that_is_too_large_is_said_with_the_largest() -> Result<(), JsValue> {
        what_is_too_large_is_said_with_the_largest(exports())
    }

    #[wasm_bindgen_test]
    fn anything_is_answered_or_refused_with_a_code() -> Result<(), JsValue> {
        let calls = survives_anything(exports())?;
        assert!(calls > 4_000, "{calls}");
        Ok(())
    }

    #[wasm_bindgen_test]
    fn deciding_takes_no_memory() -> Result<(), JsValue> {
        deciding_takes_nothing(exports())
    }
}

macro_rules! vectors {
    ($($name:literal)*) => {
        #[cfg_attr(not(all(target_arch = "wasm32", feature = "js")), allow(dead_code, reason = "elsewhere only the list is held"))]
        const VECTORS: &[(&str, &str)] = &[$(($name, include_str!(concat!("../vectors/", $name)))),*];
    };
}

vectors! {
    "clock.json"
    "consume.json"
    "reserve.json"
    "verbs.json"
    "window.json"
}

/// The browser has no folders to look into, so the files are listed here, and this holds the list to the folder.
#[cfg(not(target_arch = "wasm32"))]
#[test]
fn every_file_of_vectors_is_listed() {
    let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors")).unwrap();
    let mut names: Vec<_> = folder.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let listed: Vec<_> = VECTORS.iter().map(|(name, _)| *name).collect();
    assert_eq!(listed, names);
}
