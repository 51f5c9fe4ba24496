// `npx tollgate lint`: what policies admit and cost at worst, without a server.
import { readFileSync } from "node:fs";
import { basename } from "node:path";
import { type LintResult, lint as lintOf } from "../lint.js";
import { Mistake, parse } from "./arguments.js";

export async function lint(args: string[]): Promise<string> {
  const { flags, others } = parse(args, [], 1, ["json"]);
  const [file = "wrangler.toml"] = others;
  const { errors, policies } = await lintFile(file);
  if (errors.length > 0) process.exitCode = 1;
  if (flags.json) return JSON.stringify({ errors, policies }, null, 2);
  for (const error of errors) console.error(`error: ${error}`);
  const count = (level: string) =>
    policies.flatMap(({ findings }) => findings.filter((finding) => finding.level === level)).length;
  const texts = policies.map(({ environment, text }) => (environment ? `env.${environment} ${text}` : text));
  const counts = [errors.length, policies.length, count("warning"), count("note")];
  return [...texts, `${file}: ${KINDS.map((kind, i) => plural(counts[i]!, kind)).join(", ")}`].join("\n\n");
}

/** A policy of an environment of Wrangler has its name. */
type Linted = LintResult["policies"][number] & { readonly environment?: string };

async function lintFile(file: string): Promise<{ errors: string[]; policies: Linted[] }> {
  const json = read(file);
  const results: { errors: string[]; policies: Linted[] } = { errors: [], policies: [] };
  const add = ({ errors, policies }: LintResult, environment?: string) => {
    const place = environment === undefined ? "" : `env.${environment}.vars.`;
    results.errors.push(...errors.map((error) => `${place}${error}`));
    results.policies.push(...policies.map((policy) => ({ ...policy, ...(environment && { environment }) })));
  };
  if (/(?<!^wrangler)\.json$/.test(basename(file))) {
    add(await lintOf(json));
    return results;
  }
  const { env = {}, ...top } = await wranglerConfig(file);
  let found = false;
  for (const [name, { vars }] of [[undefined, top] as const, ...Object.entries(env)]) {
    if (vars?.POLICIES === undefined) continue;
    found = true;
    add(await lintOf(JSON.stringify(vars.POLICIES)), name);
  }
  if (!found) throw new Mistake(`${file} has no policies: a table [vars.POLICIES.<name>] for each`);
  return results;
}

/** As much of Wrangler's configuration as matters here. */
interface Configuration {
  readonly vars?: { readonly POLICIES?: unknown };
  readonly env?: Record<string, Configuration>;
}

/** The configuration as it is written, read by Wrangler, so that it means here what it means in a deployment. */
async function wranglerConfig(file: string): Promise<Configuration> {
  const wrangler = await import("wrangler" as string).catch((error) => {
    if (error.code !== "ERR_MODULE_NOT_FOUND") throw error;
    throw new Mistake(
      `Wrangler, which reads ${file}, is missing: npm install --save-dev wrangler. Policies in a .json file need none`,
    );
  });
  try {
    return wrangler.experimental_readRawConfig({ config: file }).rawConfig;
  } catch (error) {
    throw new Mistake(`${file}: ${(error as Error).message}`);
  }
}

function read(file: string): string {
  try {
    return readFileSync(file, "utf8");
  } catch (error) {
    throw new Mistake(`cannot read ${file}: ${(error as Error).message}`);
  }
}

const KINDS = ["error", "policy", "warning", "note"];

function plural(count: number, kind: string): string {
  const kinds = kind === "policy" ? "policies" : `${kind}s`;
  return `${count} ${count === 1 ? kind : kinds}`;
}
