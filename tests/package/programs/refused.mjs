// A page that may not compile WebAssembly: its errors, and when they occur.
import { Bucket, Limiter } from "/node_modules/tollgate/index.js";

const uses = [
  () => new Bucket(0, { rate: 1, periodMs: 1000 }),
  () => new Bucket(0, { rate: 1, periodMs: 1000 }),
  () => new Limiter({ rate: 1, periodMs: 1000 }),
];
globalThis.outcome = uses.map((use) => {
  try {
    return typeof use();
  } catch (error) {
    const { name, code, message, cause } = error;
    return { name, code, message, cause: cause.name };
  }
});
