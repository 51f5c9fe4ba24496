// The core's own `consume`, called like the empty one: what a decision costs in WebAssembly, without the class that checks
// its arguments.
import { wasm } from "../../../build/package/wasm.js";
import { PLENTY, SPENT } from "../limits.mjs";

const { exports } = new WebAssembly.Instance(new WebAssembly.Module(wasm()));

export const core = {
  name: "Tollgate's core, unchecked",
  make(now) {
    const page = exports.memory.grow(1) * 65_536;
    const addresses = [PLENTY, SPENT].map(({ rate, periodMs, capacity, initial = capacity }, i) => {
      const address = page + 8 + i * exports.size();
      if (exports.make(address, page, 0, now, rate, periodMs, capacity, 0, initial, 0) !== 0)
        throw new Error("the core refuses a limit");
      return address;
    });
    return (asked, now) => {
      let allowed = 0;
      for (let i = 0; i < asked.length; i++) allowed += exports.consume(addresses[asked[i]], now + (i >> 1), 1);
      return allowed;
    };
  },
};
