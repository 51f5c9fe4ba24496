// A page without a bundler: modules are files. From another origin it is what a CDN does.
const address = new URL(import.meta.url).searchParams.get("from");
const tollgate = await import(address);
const { exercise } = await import("./exercise.mjs");
globalThis.outcome = await exercise(tollgate);
