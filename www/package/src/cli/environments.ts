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
  readonly renamed_classes?: readonly { readonly from?: unknown; readonly to?: unknown }[];
  readonly deleted_classes?: readonly unknown[];
}

interface ObjectBinding {
  readonly name?: unknown;
  readonly class_name?: unknown;
  /** The Worker that has the class, if it is another one. */
  readonly script_name?: unknown;
}

/** The environments of a configuration, as written: none inherits from another. */
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

/** Faults of environments, apart from their policies: a line for each. */
export interface DeploymentFaults {
  /** Faults that certainly keep them from working once deployed. */
  readonly errors: string[];
  /** Faults that keep them from working unless the code manages without, which a configuration does not show. */
  readonly warnings: string[];
}

/** The faults of environments, of which at least one has policies. */
export function deploymentFaults(environments: readonly Environment[]): DeploymentFaults {
  const isApart = environments.length > 1;
  const code = codeOf(environments);
  const warnings: string[] = [];
  const errors = environments.flatMap((environment) => {
    const { name, vars = {} } = environment;
    const hasObjects = bindsKeys(environment);
    const hasPolicies = vars.POLICIES !== undefined;
    // If each deployment has a name, settings outside of environments are not deployed.
    if (name === undefined && isApart && !hasObjects && !hasPolicies) return [];
    const place = name === undefined ? "" : `env.${name}.`;
    const inherits = (what: string) => (name === undefined ? "" : `; an environment inherits no ${what}`);
    const errors: string[] = [];
    if (!hasObjects) {
      const unless = code.needsKeys ? "" : `, unless the code ${WITHOUT_KEYS}`;
      (code.needsKeys ? errors : warnings).push(
        `${place}durable_objects: has no binding KEYS: add one for the class KeyObject${unless}${inherits("bindings")}`,
      );
    }
    for (const { isCertain, text } of bindingFaults(environment, code))
      (isCertain ? errors : warnings).push(`${place}durable_objects: ${text}`);
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

/** What a configuration shows of the code that all its environments run. */
interface Code {
  /** Whether it is the service, whose entry point reads its objects by the names of {@link CLASSES} alone. */
  readonly isService: boolean;
  /**
   * Whether it is taken to need a binding of KeyObject. It is if another environment has one, if callers come by HTTP, or if it has no
   * objects of its own. Otherwise the application's own objects may use the policies (`tollgateIn`), or the code may take the namespace from
   * elsewhere, such as `ctx.exports`.
   */
  readonly needsKeys: boolean;
  readonly classes: ReadonlySet<unknown>;
}

function codeOf(environments: readonly Environment[]): Code {
  const isService = environments.some(isServiceIn);
  const classes = new Set(environments.flatMap((environment) => [...classesIn(environment)]));
  const hasOthers = [...classes].some((name) => name !== "PolicyRegistry");
  return { isService, needsKeys: environments.some(bindsKeys) || isService || !hasOthers, classes };
}

/** The names and classes of bindings that do not fit each other. */
function bindingFaults(environment: Environment, { isService, classes }: Code) {
  const bindings = bindingsIn(environment);
  return Object.entries(CLASSES).flatMap(([name, right]) => {
    const bound = bindings.find((binding) => binding.name === name);
    const elsewhere = bindings.find((binding) => binding.class_name === right);
    if (!bound) {
      if (!isService || !elsewhere) return [];
      const text = `binds ${right} as ${elsewhere.name}, and the service reads ${name}: bind it as ${name}`;
      return [{ isCertain: name === "KEYS", text }]; // without its registry the service works, but operators cannot change its policies
    }
    const { class_name, script_name } = bound;
    if (class_name === right || script_name !== undefined) return []; // another Worker's classes have the names that it gives them
    if (!isService && name === "KEYS" && elsewhere) return []; // for the option `keys`
    const isCertain = Object.values(CLASSES).includes(`${class_name}`) || (isService && classes.has(right));
    const exported = `exports ${right} as ${class_name}`;
    const without = name === "KEYS" ? `, ${WITHOUT_KEYS}` : " or uses only `tollgateIn`";
    const unless = isCertain ? "" : `, unless the code ${exported}${isService ? "" : without}`;
    return [{ isCertain, text: `binds ${name} to the class ${class_name}: bind it to ${right}${unless}` }];
  });
}

const bindingsIn = ({ durable_objects }: Environment) => durable_objects?.bindings ?? [];

/** Code can use the class under another name, by the option `keys`. */
const bindsKeys = (environment: Environment): boolean =>
  bindingsIn(environment).some((binding) => binding.name === "KEYS" || binding.class_name === "KeyObject");

function isServiceIn({ vars, secrets }: Environment): boolean {
  return HTTP_SETTINGS.some((name) => vars?.[name] !== undefined || secrets?.required?.includes(name));
}

/** Those that are bound or declared. */
function classesIn(environment: Environment): Set<unknown> {
  const { exports = {}, migrations = [] } = environment;
  const classes = new Set<unknown>();
  for (const { new_classes = [], new_sqlite_classes = [], renamed_classes = [], deleted_classes = [] } of migrations) {
    for (const name of [...new_classes, ...new_sqlite_classes, ...renamed_classes.map(({ to }) => to)])
      classes.add(name);
    for (const name of [...deleted_classes, ...renamed_classes.map(({ from }) => from)]) classes.delete(name);
  }
  for (const [name, { type }] of Object.entries(exports)) if (type === "durable-object") classes.add(name);
  for (const { class_name } of bindingsIn(environment)) classes.add(class_name);
  return classes;
}

/** The class that is read under each name of a binding. */
const CLASSES: Readonly<Record<string, string>> = { KEYS: "KeyObject", REGISTRY: "PolicyRegistry" };

const WITHOUT_KEYS = "passes the option `keys` or uses only `tollgateIn`";

/** The credentials of callers by HTTP, who are answered by the objects of KEYS alone. */
const HTTP_SETTINGS = ["TOLLGATE_TOKENS", "TOLLGATE_GRANT_KEYS"];

/** The 5 KB of Cloudflare's limits for Workers. */
const MAX_VARIABLE_LEN = 5120;

const SHORTEN: Readonly<Record<string, string>> = {
  POLICIES: ': write limits in short, such as "100/1m burst 200", or keep some policies in the registry',
  TOLLGATE_TOKENS: ": some 40 tokens fit; give callers with the same rights one token, or their users grants",
};

/** Imported by a variable, so that TypeScript does not check its declarations, which need others that are not installed. */
const WRANGLER: string = "wrangler";
