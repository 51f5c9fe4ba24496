// Metrics in Prometheus's format, the keys refused most, and the rights to see them.
import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { readFileSync } from "node:fs";
import { after, test } from "node:test";
import parsePrometheus from "parse-prometheus-text-format";
import { newToken } from "./credentials.mjs";
import { KEY_SECRET, NOW, start } from "./workerd.mjs";

const all = newToken("consume", "admin");
const some = newToken("admin");
some.entry.policies = ["api"];
const consumer = newToken("consume");
all.entry.inline = true;
const tokens = { all: all.entry, some: some.entry, consumer: consumer.entry };

const DAY = { period: "1day" };
const POLICIES = {
  api: { rate: 2, ...DAY },
  once: { rate: 0, capacity: 1, ...DAY },
  tried: { rate: 1, ...DAY, mode: "shadow" },
  open: { rate: 2, ...DAY, on_error: "open" },
};

async function started(changes) {
  const tollgate = await start({ policies: POLICIES, tokens, token: all.text, ...changes });
  after(() => tollgate.stop());
  return tollgate;
}

const get = (tollgate, path, token = all.text, options) =>
  tollgate.send({ method: "GET", path, headers: { authorization: token && `Bearer ${token}` }, ...options });

/** The samples by name and labels, such as `tollgate_decisions_total{api,allowed}`, without zeros. */
async function samples(tollgate, token) {
  const { status, headers, text } = await get(tollgate, "/v1/metrics", token);
  assert.deepEqual([status, headers["content-type"]], [200, "text/plain; version=0.0.4; charset=utf-8"]);
  const found = {};
  for (const { name, help, type, metrics } of parsePrometheus(text)) {
    assert.ok(help.endsWith(".") && type !== "UNTYPED", name);
    assert.equal(type === "COUNTER", name.endsWith("_total"), name);
    if (type === "HISTOGRAM") Object.assign(found, histogram(name, text));
    else
      for (const { labels = {}, value } of metrics) {
        const values = Object.values(labels);
        found[values.length > 0 ? `${name}{${values}}` : name] = Number(value);
      }
  }
  return { text, found: Object.fromEntries(Object.entries(found).filter(([, value]) => value !== 0)) };
}

/** The counts of a histogram by its label, which the parser does not separate. */
function histogram(name, text) {
  const found = {};
  for (const [, label, sum, count] of text.matchAll(
    new RegExp(
      `^${name}_sum\\{outcome="(\\w+)"\\} (\\d+(?:\\.\\d+)?)\\n${name}_count\\{outcome="\\1"\\} (\\d+)$`,
      "gm",
    ),
  )) {
    const lines = text.matchAll(new RegExp(`^${name}_bucket\\{outcome="${label}",le="([^"]+)"\\} (\\d+)$`, "gm"));
    const buckets = [...lines].map(([, bound, count]) => [Number(bound.replace("+Inf", "Infinity")), Number(count)]);
    const bounds = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, Infinity];
    assert.deepEqual(
      buckets.map(([bound]) => bound),
      bounds,
    );
    const counts = buckets.map(([, count]) => count);
    assert.deepEqual(
      counts,
      counts.toSorted((a, b) => a - b),
      "cumulative",
    );
    assert.ok(counts.at(-1) === Number(count) && Number(sum) >= 0, label);
    found[`${name}{${label}}`] = Number(count);
  }
  assert.equal(Object.keys(found).length, 4);
  return found;
}

const pick = (found, ...names) =>
  Object.fromEntries(Object.entries(found).filter(([key]) => names.some((name) => key.startsWith(name))));

