// The README's line for each framework, in that framework: what a component shows, and that it cleans up.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { build } from "esbuild";
import { compile } from "svelte/compiler";
import { page, serve, visit } from "./pages.mjs";
import { root, stranger } from "./stranger.mjs";

const { folder } = await stranger({ beside: ["vue", "svelte", "solid-js"] });
const readme = readFileSync(join(root, "www/package/README.md"), "utf8");

/** The README's code for a framework, which makes `standing` from `store`. */
const lineOf = (framework) => readme.match(new RegExp(`^\\| ${framework} \\| \`(.*)\` \\|$`, "m"))[1];

/** Components that show the `store` of their props, and `mount`, which returns a function that unmounts. */
const COMPONENTS = {
  Vue: `
    import { createApp, h, onScopeDispose, shallowRef } from "vue";
    export function mount(target, store) {
      const setup = () => {
        ${lineOf("Vue")}
        return () => h("p", JSON.stringify(standing.value));
      };
      const app = createApp({ setup });
      app.mount(target);
      return () => app.unmount();
    }`,
  Svelte: `
    import * as svelte from "svelte";
    import Component from "./Component.svelte";
    export function mount(target, store) {
      const component = svelte.mount(Component, { target, props: { store } });
      return () => svelte.unmount(component);
    }`,
  Solid: `
    import { createEffect, from } from "solid-js";
    import { render } from "solid-js/web";
    export const mount = (target, store) => render(() => {
      ${lineOf("Solid")}
      const element = document.createElement("p");
      createEffect(() => { element.textContent = JSON.stringify(standing()); });
      return element;
    }, target);`,
};

const SVELTE = `
  <script>
    import { readable } from "svelte/store";
    const { store } = $props();
    ${lineOf("Svelte")}
  </script>
  <p>{JSON.stringify($standing)}</p>`;

/** Spends all, waits until the first token is back, and unmounts. */
const PROGRAM = `
  import { Limiter, watch } from "tollgate";
  import { FakeClock } from "tollgate/testing";
  import { mount } from "./component.mjs";

  const clock = new FakeClock(0);
  const limiter = new Limiter({ rate: 3, periodMs: 1000 }, { clock });
  const rendered = () => new Promise((resolve) => setTimeout(resolve));
  const seen = [];
  const see = async () => {
    await rendered();
    seen.push(document.body.querySelector("p")?.textContent);
  };
  const unmount = mount(document.body, watch(limiter));
  await see();
  limiter.tryConsume(3);
  await see();
  await clock.to(333);
  await see();
  await clock.to(334);
  await see();
  unmount();
  await see();
  globalThis.outcome = { seen, timers: clock.timers };`;

for (const [framework, component] of Object.entries(COMPONENTS)) {
  test(`${framework} shows each state of a limit, and stops watching`, async () => {
    writeFileSync(join(folder, "component.mjs"), component);
    const { js } = compile(SVELTE, { filename: "Component.svelte" });
    writeFileSync(join(folder, "Component.svelte"), js.code);
    await build({
      stdin: { contents: PROGRAM, resolveDir: folder },
      bundle: true,
      format: "esm",
      loader: { ".svelte": "js" },
      outfile: join(folder, `${framework}.js`),
      logLevel: "error",
      define: { __VUE_OPTIONS_API__: "true", __VUE_PROD_DEVTOOLS__: "false" },
    });
    writeFileSync(join(folder, `${framework}.html`), page(`/${framework}.js`));
    const { url } = await serve(folder);
    const { outcome } = await visit(`${url}/${framework}.html`);
    assert.deepEqual(
      outcome.seen.map((text) => text && JSON.parse(text)),
      [
        { ok: true, remaining: 3, readyAt: 0 },
        { ok: false, remaining: 0, readyAt: 334 },
        { ok: false, remaining: 0, readyAt: 334 },
        { ok: true, remaining: 1, readyAt: 0 },
        undefined,
      ],
    );
    assert.deepEqual(outcome.timers, []);
  });
}
