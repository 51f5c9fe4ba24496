// The objects' files and the log contain what must survive, and nothing that identifies a caller.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { parseBucket, readRows, writeRow } from "./rows.mjs";
import { KEY_SECRET, NOW, start, TOKEN } from "./workerd.mjs";

const POLICIES = { api: { rate: 10, period: "10s" }, waiting: { rate: 1, period: "1s", initial: 0 } };

const IDEMPOTENCY_KEY = "order 4711 of alice@example.com";

/** The rows of all objects that have any; the Worker must be down. */
function rows(tollgate) {
  return tollgate
    .databaseFiles()
    .map(readRows)
    .filter((found) => Object.keys(found).length > 0);
}

test("a request that takes nothing leaves no row", async () => {
  const tollgate = await start({ policies: POLICIES });
  const ask = { policy: "api", key: "alice" };
  for (let i = 0; i < 3; i++) {
    await tollgate.peek(ask);
    await tollgate.peek({ ...ask, cost: 10 });
    await tollgate.peek({ ...ask, mode: "reserve" });
    await tollgate.consume({ ...ask, cost: 0 });
    await tollgate.consume({ ...ask, cost: 0, mode: "up_to" });
    await tollgate.consume({ ...ask, cost: 11 });
    await tollgate.consume({ ...ask, cost: -1 });
    await tollgate.consume({ ...ask, policy: "other" });
    await tollgate.consume(ask, { headers: { authorization: null } });
    await tollgate.send({ path: "/v1/other", body: JSON.stringify(ask) });
    await tollgate.send({ path: "/v1/inspect", body: JSON.stringify(ask) });
    const unknown = { ...ask, reservation: "00000000000ff" };
    assert.equal((await tollgate.send({ path: "/v1/cancel", body: JSON.stringify(unknown) })).status, 404);
    assert.equal(
      (await tollgate.send({ path: "/v1/settle", body: JSON.stringify({ ...unknown, cost: 1 }) })).status,
      404,
    );
  }
  await tollgate.kill();
  assert.deepEqual(rows(tollgate), []);

  // The same search finds existing rows.
  await tollgate.restart();
  await tollgate.consume({ ...ask, cost: 4 });
  await tollgate.peek({ ...ask, key: "bob" });
  await tollgate.kill();
  const [found, ...others] = rows(tollgate);
  assert.deepEqual(others, []);
  assert.deepEqual(Object.keys(found), ["b:api"]);
  const { version: _, ...row } = parseBucket(found["b:api"]);
  const numbers =
    '[{"kind":"token_bucket","rate":10,"period_ms":10000,"capacity":10,"max_debt":0,"initial":null,"offset_ms":null}]';
  const states = [[6_000n, BigInt(NOW)]];
  assert.deepEqual(row, { format: 2, numbers, recordFormat: 1, states, rest: Buffer.alloc(0) });
  await tollgate.stop();
});

test("refusals and peeks write nothing, however many", async () => {
  const tollgate = await start({ policies: POLICIES });
  await tollgate.consume({ policy: "api", key: "alice", cost: 10 });
  await tollgate.consume({ policy: "waiting", key: "alice" });
  const hash = (file) => createHash("sha256").update(readFileSync(file)).digest("hex");
  const contents = () => tollgate.stateFiles().map((file) => [file, hash(file)]);
  const before = contents();
  for (let i = 0; i < 100; i++) {
    const now = NOW + i;
    for (const policy of ["api", "waiting"]) {
      assert.equal((await tollgate.consume({ policy, key: "alice" }, { now })).status, 429);
      assert.equal((await tollgate.peek({ policy, key: "alice" }, { now })).status, 429);
    }
  }
  assert.deepEqual(contents(), before);
  await tollgate.consume({ policy: "api", key: "alice" }, { now: NOW + 1_000 });
  assert.notDeepEqual(contents(), before, "a grant writes");
  await tollgate.stop();
});

test("neither the files nor the log contain a key or a secret", async () => {
  const keys = ["alice@example.com", "203.0.113.195", "2001:db8::ff00:42:8329", "Привет, мир", "k".repeat(512)];
  const tollgate = await start({ policies: POLICIES });
  const all = async () => {
    for (const key of keys) {
      for (const policy of ["api", "waiting"]) {
        await tollgate.consume({ policy, key, cost: 1 });
        await tollgate.consume({ policy, key, cost: 10 });
        await tollgate.consume({ policy, key, cost: -1 });
        await tollgate.peek({ policy, key });
      }
      await tollgate.consume(
        { policy: "api", key, mode: "reserve" },
        { headers: { "idempotency-key": IDEMPOTENCY_KEY } },
      );
      await tollgate.consume({ policy: "api", key, more: key });
      await tollgate.send({ path: `/v1/${encodeURIComponent(key)}`, body: key });
    }
  };
  await all();
  await tollgate.kill();
  const names = rows(tollgate).map((found) =>
    Object.keys(found).map((name) => name.replace(/^r:[0-9a-f]{13}$/, "r:id").replace(/^i:[0-9a-f]{24}$/, "i:page")),
  );
  assert.deepEqual(
    names,
    keys.map(() => ["b:api", "b:waiting", "i:page", "r:id"]),
  );
  // Keys get into logs with errors: from now on no bucket can be read.
  for (const file of tollgate.databaseFiles()) {
    for (const [name, row] of Object.entries(readRows(file))) {
      if (name.startsWith("b:")) writeRow(file, name, row.fill(9, 0, 1));
    }
  }
  await tollgate.restart();
  await all();
  await tollgate.kill();
  assert.match(tollgate.log, /did not answer/);

  const files = tollgate.stateFiles();
  const places = [
    ...files.map((file) => [file, readFileSync(file)]),
    ["the names of the files", Buffer.from(files.join("\n"))],
    ["the log", Buffer.from(tollgate.log)],
  ];
  const isAnywhere = (bytes) => places.find(([, content]) => content.includes(bytes))?.[0];
  assert.ok(isAnywhere("token_bucket") && isAnywhere("did not answer"), "this search finds text that is there");
  for (const text of [...keys, IDEMPOTENCY_KEY, TOKEN, KEY_SECRET]) {
    const bytes = Buffer.from(text);
    const forms = {
      "as it is": bytes,
      "in UTF-16": Buffer.from(text, "utf16le"),
      "in hexadecimal": bytes.toString("hex"),
      "in base64": bytes.toString("base64").replaceAll("=", ""),
      "as JSON has it": JSON.stringify(text).slice(1, -1),
      // A hash without a secret hides nothing: all IP addresses and many email addresses can be tried.
      "as its SHA-256": createHash("sha256").update(bytes).digest(),
      "as its SHA-256 in hexadecimal": createHash("sha256").update(bytes).digest("hex"),
    };
    for (const [form, sought] of Object.entries(forms)) assert.equal(isAnywhere(sought), undefined, `${text} ${form}`);
  }
  await tollgate.stop();
});
