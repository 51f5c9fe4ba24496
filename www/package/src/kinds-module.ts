// Puts the larger module in the place of the core.
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
  if (!isFirst) throw new TollgateError("kinds_unknown", "import tollgate/kinds before the first limiter is made");
}
