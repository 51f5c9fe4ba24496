// No decision can be made. That is not a refusal, and never a grant: an unreadable bucket is not a fresh one.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import { assertAnswer } from "./answers.mjs";
import { bucketRow, execute, parseBucket, readRows, writable, writeRow } from "./rows.mjs";
import { NOW, start } from "./workerd.mjs";

const policies = { api: { rate: 10, period: "10s" }, other: { rate: 5, period: "1m" } };
const unavailable = {
  status: 503,
  headers: { "content-type": "application/problem+json", "retry-after": "1" },
  body: {
    type: "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
    title: "Unavailable",
    status: 503,
    detail:
      "this is not a rate-limit refusal: what keeps the budgets of this key did not answer. The request may have been " +
      "carried out; only an Idempotency-Key makes it safe to repeat",
    cause: "failed",
  },
};
const ask = { policy: "api", key: "alice@example.com", cost: 1 };

/** A Worker that is down, with 3 of alice's 10 spent; `edit` works on her file. */
async function down(edit) {
  const tollgate = await start({ policies });
  await tollgate.consume({ ...ask, cost: 3 });
  await tollgate.consume({ ...ask, policy: "other" });
  await tollgate.kill();
  const [file, ...others] = tollgate.databaseFiles();
  assert.deepEqual(others, []);
  edit(file);
  return tollgate;
}

async function assertUnavailable(tollgate) {
  for (const verb of ["consume", "peek", "consume"]) assertAnswer(await tollgate[verb](ask), unavailable, verb);
}

/** Changes the bytes of her bucket's row. */
const row = (change) => (file) => writeRow(file, "b:api", change(Buffer.from(readRows(file)["b:api"])));
/** Changes its parts, and its version to one that does not exist, so that the numbers are read. */
const parts = (change) => {
  return row((bytes) => {
    const fine = { ...parseBucket(bytes), version: 0n, rest: Buffer.alloc(0) };
    return bucketRow({ ...fine, ...change(fine) });
  });
};
const numbers = (change) => parts((fine) => ({ numbers: change(fine.numbers) }));
const set = (at, byte) => row((bytes) => bytes.fill(byte, at, at + 1));

test("setup: the row that the tests below break is readable", async () => {
  const tollgate = await down(parts(() => ({})));
  await tollgate.restart();
  assert.equal((await tollgate.peek({ ...ask, cost: 0 })).body.remaining, 7);
  await tollgate.stop();
});

const rows = {
  "a row of a later format": [set(0, 3), "the row has format 3; this version reads 2"],
  "a row that is text": [(file) => writeRow(file, "b:api", "1234567890123456789012345"), "the row ends too early"],
  "a row that is a number": [(file) => writeRow(file, "b:api", 7), "the row ends too early"],
  "a row of nothing": [row(() => Buffer.alloc(0)), "the row ends too early"],
  "a row that ends within the numbers": [row((bytes) => bytes.subarray(0, 50)), "the row ends too early"],
  "a row that ends within the record": [row((bytes) => bytes.subarray(0, 3 + bytes[1] + 20)), "the row ends too early"],
  "a row without its last byte": [row((bytes) => bytes.subarray(0, -1)), "the row ends too early"],
  "a record of a later format": [parts(() => ({ recordFormat: 2 })), "the state has format 2; this version reads 1"],
  "a record without a state": [
    parts(() => ({ states: [] })),
    "the record holds more or fewer states than there are limits",
  ],
  "a record of two states": [
    parts(({ states }) => ({ states: [...states, ...states] })),
    "the record holds more or fewer states than there are limits",
  ],
  "a record of two states under the numbers of today": [
    row((bytes) => {
      const { states, ...others } = parseBucket(bytes);
      return bucketRow({ ...others, states: [...states, ...states] });
    }),
    "the record holds more or fewer states than there are limits",
  ],
  "a level beyond any limit": [
    parts(() => ({ states: [[2n ** 62n, BigInt(NOW)]] })),
    "a level of 4611686018427387904 drops is beyond any limit",
  ],
  "numbers that are none": [numbers(() => "[]"), "the record holds more or fewer states than there are limits"],
  "numbers that are no JSON": [numbers((text) => text.slice(1)), "the numbers beside the record cannot be read"],
  "numbers that are no text": [set(10, 0xff), "the row ends too early"],
  "numbers with a field that this version does not know": [
    numbers((text) => text.replace("}", ',"x":1}')),
    "the numbers beside the record cannot be read",
  ],
  "numbers that make no limit": [
    numbers((text) => text.replace("10000", "0")),
    "the numbers beside the record are not a valid limit: a period of 0 ms is too short",
  ],
};
for (const [name, [edit, reason]] of Object.entries(rows)) {
  test(`${name}: 503 and the reason in the log, while other policies of the key are served`, async () => {
    const tollgate = await down(edit);
    await tollgate.restart();
    await assertUnavailable(tollgate);
    assert.equal((await tollgate.peek({ ...ask, policy: "other" })).body.remaining, 4);
    await tollgate.logged(`the bucket of policy api: ${reason}`);
    await tollgate.stop();
    assert.ok(!tollgate.log.includes(ask.key), tollgate.log);
  });
}

test("a value that the runtime cannot read: 503 for all policies of the key, since rows are listed together", async () => {
  const tollgate = await down((file) => execute(file, ["UPDATE _cf_KV SET value = x'02' WHERE key = 'b:api'"]));
  await tollgate.restart();
  await assertUnavailable(tollgate);
  assertAnswer(await tollgate.peek({ ...ask, policy: "other" }), unavailable);
  await tollgate.logged("did not answer");
  assert.equal((await tollgate.consume({ ...ask, key: "bob" })).status, 200, "other keys are served");
  await tollgate.stop();
  assert.ok(!tollgate.log.includes(ask.key), tollgate.log);
});

