// A module of the package as a new process would load it, with all that it imports: for what happens once in a process.
import { registerHooks } from "node:module";

registerHooks({
  resolve(specifier, context, next) {
    const { search } = new URL(context.parentURL ?? "file:///");
    const resolved = next(specifier, context);
    return /^\?fresh=/.test(search) && specifier.startsWith(".")
      ? { ...resolved, url: resolved.url + search }
      : resolved;
  },
});

let copies = 0;

export function fresh(module) {
  return import(`../../build/package/${module}?fresh=${copies++}`);
}