for (const registry of [false, true]) {
  const where = registry ? "the registry adds up what isolates report" : "without a registry an isolate shows its own";
  test(`${where}: decisions by policy and outcome`, async () => {
    const tollgate = await started({ registry });
    const key = "alice";
    for (const status of [200, 200, 429, 429])
      assert.equal((await tollgate.consume({ policy: "api", key })).status, status);
    for (const status of [200, 429]) assert.equal((await tollgate.consume({ policy: "once", key })).status, status);
    for (const status of [200, 200, 200])
      assert.equal((await tollgate.consume({ policy: "tried", key })).status, status);
    assert.equal((await tollgate.consume({ policy: "api", key, cost: 3 })).status, 400);
    assert.equal((await tollgate.peek({ policy: "api", key })).status, 429, "a peek is not counted");
    assert.equal((await tollgate.consume({ policy: "none", key })).status, 404);
    const again = { headers: { "idempotency-key": "x" } };
    for (const replayed of [undefined, true])
      assert.equal((await tollgate.consume({ policy: "open", key }, again)).body.replayed, replayed);
    const requests = ["api", "open"].map((policy) => ({ policy, key }));
    assert.equal((await tollgate.post("batch", { requests })).status, 429);
    if (registry) {
      const overrides = [
        { policy: "api", key: "mallory", banned: true },
        { policy: "api", key: "root", unlimited: true },
      ];
      assert.equal(
        (await tollgate.send({ method: "PUT", path: "/v1/overrides", body: JSON.stringify({ overrides }) })).status,
        200,
      );
      assert.equal((await tollgate.consume({ policy: "api", key: "mallory" })).status, 429);
      for (const status of [200, 200, 200])
        assert.equal((await tollgate.consume({ policy: "api", key: "root" })).status, status);
    }
    const plan = { policy: "plan", key: "bob", limits: "1/1day" };
    for (const status of [200, 429]) assert.equal((await tollgate.consume(plan)).status, status);
    assert.equal((await tollgate.consume({ ...plan, cost: 2 })).status, 400);
    const { text, found } = await samples(tollgate);
    assert.deepEqual(pick(found, "tollgate_decisions", "tollgate_shadow", "tollgate_undecided", "tollgate_repeats"), {
      "tollgate_decisions_total{api,allowed}": 2,
      "tollgate_decisions_total{api,refused}": 3,
      "tollgate_decisions_total{api,never}": 1,
      ...(registry && { "tollgate_decisions_total{api,banned}": 1, "tollgate_decisions_total{api,unlimited}": 3 }),
      "tollgate_decisions_total{(inline),allowed}": 1,
      "tollgate_decisions_total{(inline),refused}": 1,
      "tollgate_decisions_total{(inline),never}": 1,
      "tollgate_decisions_total{once,allowed}": 1,
      "tollgate_decisions_total{once,never}": 1,
      "tollgate_decisions_total{open,allowed}": 1,
      "tollgate_decisions_total{open,replayed}": 1,
      "tollgate_decisions_total{open,dropped}": 1,
      "tollgate_decisions_total{tried,allowed}": 3,
      "tollgate_shadow_refusals_total{tried}": 2,
      // The object gets the definitions of a registry's policies once.
      ...(registry && { "tollgate_repeats_total{policy_unknown}": 6 }),
    });
    assert.equal(found["tollgate_object_call_duration_seconds{answered}"], registry ? 25 : 15);
    assert.equal(found.tollgate_reporting_isolates, registry ? 1 : undefined);
    assert.equal(found.tollgate_metrics_start_time_seconds, NOW / 1_000);
    assert.equal(text.startsWith("# There is no registry of policies: "), !registry);
    const polls = found["tollgate_registry_polls_total{answered}"];
    assert.ok(registry ? polls >= 1 : polls === undefined);

    const { found: later } = await samples(tollgate);
    assert.deepEqual(pick(later, "tollgate_decisions"), pick(found, "tollgate_decisions"), "a look counts nothing");

    const top = await get(tollgate, "/v1/metrics/top");
    const objectOf = (key) => createHmac("sha256", KEY_SECRET).update(key).digest("hex").slice(0, 32);
    const object = objectOf(key);
    const keys = (count, of = object) => [{ object: of, at_least: count, at_most: count }];
    assert.deepEqual(top.body, {
      since: NOW,
      now: NOW,
      policies: [
        {
          policy: "api",
          refusals: registry ? 4 : 3,
          keys: [...keys(3), ...(registry ? keys(1, objectOf("mallory")) : [])],
        },
        { policy: "(inline)", refusals: 1, keys: keys(1, objectOf("bob")) },
        { policy: "once", refusals: 1, keys: keys(1) },
      ],
    });

    const restricted = await samples(tollgate, some.text);
    assert.ok(!/once|tried|open/.test(restricted.text.replace(/^#.*$/gm, "")), restricted.text);
    assert.deepEqual((await get(tollgate, "/v1/metrics/top", some.text)).body.policies.length, 1);
  });
}

for (const registry of [false, true])
  test(`prefixes of refused keys are shown if the policy says so, ${registry ? "with" : "without"} a registry`, async () => {
    const policies = { shown: { rate: 1, ...DAY, show_key_prefix: 3 }, api: { rate: 1, ...DAY } };
    const tollgate = await started({ registry, policies });
    for (const policy of ["shown", "api"])
      for (const key of ["a-secret-key", ["tenant", "a-secret-key"]])
        for (const status of [200, 429]) assert.equal((await tollgate.consume({ policy, key })).status, status);
    const { body, text } = await get(tollgate, "/v1/metrics/top");
    const shown = body.policies.map(({ policy, keys }) => [policy, keys.map(({ prefix }) => prefix).sort()]);
    assert.deepEqual(Object.fromEntries(shown), { shown: ["a-s", "ten"], api: [undefined, undefined] });
    assert.ok(!text.includes("a-secret"));
  });

test("needs the scope admin", async () => {
  const tollgate = await started();
  for (const path of ["/v1/metrics", "/v1/metrics/top"]) {
    assert.equal((await get(tollgate, path, null)).status, 401);
    assert.equal((await get(tollgate, path, consumer.text)).status, 403);
    assert.equal((await tollgate.send({ method: "POST", path, body: "{}" })).status, 405);
    const query = await get(tollgate, `${path}?a=1`);
    assert.deepEqual([query.status, query.body.detail], [400, 'there is no parameter "a" here; there is none']);
  }
});

test("requests without a decision are counted by cause, and calls by outcome", async () => {
  const tollgate = await started({ around: new URL("faulty.mjs", import.meta.url).pathname });
  const fault = (fault) => ({ headers: { "x-fault": JSON.stringify(fault) } });
  const ask = async (policy, how) => (await tollgate.consume({ policy, key: "bob" }, fault(how))).status;
  assert.equal(await ask("api", { fault: "throws" }), 503);
  assert.equal(await ask("open", { fault: "throws" }), 200);
  assert.equal(await ask("api", { fault: "hangs" }), 503);
  assert.equal(await ask("api", { fault: "retryable", times: 1 }), 200);
  assert.equal((await tollgate.peek({ policy: "open", key: "bob" }, fault({ fault: "throws" }))).status, 503);
  const { found } = await samples(tollgate);
  assert.deepEqual(pick(found, "tollgate_decisions", "tollgate_undecided", "tollgate_object", "tollgate_repeats"), {
    "tollgate_decisions_total{api,allowed}": 1,
    "tollgate_decisions_total{api,unavailable}": 2,
    "tollgate_decisions_total{open,degraded}": 1,
    "tollgate_undecided_requests_total{degraded,failed}": 1,
    "tollgate_undecided_requests_total{unavailable,timeout}": 1,
    "tollgate_undecided_requests_total{unavailable,failed}": 2,
    "tollgate_object_call_duration_seconds{answered}": 1,
    "tollgate_object_call_duration_seconds{timeout}": 1,
    "tollgate_object_call_duration_seconds{failed}": 4,
    // The first grant, which is the only one, and the alarm.
    tollgate_object_rows_written_total: 2,
    "tollgate_repeats_total{failure}": 1,
  });
  const { text } = await samples(tollgate);
  assert.match(text, /duration_seconds_bucket\{outcome="timeout",le="1"\} 0\n/);
  assert.match(text, /duration_seconds_bucket\{outcome="timeout",le="5"\} 1\n/);
  assert.match(text, /duration_seconds_sum\{outcome="timeout"\} 2(\.\d+)?\n/);
});

test("row counts are what storage has read and written", async () => {
  const around = new URL("counting-rows.mjs", import.meta.url).pathname;
  const policies = {
    ...POLICIES,
    jobs: { rate: 5, ...DAY, max_debt: 5 },
    ahead: { rate: 100, ...DAY, write_ahead: 10 },
  };
  const tollgate = await started({ policies, around, flags: ["unsafe_module"] });
  const counted = async () => {
    const { found } = await samples(tollgate);
    const { tollgate_object_rows_read_total: read = 0, tollgate_object_rows_written_total: written = 0 } = found;
    return { read, written };
  };
  const key = "erin";
  const direct = (path) => fetch(`http://127.0.0.1:${tollgate.port}${path}`);
  const real = async () => (await direct("/rows")).json();
  const grant = () => tollgate.consume({ policy: "api", key });
  const reserve = () => tollgate.consume({ policy: "jobs", key, mode: "reserve", max_wait_ms: 0 });
  let id;
  let before = await counted();
  assert.deepEqual(before, { read: 0, written: 0 });
  for (const [what, ask, read, written] of [
    ["the first grant, and the alarm", grant, 0, 2],
    ["another", grant, 0, 1],
    ["a refusal", grant, 0, 0],
    ["a peek", () => tollgate.peek({ policy: "api", key }), 0, 0],
    ["a reservation, and its bucket", async () => ({ reservation: id } = (await reserve()).body), 0, 2],
    [
      "its end, and that it was cancelled",
      () => tollgate.post("cancel", { policy: "jobs", key, reservation: id }),
      0,
      3,
    ],
    ["after an eviction", async () => [await direct("/evict"), await grant()], 3, 0],
    ["another key", () => tollgate.consume({ policy: "api", key: "frank" }), 0, 2],
    [
      "a batch over both",
      () => tollgate.post("batch", { requests: [key, "frank"].map((key) => ({ policy: "jobs", key })) }),
      0,
      2,
    ],
  ]) {
    await ask();
    const after = await counted();
    assert.deepEqual(after, await real(), what);
    assert.deepEqual(
      { read: after.read - before.read, written: after.written - before.written },
      { read, written },
      what,
    );
    before = after;
  }

  // A block is written when its key has been idle for a moment, which the next answer reports.
  for (let n = 0; n < 3; n++) await tollgate.consume({ policy: "ahead", key });
  const told = await counted();
  while ((await real()).written === told.written) await new Promise((done) => setTimeout(done, 20));
  await grant();
  assert.deepEqual(await counted(), await real());
});

test("a report that failed is sent later, and counts once", async () => {
  const around = new URL("faulty-registry.mjs", import.meta.url).pathname;
  const tollgate = await started({ registry: true, around });
  const ask = (registry, now) =>
    tollgate.consume({ policy: "api", key: "carol" }, { now, headers: { "x-registry": registry } });
  await ask("answers", NOW);
  for (const ms of [6_000, 12_000, 18_000]) await ask("throws", NOW + ms);
  assert.equal((await get(tollgate, "/v1/metrics")).status, 503, "no counts rather than those of one isolate");
  await ask("answers", NOW + 24_000);
  const { found } = await samples(tollgate);
  const total = Object.entries(pick(found, "tollgate_decisions_total{api")).reduce((sum, [, count]) => sum + count, 0);
  assert.equal(total, 5);
  assert.ok(found["tollgate_registry_polls_total{failed}"] >= 1);
});

test("the Grafana dashboard uses existing metrics and labels", async () => {
  const tollgate = await started({ registry: true });
  await tollgate.consume({ policy: "api", key: "dave" });
  const { text } = await samples(tollgate);
  const dashboard = JSON.parse(readFileSync(new URL("../../docs/grafana.json", import.meta.url), "utf8"));
  const asked = dashboard.panels.flatMap(({ targets }) => targets.map(({ expr }) => expr));
  const names = new Set(text.match(/^tollgate_\w+/gm));
  const labels = new Set([...text.matchAll(/[{,](\w+)="/g)].map(([, label]) => label));
  for (const expr of asked) {
    const used = expr.match(/tollgate_\w+/g);
    assert.ok(used.length > 0 && used.every((name) => names.has(name)), expr);
    const by = [...expr.matchAll(/by \(([^)]*)\)/g)].flatMap(([, list]) => list.split(", "));
    const matched = [...expr.matchAll(/[{,](\w+)=~?"/g)].map(([, label]) => label);
    assert.ok(
      [...by, ...matched].every((label) => labels.has(label)),
      expr,
    );
  }
  const used = new Set(asked.flatMap((expr) => expr.match(/tollgate_\w+/g)));
  assert.deepEqual(
    [...names].filter((name) => !used.has(name)),
    [],
    "and for all of them",
  );
});
