// The whole scene as text for the address, so that a link shows what its sender saw.
import { VERBS } from "../shared/verbs.ts";
import { type Ask, TRACES, type TraceKind } from "./trace.ts";

/** Everything that reproduces a view. */
export interface Scene {
  readonly toml: string;
  /** The policy to play; without it, the first. */
  readonly policy?: string;
  /** A second policy for the same requests. */
  readonly other?: string;
  readonly otherPolicy?: string;
  readonly trace: TraceKind;
  readonly csv?: string;
  readonly cost?: Ask["cost"];
  /** Requests by hand. */
  readonly acts: readonly Ask[];
  /** The moment shown. */
  readonly at: number;
  readonly speed: number;
  /** The marked decision, by number and policy; without it, the latest of the first. */
  readonly picked?: readonly [index: number, of: number];
}

/** The scene in base64url; nothing if an address with it would be too long. */
export function encode(scene: Scene): string | undefined {
  const { acts, ...rest } = scene;
  const json = JSON.stringify({ ...rest, acts: acts.map(({ at, verb, cost }) => [at, verb, cost]) });
  const bytes = new TextEncoder().encode(json);
  if (bytes.length > MOST_BYTES) return undefined;
  const characters = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
  return btoa(characters).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

/** The scene that a text encodes; nothing if it is none. A link may come from anywhere, so each member is checked. */
export function decode(text: string): Scene | undefined {
  try {
    const characters = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
    const { toml, policy, other, otherPolicy, trace, csv, cost, acts, at, speed, picked } = JSON.parse(
      new TextDecoder().decode(Uint8Array.from(characters, (character) => character.charCodeAt(0))),
    );
    if (typeof toml !== "string" || !isTrace(trace) || !Array.isArray(acts)) return undefined;
    const asks = acts.map(([at, verb, cost]): Ask => ({ at, verb, cost }));
    if (!asks.every(isAsk) || !isMoment(at) || !SPEEDS.includes(speed)) return undefined;
    return {
      toml,
      ...(typeof policy === "string" && { policy }),
      ...(typeof other === "string" && { other }),
      ...(typeof otherPolicy === "string" && { otherPolicy }),
      trace,
      ...(typeof csv === "string" && { csv }),
      ...(isAmount(cost) && { cost }),
      acts: asks,
      at,
      speed,
      ...(isPicked(picked) && { picked }),
    };
  } catch {
    return undefined;
  }
}

const isTrace = (value: unknown): value is TraceKind => TRACES.some(([id]) => id === value);
const isMoment = (value: unknown): value is number =>
  Number.isSafeInteger(value) && (value as number) >= 0 && (value as number) < 1e12;
const isAmount = (value: unknown): value is Ask["cost"] =>
  isTokens(value) || (typeof value === "object" && value !== null && Object.values(value).every(isTokens));
const isTokens = (value: unknown) => Number.isSafeInteger(value) && (value as number) >= 0;
const isPicked = (value: unknown): value is NonNullable<Scene["picked"]> =>
  Array.isArray(value) && value.length === 2 && value.every(isTokens);
const isAsk = ({ at, verb, cost }: Ask) => isMoment(at) && VERBS.some(([known]) => known === verb) && isAmount(cost);

/** Browsers refuse addresses of more than two million characters, in which three bytes are four. */
const MOST_BYTES = 1_400_000;

/** How many times faster than real time. */
export const SPEEDS: readonly number[] = [1, 10, 100, 1000];
