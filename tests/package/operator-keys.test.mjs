// `npx tollgate inspect`, `explain`, `reset`, `credit` and `block`, on the real service.
import assert from "node:assert/strict";
import { test } from "node:test";
import { operated, POLICIES } from "./operated.mjs";

test("inspect and explain show the state of a key, and the reason", async () => {
  const service = await operated({ policies: POLICIES });
  const ask = (verb, body) => service.ask("POST", `/v1/${verb}`, body);
  await ask("consume", { policy: "api", key: "alice", cost: 199 });
  await ask("consume", { policy: "api", key: "alice", cost: 5 });
  await ask("charge", { policy: "api", key: "alice", cost: 21 });
  const cost = { requests: 1, tokens: 50_000 };
  const { body } = await ask("consume", { policy: "llm", key: "alice", cost, mode: "reserve" });
  const { object } = (await ask("keys/inspect", { key: "alice" })).body;
  const { code, stdout, stderr } = await service.run(["inspect", "alice"]);
  assert.deepEqual([code, stderr], [0, ""]);
  assert.equal(
    stdout,
    `hash ${object} at 2026-11-20T22:39:36.930+00:00

buckets
  api           owes 20 tokens                 100 per 1m, at most 200, debt at most 50       full in 2m 12s, 2026-11-20T22:41:48.930+00:00
  llm/requests  59 of 60 tokens left           60 per 1m, at most 60                          full in 1s, 2026-11-20T22:39:37.930+00:00
  llm/tokens    50 000 of 100 000 tokens left  100 000 in each window of 1d, at most 100 000  full in 1h 20m, 2026-11-21T00:00:00.000+00:00

reservations
  ${body.reservation}  llm/requests 1, llm/tokens 50 000  opened 2026-11-20T22:39:36.930+00:00  expires 2026-11-20T22:49:36.930+00:00, then keep

held for batches: none

latest decisions
  2026-11-20T22:39:36.930+00:00  reserve  llm  50 000  allowed
  2026-11-20T22:39:36.930+00:00  charge   api  21      allowed
  2026-11-20T22:39:36.930+00:00  consume  api  5       refused by api, until 2026-11-20T22:39:39.330+00:00
  2026-11-20T22:39:36.930+00:00  consume  api  199     allowed
`,
  );
  for (const [args, verb, asked] of [
    [["inspect", "alice"], "inspect", { key: "alice" }],
    [["explain", "alice", "--policy", "api"], "explain", { policy: "api", key: "alice" }],
    [
      ["explain", "alice", "--policy", "llm", "--cost", `{"requests":2,"tokens":60000}`],
      "explain",
      { policy: "llm", key: "alice", cost: { requests: 2, tokens: 60_000 } },
    ],
    [
      ["explain", "--key-json", `["t","u"]`, "--policy", "api", "--cost", "5"],
      "explain",
      { policy: "api", key: ["t", "u"], cost: 5 },
    ],
    [["inspect", "--key-json", `{"ip":"192.0.2.1"}`], "inspect", { key: { ip: "192.0.2.1" } }],
  ]) {
    const { text, body } = await ask(`keys/${verb}`, asked);
    assert.deepEqual(await service.run([...args, "--json"]), { code: 0, stdout: text, stderr: "" });
    if (verb === "explain")
      assert.deepEqual(await service.run(args), { code: 0, stdout: `${body.explanation}\n`, stderr: "" });
  }
});

