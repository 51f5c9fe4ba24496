// `npx tollgate init`: a new service, ready for `npm start` and `npx wrangler deploy`.
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { basename, join, relative, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { Mistake, parse } from "./arguments.js";

export function init(args: string[]): string {
  const [folder = "."] = parse(args, [], 1).others;
  const target = resolve(folder);
  const files = readdirSync(TEMPLATE).map((name) => ({ from: join(TEMPLATE, name), to: RENAMED[name] ?? name }));
  const taken = files.map(({ to }) => to).filter((name) => existsSync(join(target, name)));
  if (taken.length > 0)
    throw new Mistake(`${folder} has ${taken.join(", ")} already, and nothing was written: choose a new folder`);
  mkdirSync(target, { recursive: true });
  for (const { from, to } of files)
    writeFileSync(join(target, to), readFileSync(from, "utf8").replaceAll(TEMPLATE_NAME, workerName(target)));
  const steps = ["npm install", "npm start", "npx wrangler deploy"];
  if (folder !== ".") steps.unshift(`cd '${relative(".", target)}'`);
  return `Wrote ${files.map(({ to }) => to).join(", ")}.

${steps.join("\n")}

npm start runs the service here, with Node 22.12 or newer, and prints a request to try. The policies are in wrangler.toml, yours to edit.

Before you deploy it, add a token (npx tollgate token backend), and set the secret once:

npx wrangler secret put TOLLGATE_KEY_SECRET   # 32 random bytes, such as openssl rand -hex 32 prints`;
}

/** A name that Cloudflare accepts, derived from the folder's. */
function workerName(folder: string): string {
  const name = basename(folder)
    .toLowerCase()
    .replace(/[^a-z0-9-]+/g, "-")
    .replace(/^-+/, "")
    .slice(0, 54)
    .replace(/-+$/, "");
  return name || "tollgate";
}

const TEMPLATE = fileURLToPath(new URL("../template", import.meta.url));
/** The Worker's name in the template. */
const TEMPLATE_NAME = "my-tollgate";
/** npm omits a file named .gitignore from packages. */
const RENAMED: Record<string, string> = { gitignore: ".gitignore" };
