// Notices: a webhook and a queue learn about keys that have used up a share of a limit or are refused, at a bounded rate, signed, and never
// delaying an answer. The receivers are servers here; the signature is checked by the library of Standard Webhooks.
import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { after, test } from "node:test";
import { fileURLToPath } from "node:url";
import { Webhook } from "standardwebhooks";
import { newToken } from "./credentials.mjs";
import { writable } from "./rows.mjs";
import { KEY_SECRET, NOW, start } from "./workerd.mjs";

const SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const KEY = "alice@example.com";
const MINUTES = 60_000;

/** Longer than a frontend refuses from memory: each of these refusals is the object's. */
const LATER = 2_000;

const limit = { rate: 1, period: "1day", capacity: 10 };
const POLICIES = {
  api: { ...limit, notify: ["90%", "refused"] },
  hourly: { ...limit, notify: ["refused"], notify_every: "1h" },
  quiet: limit,
};

/** A server that records what it receives; `answer` answers it. */
async function receiver(answer = (response) => response.end()) {
  const received = [];
  const server = createServer((request, response) => {
    const chunks = [];
    request.on("data", (chunk) => chunks.push(chunk));
    request.on("end", () => {
      const { method, url, headers } = request;
      received.push({ method, url, headers, body: Buffer.concat(chunks).toString() });
      answer(response, received.length);
    });
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  after(() => {
    server.closeAllConnections();
    server.close();
  });
  const { port } = server.address();
  return { received, port, url: `http://127.0.0.1:${port}/hook?token=of-the-receiver` };
}

async function started(changes) {
  const tollgate = await start({ policies: POLICIES, ...changes });
  after(() => tollgate.stop());
  return tollgate;
}

/** Waits until there are this many. Any surplus shows when the next arrive. */
async function arrived(list, count) {
  await until(
    () => list.length >= count,
    () => `${count} of ${JSON.stringify(list)}`,
  );
  assert.equal(list.length, count);
  return list;
}

async function until(isSo, what) {
  for (let tries = 0; !isSo(); tries++) {
    assert.ok(tries < 2_000, what());
    await new Promise((done) => setTimeout(done, 10));
  }
}

/** The event of a message, whose signature must be valid by the specification. */
function verified({ method, headers, body }) {
  const event = new Webhook(SECRET).verify(body, headers);
  assert.deepEqual([method, headers["content-type"]], ["POST", "application/json"]);
  assert.equal(event.id, headers["webhook-id"]);
  return event;
}

test("the documented Worker passes genuine notices on, to Slack and by e-mail", async () => {
  const [, code] = readFileSync(new URL("../../docs/recipes.md", import.meta.url), "utf8").match(
    /```js\n(\/\/ notices\.js\n.*?)```/s,
  );
  // Beside the packages that it imports.
  const file = new URL(`../../build/notices-${process.pid}.mjs`, import.meta.url);
  writeFileSync(file, code);
  after(() => rmSync(file));
  const { default: worker } = await import(file);
  const slack = await receiver();
  const env = { SLACK_URL: slack.url, TOLLGATE_WEBHOOK_SECRET: SECRET };
  const { received, url } = await receiver();
  const tollgate = await started({ webhookUrl: url, webhookSecret: SECRET, noticeKeys: true });
  await tollgate.consume({ policy: "api", key: KEY, cost: 9 });
  await tollgate.consume({ policy: "api", key: KEY, cost: 9 });
  const messages = await arrived(received, 2);
  for (const { headers, body } of messages) {
    const sent = (body) => worker.fetch(new Request("https://example.com", { method: "POST", headers, body }), env);
    assert.equal((await sent(body)).status, 200);
    assert.equal((await sent(`${body} `)).status, 401);
  }
  const lines = slack.received.map(({ body }) => JSON.parse(body).text).toSorted();
  assert.deepEqual(lines, [`90 % used up: api, key "${KEY}", 1 of 10 left`, `Refused: api, key "${KEY}"`]);
  const sent = [];
  const EMAIL = { send: async (message) => sent.push(message) };
  const sentBeforeAck = [];
  const ack = () => sentBeforeAck.push(sent.length);
  const queued = messages.map(({ body }) => ({ body: JSON.parse(body), ack }));
  await worker.queue({ messages: queued }, { EMAIL, FROM: "a@example.com", TO: "b@example.com" });
  assert.deepEqual(sentBeforeAck, [1, 2], "acknowledged one by one");
  assert.deepEqual(sent.map(({ subject }) => subject).toSorted(), lines);
});

test("the documented check accepts a genuine message, and no other", async () => {
  const text = readFileSync(new URL("../../docs/admin.md", import.meta.url), "utf8");
  const [, snippet] = text.match(/```js\n(import \{ createHmac.*?)\n```\n/s);
  const { isGenuine } = await import(`data:text/javascript,${encodeURIComponent(snippet)}`);
  process.env.TOLLGATE_WEBHOOK_SECRET = SECRET;
  const { received, url } = await receiver();
  const other = `whsec_${Buffer.alloc(32, 7).toString("base64")}`;
  const tollgate = await started({ webhookUrl: url, webhookSecret: `${other} ${SECRET}` });
  await tollgate.consume({ policy: "api", key: KEY, cost: 9 });
  const [{ headers, body }] = await arrived(received, 1);
  assert.equal(isGenuine(headers, body), true);
  assert.equal(isGenuine(headers, `${body} `), false);
  for (const [name, value] of [
    ["id", "msg_1"],
    ["timestamp", String(Number(headers["webhook-timestamp"]) - 1)],
    ["timestamp", undefined],
    ["signature", "v1,"],
    ["signature", undefined],
  ])
    assert.equal(isGenuine({ ...headers, [`webhook-${name}`]: value }, body), false, name);
});

const kinds = (received) => received.map((message) => verified(message).type);
const hash = createHmac("sha256", KEY_SECRET).update(KEY).digest("hex").slice(0, 32);

test("a key that has used up a share and a refused one are each reported once in ten minutes, signed", async () => {
  const { received, url } = await receiver();
  const tollgate = await started({ webhookUrl: url, webhookSecret: SECRET });
  const consume = async (cost, now, status) =>
    assert.equal((await tollgate.consume({ policy: "api", key: KEY, cost }, { now })).status, status);
  await consume(8, NOW, 200);
  await consume(1, NOW + 1, 200);
  await arrived(received, 1);
  await consume(5, NOW + 2, 429);
  for (let i = 0; i < 5; i++) await consume(5, NOW + 3 + i * LATER, 429);
  await arrived(received, 2);
  const [near, refused] = received.map(verified);
  const of = (data) => ({ policy: "api", object: hash, of_limit: "api", limit: 10, remaining: 1, ...data });
  assert.deepEqual(near, {
    id: near.id,
    type: "key.used",
    timestamp: "2023-11-14T22:13:20.001Z",
    data: of({ used_percent: 90, cost: 1, now: NOW + 1, reset_at: near.data.reset_at }),
  });
  assert.deepEqual(refused, {
    id: refused.id,
    type: "key.refused",
    timestamp: "2023-11-14T22:13:20.002Z",
    data: of({ cost: 5, now: NOW + 2, reset_at: near.data.reset_at, retry_at: refused.data.retry_at }),
  });
  assert.notEqual(near.id, refused.id);
  assert.equal(received[0].url, "/hook?token=of-the-receiver");

  await consume(5, NOW + 10 * MINUTES + 1, 429);
  await consume(5, NOW + 10 * MINUTES + 2, 429);
  await arrived(received, 3);
  assert.equal(verified(received[2]).type, "key.refused");
  for (const secret of [KEY, SECRET, "of-the-receiver"]) assert.ok(!tollgate.log.includes(secret), secret);
  assert.ok(!received.some(({ body }) => body.includes(KEY)), "only its hash");
});

test("the key itself is sent if configured", async () => {
  const { received, url } = await receiver();
  const tollgate = await started({ webhookUrl: url, webhookSecret: SECRET, noticeKeys: true });
  const keys = [KEY, ["tenant", "bob"], { ip: "192.0.2.1" }];
  for (const key of keys) await tollgate.consume({ policy: "api", key, cost: 9 });
  await arrived(received, 3);
  const found = received.map((message) => JSON.stringify(verified(message).data.key));
  assert.deepEqual(found.toSorted(), keys.map((key) => JSON.stringify(key)).toSorted());
});

test("no notice without tokens taken, without `notify` in the policy, or without a receiver", async () => {
  const { received, url } = await receiver();
  const tollgate = await started({ webhookUrl: url, webhookSecret: SECRET });
  for (const policy of ["quiet", "api"]) {
    for (const verb of ["peek", "refund", "reset", "inspect"]) {
      const cost = verb === "peek" ? { cost: 10 } : {};
      await tollgate.post(verb, { policy, key: KEY, ...cost });
    }
  }
  await tollgate.consume({ policy: "quiet", key: KEY, cost: 10 });
  assert.equal((await tollgate.consume({ policy: "quiet", key: KEY })).status, 429);
  assert.equal((await tollgate.post("charge", { policy: "api", key: KEY, cost: 9 })).body.near_limit, true);
  await arrived(received, 1);
  assert.deepEqual(kinds(received), ["key.used"]);

  // Then no notice is given, so none is missing once there is a receiver.
  await tollgate.kill();
  await tollgate.restart({ webhookUrl: null, webhookSecret: null });
  assert.equal((await tollgate.consume({ policy: "api", key: KEY, cost: 9 })).status, 429);
  await tollgate.logged(
    "policies have notices, but there is no receiver: set TOLLGATE_WEBHOOK_URL, or bind a queue as NOTICES",
  );
  await tollgate.kill();
  await tollgate.restart({ webhookUrl: url, webhookSecret: SECRET });
  assert.equal((await tollgate.consume({ policy: "api", key: KEY, cost: 9 })).status, 429);
  await arrived(received, 2);
});

test("a batch over several keys reports the one that refuses, or if all are granted those that have used up a share", async () => {
  const { received, url } = await receiver();
  const tollgate = await started({ webhookUrl: url, webhookSecret: SECRET, noticeKeys: true });
  const batch = async (status, ...asks) => {
    const requests = asks.map(([policy, key, cost]) => ({ policy, key, cost }));
    assert.equal((await tollgate.post("batch", { requests })).status, status);
  };
  await tollgate.consume({ policy: "hourly", key: "b", cost: 8 });
  await batch(429, ["api", "a", 9], ["hourly", "b", 5], ["quiet", "c", 1]);
  await batch(429, ["api", "a", 9], ["hourly", "b", 5], ["quiet", "c", 1]);
  await batch(200, ["api", "a", 9], ["hourly", "b", 1], ["quiet", "c", 9]);
  await arrived(received, 2);
  const found = received.map(verified).map(({ type, data: { key, policy } }) => [type, policy, key]);
  assert.deepEqual(found.toSorted(), [
    ["key.refused", "hourly", "b"],
    ["key.used", "api", "a"],
  ]);
});

test("neither a crash nor an eviction nor another frontend repeats a notice", async () => {
  const { received, url } = await receiver();
  const around = fileURLToPath(new URL("evicting.mjs", import.meta.url));
  const evicting = { around, flags: ["unsafe_module"], v8Flags: ["--expose-gc"] };
  const tollgate = await started({ webhookUrl: url, webhookSecret: SECRET, ...evicting });
  const refused = async (now = NOW, options) =>
    assert.equal((await tollgate.consume({ policy: "api", key: KEY, cost: 5 }, { now, ...options })).status, 429);
  await tollgate.consume({ policy: "api", key: KEY, cost: 8 });
  await refused();
  await arrived(received, 1);
  await tollgate.send({ path: "/evict", body: "" });
  await refused(NOW + LATER);
  await tollgate.kill();
  await tollgate.restart();
  await refused(NOW + 2 * LATER);
  await refused(NOW + 10 * MINUTES);
  await arrived(received, 2);
  await tollgate.stop();

  const both = await started({ webhookUrl: url, webhookSecret: SECRET, other: { policies: POLICIES } });
  const other = { headers: { "x-version": "other" } };
  for (const [at, options] of [{}, other, {}, other].entries())
    await both.consume({ policy: "hourly", key: "of both", cost: 6 }, { now: NOW + at * LATER, ...options });
  await both.consume({ policy: "hourly", key: "of both", cost: 6 }, { now: NOW + 60 * MINUTES + LATER, ...other });
  await arrived(received, 4);
  assert.deepEqual(kinds(received), Array(4).fill("key.refused"));
  assert.equal(new Set(received.map((message) => verified(message).id)).size, 4);
});

test("a hung receiver delays no answer, and a flood of keys does not flood the receiver", async () => {
  const open = [];
  const { received, url } = await receiver((response) => open.push(response));
  const admin = newToken("consume", "admin");
  const tollgate = await started({
    webhookUrl: url,
    webhookSecret: SECRET,
    tokens: { admin: admin.entry },
    token: admin.text,
  });
  for (let i = 0; i < 40; i++) {
    const { status } = await tollgate.consume({ policy: "api", key: `user ${i}`, cost: 9 });
    assert.equal(status, 200, "answered, although no message is");
  }
  await tollgate.logged("notices are lost: 0 failed, 1 dropped; the last: too many are under way");
  await arrived(received, 32);
  for (const response of open) response.end();
  const metrics = async () => (await tollgate.send({ method: "GET", path: "/v1/metrics" })).text;
  let text = "";
  for (let tries = 0; !text.includes('{outcome="delivered"} 32') && tries < 500; tries++) text = await metrics();
  assert.match(text, /^tollgate_notices_total\{outcome="delivered"\} 32\n.*"failed"\} 0\n.*"dropped"\} 8$/m);
});

