// `npx tollgate types`: the names of policies and limits, as a type for `Client` and `tollgate`.
import { writeFileSync } from "node:fs";
import { Mistake, parse } from "./arguments.js";
import { policiesIn, policiesOf, type WrittenPolicies } from "./policies.js";

export async function types(args: string[]): Promise<string | undefined> {
  const { values, others } = parse(args, ["url", "out"], 1);
  const [file] = others;
  const { url, out } = values;
  if (url !== undefined && file !== undefined)
    throw new Mistake("policies are read from a file or from --url, not from both");
  const text = typesOf(url === undefined ? await policiesIn(file) : await policiesOf(url));
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

/** The declarations. In the order of the names, so that they change only when these do. */
function typesOf(policies: WrittenPolicies): string {
  const members = Object.keys(policies)
    .sort()
    .map((name) => `  ${member(name)}: ${union(limitNames(name, policies[name]))};\n`);
  return `// Made by \`npx tollgate types\`. Do not edit it: make it again when the policies have changed.

/** The names of the policies, and the names of their limits, where they have several. */
export interface Policies {
${members.join("")}}
`;
}

/** The names that a cost can have; none where it is one number. */
function limitNames(policy: string, written: unknown): string[] {
  const { limits } = Object(written);
  if (limits === undefined) return [];
  if (!Array.isArray(limits)) throw new Mistake(`${policy}.limits must be a list of limits, each with a name`);
  return limits.map((limit, i) => {
    const { name } = Object(limit);
    if (typeof name !== "string") throw new Mistake(`${policy}.limits[${i}] must have a name`);
    return name;
  });
}

/** Any text is safe in quotation marks: JSON's are TypeScript's. */
const member = (name: string) => (/^[A-Za-z_$][\w$]*$/.test(name) ? name : JSON.stringify(name));
const union = (names: string[]) => names.map((name) => JSON.stringify(name)).join(" | ") || "never";
