// A data point for each decision, if an Analytics Engine data set is bound.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, test } from "node:test";
import { start } from "./workerd.mjs";

const POLICIES = { api: { rate: 1, period: "1day" }, open: { rate: 1, period: "1day", on_error: "open" } };

/** A Worker around the built one, whose data set is not Cloudflare's: it logs its points, or throws. */
async function started(changes) {
  const around = new URL("pointed.mjs", import.meta.url).pathname;
  const tollgate = await start({ policies: POLICIES, around, ...changes });
  after(() => tollgate.stop());
  return tollgate;
}

const points = ({ log }) => [...log.matchAll(/^point: (.*)$/gm)].map(([, point]) => JSON.parse(point));
const headers = (more) => ({ headers: { "x-colo": "AMS", ...more } });

test("each decision is a point: policy, outcome, source and place, cost and time; never a key", async () => {
  const tollgate = await started();
  const key = "a-secret-key";
  await tollgate.consume({ policy: "api", key }, headers());
  await tollgate.consume({ policy: "api", key }, headers());
  await tollgate.consume({ policy: "open", key }, headers({ "x-keys": "throw" }));
  await tollgate.peek({ policy: "api", key }, headers());
  const requests = ["api", "open"].map((policy) => ({ policy, key, cost: 1 }));
  await tollgate.post("batch", { requests }, headers());
  await tollgate.logged('"dropped"');
  const found = points(tollgate);
  assert.deepEqual(
    found.map(({ indexes, blobs }) => [indexes, blobs]),
    [
      [["api"], ["api", "allowed", "object", "AMS"]],
      [["api"], ["api", "refused", "object", "AMS"]],
      [["open"], ["open", "degraded", "frontend", "AMS"]],
      [["api"], ["api", "refused", "object", "AMS"]],
      [["open"], ["open", "dropped", "object", "AMS"]],
    ],
  );
  for (const { doubles } of found) {
    const [cost, ms, weight] = doubles;
    assert.ok(cost === 1 && ms >= 0 && ms < 5_000 && weight === 1, doubles);
  }
  assert.ok(!JSON.stringify(found).includes(key));
});

test("a sample of the requests is written, and each point has its weight", async () => {
  const tollgate = await started({ sample: 0.5 });
  const count = 200;
  for (let asked = 0; asked < count; asked++) await tollgate.consume({ policy: "api", key: `${asked}` });
  const found = points(tollgate);
  // A fair coin is outside of this once in 10¹¹ runs.
  assert.ok(found.length > 50 && found.length < 150, `${found.length} of ${count}`);
  assert.ok(found.every(({ doubles }) => doubles[2] === 2));
  const none = await started({ sample: 0 });
  await none.consume({ policy: "api", key: "a" });
  await none.consume({ policy: "api", key: "b" });
  assert.deepEqual(points(none), []);
});

test("an invalid sample is a settings error", async () => {
  const tollgate = await started({ sample: "half" });
  assert.equal((await tollgate.consume({ policy: "api", key: "a" })).status, 500);
  await tollgate.logged('settings: TOLLGATE_METRICS_SAMPLE must be a number from 0 to 1, such as 0.1, not "half"');
});

test("a failing data set changes no answer, and is logged once", async () => {
  const tollgate = await started();
  for (const status of [200, 429, 429])
    assert.equal(
      (await tollgate.consume({ policy: "api", key: "b" }, headers({ "x-points": "throw" }))).status,
      status,
    );
  await tollgate.logged("a data point cannot be written");
  assert.equal(tollgate.log.match(/a data point cannot be written/g).length, 1);
});

test("the runtime's own data set receives the points", async () => {
  const received = [];
  const server = createServer((request, response) => {
    const chunks = [];
    request.on("data", (chunk) => chunks.push(chunk));
    request.on("end", () => {
      received.push(Buffer.concat(chunks).toString());
      response.end();
    });
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  after(() => server.close());
  const tollgate = await start({ policies: POLICIES, points: server.address().port });
  after(() => tollgate.stop());
  const { status } = await tollgate.consume({ policy: "api", key: "a-secret-key" });
  assert.equal(status, 200);
  for (let tries = 0; received.length === 0 && tries < 500; tries++) await new Promise((done) => setTimeout(done, 10));
  assert.equal(received.length, 1);
  // Texts are lists of bytes.
  const text = (value) => (Array.isArray(value) ? Buffer.from(value).toString() : value);
  const point = Object.fromEntries(Object.entries(JSON.parse(received[0])).map(([name, value]) => [name, text(value)]));
  const { index1, blob1, blob2, blob3, blob4, double1, double2, double3 } = point;
  assert.deepEqual([index1, blob1, blob2, blob3, blob4], ["api", "api", "allowed", "object", ""]);
  assert.ok(double1 === 1 && double2 >= 0 && double3 === 1, received[0]);
  assert.ok(!Object.values(point).some((value) => String(value).includes("a-secret-key")));
});
