// Costs: of one limit, or of several by name.
import { number } from "../shared/numbers.ts";

/** A cost for every limit alike, or one for each by name. */
export type Amount = number | Readonly<Record<string, number>>;

/** A cost's amount for the limit of this name. */
export function amountOf(cost: Amount, name: string | undefined): number {
  return typeof cost === "number" ? cost : (cost[name ?? ""] ?? 0);
}

export function costText(cost: Amount): string {
  return typeof cost === "number"
    ? number(cost)
    : Object.entries(cost)
        .map(([name, tokens]) => `${number(tokens)} ${name}`)
        .join(", ");
}

/** The cost of this many tokens for each of these limits. */
export function costOf(limits: readonly { readonly name?: string }[], tokens: readonly number[]): Amount {
  if (limits[0]!.name === undefined) return tokens[0]!;
  return Object.fromEntries(limits.map(({ name }, i) => [name!, tokens[i]!]));
}

/** A cost converted to these limits: it may be for others, or for all alike. */
export function fitted(cost: Amount, limits: readonly { readonly name?: string }[]): Amount {
  if (limits[0]!.name === undefined) return typeof cost === "number" ? cost : (Object.values(cost)[0] ?? 0);
  return Object.fromEntries(limits.map(({ name }) => [name!, amountOf(cost, name)]));
}
