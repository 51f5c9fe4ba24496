// Puts the larger module in the place of the core.
import { KINDS, type OtherKind } from "./bucket.js";
import { replace } from "./core.js";
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
}

/** The numbers of the kinds: see `kind_of` in src/js/exports.rs. */
export const FIRST_USE = "first_use_window" as OtherKind;
export const FIRST_CALENDAR = 3;
