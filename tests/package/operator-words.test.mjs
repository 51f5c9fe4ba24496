// `npx tollgate` for operators, whatever the command: progress, errors, help and colours; and that the README shows it.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { after, test } from "node:test";
import { newToken } from "../http/credentials.mjs";
import { command, MATCH, operated, POLICIES, written } from "./operated.mjs";
import { root } from "./stranger.mjs";

test("long work reports its progress on stderr", async () => {
  const service = await operated({ policies: POLICIES });
  const file = written("long.json", { api: "20/1m", llm: "30/1m", trial: "5/1m" });
  const overrides = Array.from({ length: 1_001 }, (_, i) => ({ policy: "api", key: `key ${i}`, multiple: 2 }));
  await service.ask("PUT", "/v1/overrides", { overrides });
  for (const [args, isSlow, line] of [
    [["policies", "apply", file], ({ path }) => path === "/v1/policies/llm?dry_run=true", "compared 1 of 3 policies"],
    [["policies", "apply", file], ({ path }) => path === "/v1/policies/trial?dry_run=false", "changed 1 of 2 policies"],
    [["overrides", "list"], ({ path }) => path.includes("after="), "read 1 000 overrides"],
  ]) {
    const said = Promise.withResolvers();
    service.before = (request) => (isSlow(request) ? said.promise : undefined);
    if (line.startsWith("changed")) await service.ask("DELETE", "/v1/policies/trial", undefined, MATCH);
    if (line.startsWith("changed")) await service.ask("PUT", "/v1/policies/api", "1/s", MATCH);
    const heard = (stderr) => stderr.includes(line) && said.resolve();
    const { code, stderr } = await service.run(args, { heard });
    assert.equal(code, 0);
    assert.ok(stderr.startsWith(`tollgate: ${line}\n`), stderr);
  }
});

