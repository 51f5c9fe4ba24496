// `npx tollgate types`: the names of policies and limits, as a type for `Client` and `tollgate`.
import { writeFileSync } from "node:fs";
import { Mistake, parse } from "./arguments.js";
import { type PolicyTable, policiesIn, policiesOf } from "./policies.js";
import { Service } from "./service.js";

export async function types(args: string[]): Promise<string | undefined> {
  const { values, others } = parse(args, ["url", "out"], 1);
  const [file] = others;
  const { url, out } = values;
  if (url !== undefined && file !== undefined)
    throw new Mistake("policies are read from a file or from --url, not from both");
  const text = typesOf(url === undefined ? await policiesIn(file) : await policiesOf(new Service(url, "--url")));
  if (out === undefined) return text.trimEnd();
  if (!/\.d\.[cm]?ts$/.test(out))
    throw new Mistake(`--out is a file of declarations, such as policies.d.ts, not ${out}`);
  try {
    writeFileSync(out, text);
  } catch (error) {
    throw new Mistake(`${out} cannot be written: ${(error as Error).message}`);
  }
  return undefined;
}

/** The declarations, sorted by name, so that they change only when the names do. */
function typesOf(tables: readonly PolicyTable[]): string {
  const limits = new Map<string, string>();
  for (const { environment, policies } of tables) {
    for (const [policy, written] of Object.entries(policies)) {
      const place = environment === undefined ? policy : `env.${environment}: ${policy}`;
      const names = namesOf(place, written);
      if ((limits.get(policy) ?? names) !== names)
        throw new Mistake(
          `${place}.limits must have the same names in all environments: ${limits.get(policy)}, not ${names}`,
        );
      limits.set(policy, names);
    }
  }
  const members = [...limits.keys()].sort().map((policy) => `  ${member(policy)}: ${limits.get(policy)};\n`);
  return `// Made by \`npx tollgate types\`. Do not edit it: make it again when the policies have changed.

/** The names of the policies, and of their limits if they have several. */
export interface Policies {
${members.join("")}}
`;
}

/** The names of the limits in a cost, as a type; none if a cost is one number. */
function namesOf(place: string, written: unknown): string {
  const { limits = [] } = Object(written);
  if (!Array.isArray(limits)) throw new Mistake(`${place}.limits must be a list of limits, each with a name`);
  const names = limits.map((limit, i) => {
    const { name } = Object(limit);
    if (typeof name !== "string") throw new Mistake(`${place}.limits[${i}] must have a name`);
    return JSON.stringify(name); // JSON strings are TypeScript strings
  });
  return names.sort().join(" | ") || "never";
}

const member = (name: string) => (/^[A-Za-z_$][\w$]*$/.test(name) ? name : JSON.stringify(name));
