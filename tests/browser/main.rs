//! The JavaScript class as a page sees it, in a real browser:
//! `wasm-pack test --headless --chrome -- --no-default-features --features js`.
//!
//! The tests themselves are JavaScript, `bucket.js`, so that every call goes through what wasm-bindgen generates.

#[cfg(all(target_arch = "wasm32", feature = "js"))]
mod in_browser {
    use std::sync::Once;

    use tollgate::js::Bucket;
    use wasm_bindgen::prelude::*;
    use wasm_bindgen_test::{wasm_bindgen_test, wasm_bindgen_test_configure};

    use super::VECTORS;

    wasm_bindgen_test_configure!(run_in_browser);

    macro_rules! in_javascript {
        ($($test:ident $name:literal)*) => {
            #[wasm_bindgen(module = "/tests/browser/bucket.js")]
            extern "C" {
                $(#[wasm_bindgen(catch, js_name = $name)] fn $test(bucket: Bucket) -> Result<(), JsValue>;)*

                #[wasm_bindgen(catch, js_name = runVectors)]
                fn run_vectors(bucket: Bucket, json: &str) -> Result<u32, JsValue>;
                #[wasm_bindgen(catch, js_name = survivesAnything)]
                fn survives_anything(bucket: Bucket) -> Result<u32, JsValue>;
                #[wasm_bindgen(js_name = makeAndFree)]
                fn make_and_free(bucket: Bucket, count: u32);
            }

            mod javascript {
                $(#[super::wasm_bindgen_test] fn $test() -> Result<(), super::JsValue> { super::$test(super::bucket()) })*
            }
        };
    }

    in_javascript! {
        a_new_bucket_has_answered_nothing "aNewBucketHasAnsweredNothing"
        each_verb_does_what_it_says "eachVerbDoesWhatItSays"
        absent_is_not_zero "absentIsNotZero"
        every_error_has_its_own_code "everyErrorHasItsOwnCode"
        what_is_no_number_at_all_is_a_type_error "whatIsNoNumberAtAllIsATypeError"
        a_state_goes_on_where_it_was_saved "aStateGoesOnWhereItWasSaved"
        what_is_no_state_is_refused_and_changes_nothing "whatIsNoStateIsRefusedAndChangesNothing"
        faults_leave_nothing_behind "faultsLeaveNothingBehind"
        after_free_there_is_an_error_and_no_crash "afterFreeThereIsAnErrorAndNoCrash"
    }

    #[wasm_bindgen_test]
    fn the_vectors_hold() -> Result<(), JsValue> {
        for (name, json) in VECTORS {
            let steps = run_vectors(bucket(), json)?;
            assert!(steps > 0, "{name} has no steps");
            wasm_bindgen_test::console_log!("{name}: {steps} steps");
        }
        Ok(())
    }

    #[wasm_bindgen_test]
    fn anything_is_answered_or_refused_with_a_code() -> Result<(), JsValue> {
        let calls = survives_anything(bucket())?;
        assert!(calls > 4_000, "{calls}");
        Ok(())
    }

    #[wasm_bindgen_test]
    fn what_was_freed_is_used_again() {
        make_and_free(bucket(), 100);
        let before = core::arch::wasm32::memory_size(0);
        make_and_free(bucket(), 10_000);
        assert_eq!(core::arch::wasm32::memory_size(0), before);
    }

    fn bucket() -> Bucket {
        static STARTED: Once = Once::new();
        STARTED.call_once(tollgate::js::start);
        Bucket::token_bucket(0.0, 1.0, 1.0, None, None, None).unwrap()
    }
}

macro_rules! vectors {
    ($($name:literal)*) => {
        #[cfg_attr(not(all(target_arch = "wasm32", feature = "js")), allow(dead_code))]
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
