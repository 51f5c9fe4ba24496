// A page without a bundler, which imports the files as they are, also from another origin.
const address = new URL(import.meta.url).searchParams.get("from");
const tollgate = await import(address);
const { exercise } = await import("./exercise.mjs");
globalThis.outcome = await exercise(tollgate);
