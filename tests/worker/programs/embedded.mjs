// A stranger's Worker with Tollgate in it: with other exports, another Durable Object, and routes for the tests.
import { DurableObject } from "cloudflare:workers";
import {
  acquire,
  KeyObject,
  NotGrantedError,
  PolicyRegistry,
  SettingsError,
  default as service,
  Tollgate,
  TollgateError,
  tollgate,
} from "tollgate/worker";

export { KeyObject, PolicyRegistry, Tollgate };

/** Not ours: counts in its storage. */
export class Counter extends DurableObject {
  increment() {
    const count = (this.ctx.storage.kv.get("count") ?? 0) + 1;
    this.ctx.storage.kv.put("count", count);
    return count;
  }

  /** Streams a body, whose second chunk waits for `release`. */
  fetch() {
    const { readable, writable } = new IdentityTransformStream();
    const writer = writable.getWriter();
    const { promise, resolve } = Promise.withResolvers();
    this.release = resolve;
    const write = async () => {
      await writer.write(new TextEncoder().encode("first"));
      await promise;
      await writer.write(new TextEncoder().encode("second"));
      await writer.close();
    };
    this.ctx.waitUntil(write());
    return new Response(readable);
  }

  goOn() {
    this.release();
  }
}

let elsewhere;

/** Another object for the same namespace. */
const renewed = (keys) => ({
  getByName: (name) => keys.getByName(name),
  idFromName: (name) => keys.idFromName(name),
});

/** The option `policies` is a new object for each request, as people write it. */
const inCode = () => ({ policies: { code: { rate: 1, period: "1day", capacity: 3, write_ahead: 0 } } });

const routes = {
  /** `/embedded/consume`: the ready response to an HTTP request to `/v1/consume`. */
  async embedded(request, env, [verb]) {
    const idempotencyKey = request.headers.get("idempotency-key") ?? undefined;
    const decision = await tollgate(env)[verb](await request.json(), { idempotencyKey });
    return decision.response();
  },
  /** `/keys/inspect`: what operators do with one key. */
  async keys(request, env, [verb]) {
    return (await tollgate(env).keys[verb](await request.json())).response();
  },
  async rpcKeys(request, env, [verb]) {
    return Response.json(await env.TOLLGATE.keys[verb](await request.json()));
  },
  /** The members of the answer, and its headers. */
  async members(request, env, [verb]) {
    const decision = await tollgate(env)[verb](await request.json());
    return Response.json({ members: decision, headers: [...decision.headers] });
  },
  /** The response, or the code of the error. */
  async acquire(request, env) {
    try {
      const decision = await acquire(tollgate(env), await request.json());
      return decision.response();
    } catch (error) {
      return Response.json(error instanceof TollgateError ? error.code : String(error));
    }
  },
  async code(request, env, [verb]) {
    const decision = await tollgate(env, inCode())[verb](await request.json());
    return decision.response();
  },
  /** In another namespace. */
  async elsewhere(request, env, [verb]) {
    elsewhere ??= { getByName: (name) => env.KEYS.getByName(`elsewhere ${name}`) };
    const decision = await tollgate(env, { keys: elsewhere })[verb](await request.json());
    return decision.response();
  },
  /** In the usual namespace, each time by a new object. */
  async renewed(request, env, [verb]) {
    const decision = await tollgate(env, { keys: renewed(env.KEYS) })[verb](await request.json());
    return decision.response();
  },
  /** The response in the error, with what else the error says. */
  async throwing(request, env, [verb]) {
    try {
      return (await tollgate(env, { throws: true })[verb](await request.json())).response();
    } catch (error) {
      if (!(error instanceof NotGrantedError)) throw error;
      const { answer, code, retryAt, retryAfterMs } = error;
      const response = answer.response();
      for (const [name, value] of Object.entries({ code, at: retryAt, after: retryAfterMs }))
        response.headers.set(`x-${name}`, String(value));
      return response;
    }
  },
  /** Without any policy. */
  async none(request, env, [verb]) {
    const decision = await tollgate(env, { policies: {} })[verb](await request.json());
    return decision.response();
  },
  /** `/apply/x`: the answer about that policy, added to a response. */
  async apply(_request, env, [kind, ...policies]) {
    let response = await RESPONSES[kind]();
    const before = response;
    for (const policy of policies) response = (await tollgate(env).consume({ policy, key: "applied" })).apply(response);
    response.headers.set("x-same", String(response === before));
    return response;
  },
  /** The parts of another Worker's streamed response that arrive before and after the rest was sent. */
  async stream(_request, env) {
    const object = env.COUNTER.getByName("streaming");
    const decision = await tollgate(env).consume({ policy: "api", key: "streaming" });
    const applied = decision.apply(await object.fetch("https://object/"));
    const reader = applied.body.getReader();
    const read = async () => new TextDecoder().decode((await reader.read()).value);
    const first = await read();
    await object.goOn();
    return Response.json([applied.headers.get("ratelimit").slice(0, 9), first, await read()]);
  },
  async settings(request, env) {
    const { without = [], options, ...changes } = await request.json();
    const changed = { ...env, ...changes };
    for (const name of without) delete changed[name];
    try {
      tollgate(changed, options);
      return Response.json([]);
    } catch (error) {
      return Response.json(error instanceof SettingsError ? error.errors : String(error));
    }
  },
  memoised: (_request, env) =>
    Response.json(
      [
        [{}, {}],
        [inCode(), inCode()],
        [inCode(), {}],
        [{ keys: env.KEYS }, undefined],
        [{ keys: renewed(env.KEYS) }, { keys: renewed(env.KEYS) }],
        [{ throws: true }, { throws: true }],
        [{ keys: env.KEYS }, { keys: env.COUNTER }],
      ].map(([one, other]) => tollgate(env, one) === tollgate(env, other)),
    ),
  async counter(_request, env) {
    return new Response(await env.COUNTER.getByName("one").increment());
  },
  rpc: async (request, env, [verb]) => Response.json(await env.TOLLGATE[verb](await request.json())),
  fetcher: (request, env, path) =>
    env.TOLLGATE.fetch(`https://tollgate/${path.join("/")}`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: request.body,
    }),
};

const RESPONSES = {
  own: () => new Response("own"),
  redirect: () => Response.redirect("https://example.com/"),
};

export default {
  fetch(request, env) {
    const [, name, ...rest] = new URL(request.url).pathname.split("/");
    return routes[name]?.(request, env, rest) ?? service.fetch(request, env);
  },
};
