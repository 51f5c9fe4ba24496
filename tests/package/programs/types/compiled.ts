// The core in the forms that only a platform with types for WebAssembly has.
import { init } from "tollgate/slim";

const module: WebAssembly.Module = new WebAssembly.Module(new Uint8Array(8));
init(module);
init(new WebAssembly.Instance(module));
init(() => module);
