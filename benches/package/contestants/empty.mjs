// A call into WebAssembly that does nothing, with the parameters and the result of the core's `consume`: the lower bound of
// any decision in WebAssembly.

// (module (func (export "consume") (param i32 f64 f64) (result i32) (i32.const 1)))
const module = new Uint8Array([
  ...[0x00, 0x61, 0x73, 0x6d, 0x01, 0x00, 0x00, 0x00], // "\0asm", version 1
  ...[0x01, 0x08, 0x01, 0x60, 0x03, 0x7f, 0x7c, 0x7c, 0x01, 0x7f], // types: (i32, f64, f64) -> i32
  ...[0x03, 0x02, 0x01, 0x00], // functions: one, of that type
  ...[0x07, 0x0b, 0x01, 0x07, ...new TextEncoder().encode("consume"), 0x00, 0x00], // exports
  ...[0x0a, 0x06, 0x01, 0x04, 0x00, 0x41, 0x01, 0x0b], // code: no locals, i32.const 1, end
]);

const { exports } = new WebAssembly.Instance(new WebAssembly.Module(module));

export const empty = {
  name: "an empty call into wasm",
  make: () => (asked, now) => {
    let allowed = 0;
    for (let i = 0; i < asked.length; i++) allowed += exports.consume(asked[i], now + (i >> 1), 1);
    return allowed;
  },
};
