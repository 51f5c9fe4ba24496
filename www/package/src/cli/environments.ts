// What Wrangler's configuration says of each of its environments, and what they lack.
import { Mistake } from "./arguments.js";
// @ts-expect-error: scripts/build-package copies it
import { nodeFault } from "./configuration.mjs";

/** One environment of a configuration: that of `wrangler deploy`, or, with a name, that of `wrangler deploy --env <name>`. */
export interface Environment {
  readonly name?: string;
  readonly vars?: Readonly<Record<string, unknown>>;
  readonly durable_objects?: { readonly bindings?: readonly ObjectBinding[] };
  readonly secrets?: { readonly required?: readonly unknown[] };
  /** The classes of the Worker, also for environments. */
  readonly exports?: Readonly<Record<string, { readonly type?: unknown }>>;
  readonly migrations?: readonly Migration[];
}

interface Migration {
  readonly new_classes?: readonly unknown[];
  readonly new_sqlite_classes?: readonly unknown[];
}

interface ObjectBinding {
  readonly name?: unknown;
  readonly class_name?: unknown;
}

/** The environments of a configuration, as they are written: none has anything of another. */
export async function environmentsIn(file: string): Promise<Environment[]> {
  const fault = nodeFault();
  if (fault) throw new Mistake(fault);
  const wrangler = await import(WRANGLER).catch((error) => {
    if (error.code !== "ERR_MODULE_NOT_FOUND") throw error;
    throw new Mistake(`Wrangler is missing, which reads ${file}: npm install --save-dev wrangler`);
  });
  try {
    const { env = {}, name, ...usual } = wrangler.experimental_readRawConfig({ config: file }).rawConfig;
    const named = Object.entries(env as Readonly<Record<string, Environment>>);
    return [usual, ...named.map(([name, environment]) => ({ ...environment, name }))];
  } catch (error) {
    throw new Mistake(`${file}: ${(error as Error).message}`);
  }
}

/** What is wrong with environments, apart from their policies: a line for each fault. */
export interface DeploymentFaults {
  /** What certainly keeps them from working once they are deployed. */
  readonly errors: string[];
  /** What keeps them from working unless the code does without it, which a configuration does not show. */
  readonly warnings: string[];
}

/** The faults of environments, of which at least one has policies. */
export function deploymentFaults(environments: readonly Environment[]): DeploymentFaults {
  const isApart = environments.length > 1;
  const isNeeded = needsKeyObject(environments);
  const warnings: string[] = [];
  const errors = environments.flatMap((environment) => {
    const { name, vars = {} } = environment;
    const hasObjects = hasKeyObject(environment);
    const hasPolicies = vars.POLICIES !== undefined;
    // Where each deployment has a name, what is outside of environments is not deployed.
    if (name === undefined && isApart && !hasObjects && !hasPolicies) return [];
    const place = name === undefined ? "" : `env.${name}.`;
    const inherits = (what: string) => (name === undefined ? "" : `; an environment inherits no ${what}`);
    const errors: string[] = [];
    if (!hasObjects) {
      const unless = isNeeded ? "" : ", unless the code passes the option `keys` or uses only `tollgateIn`";
      (isNeeded ? errors : warnings).push(
        `${place}durable_objects: has no binding KEYS: add one for the class KeyObject${unless}${inherits("bindings")}`,
      );
    }
    if (!hasPolicies) errors.push(`${place}vars.POLICIES: is missing: add policies${inherits("variables")}`);
    for (const [variable, value] of Object.entries(vars)) {
      const text = typeof value === "string" ? value : (JSON.stringify(value) ?? "");
      const length = new TextEncoder().encode(text).length;
      if (length > MAX_VARIABLE_LEN)
        errors.push(
          `${place}vars.${variable}: has ${length} bytes, and Cloudflare takes at most ${MAX_VARIABLE_LEN} in a variable or secret` +
            (SHORTEN[variable] ?? ""),
        );
    }
    return errors;
  });
  return { errors, warnings };
}

/**
 * Whether the Worker is taken to need a binding of KeyObject. It is if another environment has one, if callers come by HTTP, or if it has no
 * objects of its own. Otherwise the application's own objects may use the policies (`tollgateIn`), or the code may take the namespace from elsewhere, such
 * as `ctx.exports`.
 */
function needsKeyObject(environments: readonly Environment[]): boolean {
  return environments.some(hasKeyObject) || environments.some(isService) || !environments.some(hasOtherObjects);
}

/** Code can use the class under another name, by the option `keys`. */
const hasKeyObject = ({ durable_objects }: Environment): boolean =>
  (durable_objects?.bindings ?? []).some((binding) => binding.name === "KEYS" || binding.class_name === "KeyObject");

function isService({ vars, secrets }: Environment): boolean {
  return HTTP_SETTINGS.some((name) => vars?.[name] !== undefined || secrets?.required?.includes(name));
}

function hasOtherObjects({ durable_objects, exports = {}, migrations = [] }: Environment): boolean {
  const bound = (durable_objects?.bindings ?? []).map((binding) => binding.class_name);
  const exported = Object.entries(exports).flatMap(([name, { type }]) => (type === "durable-object" ? [name] : []));
  const migrated = migrations.flatMap(({ new_classes = [], new_sqlite_classes = [] }) => [
    ...new_classes,
    ...new_sqlite_classes,
  ]);
  return [...bound, ...exported, ...migrated].some((name) => name !== "PolicyRegistry");
}

/** The credentials of callers by HTTP, who are answered by the objects of KEYS alone. */
const HTTP_SETTINGS = ["TOLLGATE_TOKENS", "TOLLGATE_GRANT_KEYS"];

/** The 5 KB of Cloudflare's limits for Workers. */
const MAX_VARIABLE_LEN = 5120;

const SHORTEN: Readonly<Record<string, string>> = {
  POLICIES: ': write limits in short, such as "100/1m burst 200", or keep some policies in the registry',
  TOLLGATE_TOKENS: ": some 40 tokens fit; give callers with the same rights one token, or their users grants",
};

/** By a variable, so that TypeScript does not check its declarations, which need others that are not installed with it. */
const WRANGLER: string = "wrangler";
