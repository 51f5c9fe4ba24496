// A Worker with Tollgate inside, for a flood of keys whose objects are on other machines: they are made here, asked and forgotten, so that
// what remains is what this isolate keeps.
import { tollgate } from "../../build/worker/embedded.mjs";
import * as built from "../../build/worker/rust/index.js";

export { KeyObject } from "../../build/worker/key_object.mjs";

export default {
  async fetch(request, env) {
    const { pathname } = new URL(request.url);
    if (pathname === "/v1/consume") return (await tollgate(env).consume(await request.json())).response();
    const { policy, first, count } = await request.json();
    const { consume } = tollgate(env, { keys: elsewhere(env) });
    for (let key = first; key < first + count; key++) {
      const { allowed } = await consume({ policy, key: `flood-${key}` });
      if (allowed) return new Response(null, { status: 500 });
    }
    return new Response("{}");
  },
};

/** The same object for each request, by which Tollgate recognizes it. */
function elsewhere(env) {
  namespace ??= { getByName: (name) => ({ decide: (...question) => decide(name, env, question) }) };
  return namespace;
}
let namespace;

async function decide(name, env, question) {
  const object = new built.KeyObject(name, env, NOWHERE);
  const reply = object.decide(...question);
  object.free();
  return reply;
}

const NOWHERE = { rows: () => [], write() {}, write_background() {}, clear() {}, wake_at() {}, flush_in() {} };
