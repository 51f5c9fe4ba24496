// Recovery from a panic, on a small WebAssembly module: 500.test.mjs and failures.test.mjs test it on the whole Worker.
import assert from "node:assert/strict";
import { test } from "node:test";
import binaryen from "binaryen";
import { lasting, watched } from "../../src/worker/recovery.mjs";

/** Counts its calls in its memory; `trap` ends like a panic, `call` calls JavaScript. */
const module = new WebAssembly.Module(
  binaryen
    .parseText(`(module
      (import "host" "call" (func $host))
      (global $count (export "count") (mut i32) (i32.const 0))
      (func (export "__wbindgen_start") (call $host))
      (func (export "add") (result i32)
        (global.set $count (i32.add (global.get $count) (i32.const 1)))
        (global.get $count))
      (func (export "trap") (unreachable))
      (func (export "call") (result i32) (call $host) (global.get $count)))`)
    .emitBinary(),
);

/** As wasm-bindgen writes it: `wasm` is the current instance. */
function start() {
  const state = { wasm: undefined, instances: 0, host: () => {} };
  const reset = () => {
    state.instances++;
    const { exports } = new WebAssembly.Instance(module, { host: { call: () => state.host() } });
    state.wasm = watched(exports, reset);
  };
  reset();
  return state;
}

const fails = (call) => assert.throws(call, WebAssembly.RuntimeError);

test("calls that return keep the instance and its memory", () => {
  const state = start();
  assert.deepEqual([state.wasm.add(), state.wasm.add(), state.wasm.call(), state.instances], [1, 2, 2, 1]);
  assert.equal(state.wasm.count.value, 2, "exports that are not functions are unchanged");
});

test("after each trap the next call gets a new instance", () => {
  const state = start();
  for (const instances of [2, 3, 4]) {
    assert.equal(state.wasm.add(), 1);
    fails(() => state.wasm.trap());
    assert.equal(state.instances, instances);
  }
});

test("so does the next call after a JavaScript error that passed through Rust", () => {
  const state = start();
  state.wasm.add();
  state.host = () => {
    throw new RangeError("from outside");
  };
  assert.throws(() => state.wasm.call(), new RangeError("from outside"));
  assert.deepEqual([state.wasm.add(), state.instances], [1, 2]);
});

test("a running instance is replaced only after it returns, even if a nested call failed", () => {
  const state = start();
  const { wasm } = state;
  wasm.add();
  state.host = () => {
    fails(() => wasm.trap());
    assert.equal(state.instances, 1);
  };
  assert.equal(wasm.call(), 1, "it returns to where it came from");
  assert.deepEqual([state.wasm.add(), state.instances], [1, 2]);
});

test("a failed start is not retried", () => {
  const state = start();
  state.host = () => {
    throw new Error("no start");
  };
  assert.throws(() => state.wasm.__wbindgen_start(), /no start/);
  assert.equal(state.instances, 1);
});

test("a lasting object is created on first use, once per instance", () => {
  const state = start();
  const made = [];
  const get = lasting(() => made[made.push({ in: state.instances }) - 1]);
  assert.deepEqual(made, []);
  assert.equal(get(), get());
  fails(() => state.wasm.trap());
  assert.equal(get(), get());
  fails(() => state.wasm.trap());
  fails(() => state.wasm.trap());
  get();
  assert.deepEqual(made, [{ in: 1 }, { in: 2 }, { in: 4 }]);
});

test("an object whose creation failed is created on the next use", () => {
  let isBroken = true;
  const get = lasting(() => {
    if (isBroken) throw new Error("not yet");
    return "made";
  });
  assert.throws(get, /not yet/);
  isBroken = false;
  assert.equal(get(), "made");
});
