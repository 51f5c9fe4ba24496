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

/// Replacements: the text, how often it must occur, and the new text.
const CHANGES: [(&str, usize, &str); 3] = [
    // The runtime supports only ordinary imports of modules.
    ("import source wasmModule from", 1, "import wasmModule from"),
    // Watches every instance for panics: the first one, and those that `__wbg_reset_state` creates.
    ("wasmInstance.exports;", 2, "watched(wasmInstance.exports, __wbg_reset_state);"),
    // Rust makes one of these objects for each request. Nothing lists their properties, and this is ten times as fast.
    (
        "Object.defineProperty(obj, '__wbg_inst', { value: __wbg_instance_id, writable: true });",
        3,
        "obj.__wbg_inst = __wbg_instance_id;",
    ),
];

/// The folder is beside it.
const RECOVERY: &str = "import { watched } from \"../recovery.mjs\";\n";
