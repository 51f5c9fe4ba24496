// What the service's own Rust imports: time zones as JavaScript knows them. See src/zones/imported.rs.

/** The imports of such a module. `of` tells them which instance has them. */
export function zoneImports(): { readonly imports: WebAssembly.Imports; of(instance: WebAssembly.Instance): void } {
  let memory: WebAssembly.Memory;
  const moment_in = (name: number, nameLength: number, ms: number, text: number, room: number): number => {
    const { buffer } = memory;
    const zone = new TextDecoder().decode(new Uint8Array(buffer, name, nameLength));
    return new TextEncoder().encodeInto(momentIn(zone, ms), new Uint8Array(buffer, text, room)).written;
  };
  const of = (instance: WebAssembly.Instance): void => {
    ({ memory } = instance.exports as { readonly memory: WebAssembly.Memory });
  };
  return { imports: { tollgate: { moment_in } }, of };
}

/** Formats a moment with the zone's offset from UTC. Empty if `Intl` does not know the zone. */
function momentIn(zone: string, ms: number): string {
  if (zone !== lastZone?.zone) lastZone = { zone, format: formatIn(zone) };
  return lastZone.format?.format(ms) ?? "";
}

/** The module wants many moments of one zone. */
let lastZone: { readonly zone: string; readonly format: Intl.DateTimeFormat | undefined } | undefined;

function formatIn(timeZone: string): Intl.DateTimeFormat | undefined {
  try {
    const format = new Intl.DateTimeFormat("en", { timeZone, timeZoneName: "longOffset" });
    const known = format.resolvedOptions().timeZone;
    // As in src/worker/zones.rs: in its exact spelling, unless it is an older name of the known one.
    return known === timeZone || known.toLowerCase() !== timeZone.toLowerCase() ? format : undefined;
  } catch {
    return undefined;
  }
}