test("a key can be named by its hash, and a text that looks like a hash is not taken for one", async () => {
  const service = await operated({ policies: POLICIES });
  await service.ask("POST", "/v1/consume", { policy: "api", key: "alice", cost: 199 });
  const { object: hash } = (await service.ask("POST", "/v1/keys/inspect", { key: "alice" })).body;
  const inspected = await service.run(["inspect", "alice"]);
  assert.deepEqual(await service.run(["inspect", "--hash", hash]), inspected);
  const reset = await service.run(["reset", "--hash", hash, "--policy", "api"]);
  assert.deepEqual([reset.code, reset.stderr], [0, ""]);
  const blocked = await service.run(["block", "--hash", hash, "--policy", "api", "--for", "1h"]);
  assert.match(blocked.stdout, new RegExp(`^blocked \\{"hash":"${hash}"\\} from api for 1h\n`));
  const { status, body } = await service.ask("POST", "/v1/consume", { policy: "api", key: "alice" });
  assert.deepEqual([status, body.banned], [429, true]);
  await service.run(["reset", "bob", "--policy", "api"]);
  const acts = (await service.run(["audit", "--hash", hash])).stdout
    .split("\n")
    .filter((line) => line !== "" && !line.startsWith("  "));
  assert.equal(acts.length, 2);
  for (const line of acts) assert.match(line, new RegExp(`key ${hash}`));
  const removed = await service.run(["overrides", "remove", "--hash", hash, "--policy", "api"]);
  assert.match(removed.stdout, /^removed the override of the key/);
  for (const [args, wrong] of [
    [
      ["block", hash, "--policy", "api", "--for", "1h"],
      `${hash} looks like the hash of a key: give --hash ${hash}, or --key-json '"${hash}"'`,
    ],
    [
      ["inspect", "--hash", "0123"],
      '--hash is the 32 hexadecimal digits that lists and logs show of a key, not "0123"',
    ],
    [
      ["audit", "--hash", "alice"],
      '--hash is the 32 hexadecimal digits that lists and logs show of a key, not "alice"',
    ],
    [["inspect", "alice", "--hash", hash], "give one key: a text, or --key-json"],
  ]) {
    const { code, stderr } = await service.run(args);
    assert.deepEqual([code, stderr.includes(wrong)], [2, true], stderr);
  }
  const text = await service.run(["inspect", "--key-json", JSON.stringify(hash)]);
  assert.match(text.stdout, /buckets: none/);
});

test("reset, credit and block report the state before and after", async () => {
  const service = await operated({ policies: POLICIES });
  const ask = (verb, body) => service.ask("POST", `/v1/${verb}`, body);
  await ask("charge", { policy: "api", key: "alice", cost: 220 });
  await ask("consume", { policy: "llm", key: "alice", cost: { requests: 1, tokens: 99_000 } });
  const at = "at 2026-11-20T22:39:36.930+00:00";
  for (const [args, stdout] of [
    [
      ["credit", "alice", "--policy", "api", "--cost", "21"],
      `gave tokens of api to "alice" ${at}\n  api  owes 20 tokens  ->  1 token\n`,
    ],
    [["credit", "alice", "--policy", "api"], `gave tokens of api to "alice" ${at}\n  api  1 token  ->  2 tokens\n`],
    [
      ["credit", "alice", "--policy", "llm", "--cost", `{"requests":0,"tokens":500}`],
      `gave tokens of llm to "alice" ${at}\n  llm/requests  59 tokens     ->  59 tokens\n  llm/tokens    1 000 tokens  ->  1 500 tokens\n`,
    ],
    [["reset", "alice", "--policy", "api"], `reset api of "alice" ${at}\n  api  2 tokens  ->  200 tokens\n`],
    [
      ["block", "alice", "--policy", "api", "--for", "90s"],
      `blocked "alice" from api for 1m 30s
  before  no override
  after   an override that bans it; npx tollgate explain says until when
  1 key or prefix: under an override; time before the change counts as the policy says
  what is spent stays spent (with shards: keys keep their tokens); at the latest ten seconds from then
`,
    ],
    [
      ["block", "alice", "--policy", "api", "--for", "10s"],
      `blocked "alice" from api for 10s
  before  another override, which npx tollgate audit shows
  after   an override that bans it; npx tollgate explain says until when
  1 key or prefix: under another override; time before the change counts as the one before says
  what is spent stays spent (with shards: keys keep their tokens); at the latest ten seconds from then
`,
    ],
  ])
    assert.deepEqual(await service.run(args), { code: 0, stdout, stderr: "" });
  const refused = await ask("consume", { policy: "api", key: "alice" });
  assert.deepEqual([refused.status, refused.body.banned], [429, true]);
  service.now += 10_000;
  assert.equal((await ask("consume", { policy: "api", key: "alice" })).status, 200);
  for (const [args, member] of [
    [["reset", "bob", "--policy", "api"], "after"],
    [["credit", "bob", "--policy", "api"], "after"],
    [["block", "bob", "--policy", "api", "--for", "366d"], "created"],
  ]) {
    const { code, stdout } = await service.run([...args, "--json"]);
    assert.equal(code, 0);
    assert.ok(member in JSON.parse(stdout) && stdout.indexOf("\n") === stdout.length - 1, stdout);
  }
});

