// A body that does not arrive, or not in time.
import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { assertAnswer, problem } from "./answers.mjs";
import { start } from "./workerd.mjs";

const tollgate = await start({ policies: { api: { rate: 10, period: "10s" } } });
const body = '{"policy":"api","key":"alice"}';
const tooSlow = problem(408, "request-timeout", "Request timeout", "the body did not arrive in time");
const remaining = async () => (await tollgate.peek({ policy: "api", key: "alice", cost: 0 })).body.remaining;

test("an unfinished body times out after 5 s, with or without a length, whatever its first bytes", async () => {
  const began = performance.now();
  const unfinished = (chunks, headers) => tollgate.send({ body: chunks, unfinished: true, headers });
  const answers = await Promise.all([
    unfinished([body.slice(0, 9)]),
    unfinished([body]),
    unfinished([body.slice(0, 9)], { "content-length": body.length }),
  ]);
  const took = performance.now() - began;
  assert.ok(took > 4_900 && took < 8_000, `${took} ms`);
  for (const answer of answers) assertAnswer(answer, tooSlow);
  assert.equal(await remaining(), 10);
});

test("a body of 16 KiB in one-byte chunks costs little processor time", async (t) => {
  const cpuMs = () => {
    const stat = `/proc/${tollgate.pid}/stat`;
    if (!existsSync(stat)) return 0; // only Linux is this precise
    // utime and stime, in hundredths of a second.
    const fields = readFileSync(stat, "utf8").split(") ").pop().split(" ");
    return (Number(fields[11]) + Number(fields[12])) * 10;
  };
  const before = cpuMs();
  const answer = await tollgate.send({ body: [...body.padEnd(16 * 1_024)] });
  const cost = cpuMs() - before;
  t.diagnostic(`${cost} ms of CPU`);
  assert.equal(answer.status, 200, answer.text);
  // With one JavaScript chunk per byte it was 450 ms.
  assert.ok(cost < 250, `${cost} ms of CPU`);
});
