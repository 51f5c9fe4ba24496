// Lets tests import the page's modules as they are: `tollgate` is what the page is built with. Import it before them.
import { registerHooks } from "node:module";

registerHooks({
  resolve: (name, context, next) => {
    const [, entry] = /^tollgate(?:\/(\w+))?$/.exec(name) ?? [undefined, false];
    if (entry === false) return next(name, context);
    return next(new URL(`../../build/library/${entry ?? "index"}.js`, import.meta.url).href, context);
  },
});
