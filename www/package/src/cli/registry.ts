// `npx tollgate policies`: lists, compares and changes the policies of a running service.
import { isDeepStrictEqual } from "node:util";
import { checkCarry, Mistake, oneOf, parse } from "./arguments.js";
import { listed, policiesFor, type StandingPolicy, type WrittenPolicies } from "./policies.js";
import { coloured, columns, moment, plain, plural } from "./printed.js";
import { during } from "./progress.js";
import { type Problem, Refusal, Service } from "./service.js";

export async function policies([name, ...args]: string[]): Promise<string | undefined> {
  return oneOf("policies", { list, diff, apply }, name)(args);
}

async function list(args: string[]): Promise<string> {
  const { flags } = parse(args, [], 0, ["json"]);
  const { text, policies } = await listed(Service.ofEnvironment());
  if (flags.json) return text;
  const row = ({ name, version, source, fixed, lint: [first = ""] }: StandingPolicy) => [
    name,
    fixed ? `${source}, fixed` : source,
    `since ${moment(version)}`,
    plain(first.startsWith(`${name}: `) ? first.slice(name.length + 2) : first),
  ];
  return policies.length === 0 ? "there are no policies" : columns(policies.map(row));
}

async function diff(args: string[]): Promise<string> {
  const { values, flags, others } = parse(args, ["env"], 1, ["json"]);
  const written = await policiesFor(fileOf(others, "diff"), values.env);
  const { compared, missing } = await compare(Service.ofEnvironment(), written).catch((error) => {
    throw error instanceof Refusal ? new Mistake(error.message) : error; // 1 means that they differ
  });
  const refused = complain(compared);
  const differ = refused ? null : missing.length > 0 || compared.some(({ outcome }) => outcome !== "same");
  process.exitCode = differ === null ? 2 : Number(differ);
  if (flags.json) return json({ differ, policies: compared.map(reported), only_in_service: missing });
  return [...compared.flatMap(described), summary(compared, missing)].join("\n");
}

async function apply(args: string[]): Promise<string | undefined> {
  const { values, flags, others } = parse(args, ["env", "carry"], 1, ["dry-run", "json"]);
  const file = fileOf(others, "apply");
  checkCarry(values.carry, ["additive", "as_is", "proportional", "reset"]);
  const written = await policiesFor(file, values.env);
  const service = Service.ofEnvironment();
  const { compared, missing } = await compare(service, written, values.carry);
  const isDryRun = flags["dry-run"] === true;
  const result = () => json({ dry_run: isDryRun, policies: compared.map(reported), only_in_service: missing });
  if (complain(compared)) {
    console.error("tollgate: nothing was changed");
    process.exitCode = 1;
    return flags.json ? result() : undefined;
  }
  if (isDryRun) {
    if (flags.json) return result();
    return [...compared.flatMap(described), `${summary(compared, missing)}. Nothing was changed`].join("\n");
  }
  try {
    await changeAll(service, compared, values.carry, (one) => {
      if (!flags.json) console.log(described(one).join("\n"));
    });
  } catch (error) {
    if (flags.json) console.log(result());
    throw stopped(error, compared, file);
  }
  return flags.json ? result() : summary(compared, missing);
}

/** A policy of the file beside that of the service, and the result of changing it. */
interface Compared {
  readonly name: string;
  readonly policy: unknown;
  /** The version in the service, if it has the policy. */
  readonly version: number | undefined;
  outcome: "same" | "new" | "changed" | "refused" | "failed" | "not_sent";
  /** The service's description of the change. */
  answer?: PolicyChange;
  /** Why it refuses it. */
  error?: Refusal;
}

interface PolicyChange {
  readonly dry_run: boolean;
  readonly changes: readonly string[];
  readonly policy: StandingPolicy;
}

/** The policies of the file, and the names of those that only the service has. Changes nothing. */
async function compare(
  service: Service,
  written: WrittenPolicies,
  carry?: string,
): Promise<{ compared: Compared[]; missing: string[] }> {
  const { policies } = await listed(service);
  const standing = new Map(policies.map((policy) => [policy.name, policy]));
  const names = Object.keys(written);
  const compared = await during(async (say) => {
    const all: Compared[] = [];
    for (const name of names) {
      say(`compared ${all.length} of ${plural(names.length, "policy", "policies")}`);
      all.push(await compareOne(service, name, written[name], standing.get(name), carry));
    }
    return all;
  });
  return { compared, missing: policies.map(({ name }) => name).filter((name) => !Object.hasOwn(written, name)) };
}

