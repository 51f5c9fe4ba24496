// The examples of Workers in README.md, docs/policies.md and www/package/README.md run as written.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { root } from "../package/stranger.mjs";
import { folder, makeProject, wranglerDev } from "./stranger.mjs";

/** The code of a section of a document, in one language. */
function blocks(document, title, language) {
  const text = readFileSync(join(root, document), "utf8");
  const [heading, level] = text.match(new RegExp(`^(##+) ${title}\\n`, "m"));
  const after = text.slice(text.indexOf(heading) + heading.length);
  const [section] = after.split(new RegExp(`^#{2,${level.length}} `, "m"));
  return [...section.matchAll(new RegExp(`^\`\`\`${language}\\n(.*?)^\`\`\``, "gms"))].map(([, code]) => code);
}

/** A project with these files. */
function write(name, files) {
  const project = join(folder, name);
  mkdirSync(project, { recursive: true });
  for (const [file, text] of Object.entries(files)) writeFileSync(join(project, file), text);
  return project;
}

const TITLE = "Inside your own Worker";
const [config] = blocks("README.md", TITLE, "toml");
const [embedded, service] = blocks("README.md", TITLE, "ts");
const [services] = blocks("docs/policies.md", "Service bindings", "toml");
const [caller] = blocks("docs/policies.md", "Service bindings", "ts");
const inPackage = blocks("www/package/README.md", TITLE, "ts");

/** Asks until it is refused: the first answer, the last, and how many were granted. */
async function spend(worker) {
  const answers = [];
  do answers.push(await worker.post("/", {}));
  while (answers.at(-1).status === 200 && answers.length < 1_000);
  return { first: answers[0], last: answers.at(-1), granted: answers.length - 1 };
}

test("README.md: a Worker with Tollgate in it", async () => {
  const worker = await wranglerDev([write("readme-embedded", { "wrangler.toml": config, "index.ts": embedded })]);
  const { first, last, granted } = await spend(worker);
  assert.deepEqual([first.status, first.text], [200, "Welcome"], worker.log);
  assert.match(first.headers.get("ratelimit"), /^"api";r=99;t=\d+$/);
  assert.ok(granted >= 100 && granted < 150, `${granted} at 100 per minute`);
  assert.deepEqual([last.status, last.body.title], [429, "Quota exceeded"]);
  assert.equal(last.headers.get("content-type"), "application/problem+json");
  assert.ok(Number(last.headers.get("retry-after")) > 0);
});

test("docs/policies.md: the same Worker whose class is declared by a migration, with the same objects", async () => {
  const [, declared] = config.match(/(\[exports\.KeyObject\].*\n(?:.+\n)+)/);
  const migration = /```toml\n(\[\[migrations\]\].*\n(?:.+\n)+?)```/.exec(
    readFileSync(join(root, "docs/policies.md"), "utf8"),
  )[1];
  const files = { "wrangler.toml": config.replace(declared, migration), "index.ts": embedded };
  const older = await wranglerDev([write("readme-migrations", files)]);
  assert.equal((await spend(older)).last.status, 429, older.log);
  await older.kill();
  const newer = await wranglerDev([write("readme-migrations", { "wrangler.toml": config })]);
  const { headers } = await newer.post("/", {});
  const [, left] = headers.get("ratelimit").match(/;r=(\d+)/);
  assert.ok(Number(left) < 50, `its objects keep the spent level, but ${left} are left`); // 50 come back in 30 seconds
});

test("README.md and docs/policies.md: a service, and a Worker that has a binding to it", async () => {
  const named = config.replace('"my-worker"', '"my-limits"');
  const own = write("readme-service", { "wrangler.toml": named, "index.ts": service });
  const head = config.slice(0, config.indexOf("[["));
  const other = write("readme-caller", { "wrangler.toml": head + services, "index.ts": caller });
  const { first, last, granted } = await spend(await wranglerDev([other, own]));
  assert.deepEqual([first.status, first.text, last.status], [200, "Welcome", 429], last.text);
  assert.ok(granted >= 100 && granted < 150, `${granted} at 100 per minute`);
  assert.ok(Number(last.headers.get("retry-after")) > 0);
});

test("www/package/README.md: policies in code", async () => {
  const [code] = inPackage;
  writeFileSync(join(folder, "readme-code.ts"), code);
  const worker = await wranglerDev([makeProject("readme-code", { main: "readme-code.ts" })]);
  const { first, last, granted } = await spend(worker);
  assert.deepEqual([first.status, first.text, last.status], [200, "Welcome", 429], worker.log);
  assert.ok(granted >= 200 && granted < 250, `${granted} with 200 at once and 100 per minute`);
});

for (const [index, what] of [
  [1, "a limit in front of a handler"],
  [2, "a limit in front of Hono's routes"],
]) {
  test(`www/package/README.md: ${what}`, async () => {
    const name = `readme-route-${index}`;
    const worker = await wranglerDev([write(name, { "wrangler.toml": config, "index.ts": inPackage[index] })]);
    const response = await worker.send("/");
    const { headers } = response;
    assert.equal(await response.text(), "Welcome", worker.log);
    assert.match(headers.get("ratelimit"), /^"api";r=9\d;t=\d+$/);
  });
}

test("www/package/README.md: a budget in one's own Durable Object", async () => {
  writeFileSync(join(folder, "readme-own.ts"), inPackage[3]);
  const classes = { MAILBOXES: "Mailbox" };
  const worker = await wranglerDev([makeProject("readme-own", { main: "readme-own.ts", classes })]);
  const statuses = [];
  for (let i = 0; i < 3; i++) statuses.push((await worker.post("/", {})).status);
  assert.deepEqual(statuses, [200, 200, 429], worker.log);
});
