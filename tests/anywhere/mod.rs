//! Tests that run natively and in a browser: `use anywhere::test;` gives `#[test]` the meaning it needs in either.
//!
//! `wasm-pack test --headless --chrome` compiles every test program for the browser. One that did not use this would have
//! nothing to run there, and the runner calls that a success.

#[cfg(not(target_family = "wasm"))]
pub(crate) use core::prelude::v1::test;
#[cfg(target_family = "wasm")]
pub(crate) use wasm_bindgen_test::wasm_bindgen_test as test;

// Without it the runner takes the tests for Node's, and skips them.
#[cfg(target_family = "wasm")]
wasm_bindgen_test::wasm_bindgen_test_configure!(run_in_browser);
