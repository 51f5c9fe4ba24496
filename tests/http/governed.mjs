// A service whose policies operators change while it runs, with a clock of its own for each test.
import { after } from "node:test";
import { bearer } from "./credentials.mjs";
import { NOW, start } from "./workerd.mjs";

/** Started with a registry and these settings; it stops after the test. Its requests carry `token` unless they say otherwise. */
export async function governed({ token, ...settings }) {
  const tollgate = await start({ token, registry: true, ...settings });
  after(() => tollgate.stop());
  let now = NOW;
  return {
    tollgate,
    send: (method, path, body, { token: other = token, headers, ...options } = {}) =>
      tollgate.send({
        method,
        path,
        body: body === undefined ? undefined : JSON.stringify(body),
        now,
        ...options,
        headers: { ...bearer(other).headers, ...headers },
      }),
    wait: (ms) => {
      now += ms;
    },
    get now() {
      return now;
    },
  };
}
