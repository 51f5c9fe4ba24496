// `npx tollgate tail`: decisions of the whole service as they are made, a line each.
import { setTimeout as sleep } from "node:timers/promises";
import { list, Mistake, parse } from "./arguments.js";
import { coloured, lasting, moment, plain, plural } from "./printed.js";
import { Refusal, Service } from "./service.js";

/** Runs until interrupted. */
export async function tail(args: string[]): Promise<undefined> {
  const { values, flags } = parse(args, ["policy", "outcome"], 0, ["json"]);
  const { policy } = values;
  const outcome = values.outcome && list("outcome", values.outcome, Object.keys(COLOURS)).join();
  const service = Service.ofEnvironment();
  const ended = new AbortController();
  for (const [signal, code] of Object.entries(SIGNALS))
    process.once(signal, () => {
      process.exitCode = code;
      ended.abort();
    });
  process.stdout.on("error", (error: NodeJS.ErrnoException) => process.exit(error.code === "EPIPE" ? 0 : 1)); // such as `| head`
  try {
    await follow(service, { policy, outcome }, flags.json ? JSON.stringify : shown, ended.signal);
  } catch (error) {
    if (!ended.signal.aborted) throw error;
  }
  return undefined;
}

/** The service's answer. */
interface Decisions {
  readonly decisions: readonly Decision[];
  readonly omitted: number;
  readonly interrupted: boolean;
  readonly cursor: string;
  readonly poll_after_ms: number;
}

interface Decision {
  readonly at: number;
  readonly policy: string;
  readonly outcome: string;
  readonly source: string;
  readonly cost: number;
  readonly remaining?: number;
  readonly retry_at?: number;
  readonly limit?: string;
  readonly object?: string;
  readonly shards?: number;
  readonly cause?: string;
  readonly refused_in_shadow?: boolean;
  readonly colo?: string;
}

/** Polls. The first time any error ends it; later only a permanent one. */
async function follow(
  service: Service,
  filter: Readonly<Record<string, string | undefined>>,
  line: (decision: Decision) => string,
  signal: AbortSignal,
): Promise<never> {
  const asked = Object.entries(filter).filter((pair): pair is [string, string] => pair[1] !== undefined);
  let after: string | undefined;
  let failures = 0;
  for (;;) {
    const query = new URLSearchParams([...asked, ...(after === undefined ? [] : [["after", after]])]);
    let wait: number;
    try {
      const page = await ask(service, `/v1/decisions?${query}`, signal);
      if (failures > 0) say("it answers again");
      if (page.interrupted) say("decisions may be missing here: the service no longer knew what was shown last");
      for (const decision of page.decisions) console.log(line(decision));
      if (page.omitted > 0) say(`${plural(page.omitted, "more decision")}, too many to be shown`);
      [after, wait, failures] = [page.cursor, Math.max(page.poll_after_ms, LEAST_MS), 0];
    } catch (error) {
      if (signal.aborted || after === undefined || !mayPass(error)) throw error;
      wait = Math.min(LEAST_MS * 2 ** ++failures, MOST_MS) * (1 - Math.random() / 4);
      say(`${(error as Error).message}; asks again in ${lasting(Math.round(wait / 100) * 100)}`);
    }
    await sleep(wait, undefined, { signal });
  }
}

async function ask(service: Service, path: string, signal: AbortSignal): Promise<Decisions> {
  const either = AbortSignal.any([signal, AbortSignal.timeout(PATIENCE_MS)]);
  const response = await service.open("GET", path, {}, either);
  const body = await response.json().catch(() => undefined);
  if (!Array.isArray(Object(body).decisions))
    throw new Mistake(`no decisions from ${service.address}: is it Tollgate's?`);
  return body;
}

/** Whether a retry may succeed: not if the service has refused the request or the credential. */
function mayPass(error: unknown): boolean {
  return error instanceof Refusal ? error.problem.status >= 500 : error instanceof Mistake;
}

/** A decision in one readable line. */
function shown(decision: Decision): string {
  const { at, policy, outcome, cost, remaining, retry_at, limit, object, shards, cause, refused_in_shadow, colo } =
    decision;
  const colour = COLOURS[outcome] ?? "yellow"; // of a later version
  const parts = [
    moment(at),
    coloured(colour, plain(outcome).padEnd(OUTCOME_WIDTH)),
    limit === undefined ? policy : `${policy}/${limit}`,
    `cost ${cost}`,
    remaining !== undefined && `${remaining} left${shards === undefined ? "" : ` in one of ${shards} shards`}`,
    retry_at !== undefined && `passes in ${lasting(retry_at - at)}`,
    cause,
    refused_in_shadow && "a limit in shadow would refuse it",
    object && `key ${object}`,
    colo,
  ];
  const [when, what, ...rest] = parts.filter((part) => typeof part === "string");
  return `${when}  ${what}  ${plain(rest.join("  "))}`;
}

/** A message about the stream, and so not in it. */
function say(text: string): void {
  console.error(`tollgate: ${text}`);
}

/** All outcomes. */
const COLOURS: Readonly<Record<string, "green" | "red" | "yellow">> = {
  allowed: "green",
  refused: "red",
  never: "red",
  banned: "red",
  unlimited: "green",
  replayed: "green",
  dropped: "yellow",
  degraded: "yellow",
  unavailable: "red",
};
const OUTCOME_WIDTH = "unavailable".length;

/** The exit code that shells expect of a command ended by a signal. */
const SIGNALS = { SIGINT: 130, SIGTERM: 143, SIGHUP: 129 };

/** Minimum interval between polls, whatever the service asks for. */
const LEAST_MS = 500;
const MOST_MS = 30_000;
/** Longer than the service waits for its registry. */
const PATIENCE_MS = 10_000;