async function compareOne(
  service: Service,
  name: string,
  policy: unknown,
  standing: StandingPolicy | undefined,
  carry: string | undefined,
): Promise<Compared> {
  const one = { name, policy, version: standing?.version };
  if (standing && isDeepStrictEqual(standing.policy, asSent(policy))) return { ...one, outcome: "same" };
  try {
    const answer = await put(service, one, carry, true);
    if (!standing) return { ...one, outcome: "new", answer };
    return isSame(answer, standing) ? { ...one, outcome: "same" } : { ...one, outcome: "changed", answer };
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    return { ...one, outcome: "refused", error };
  }
}

/** A policy after a round trip through JSON: plain objects, like those that the service has sent. */
const asSent = (policy: unknown): unknown => JSON.parse(JSON.stringify(policy));

/** Whether a policy with another text is the same in everything that the service reports of it. */
function isSame({ changes, policy }: PolicyChange, standing: StandingPolicy): boolean {
  const isOfChange = (line: string) => !/^(nothing|before|after): |^for every key of /.test(line);
  return !changes.some(isOfChange) && isDeepStrictEqual(policy.lint, standing.lint);
}

/** Changes policies one by one, each only from the version that was compared; stops at the first failure. */
async function changeAll(
  service: Service,
  compared: readonly Compared[],
  carry: string | undefined,
  report: (one: Compared) => void,
): Promise<void> {
  const due = compared.filter(({ outcome }) => outcome === "new" || outcome === "changed");
  await during(async (say) => {
    for (const [i, one] of due.entries()) {
      say(`changed ${i} of ${plural(due.length, "policy", "policies")}`);
      try {
        one.answer = await put(service, one, carry, false);
      } catch (error) {
        for (const rest of due.slice(i)) {
          rest.outcome = rest === one ? "failed" : "not_sent";
          delete rest.answer;
        }
        if (error instanceof Refusal) one.error = error;
        throw error;
      }
      report(one);
    }
  });
}

/** Sends a policy, for the version that was read. */
async function put(
  service: Service,
  { name, policy, version }: Omit<Compared, "outcome">,
  carry: string | undefined,
  isDryRun: boolean,
): Promise<PolicyChange> {
  const headers: Record<string, string> =
    version === undefined ? { "if-none-match": "*" } : { "if-match": `"${version}"` };
  const query = new URLSearchParams({ dry_run: String(isDryRun), ...(carry !== undefined && { carry }) });
  const path = `/v1/policies/${encodeURIComponent(name)}?${query}`;
  return (await service.ask<PolicyChange>("PUT", path, "changes", { body: policy, headers, changes: !isDryRun })).body;
}

/** Reports each policy that the service would refuse, and returns whether there are any. */
function complain(compared: readonly Compared[]): boolean {
  const refused = compared.filter(({ outcome }) => outcome === "refused");
  for (const { name, error } of refused) console.error(`tollgate: ${plain(name)}: ${error!.message}`);
  return refused.length > 0;
}

/** An error halfway, with the state of each policy. */
function stopped(error: unknown, compared: readonly Compared[], file: string): unknown {
  if (!(error instanceof Mistake || error instanceof Refusal)) return error;
  const named = (...outcomes: string[]) =>
    compared
      .filter(({ outcome }) => outcomes.includes(outcome))
      .map(({ name }) => name)
      .join(", ") || "none";
  const isStale = error instanceof Refusal && error.problem.status === 412;
  const next = isStale
    ? `it was changed since it was read: look at it (npx tollgate policies diff ${file}), then apply again`
    : "run apply again to resume: what was changed stays changed";
  error.message = `${named("failed")}: ${error.message}; done: ${named("new", "changed")}; not sent: ${named("not_sent")}; ${next}`;
  return error;
}

/** A policy that differs, line by line. */
function described({ name, outcome, answer }: Compared): string[] {
  if (!answer) return [];
  const colour = outcome === "new" ? "green" : "yellow";
  return [coloured(colour, `${outcome} ${name}`), ...answer.changes.map((line) => `  ${plain(line)}`)];
}

function summary(compared: readonly Compared[], missing: readonly string[]): string {
  const count = (outcome: string) => compared.filter((one) => one.outcome === outcome).length;
  const left = missing.length > 0 ? `; only in the service, which is left alone: ${missing.join(", ")}` : "";
  const kinds = ["new", "changed", "same"].map((kind) => `${count(kind)} ${kind}`);
  if (count("refused") > 0) kinds.push(`${count("refused")} refused`);
  return `${kinds.join(", ")}${left}`;
}

/** As JSON: the service's own words. */
function reported({ name, outcome, answer, error }: Compared): {
  name: string;
  outcome: string;
  answer?: PolicyChange;
  problem?: Problem;
} {
  return { name, outcome, ...(answer && { answer }), ...(error && { problem: error.problem }) };
}

function fileOf([file]: string[], command: string): string {
  if (file !== undefined) return file;
  throw new Mistake(`name the file with the policies: npx tollgate policies ${command} wrangler.toml`);
}

const json = (value: unknown) => JSON.stringify(value, null, 2);
