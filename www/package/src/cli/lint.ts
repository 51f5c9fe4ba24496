// `npx tollgate lint`: what policies admit and cost at worst, without a server.
import { type LintResult, lint as lintOf } from "../lint.js";
import { parse } from "./arguments.js";
import { deploymentFaults, environmentsIn } from "./environments.js";
import { fileOr, isConfiguration, policiesIn } from "./policies.js";

export async function lint(args: string[]): Promise<string> {
  const { flags, others } = parse(args, [], 1, ["json"]);
  const { errors, warnings, policies } = await lintFile(others[0]);
  if (errors.length > 0) process.exitCode = 1;
  if (flags.json) return JSON.stringify({ errors, warnings, policies }, null, 2);
  for (const error of errors) console.error(`error: ${error}`);
  for (const warning of warnings) console.error(`warning: ${warning}`);
  const count = (level: string) =>
    policies.flatMap(({ findings }) => findings.filter((finding) => finding.level === level)).length;
  const texts = policies.map(({ environment, text }) => (environment ? `env.${environment} ${text}` : text));
  const counts = [errors.length, policies.length, warnings.length + count("warning"), count("note")];
  return [...texts, KINDS.map((kind, i) => plural(counts[i]!, kind)).join(", ")].join("\n\n");
}

/** A policy's result, with its Wrangler environment, if any. */
type Linted = LintResult["policies"][number] & { readonly environment?: string };

/** `warnings` are about the configuration; those about policies are their findings. */
interface Results {
  readonly errors: string[];
  readonly warnings: string[];
  readonly policies: Linted[];
}

async function lintFile(named?: string): Promise<Results> {
  const results: Results = { errors: [], warnings: [], policies: [] };
  const file = fileOr(named);
  for (const { environment, policies: written } of await policiesIn(file)) {
    const { errors, policies } = await lintOf(JSON.stringify(written));
    const place = environment === undefined ? "" : `env.${environment}.vars.`;
    results.errors.push(...errors.map((error) => `${place}${error}`));
    results.policies.push(...policies.map((policy) => ({ ...policy, ...(environment && { environment }) })));
  }
  if (isConfiguration(file)) {
    const { errors, warnings } = deploymentFaults(await environmentsIn(file));
    results.errors.push(...errors);
    results.warnings.push(...warnings);
  }
  return results;
}

const KINDS = ["error", "policy", "warning", "note"];

function plural(count: number, kind: string): string {
  const kinds = kind === "policy" ? "policies" : `${kind}s`;
  return `${count} ${count === 1 ? kind : kinds}`;
}
