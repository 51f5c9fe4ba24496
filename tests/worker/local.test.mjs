// Budgets in a stranger's own Durable Object: they commit and roll back with its own rows.
import assert from "node:assert/strict";
import { test } from "node:test";
import { makeProject, wranglerDev } from "./stranger.mjs";

const project = makeProject("mailbox", { main: "mailbox.mjs", classes: { MAILBOXES: "Mailbox" } });
let worker = await wranglerDev([project]);
const call = async (path, ...args) => (await worker.post(path, args)).body;

test("a consume and a write are committed together, and rolled back together", async () => {
  assert.equal(await call("/a/send", "one"), true);
  assert.deepEqual(await call("/a/state"), { remaining: 4, mails: ["one"] });
  assert.deepEqual(await call("/a/send", "two", { fails: true }), { error: "the application's own" });
  assert.deepEqual(await call("/a/state"), { remaining: 4, mails: ["one"] });
  for (const mail of ["two", "three", "four", "five"]) assert.equal(await call("/a/send", mail), true);
  assert.equal(await call("/a/send", "six"), false);
  const mails = ["one", "two", "three", "four", "five"];
  assert.deepEqual(await call("/a/state"), { remaining: 0, mails });
});

test("a crash between the two leaves neither", async () => {
  for (const [name, method] of [
    ["b", "send"],
    ["c", "sendPlainly"],
  ]) {
    assert.equal(await call(`/${name}/${method}`, "before"), true);
    const lost = worker.post(`/${name}/${method}`, ["lost", { forever: true }]);
    lost.catch(() => {});
    await new Promise((done) => setTimeout(done, 500)); // it spins between its writes and the end of the transaction
    await worker.kill();
    await assert.rejects(lost);
    worker = await wranglerDev([project]);
    assert.deepEqual(await call(`/${name}/state`), { remaining: 4, mails: ["before"] });
    assert.equal(await call(`/${name}/${method}`, "after"), true);
    assert.deepEqual(await call(`/${name}/state`), { remaining: 3, mails: ["before", "after"] });
  }
});

test("neither refusals nor leases are remembered, as both could be rolled back", async () => {
  assert.deepEqual(await call("/g/askOften", 12, { fails: true }), { error: "the application's own" });
  const answers = Array.from({ length: 12 }, (_, i) => [i < 10, null]);
  assert.deepEqual(await call("/g/askOften", 12), answers);
});

test("every verb, with the object's own key and with others", async () => {
  const ask = (verb, request, options) => call("/d/ask", verb, request, options);
  const refused = await ask("consume", { policy: "mails", cost: 5 }).then(() => ask("consume", { policy: "mails" }));
  assert.deepEqual([refused.status, refused.allowed, refused.retryAfter], [429, false, null]);
  assert.equal((await ask("refund", { policy: "mails", cost: 2 })).remaining, 2);
  assert.equal((await ask("charge", { policy: "mails", cost: 1 })).remaining, 1);
  assert.equal((await ask("reset", { policy: "mails" })).remaining, 5);
  assert.equal((await ask("inspect", { policy: "mails" })).limits[0].capacity, 5);
  assert.equal((await ask("peek", { policy: "each", key: "x", cost: 2 })).allowed, true);
  const batch = {
    requests: [{ policy: "each", key: "x", cost: 2 }, { policy: "each", key: "y" }, { policy: "mails" }],
  };
  assert.deepEqual(
    (await ask("batch", batch)).results.map(({ remaining }) => remaining),
    [0, 1, 4],
  );
  const again = await ask("batch", batch);
  assert.deepEqual([again.status, again["violated-policies"]], [429, ["each"]]);
  assert.equal((await ask("peek", { policy: "each", key: "y", cost: 0 })).remaining, 1);
  // One budget for all takes no key, and is not given the object's own.
  assert.equal((await ask("consume", { policy: "all" })).remaining, 2);
  assert.equal((await ask("batch", { requests: [{ policy: "all" }, { policy: "mails", cost: 0 }] })).status, 200);
  assert.equal((await ask("consume", { policy: "all", key: "alice" })).status, 400);
  const idempotent = { idempotencyKey: "once" };
  assert.equal((await ask("consume", { policy: "mails" }, idempotent)).replayed, undefined);
  assert.equal((await ask("consume", { policy: "mails" }, idempotent)).replayed, true);
  const { reservation } = await ask("consume", { policy: "each", key: "z", mode: "reserve", cost: 2 });
  const extended = await ask("extend", { policy: "each", key: "z", reservation });
  assert.deepEqual([extended.reservation, extended.remaining], [reservation, 0]);
  assert.equal((await ask("settle", { policy: "each", key: "z", reservation, cost: 1 })).remaining, 1);
  const typo = await ask("consume", { policy: "mail" });
  assert.deepEqual(
    [typo.status, typo.detail],
    [404, `there is no policy "mail"; there are all, each, mails, quick, remembered`],
  );
  assert.equal((await ask("consume", { policy: "mails", cost: -1 })).status, 400);
});

test("requests bring their limits, and each change is written", async () => {
  const ask = (verb, request) => call("/g/ask", verb, { policy: "plan", ...request });
  assert.equal((await ask("consume", { limits: "100/1day", cost: 40 })).remaining, 60);
  // The same limit, while it has a name.
  const named = [{ name: "a", rate: 100, period: "1day", capacity: 90 }];
  assert.equal((await ask("consume", { limits: named, cost: { a: 4 } })).remaining, 46);
  assert.equal((await ask("consume", { limits: { rate: 1000, period: "1day" } })).remaining, 955);
  await worker.kill();
  worker = await wranglerDev([project]);
  assert.equal((await ask("peek", { limits: "100/1day", cost: 0 })).remaining, 55);
  const batch = { requests: [{ policy: "plan", limits: "100/1day" }, { policy: "mails" }] };
  assert.deepEqual(
    (await call("/g/ask", "batch", batch)).results.map(({ remaining }) => remaining),
    [54, 4],
  );
  assert.equal((await ask("consume", { limits: [] })).detail, "limits: must be a list of 1 to 8 limits");
});

test("cleaning forgets buckets that are full again", async () => {
  const ask = (verb, request) => call("/e/ask", verb, request);
  await ask("consume", { policy: "quick", cost: 3 });
  for (const key of ["b", "c", "d"]) await ask("consume", { policy: "quick", key, cost: 3 });
  await ask("consume", { policy: "mails", key: "kept" });
  const rows = await call("/e/rows");
  assert.ok(
    rows.every((name) => /^tollgate:[0-9a-f]{32}:/.test(name)),
    rows.join(),
  );
  assert.equal(new Set(rows.map((name) => name.split(":")[1])).size, 1, "that of the key which refills slowly");
  assert.equal((await ask("peek", { policy: "quick", cost: 0 })).remaining, 10);
});

test("wrong settings are an error", async () => {
  assert.deepEqual(await call("/f/wrong", { p: { rate: -1, period: "1s" } }), {
    name: "SettingsError",
    errors: [
      'policies.p.rate: must be a number from 0 to 9007199254740991 such as 100 or 2.5, or text such as "100/1m" or "20/s burst 40", not -1',
    ],
  });
  const { errors } = await call("/f/wrong", { p: { limits: ["10/s"] }, q: ["10/s"] });
  assert.deepEqual(errors, [
    'policies.p.limits[0]: must be a table of fields such as name, rate and period, not "10/s"',
    "policies.q: must be a table of fields such as rate and period, not an array",
  ]);
});
