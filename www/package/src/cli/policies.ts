// Sources of policies: Wrangler's configuration, a JSON file, or a running service.
import { existsSync, readFileSync } from "node:fs";
import { basename } from "node:path";
import { Mistake } from "./arguments.js";
// @ts-expect-error: scripts/build-package copies it
import { CONFIGURATIONS, configurationHere } from "./configuration.mjs";
import { environmentsIn } from "./environments.js";
import type { Service } from "./service.js";

/** Policies as written, by name. */
export type WrittenPolicies = Readonly<Record<string, unknown>>;

/** Policies, and their Wrangler environment, unless it is the default one. */
export interface PolicyTable {
  readonly environment?: string;
  readonly policies: WrittenPolicies;
}

/**
 * The policies in a file: a configuration of Wrangler, by default the one in this folder, or a JSON object with each policy
 * under its name.
 */
export async function policiesIn(file?: string): Promise<PolicyTable[]> {
  const found = fileOr(file);
  return isConfiguration(found)
    ? configured(found)
    : [{ policies: table(found, json(found, readFileSync(found, "utf8"))) }];
}

/** The file, or the configuration of Wrangler in this folder. */
export function fileOr(file: string | undefined = configurationHere()): string {
  if (file === undefined) throw new Mistake(`there is no ${CONFIGURATIONS.join(" or ")} here: name a file`);
  if (!existsSync(file)) throw new Mistake(`there is no file ${file}`);
  return file;
}

/** Whether the file is a Wrangler configuration, not just policies. */
export const isConfiguration = (file: string): boolean => /^wrangler\b|\.toml$|\.jsonc$/.test(basename(file));

/** The policies of one Wrangler environment, or, without a name, those outside environments. */
export async function policiesFor(file: string, environment?: string): Promise<WrittenPolicies> {
  const tables = await policiesIn(file);
  const table = tables.find((one) => one.environment === environment);
  if (table) return table.policies;
  const known = tables.flatMap((one) => one.environment ?? []).map((name) => `--env ${name}`);
  const others = known.length === 0 ? "leave --env out" : `there are those of ${known.join(", ")}`;
  const missing = environment === undefined ? "outside of environments" : `for the environment ${environment}`;
  throw new Mistake(`${file} has no policies ${missing}: ${others}`);
}

/** The policies of a service. */
export async function policiesOf(service: Service): Promise<PolicyTable[]> {
  const { policies } = await listed(service);
  return [{ policies: Object.fromEntries(policies.map(({ name, policy }) => [name, policy])) }];
}

/** A policy in the service. */
export interface StandingPolicy {
  readonly name: string;
  /** The moment since which it is in force. */
  readonly version: number;
  readonly source: "deployment" | "admin";
  readonly fixed: boolean;
  readonly policy: unknown;
  readonly lint: readonly string[];
}

/** The service's list of its policies, and its text. */
export async function listed(service: Service): Promise<{ text: string; policies: readonly StandingPolicy[] }> {
  const { text, body } = await service.ask<{ policies: readonly StandingPolicy[] }>("GET", "/v1/policies", "policies");
  return { text, policies: body.policies };
}

/** The variables POLICIES of a configuration, as written. */
async function configured(file: string): Promise<PolicyTable[]> {
  const tables: PolicyTable[] = [];
  for (const { name, vars } of await environmentsIn(file)) {
    const policies = vars?.POLICIES;
    if (policies === undefined) continue;
    const place = `POLICIES in ${file}`;
    tables.push({
      ...(name !== undefined && { environment: name }),
      policies: table(place, typeof policies === "string" ? json(place, policies) : policies),
    });
  }
  if (tables.length === 0)
    throw new Mistake(
      `${file} has no policies: they are tables such as [vars.POLICIES.api]; this command does not read policies in code, which \`lint\` of tollgate/lint checks`,
    );
  return tables;
}

function json(from: string, text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Mistake(`${from} is not JSON: ${(error as Error).message}`);
  }
}

function table(from: string, value: unknown): WrittenPolicies {
  if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as WrittenPolicies;
  throw new Mistake(
    `${from} must have an object with each policy under its name, such as {"api":{"rate":100,"period":"1m"}}`,
  );
}
