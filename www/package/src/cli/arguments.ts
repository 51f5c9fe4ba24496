// What the user typed.
import { parseArgs } from "node:util";

/** Wrong arguments, or a wrong environment that the user can fix. Printed without a stack. */
export class Mistake extends Error {}

/** Options by name, flags (without a value), and at most `most` other arguments. */
export function parse<Name extends string, Flag extends string = never>(
  args: string[],
  names: readonly Name[],
  most: number,
  flags: readonly Flag[] = [],
): { values: { [name in Name]?: string }; flags: { [flag in Flag]?: boolean }; others: string[] } {
  const options = Object.fromEntries([
    ...names.map((name) => [name, { type: "string" as const }]),
    ...flags.map((name) => [name, { type: "boolean" as const }]),
  ]);
  try {
    const { values, positionals } = parseArgs({ args, options, allowPositionals: true });
    if (positionals.length > most) throw new Error(`there is one argument too many: ${positionals[most]}`);
    return {
      values: values as { [name in Name]?: string },
      flags: values as { [flag in Flag]?: boolean },
      others: positionals,
    };
  } catch (error) {
    throw new Mistake((error as Error).message);
  }
}

/** "a,b" as names. */
export function list(what: string, text: string, known?: readonly string[]): string[] {
  const names = text.split(",").map((name) => name.trim());
  for (const name of names) {
    if (known && !known.includes(name))
      throw new Mistake(`--${what} cannot have ${JSON.stringify(name)}: it is a list of ${known.join(", ")}`);
    if (!known && !/^[\w.-]{1,64}$/.test(name))
      throw new Mistake(`--${what} has ${JSON.stringify(name)}, which is not a name`);
  }
  return names;
}

/** The command of that name. */
export function oneOf<Command>(of: string, commands: Readonly<Record<string, Command>>, name?: string): Command {
  if (name !== undefined && Object.hasOwn(commands, name)) return commands[name]!;
  const known = Object.keys(commands).map((command) => `npx tollgate ${of} ${command}`);
  const found = name === undefined ? `${of} is incomplete` : `there is no command ${of} ${name}`;
  throw new Mistake(`${found}: ${known.join(", ")}`);
}

/** "10m" in seconds. */
export function seconds(option: string, text: string): number {
  const [, number, unit] = /^(\d+)([smhd])$/.exec(text) ?? [];
  if (!number) throw new Mistake(`--${option} is a time such as 90s, 10m, 1h or 1d, not ${JSON.stringify(text)}`);
  return Number(number) * { s: 1, m: 60, h: 3600, d: 86_400 }[unit as "s" | "m" | "h" | "d"];
}

/** A bare key in TOML, short enough for a log. */
export const NAME = /^[\w-]{1,40}$/;

/** Whether `--carry` is one of the ways to carry tokens over. */
export function checkCarry(carry: string | undefined, ways: readonly string[]): void {
  if (carry !== undefined && !ways.includes(carry))
    throw new Mistake(`--carry is ${ways.join(", ")}, not ${JSON.stringify(carry)}`);
}
