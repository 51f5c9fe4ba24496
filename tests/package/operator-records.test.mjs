// `npx tollgate overrides` and `audit`, on the real service.
import assert from "node:assert/strict";
import { test } from "node:test";
import { NOW, operated, POLICIES } from "./operated.mjs";

test("an override is removed, of a key or of a prefix, and only that one", async () => {
  const service = await operated({ policies: POLICIES });
  const overrides = [
    { policy: "api", key: "alice", banned: true },
    { policy: "api", key: ["t", "u"], multiple: 2 },
    { policy: "api", prefix: "alice", multiple: 3 },
    { policy: "llm", key: "alice", unlimited: true },
  ];
  await service.ask("PUT", "/v1/overrides", { overrides });
  const left = async () => (await service.ask("GET", "/v1/overrides")).body.overrides.length;
  for (const [args, line, rest] of [
    [["alice", "--policy", "api"], 'removed the override of the key "alice" under api', 3],
    [["alice", "--policy", "api"], 'there is no override of the key "alice" under api', 3],
    [["--prefix", "alice", "--policy", "api"], 'removed the override of the prefix "alice" under api', 2],
    [
      ["--key-json", '["t","u"]', "--policy", "api", "--carry", "reset"],
      'removed the override of the key ["t","u"] under api',
      1,
    ],
  ]) {
    const { code, stdout, stderr } = await service.run(["overrides", "remove", ...args]);
    assert.deepEqual([code, stdout.split("\n")[0], stderr, await left()], [0, line, "", rest]);
  }
  const { stdout } = await service.run(["overrides", "remove", "alice", "--policy", "llm", "--json"]);
  assert.equal(JSON.parse(stdout).removed, 1);
});

test("overrides list and audit read page after page, and print the answers as they came", async () => {
  const service = await operated({ policies: POLICIES });
  const overrides = Array.from({ length: 1_200 }, (_, i) => ({ policy: "api", key: `key ${i}`, multiple: i + 1 }));
  await service.ask("PUT", "/v1/overrides", { overrides });
  const others = [
    { policy: "llm", prefix: "trial:", unlimited: true, until: Number.MAX_SAFE_INTEGER },
    { policy: "llm", key: { ip: "192.0.2.1" }, banned: true, until: NOW + 60_000 },
    { policy: "llm", key: ["t", "u"], limits: [{ name: "requests", rate: "1/s" }] },
  ];
  await service.ask("PUT", "/v1/overrides", { overrides: others });
  const rows = (await service.run(["overrides", "list"])).stdout.split("\n").filter(Boolean);
  assert.equal(rows.length, 1_203);
  assert.ok(rows.some((row) => /^api {2}key "key 1199" +1200 times the policy +for good +since 2026-/.test(row)));
  const { as_of } = (await service.ask("GET", "/v1/overrides?limit=1")).body; // no two changes have the same moment
  const since = `since ${new Date(as_of).toISOString().replace("Z", "+00:00")}`;
  const some = (await service.run(["overrides", "list", "--policy", "llm"])).stdout.split("\n").filter(Boolean);
  assert.deepEqual(some.map((row) => row.replaceAll(/ {2,}/g, "  ")).sort(), [
    `llm  key ["t","u"]  {"limits":[{"name":"requests","rate":"1/s"}]}  for good  ${since}`,
    `llm  key {"ip":"192.0.2.1"}  blocked  until 2026-11-20T22:40:36.930+00:00  ${since}`,
    `llm  prefix "trial:"  without limits  until 9 007 199 254 740 991 ms after 1970  ${since}`,
  ]);
  const first = await service.ask("GET", "/v1/overrides");
  const second = await service.ask("GET", `/v1/overrides?after=${first.body.next}`);
  const json = await service.run(["overrides", "list", "--json"]);
  assert.deepEqual([json.code, json.stdout], [0, first.text + second.text]);

  // Alternately, or they would share a line.
  for (let cost = 1; cost <= 130; cost++)
    await service.ask("POST", "/v1/keys/credit", { policy: "api", key: cost % 2 ? "b" : "a", cost });
  const acts = (await service.run(["audit"])).stdout.split("\n").filter(Boolean);
  assert.equal(acts.length, 3 * 20);
  const { object } = (await service.ask("POST", "/v1/keys/inspect", { key: "a" })).body;
  assert.deepEqual(acts.slice(0, 3), [
    `2026-11-20T22:39:36.930+00:00  ops  key.credited  api  key ${object}`,
    "  before  api 200 tokens",
    "  after   api 200 tokens",
  ]);
  const pages = (await service.run(["audit", "--limit", "120", "--json"])).stdout;
  const latest = await service.ask("GET", "/v1/audit?limit=100");
  const earlier = await service.ask("GET", `/v1/audit?limit=20&before=${latest.body.next}`);
  assert.equal(pages, latest.text + earlier.text);
  const all = (await service.run(["audit", "--limit", "1000"])).stdout;
  assert.match(
    all,
    /deployment [0-9a-f]{16} +policy\.created +api *\n {2}before {2}nothing\n {2}after {3}\{.*"rate":100,/,
  );
});