const harmless = {
  "a row with something at its end that a later version has added": row((bytes) =>
    Buffer.concat([bytes, Buffer.alloc(9)]),
  ),
  "a row that is neither a bucket nor a reservation": (file) => writeRow(file, "x:api", readRows(file)["b:api"]),
  "a reservation whose id is none": (file) => writeRow(file, "r:x", Buffer.from([1, ...Buffer.alloc(18)])),
  "a reservation of a later format": (file) => writeRow(file, "r:00000000000ff", Buffer.alloc(19, 9)),
};
for (const [name, edit] of Object.entries(harmless)) {
  test(`${name}: only requests that need it fail`, async () => {
    const tollgate = await down(edit);
    await tollgate.restart();
    assert.equal((await tollgate.consume(ask)).body.remaining, 6);
    assert.equal((await tollgate.peek({ ...ask, policy: "other" })).body.remaining, 4);
    if (name.endsWith("of a later format")) {
      const { cost: _, ...of } = ask;
      for (const verb of ["settle", "cancel"]) {
        assertAnswer(await tollgate.post(verb, { ...of, reservation: "00000000000ff" }), unavailable, verb);
      }
      await tollgate.logged("the reservation 00000000000ff");
    }
    await tollgate.stop();
    assert.ok(!tollgate.log.includes(ask.key), tollgate.log);
  });
}

test("a table with other columns", async () => {
  const tollgate = await down((file) => execute(file, ["ALTER TABLE _cf_KV RENAME COLUMN value TO worth"]));
  await tollgate.restart();
  await assertUnavailable(tollgate);
  await tollgate.stop();
});

test("a damaged database; once it is repaired the budget is as before", async () => {
  let intact;
  const tollgate = await down((file) => {
    execute(file, ["VACUUM"]); // moves the log beside the file into it
    intact = readFileSync(file);
    writeFileSync(file, "this is not a database".repeat(500));
  });
  await tollgate.restart();
  await assertUnavailable(tollgate);
  assert.equal((await tollgate.consume({ ...ask, key: "bob" })).status, 200, "other keys are served");
  await tollgate.kill();
  const broken = tollgate.databaseFiles().find((file) => readFileSync(file).includes("this is not a database"));
  for (const suffix of ["-wal", "-shm"]) rmSync(broken + suffix, { force: true });
  writeFileSync(broken, intact);
  await tollgate.restart();
  assert.equal((await tollgate.consume(ask)).body.remaining, 6);
  await tollgate.stop();
});

test("a directory in place of the database", async () => {
  const tollgate = await down((file) => {
    rmSync(file);
    mkdirSync(file);
  });
  await tollgate.restart();
  await assertUnavailable(tollgate);
  await tollgate.stop();
});

test("a failed write takes nothing, not even in memory; refusals and peeks still work", async () => {
  const tollgate = await down((file) => writable(file, "FALSE"));
  await tollgate.restart();
  assertAnswer(await tollgate.consume(ask), unavailable);
  await tollgate.logged("the disk is full");
  assert.equal((await tollgate.peek(ask)).body.remaining, 7);
  assert.equal((await tollgate.consume({ ...ask, cost: 8 })).status, 429);
  assertAnswer(await tollgate.consume({ ...ask, cost: 7 }), unavailable);
  await tollgate.kill();
  writable(tollgate.databaseFiles()[0], "TRUE");
  await tollgate.restart();
  assert.equal((await tollgate.consume({ ...ask, cost: 7 })).body.remaining, 0);
  await tollgate.stop();
});

test("a failed background write never grants more than the limit, even after a power cut", async () => {
  const CAPACITY = 100;
  const policies = { api: { rate: 0, period: "1s", capacity: CAPACITY, write_ahead: 20 } };
  const tollgate = await start({ policies });
  let granted = 0;
  const consume = async () => {
    const { status } = await tollgate.consume(ask);
    if (status === 200) granted++;
    return status;
  };
  for (let count = 0; count < 5; count++) assert.equal(await consume(), 200);
  await tollgate.kill();
  writable(tollgate.databaseFiles()[0], "FALSE");
  await tollgate.restart();
  const before = granted;
  while ((await consume()) === 200);
  assert.ok(granted - before <= 20, `${granted - before} were granted without a write`);
  await tollgate.logged("the disk is full");
  await tollgate.kill();
  writable(tollgate.databaseFiles()[0], "TRUE");
  await tollgate.restart();
  while ((await consume()) === 200);
  assert.ok(granted <= CAPACITY && granted >= CAPACITY - 2 * 20, `${granted} of ${CAPACITY} were granted`);
  await tollgate.stop();
});

test("a reservation and the bucket it takes from are both written, or neither is", async () => {
  for (const condition of ["key < 'r'", "key > 'c'"]) {
    const tollgate = await down((file) => writable(file, condition));
    await tollgate.restart();
    assertAnswer(await tollgate.consume({ ...ask, mode: "reserve" }), unavailable, condition);
    await tollgate.logged("the disk is full");
    const { body } = await tollgate.send({
      path: "/v1/inspect",
      body: JSON.stringify({ policy: ask.policy, key: ask.key }),
    });
    assert.deepEqual([body.open_reservations, body.limits[0].remaining], [0, 7], condition);
    await tollgate.kill();
    const rows = readRows(tollgate.databaseFiles()[0]);
    assert.deepEqual(Object.keys(rows), ["b:api", "b:other"], condition);
    assert.deepEqual(parseBucket(rows["b:api"]).states, [[7_000n, BigInt(NOW)]], condition);
    await tollgate.stop();
  }
});
