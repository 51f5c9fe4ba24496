// Lets tests import the page's modules unchanged: `tollgate` is the page's build of it, and numbers are formatted alike wherever the
// tests run. Import it before them.
import { registerHooks } from "node:module";

registerHooks({
  resolve: (name, context, next) => {
    const [, entry] = /^tollgate(?:\/(\w+))?$/.exec(name) ?? [undefined, false];
    if (entry === false) return next(name, context);
    return next(new URL(`../../build/library/${entry ?? "index"}.js`, import.meta.url).href, context);
  },
});

const { NumberFormat } = Intl;
Intl.NumberFormat = class extends NumberFormat {
  constructor(locale = "en-US", options = {}) {
    super(locale, options);
  }
};