test("a notice is retried with the same id and a new signature", async () => {
  const { received, url } = await receiver((response, count) => {
    if (count > 1) return response.end();
    response.writeHead(500).end("not now");
  });
  const tollgate = await started({ webhookUrl: url, webhookSecret: SECRET });
  await tollgate.consume({ policy: "api", key: KEY, cost: 9 });
  await arrived(received, 2);
  const [first, second] = received.map(verified);
  assert.deepEqual(first, second);
});

test("a missing or redirecting receiver is given up, and its address is not logged", async () => {
  const elsewhere = await receiver();
  const away = await receiver((response) => response.writeHead(307, { location: elsewhere.url }).end());
  const gone = createServer();
  await new Promise((listening) => gone.listen(0, "127.0.0.1", listening));
  const { port } = gone.address();
  await new Promise((closed) => gone.close(closed));
  const each = [away.url, `http://127.0.0.1:${port}/hook?token=of-the-receiver`].map(async (webhookUrl) => {
    const tollgate = await started({ webhookUrl, webhookSecret: SECRET });
    assert.equal((await tollgate.consume({ policy: "api", key: KEY, cost: 9 })).status, 200);
    const lost = "notices are lost: 1 failed, 0 dropped";
    await until(
      () => tollgate.log.includes(lost),
      () => tollgate.log,
    );
    assert.ok(!tollgate.log.includes("of-the-receiver") && !tollgate.log.includes(SECRET), tollgate.log);
  });
  await Promise.all(each);
  await arrived(away.received, 3);
  assert.equal(elsewhere.received.length, 0);
});

