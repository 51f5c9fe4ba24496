// Runs the service of this checkout: what `tollgate start` does, after it has built the Worker.
import { execFileSync } from "node:child_process";
import { start } from "../www/package/src/cli/start.mjs";

await start(() => {
  try {
    execFileSync("scripts/build-worker", { stdio: "inherit" }); // Wrangler would do it without a word
  } catch {
    process.exit(1); // it has said why
  }
});
