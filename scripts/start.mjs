// Builds the Worker, then runs the service of this checkout as `tollgate start` does.
import { execFileSync } from "node:child_process";
import { start } from "../www/package/src/cli/start.mjs";

await start(() => {
  try {
    execFileSync("scripts/build-worker", { stdio: "inherit" }); // Wrangler would build it silently
  } catch {
    process.exit(1); // it has printed the reason
  }
});
