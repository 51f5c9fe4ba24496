// What Wrangler's configuration says of each of its environments, and what they lack.
import { Mistake } from "./arguments.js";
// @ts-expect-error: scripts/build-package copies it
import { nodeFault } from "./configuration.mjs";

/** One environment of a configuration: that of `wrangler deploy`, or, with a name, that of `wrangler deploy --env <name>`. */
export interface Environment {
  readonly name?: string;
  readonly vars?: Readonly<Record<string, unknown>>;
  readonly durable_objects?: { readonly bindings?: readonly ObjectBinding[] };
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

/** What keeps environments from working once they are deployed, apart from errors in policies: a line for each fault. */
export function deploymentErrors(environments: readonly Environment[]): string[] {
  const isApart = environments.length > 1;
  return environments.flatMap(({ name, vars = {}, durable_objects }) => {
    const bindings = durable_objects?.bindings ?? [];
    // Code can use the class under another name, by the option `keys`.
    const hasObjects = bindings.some((binding) => binding.name === "KEYS" || binding.class_name === "KeyObject");
    const hasPolicies = vars.POLICIES !== undefined;
    // Where each deployment has a name, what is outside of environments is not deployed.
    if (name === undefined && isApart && !hasObjects && !hasPolicies) return [];
    const place = name === undefined ? "" : `env.${name}.`;
    const inherits = (what: string) => (name === undefined ? "" : `; an environment inherits no ${what}`);
    const errors: string[] = [];
    if (!hasObjects)
      errors.push(
        `${place}durable_objects: has no binding KEYS: add one for the class KeyObject${inherits("bindings")}`,
      );
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
}

/** The 5 KB of Cloudflare's limits for Workers. */
const MAX_VARIABLE_LEN = 5120;

const SHORTEN: Readonly<Record<string, string>> = {
  POLICIES: ': write limits in short, such as "100/1m burst 200", or keep some policies in the registry',
  TOLLGATE_TOKENS: ": some 40 tokens fit; give callers with the same rights one token, or their users grants",
};

/** By a variable, so that TypeScript does not check its declarations, which need others that are not installed with it. */
const WRANGLER: string = "wrangler";