test("errors are one line, with a correction, and the exit code says who refused", async () => {
  const [consumer, narrow] = [newToken("consume"), newToken("admin")];
  narrow.entry.policies = ["api"];
  const service = await operated({ policies: POLICIES, tokens: { app: consumer.entry, some: narrow.entry } });
  const stranger = createServer((request, response) => {
    if (request.url.startsWith("/away")) response.writeHead(302, { location: service.url });
    if (request.url.startsWith("/broken")) response.writeHead(502);
    response.end(request.url.startsWith("/text") ? "hello" : "{}");
  });
  await new Promise((done) => stranger.listen(0, "127.0.0.1", done));
  after(() => stranger.close());
  const elsewhere = `http://127.0.0.1:${stranger.address().port}`;
  const closed = createServer();
  await new Promise((done) => closed.listen(0, "127.0.0.1", done));
  const { port } = closed.address();
  await new Promise((done) => closed.close(done));
  const list = ["policies", "list"];
  const secret = "tg_a-secret-in-the-wrong-place";
  for (const [args, env, code, message] of [
    [
      list,
      { TOLLGATE_TOKEN: secret },
      1,
      `Unauthorized (401): send a valid token, or a grant that has not expired, as \`Authorization: Bearer <token>\`; TOLLGATE_TOKEN is not a token of ${service.url}`,
    ],
    [
      list,
      { TOLLGATE_TOKEN: consumer.text },
      1,
      "Forbidden (403): policies needs a token with the scope admin; this one has consume; TOLLGATE_TOKEN must have it: npx tollgate token ops --scopes admin",
    ],
    [["reset", "a", "--policy", "llm"], { TOLLGATE_TOKEN: narrow.text }, 1, /^Forbidden \(403\): .*api/],
    [
      ["reset", "a", "--policy", "apo"],
      {},
      1,
      'Unknown policy (404): there is no policy "apo"; there are api, firm, llm',
    ],
    [
      ["block", "a", "--policy", "apo", "--for", "1h"],
      {},
      1,
      'Unknown policy (404): there is no policy "apo"; there are api, firm, llm',
    ],
    [
      ["overrides", "remove", "a", "--policy", "apo"],
      {},
      1,
      'Bad request (400): nothing was changed: removed[0].policy: there is no policy "apo"; npx tollgate policies list shows those that there are',
    ],
    [["explain", "a", "--policy", "api", "--cost", `{"a":1}`], {}, 1, /^Bad request \(400\): /],
    [["inspect", "--key-json", "[1]"], {}, 1, /^Bad request \(400\): /],
    [["inspect", ""], {}, 1, /^Bad request \(400\): `key` /],
    [
      ["block", "a", "--policy", "api", "--for", "367d"],
      {},
      1,
      /^Bad request \(400\): `for_ms` must be from \d+ to 31622400000, not 31708800000$/,
    ],
    [["audit", "--limit", "0"], {}, 2, '--limit is how many acts, 1 or more, not "0"'],
    [
      list,
      { TOLLGATE_URL: "" },
      2,
      "TOLLGATE_URL is not in the environment: the service, such as https://limits.example.com",
    ],
    [
      list,
      { TOLLGATE_TOKEN: "" },
      2,
      "TOLLGATE_TOKEN is not in the environment: a token of the service with the scope admin",
    ],
    [list, { TOLLGATE_URL: secret }, 2, "TOLLGATE_URL is not an address such as https://limits.example.com"],
    [
      list,
      { TOLLGATE_TOKEN: `${secret}\nmore` },
      2,
      "TOLLGATE_TOKEN has characters that no token has, such as spaces or line breaks",
    ],
    [
      list,
      { TOLLGATE_URL: "http://limits.example.com" },
      2,
      "TOLLGATE_URL must begin with https:, or the token would travel in clear; http: is for this machine",
    ],
    [list, { TOLLGATE_URL: "http://localhost.example.com" }, 2, /must begin with https:/],
    [
      list,
      { TOLLGATE_URL: `https://me:${secret}@limits.example.com` },
      2,
      "TOLLGATE_URL is an address alone, without a user, a password, a query or a fragment",
    ],
    [
      list,
      { TOLLGATE_URL: `http://127.0.0.1:${port}/` },
      2,
      /^no answer from http:\/\/127\.0\.0\.1:\d+: connect ECONNREFUSED/,
    ],
    [
      ["reset", "a", "--policy", "api"],
      { TOLLGATE_URL: `http://127.0.0.1:${port}` },
      2,
      /ECONNREFUSED.*; it may have been carried out$/,
    ],
    [list, { TOLLGATE_URL: `${elsewhere}/away` }, 2, /^no answer from .*: unexpected redirect$/],
    ...["", "/text", "/broken"].map((path) => [
      list,
      { TOLLGATE_URL: `${elsewhere}${path}` },
      2,
      new RegExp(`answers ${path === "/broken" ? 502 : 200}, but not as Tollgate does: is TOLLGATE_URL right\\?$`),
    ]),
    [["audit"], { TOLLGATE_URL: elsewhere }, 2, /but not as Tollgate does/],
    [
      ["policies"],
      {},
      2,
      "policies is incomplete: npx tollgate policies list, npx tollgate policies diff, npx tollgate policies apply",
    ],
    [["policies", "delete"], {}, 2, /^there is no command policies delete: npx tollgate policies list, /],
    [
      ["overrides", "toString"],
      {},
      2,
      "there is no command overrides toString: npx tollgate overrides list, npx tollgate overrides remove",
    ],
    [["policies", "apply"], {}, 2, "name the file with the policies: npx tollgate policies apply wrangler.toml"],
    [["policies", "apply", "none.json"], {}, 2, "there is no file none.json"],
    [
      ["policies", "apply", "none.json", "--carry", "over"],
      {},
      2,
      '--carry is additive, as_is, proportional, reset, not "over"',
    ],
    [["inspect"], {}, 2, /^give one key: a text, or --key-json '\["tenant","user"\]'/],
    [["inspect", "a", "--key-json", `"b"`], {}, 2, /^give one key: /],
    [["inspect", "a", "b"], {}, 2, "there is one argument too many: b"],
    [["inspect", "--key-json", "a"], {}, 2, /^--key-json is not JSON: /],
    [["inspect", "a", "--policy", "api"], {}, 2, /^Unknown option '--policy'/],
    [["explain", "a"], {}, 2, "explain is about one policy: --policy api"],
    [
      ["credit", "a", "--policy", "api", "--cost", "x"],
      {},
      2,
      `--cost is a number, or one for each limit: --cost '{"requests":1}', not "x"`,
    ],
    [["block", "a", "--policy", "api"], {}, 2, "a key is blocked for a time: --for 1h"],
    [["block", "a", "--policy", "api", "--for", "1w"], {}, 2, '--for is a time such as 90s, 10m, 1h or 1d, not "1w"'],
    [["overrides", "remove", "a"], {}, 2, "an override is of one policy: --policy api"],
    [["overrides", "remove", "--policy", "api"], {}, 2, /^give one key: /],
    [["overrides", "remove", "a", "--policy", "api", "--prefix", "a"], {}, 2, "give a key or a prefix, not both"],
    [["overrides", "remove", "a", "--policy", "api", "--carry", "over"], {}, 2, /^--carry is additive, as_is, /],
    [["inspect", "a", "--token", secret], {}, 2, /^Unknown option '--token'/],
  ]) {
    const said = await service.run(args, { env });
    const where = JSON.stringify([args, env, said]);
    assert.deepEqual([said.code, said.stdout], [code, ""], where);
    const [line, ...rest] = said.stderr.split("\n");
    assert.deepEqual(rest, [""], where);
    if (typeof message === "string") assert.equal(line, `tollgate: ${message}`);
    else assert.match(line.replace(/^tollgate: /, ""), message);
    assert.doesNotMatch(said.stderr, new RegExp(`${secret}|${service.token}|${consumer.text}`));
  }
  assert.deepEqual((await service.ask("GET", "/v1/audit")).body.acts.length, 3, "nothing was done");
});