test("the runtime's own queue receives notices, with or without a webhook", async () => {
  const queue = await receiver((response) => response.writeHead(200, { "content-type": "application/json" }).end("{}"));
  const hook = await receiver();
  const alone = await started({ queue: queue.port });
  await alone.consume({ policy: "api", key: KEY, cost: 9 });
  await arrived(queue.received, 1);
  const [{ method, body }] = queue.received;
  const event = JSON.parse(body);
  assert.deepEqual([method, event.type, event.data.object], ["POST", "key.used", hash]);
  assert.match(event.id, /^msg_[0-9a-f]{32}$/);
  const both = await started({ queue: queue.port, webhookUrl: hook.url, webhookSecret: SECRET });
  await both.consume({ policy: "hourly", key: KEY, cost: 10 });
  await both.consume({ policy: "hourly", key: KEY, cost: 10 });
  const [sent] = (await arrived(hook.received, 1)).map(verified);
  // The runtime's queue may deliver an event more than once.
  const queued = () => queue.received.map(({ body }) => JSON.parse(body)).filter(({ id }) => id !== event.id);
  await until(
    () => queued().length > 0,
    () => JSON.stringify(queue.received),
  );
  assert.deepEqual(queued()[0], sent);
});

test("a request over a service binding gives the same notice as over HTTP", async () => {
  const { received, url } = await receiver();
  const before = {
    modules: { "calling.mjs": fileURLToPath(new URL("calling.mjs", import.meta.url)) },
    bindings: { TOLLGATE: `service = (name = "main", entrypoint = "Tollgate")` },
  };
  const tollgate = await started({ webhookUrl: url, webhookSecret: SECRET, before });
  const body = JSON.stringify({ policy: "api", key: KEY, cost: 9 });
  for (const status of [200, 429]) assert.equal((await tollgate.send({ path: "/rpc", body })).status, status);
  await arrived(received, 2);
  const found = received.map(verified);
  assert.deepEqual(found.map(({ type }) => type).toSorted(), ["key.refused", "key.used"]);
  assert.ok(found.every(({ data }) => data.object === hash));
});