test("without a registry an act is done, and reported as missing from the audit log", async () => {
  const service = await operated({ policies: POLICIES, registry: false });
  const { code, stdout } = await service.run(["reset", "alice", "--policy", "api"]);
  assert.equal(code, 0);
  assert.match(
    stdout,
    /\n {2}the audit log has no line of it, for the registry did not answer; the service's own log has one\n$/,
  );
  const listed = await service.run(["policies", "list"]);
  assert.deepEqual([listed.code, listed.stdout], [1, ""]);
  assert.match(
    listed.stderr,
    /^tollgate: Not found \(404\): this deployment has no registry of policies: add the binding REGISTRY/,
  );
});

test("while the registry does not answer, that is reported beside the answer", async () => {
  const around = new URL("../http/faulty-registry.mjs", import.meta.url).pathname;
  const service = await operated({ policies: POLICIES, around });
  await service.ask("POST", "/v1/consume", { policy: "api", key: "alice" });
  service.now += 60_000;
  await service.ask("POST", "/v1/consume", { policy: "api", key: "alice" }, { "x-registry": "throws" });
  const explained = await service.run(["explain", "alice", "--policy", "api"]);
  assert.equal(explained.code, 0);
  assert.match(explained.stdout, /^Allowed: /);
  assert.equal(explained.stderr, "tollgate: its policies may be out of date, for their registry does not answer\n");
  const listed = await service.run(["policies", "list"]);
  assert.deepEqual([listed.code, listed.stdout], [1, ""]);
  assert.match(listed.stderr, /^tollgate: Unavailable \(503\): the registry of policies did not answer/);
});

test("a key is literal text, and cannot control the terminal", async () => {
  const service = await operated({ policies: POLICIES });
  const wild = "\u001b[31mroot\u202e\n--help";
  for (const [args, key, shown] of [
    [["[1]"], "[1]", '"[1]"'],
    [["--", "--help"], "--help", '"--help"'],
    [[wild], wild, String.raw`"\u001b[31mroot\u{202e}\n--help"`],
    [["--key-json", `["a","b"]`], ["a", "b"], '["a","b"]'],
    [["--key-json", `"-x"`], "-x", '"-x"'],
  ]) {
    await service.ask("POST", "/v1/consume", { policy: "api", key, cost: 3 });
    const { code, stdout, stderr } = await service.run(["reset", "--policy", "api", ...args]);
    assert.deepEqual([code, stderr], [0, ""]);
    assert.equal(stdout.split("\n")[0], `reset api of ${shown} at 2026-11-20T22:39:36.930+00:00`);
    assert.match(stdout, /197 tokens {2}-> {2}200 tokens/);
  }
  await service.run(["block", wild, "--policy", "api", "--for", "1h"]);
  const { stdout } = await service.run(["overrides", "list"]);
  assert.ok(stdout.startsWith(String.raw`api  key "\u001b[31mroot\u{202e}\n--help"  blocked  until `), stdout);
});
