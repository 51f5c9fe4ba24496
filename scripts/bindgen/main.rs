//! Makes the JavaScript around the Worker's Rust: `tollgate-bindgen MODULE.wasm FOLDER` writes `index.js`,
//! `index_bg.wasm` and `snippets` into the folder.
//!
//! `wasm-bindgen` itself would do, but it takes minutes to build, with a test runner and a web server that only tests need.

use std::{env, error::Error, fs, path::PathBuf};

use wasm_bindgen_cli_support::Bindgen;

fn main() -> Result<(), Box<dyn Error>> {
    let [module, folder] =
        env::args_os().skip(1).map(PathBuf::from).collect::<Vec<_>>().try_into().map_err(|_| USAGE)?;
    let mut bindgen = Bindgen::new();
    bindgen.input_path(module).out_name("index").module(true)?.reset_state_function(true).generate(&folder)?;

    let path = folder.join("index.js");
    let mut script = fs::read_to_string(&path)?;
    for (theirs, count, ours) in CHANGES {
        if script.matches(theirs).count() != count {
            return Err(format!("{}: expected {theirs:?} {count} times; see CHANGES", path.display()).into());
        }
        script = script.replace(theirs, ours);
    }
    fs::write(&path, RECOVERY.to_owned() + &script)?;
    Ok(())
}

const USAGE: &str = "usage: tollgate-bindgen MODULE.wasm FOLDER";

/// What is written otherwise, and how often it is there.
const CHANGES: [(&str, usize, &str); 2] = [
    // The runtime knows only modules that are imported like all others.
    ("import source wasmModule from", 1, "import wasmModule from"),
    // So that a panic is noticed wherever it comes from: at the start, and in `__wbg_reset_state`.
    ("wasmInstance.exports;", 2, "watched(wasmInstance.exports, __wbg_reset_state);"),
];

/// The folder lies beside it.
const RECOVERY: &str = "import { watched } from \"../recovery.mjs\";\n";
