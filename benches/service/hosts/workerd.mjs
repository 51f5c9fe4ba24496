// A Worker on workerd, in its own process with its objects on disk.
import { fileURLToPath } from "node:url";
import { Runtime } from "../../../tests/http/runtime.mjs";

/** Starts it. `/rows` reports how many rows its objects have written. */
export async function onWorkerd(worker) {
  const runtime = new Runtime();
  await runtime.start({ ...counting(worker), keepsObjects: true });
  return {
    port: runtime.port,
    pids: [runtime.pid],
    countsRows: true,
    kill: () => runtime.kill(),
    remove: () => runtime.remove(),
    log: () => runtime.log,
  };
}

/** The same Worker, counting the rows written, which takes a microsecond or two of a request's hundreds. */
function counting({ modules, ...others }) {
  const [[, main], ...rest] = Object.entries(modules);
  const around = fileURLToPath(new URL("../counting.mjs", import.meta.url));
  return { modules: { "counting.mjs": around, "counted.mjs": main, ...Object.fromEntries(rest) }, ...others };
}
