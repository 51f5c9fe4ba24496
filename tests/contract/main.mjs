// Tests the Worker by its own contract: schemathesis makes requests, valid and invalid, from the openapi.json that the Worker
// serves, and checks every answer. scripts/fuzz runs it.
import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { createServer } from "node:http";
import { fileURLToPath } from "node:url";
import { Runtime, tollgate } from "../http/runtime.mjs";

const [schemathesis, ...options] = process.argv.slice(2);
const token = "the-bearer-token-of-the-tests";
const sha256 = createHash("sha256").update(token).digest("hex");

/**
 * `wide` grants nearly any cost; `narrow` is soon empty, and can never grant most. Each has two limits: `a` and `b`. They are fixed,
 * or a generated change would end all the others.
 */
const policy = (limit) => ({ fixed: true, lease: "2s", limits: ["a", "b"].map((name) => ({ name, ...limit })) });
const policies = {
  narrow: policy({ rate: 1, period: "1day", capacity: 3, max_debt: 3 }),
  wide: policy({ rate: 1, period: "1ms", capacity: 2 ** 50, max_debt: 2 ** 50 }),
};

/** Accepts every captcha. */
const verifier = createServer((_, response) => response.end('{"success":true}'));
await once(verifier.listen(0, "127.0.0.1"), "listening");
const verify_url = `http://127.0.0.1:${verifier.address().port}/`;

const runtime = new Runtime();
await runtime.start(
  tollgate({
    policies,
    token: null,
    tokens: { tester: { sha256, scopes: ["consume", "adjust", "admin"] } },
    registry: true,
    keySecret: "the-key-secret-of-the-tests",
    grantKeys: JSON.stringify({ k: "A".repeat(43) }),
    sessions: { policy: "wide", policies: ["narrow", "wide"], verify_url },
    captchaSecret: "the-turnstile-secret-of-the-tests",
    build: "deployed",
  }),
);
const url = `http://127.0.0.1:${runtime.port}/v1/openapi.json`;
const tester = spawn(schemathesis, ["run", url, ...options], {
  cwd: fileURLToPath(new URL(".", import.meta.url)), // schemathesis.toml is there
  stdio: "inherit",
  env: {
    ...process.env,
    TOKEN: token,
    PYTHONDONTWRITEBYTECODE: "1",
    HYPOTHESIS_STORAGE_DIRECTORY: fileURLToPath(new URL("../../build/hypothesis", import.meta.url)),
  },
});
const [status] = await once(tester, "exit");
await runtime.kill();
verifier.close();
const errors = runtime.log.split("\n").filter((line) => /error|failed|lost|panicked/i.test(line));
for (const line of errors) console.error(`in the Worker's log: ${line}`);
await runtime.remove();
process.exit(status === 0 && errors.length === 0 ? 0 : 1);
