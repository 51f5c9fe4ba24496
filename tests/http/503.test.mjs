// No decision can be made. That is not a refusal, and never a grant: a bucket that cannot be read is no fresh one.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { DatabaseSync } from "node:sqlite";
import { test } from "node:test";
import { assertAnswer } from "./answers.mjs";
import { start } from "./workerd.mjs";

const policies = { api: { rate: 10, period: "10s" }, other: { rate: 5, period: "1m" } };
const unavailable = {
  status: 503,
  headers: { "content-type": "application/problem+json" },
  body: {
    type: "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
    title: "Unavailable",
    status: 503,
    detail: "no decision could be made just now; nothing was refused, try again",
  },
};
const ask = { policy: "api", key: "alice@example.com", cost: 1 };

/** A Worker that is down, with 3 of alice's 10 spent; `edit` works on her database. */
async function down(edit) {
  const tollgate = await start({ policies });
  await tollgate.consume({ ...ask, cost: 3 });
  await tollgate.consume({ ...ask, policy: "other" });
  await tollgate.kill();
  const [file, ...others] = tollgate.databaseFiles();
  assert.deepEqual(others, []);
  edit(tollgate, file);
  return tollgate;
}

function sql(...statements) {
  return (_, file) => {
    const database = new DatabaseSync(file);
    for (const [statement, ...values] of statements) database.prepare(statement).run(...values);
    database.close();
  };
}

async function assertUnavailable(tollgate) {
  for (const verb of ["consume", "peek", "consume"]) assertAnswer(await tollgate[verb](ask), unavailable, verb);
}

const record = Buffer.alloc(25);
record[0] = 1; // the format; then a version that is none, and a level and a moment of 0
const set = (column, value) => sql([`UPDATE bucket SET ${column} = ? WHERE policy = 'api'`, value]);
const withRecord = (edit) => {
  const copy = Buffer.from(record);
  edit(copy);
  return set("record", copy);
};

const rows = {
  "a record of a later format": [withRecord((bytes) => (bytes[0] = 2)), "the state has format 2; this version reads 1"],
  "a record of nothing": [set("record", Buffer.alloc(0)), "a state of 0 bytes is not 9 and a multiple of 16"],
  "half a record": [set("record", record.subarray(0, 17)), "a state of 17 bytes is not 9 and a multiple of 16"],
  "a record without a state": [set("record", record.subarray(0, 9)), "the record holds more or less than one state"],
  "a record of two states": [
    set("record", Buffer.concat([record, Buffer.alloc(16)])),
    "the record holds more or less than one state",
  ],
  "a level beyond any limit": [
    withRecord((bytes) => bytes.writeBigInt64LE(2n ** 62n, 9)),
    "a level of 4611686018427387904 drops is beyond any limit",
  ],
  "a record that is text": [set("record", "1234567890123456789012345"), "a stored bucket is not a text and a blob"],
  "numbers that are none": [
    sql(["UPDATE bucket SET record = ?, numbers = '[]' WHERE policy = 'api'", record]),
    "the numbers beside the record cannot be read",
  ],
  "numbers with a field that this version does not know": [
    sql(["UPDATE bucket SET record = ?, numbers = replace(numbers, '}', ',\"x\":1}') WHERE policy = 'api'", record]),
    "the numbers beside the record cannot be read",
  ],
  "numbers that make no limit": [
    sql(["UPDATE bucket SET record = ?, numbers = replace(numbers, '10000', '0') WHERE policy = 'api'", record]),
    "the numbers beside the record make no limit: a period of 0 ms is too short",
  ],
};
for (const [name, [edit, reason]] of Object.entries(rows)) {
  test(`${name}: 503 and the reason in the log, while other policies of the key are served`, async () => {
    const tollgate = await down(edit);
    await tollgate.restart();
    await assertUnavailable(tollgate);
    assert.equal((await tollgate.peek({ ...ask, policy: "other" })).body.remaining, 4);
    await tollgate.logged(reason);
    await tollgate.stop();
    assert.ok(!tollgate.log.includes(ask.key), tollgate.log);
  });
}

test("a table with other columns", async () => {
  const tollgate = await down(sql(["ALTER TABLE bucket RENAME COLUMN record TO state"]));
  await tollgate.restart();
  await assertUnavailable(tollgate);
  await tollgate.stop();
});

test("a database that is none, and once it is mended the budget is what it was", async () => {
  let intact;
  const tollgate = await down((_, file) => {
    sql(["VACUUM"])(_, file); // takes what is in the log beside the file into it
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

test("a folder where the database was", async () => {
  const tollgate = await down((_, file) => {
    rmSync(file);
    mkdirSync(file);
  });
  await tollgate.restart();
  await assertUnavailable(tollgate);
  await tollgate.stop();
});

test("a write that fails takes nothing, in memory either; refusals and peeks are served", async () => {
  const refuse = "CREATE TRIGGER full BEFORE UPDATE ON bucket BEGIN SELECT RAISE(ABORT, 'the disk is full'); END";
  const tollgate = await down(sql([refuse]));
  await tollgate.restart();
  assertAnswer(await tollgate.consume(ask), unavailable);
  await tollgate.logged("the disk is full");
  assert.equal((await tollgate.peek(ask)).body.remaining, 7);
  assert.equal((await tollgate.consume({ ...ask, cost: 8 })).status, 429);
  assertAnswer(await tollgate.consume({ ...ask, cost: 7 }), unavailable);
  await tollgate.kill();
  sql(["DROP TRIGGER full"])(tollgate, tollgate.databaseFiles()[0]);
  await tollgate.restart();
  assert.equal((await tollgate.consume({ ...ask, cost: 7 })).body.remaining, 0);
  await tollgate.stop();
});
