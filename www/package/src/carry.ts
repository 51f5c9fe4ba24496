// Carries a bucket over to other numbers: the core's own code, in a module of its own, so that only `SharedLimiter` brings it.
import { wasm } from "./carry-wasm.js";
import { core, exportsOf, PAGE_BYTES } from "./core.js";

/** The export of src/js/exports.rs, which documents it. An address is a number. */
interface Carrier {
  readonly memory: { readonly buffer: ArrayBuffer; grow(pages: number): number };
  carry(bucket: number, old: number, now: number): void;
}

/** The bucket at an address in the core's memory takes over the tokens that another, `old`, has at `now`. */
export function carry(bucket: number, old: number, now: number): void {
  if (core.carry) {
    core.carry(bucket, old, now);
    return;
  }
  if (!carrier) {
    // Seldom: when tabs have different numbers.
    carrier = exportsOf(wasm) as Carrier;
    room = carrier.memory.grow(1) * PAGE_BYTES;
  }
  const size = core.size();
  const inCore = new Uint8Array(core.memory.buffer);
  const copies = new Uint8Array(carrier.memory.buffer, room);
  copies.set(inCore.subarray(bucket, bucket + size));
  copies.set(inCore.subarray(old, old + size), size);
  carrier.carry(room, room + size, now);
  inCore.set(copies.subarray(0, size), bucket);
}

let carrier: Carrier | undefined;
/** Where the module has the copies of both buckets. */
let room: number;