test("wrong settings are named but not shown", async () => {
  const tollgate = await started({
    webhookUrl: "http://example.com/of-the-receiver",
    webhookSecret: "whsec_c2hvcnQ=",
    noticeKeys: "perhaps",
  });
  assert.equal((await tollgate.consume({ policy: "api", key: KEY })).status, 500);
  for (const line of [
    "settings: TOLLGATE_WEBHOOK_URL: must begin with https://, or with http:// and localhost or 127.0.0.1",
    "settings: the secret TOLLGATE_WEBHOOK_SECRET must be whsec_ and 24 to 64 random bytes in base64",
    "settings: TOLLGATE_NOTICE_KEYS must be true or false",
  ])
    await tollgate.logged(line);
  assert.ok(!/of-the-receiver|c2hvcnQ|perhaps/.test(tollgate.log), tollgate.log);
  const missing = await started({ webhookUrl: "https://example.com" });
  await missing.consume({ policy: "api", key: KEY });
  await missing.logged("settings: the secret TOLLGATE_WEBHOOK_SECRET is missing: set it with `wrangler secret put");
});

test("a refusal stands even if the row of its notice cannot be written", async () => {
  const { url } = await receiver();
  const fields = { ...limit, refusal_cache: "0s", notify: ["refused"] };
  const policies = { closed: fields, open: { ...fields, on_error: "open" } };
  const tollgate = await started({ policies, webhookUrl: url, webhookSecret: SECRET });
  for (const policy of ["closed", "open"])
    assert.equal((await tollgate.consume({ policy, key: KEY, cost: 8 })).status, 200);
  await tollgate.kill();
  for (const file of tollgate.databaseFiles()) writable(file, "FALSE");
  await tollgate.restart();
  for (const policy of ["closed", "open", "closed", "open"])
    assert.equal((await tollgate.consume({ policy, key: KEY, cost: 3 })).status, 429, policy);
  await tollgate.logged("the disk is full");
});
