// A page on another origin may call the API and read every answer: the browser's checks before and after.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ownHeaders, PATHS } from "./answers.mjs";
import { start } from "./workerd.mjs";

const tollgate = await start({ policies: { api: { rate: 1, period: "10s" } } });
const origin = "https://app.example.com";

test("a preflight is answered without a token, on any path", async () => {
  for (const path of [...PATHS, "/healthz", "/nothing"]) {
    const answer = await tollgate.send({
      method: "OPTIONS",
      path,
      headers: {
        origin,
        authorization: null,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
      },
    });
    assert.deepEqual(
      { status: answer.status, headers: ownHeaders(answer), text: answer.text },
      {
        status: 204,
        headers: {
          "access-control-allow-origin": "*",
          "access-control-expose-headers": "X-Request-Id",
          "access-control-allow-methods": "GET, POST",
          "access-control-allow-headers": "Authorization, Content-Type, Idempotency-Key, X-Request-Id",
          "access-control-max-age": "86400",
          "x-content-type-options": "nosniff",
        },
        text: "",
      },
      path,
    );
  }
});

test("every answer may be read, including the headers that say when to retry", async () => {
  const ask = { policy: "api", key: "alice" };
  const answers = {
    200: tollgate.consume(ask, { headers: { origin } }),
    400: tollgate.send({ body: "{", headers: { origin } }),
    401: tollgate.send({ headers: { origin, authorization: null } }),
    404: tollgate.send({ path: "/nothing", headers: { origin } }),
    405: tollgate.send({ method: "GET", headers: { origin } }),
    413: tollgate.send({ body: " ".repeat(16_385), headers: { origin } }),
    415: tollgate.send({ body: "{}", headers: { origin, "content-type": null } }),
  };
  await answers[200];
  answers[429] = tollgate.consume(ask, { headers: { origin } });
  for (const [status, answer] of Object.entries(answers)) {
    const { headers } = await answer;
    assert.equal((await answer).status, Number(status));
    assert.equal(headers["access-control-allow-origin"], "*", status);
    assert.equal(headers["access-control-allow-credentials"], undefined, "a browser adds nothing by itself");
    const exposed = headers["access-control-expose-headers"].toLowerCase().split(", ");
    for (const name of Object.keys(headers).filter((name) =>
      /^ratelimit|^retry|^x-(?!content-type-options)/.test(name),
    )) {
      assert.ok(exposed.includes(name), `${name} of a ${status}`);
    }
  }
});
