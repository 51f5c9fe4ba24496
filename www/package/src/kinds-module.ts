// Puts the larger module in the place of the core.
import { Bucket, KINDS, type OtherKind, type Snapshot, snapshotMismatched } from "./bucket.js";
import { type Core, core, replace } from "./core.js";
import { TollgateError } from "./errors.js";
import { zoneImports } from "./zones.js";

/** Makes the core's instance of this module. */
export function include(module: () => WebAssembly.Module): void {
  const isFirst = replace(() => {
    const zones = zoneImports();
    const instance = new WebAssembly.Instance(module(), zones.imports);
    zones.of(instance);
    return instance;
  });
  if (!isFirst) throw new TollgateError("kinds_too_late", "import tollgate/kinds before the first limiter is made");
  KINDS[2] = FIRST_USE;
  extendSnapshots();
}

/** Snapshots of rolling windows: done here, so that `Bucket` alone ships none of it. */
function extendSnapshots(): void {
  const { save, restore } = Bucket.prototype;
  Bucket.prototype.save = function (now) {
    const bucket = Bucket.addressOf(this);
    const snapshot = save.call(this, now); // which checks the moment
    if (ours().words(bucket) === STATE_WORDS) return snapshot;
    const returns: [number, number][] = [];
    for (let which = 7; core.get(bucket, which + 1, now) > 0; which += 2)
      returns.push([core.get(bucket, which, now), core.get(bucket, which + 1, now)]);
    return { ...snapshot, returns };
  };
  Bucket.prototype.restore = function (snapshot, apply = true) {
    const { tokens, drops, at, returns } = Object(snapshot) as Snapshot;
    if (!returns) {
      restore.call(this, snapshot, apply);
      return;
    }
    const bucket = Bucket.addressOf(this);
    const bytes = new Uint8Array(core.memory.buffer, bucket, core.size());
    const before = bytes.slice();
    const isRestored =
      [tokens, at].every(Number.isSafeInteger) &&
      tokens >= 0 &&
      drops === 0 &&
      Array.isArray(returns) &&
      ours().restore_rolling(bucket, tokens, at) > 0 &&
      returns.every((each) => isReturn(each) && ours().restore_return(bucket, each[0], each[1]) > 0) &&
      ours().restore_return(bucket, 0, 0) > 0;
    if (!(isRestored && apply)) bytes.set(before);
    if (!isRestored) throw snapshotMismatched();
  };
}

const ours = () => core as Core & RollingExports;

/** Those of src/js/returns.rs, which documents them. */
interface RollingExports {
  words(bucket: number): number;
  restore_rolling(bucket: number, tokens: number, at: number): number;
  restore_return(bucket: number, at: number, tokens: number): number;
}

function isReturn(each: readonly [number, number]): boolean {
  return Array.isArray(each) && each.length === 2 && each.every(Number.isSafeInteger) && each[1] > 0;
}

/** Of a state without moments. */
const STATE_WORDS = 4;

/** The numbers of the kinds: see `kind_of` in src/js/kinds.rs. */
export const FIRST_USE = "first_use_window" as OtherKind;
export const FIRST_OTHER = 3;
