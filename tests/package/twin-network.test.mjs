// Twin: requests in flight, overtaken, lost and undecided.
import assert from "node:assert/strict";
import { test } from "node:test";
import { statuses, synced } from "./twins.mjs";

test("requests in flight are debited, in whatever order responses come", async () => {
  for (const back of [
    [10, 20, 30, 40],
    [40, 30, 20, 10],
    [20, 40, 10, 30],
    [10, 10, 10, 10],
  ]) {
    for (const apartMs of [0, 3]) {
      const { wire, twin } = await synced();
      const downs = [...back];
      wire.travel = () => ({ upMs: 20, downMs: downs.shift() });
      const began = wire.now;
      const left = [];
      for (let i = 0; i < 4; i++) {
        await wire.to(began + i * apartMs);
        twin.consume(2);
        left.push(twin.remaining());
      }
      assert.deepEqual(left, [8, 6, 4, 2]);
      for (; wire.now < began + 80; await wire.pass(1))
        assert.equal(twin.remaining(), 2, `${back} at ${wire.now - began}`);
      assert.equal(twin.peek(3).retryAt, began + 1_000);
      assert.deepEqual(statuses(wire), [200, 200, 200, 200]);
    }
  }
});

test("a response older than the known state is ignored", async () => {
  const { wire, twin } = await synced();
  const ways = [
    [20, 500],
    [20, 30],
    [500, 30],
    [20, 30],
  ]; // the first response comes last, and the third request arrives after the fourth
  wire.travel = () => {
    const [upMs, downMs] = ways.shift();
    return { upMs, downMs };
  };
  twin.consume(4);
  await wire.until(twin.consume(3));
  assert.equal(twin.remaining(), 3);
  await wire.pass(500);
  assert.equal(twin.remaining(), 3);
  const late = twin.consume(1);
  await wire.until(twin.consume(1));
  assert.equal(twin.remaining(), 2, "assumes that a later request arrives later"); // wrong, until the next response
  await wire.until(late);
  assert.equal(twin.remaining(), 2); // 1, plus the refill since the beginning
  assert.deepEqual(statuses(wire), [200, 200, 200, 200]);
});

test("a request that may have overtaken a slow one is not debited twice", async () => {
  const { wire, twin } = await synced();
  const ways = [
    { upMs: 500, downMs: 10 },
    { upMs: 20, downMs: 900 },
  ];
  wire.travel = () => ways.shift();
  const slow = twin.consume(4);
  await wire.pass(100);
  const quick = twin.consume(3); // arrives 380 ms earlier
  const { remaining } = await wire.until(slow);
  assert.deepEqual([remaining, twin.remaining(), twin.peek(3).allowed], [3, 3, true]);
  assert.equal((await wire.until(quick)).status, 200);
  assert.equal(twin.remaining(), 3);
});

test("a lost request stays debited until the next response, since it may have been granted", async () => {
  for (const [fate, left] of [
    ["lost", 3],
    ["unheard", 0],
    ["doubled", 0],
  ]) {
    const { wire, twin } = await synced({ policy: "one" });
    const all = { policy: "llm" };
    const { wire: wires, twin: several } = await synced(all);
    for (const [each, subject, cost] of [
      [wire, twin, 1],
      [wires, several, { requests: 3, tokens: 3 }],
    ]) {
      const { travel } = each;
      each.travel = () => ({ ...travel(), fate });
      const answer = each.until(subject.consume(cost));
      if (fate === "doubled")
        assert.equal((await answer).status, 429, "the second was refused, and the answer to the first was lost");
      else await assert.rejects(answer, { code: "network_failed" });
      assert.equal(subject.remaining(), 0);
      assert.equal((await subject.consume(cost)).predicted, true);
      each.travel = travel;
      await each.until(subject.sync());
    }
    assert.equal(twin.remaining(), left ? 1 : 0, fate);
    assert.equal(several.remaining(), left, fate);
  }
});

test("an invalid request is debited only until the response", async () => {
  for (const status of [400, 401, 404, 405, 409, 413, 415, 422]) {
    const { wire, twin } = await synced({ policy: "one" });
    const { travel } = wire;
    wire.travel = () => ({
      ...travel(),
      fate: { type: "urn:problem-type:tollgate:some", title: "", status, detail: "" },
    });
    const answer = twin.consume();
    assert.equal(twin.remaining(), 0);
    assert.equal((await wire.until(answer)).status, status);
    assert.deepEqual([twin.remaining(), twin.peek().allowed], [1, true], status);
  }
});

test("an undecided request stays debited until the next response", async () => {
  const open = { allowed: true, policy: "api", degraded: "timeout", status: 200 };
  for (const fate of [{ status: 503, cause: "failed" }, { status: 500 }, open]) {
    const { wire, twin } = await synced();
    const { travel } = wire;
    wire.travel = () => ({ ...travel(), fate: { type: "about:blank", title: "", detail: "", ...fate } });
    assert.equal((await wire.until(twin.consume(6))).status, fate.status);
    assert.deepEqual([twin.remaining(), twin.peek(5).allowed, twin.peek(11).maxCost], [4, false, 10]);
    wire.travel = travel;
    await wire.until(twin.consume(4));
    assert.equal(twin.remaining(), 6);
  }
});