test("each command has its own help, and nothing more", async () => {
  const whole = (await command(["--help"])).stdout;
  for (const [name, flag] of [
    ["policies", "--help"],
    ["inspect", "-h"],
    ["explain", "-h"],
    ["reset", "-h"],
    ["credit", "-h"],
    ["block", "-h"],
    ["overrides", "-h"],
    ["audit", "-h"],
  ]) {
    const { code, stdout } = await command([name, "anything", flag]);
    assert.equal(code, 0);
    assert.match(stdout, new RegExp(`^Usage: npx tollgate <command>\n\n  ${name} `));
    const shown = [...stdout.matchAll(/^ {2}(\S+)/gm)].map(([, word]) => word);
    assert.deepEqual([...new Set(shown)], [name]);
    assert.match(stdout, /Exit codes: 0 done; 1 /);
    assert.ok(stdout.split("\n").every((line) => line === "" || whole.includes(`${line}\n`)));
  }
});

test("colours are for terminals, and never with NO_COLOR", async () => {
  const service = await operated({ policies: POLICIES });
  const explain = ["explain", "alice", "--policy", "api"];
  const TERM = "xterm-256color";
  const { stdout } = await service.run(explain, { terminal: true, env: { TERM } });
  assert.deepEqual([stdout.slice(0, 14), stdout.trimEnd().slice(-5)], ["\u001b[32mAllowed: ", "\u001b[39m"]);
  assert.match((await service.run(explain, { terminal: true, env: { TERM, NO_COLOR: "1" } })).stdout, /^Allowed: /);
  assert.match((await service.run(explain, { env: { FORCE_COLOR: "1" } })).stdout, /^Allowed: /);
});

test("the README's commands do what it shows", async () => {
  const readme = readFileSync(join(root, "www/package/README.md"), "utf8");
  const [, section] = readme.match(/^## Operating a service$(.*?)^## /ms);
  const [, limits] = section.match(/^```json\n(.*?)^```$/ms);
  written("limits.json", limits);
  const shown = [...section.matchAll(/^```console\n(.*?)^```$/gms)].flatMap(([, block]) =>
    block.split(/^\$ npx tollgate /m).slice(1),
  );
  // Like its text, except for the tests' defaults.
  const api = { rate: 100, period: "1m", capacity: 200, refusal_cache: "1s" };
  const policies = { api, daily: "1000/1day" };
  const service = await operated({ policies });
  const ask = (verb, body) => service.ask("POST", `/v1/${verb}`, body);
  await ask("consume", { policy: "daily", key: "alice", cost: 1 });
  service.now += 3_600_000;
  await ask("consume", { policy: "api", key: "alice", cost: 198 });
  await ask("consume", { policy: "api", key: "alice", cost: 5 });
  const used = new Set();
  for (const example of shown) {
    const [line, ...output] = example.split("\n");
    const words = [...line.matchAll(/'([^']*)'|(\S+)/g)].map(([, quoted, word]) => quoted ?? word);
    used.add(words[0]);
    if (words[0] === "policies") used.add(words[1]);
    const { stdout, stderr } = await service.run(words);
    assert.equal(stdout + stderr, `${output.join("\n").trimEnd()}\n`, line);
  }
  const commands = [
    "policies",
    "list",
    "diff",
    "apply",
    "inspect",
    "explain",
    "reset",
    "credit",
    "block",
    "overrides",
    "audit",
  ];
  assert.deepEqual([...used].sort(), commands.sort());
});
