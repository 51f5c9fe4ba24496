// Readable output: lines in columns, moments, lengths of time, and untrusted texts.
import { styleText } from "node:util";

/** Lines with aligned columns. */
export function columns(rows: readonly (readonly string[])[], indent = ""): string {
  const widths: number[] = [];
  for (const row of rows) for (const [i, cell] of row.entries()) widths[i] = Math.max(widths[i] ?? 0, cell.length);
  return rows.map((row) => `${indent}${row.map((cell, i) => cell.padEnd(widths[i]!)).join("  ")}`.trimEnd()).join("\n");
}

/** A moment in local time: `2026-11-22T15:04:05.678+01:00`. */
export function moment(ms: number): string {
  if (ms > LATEST_MS) return `${grouped(ms)} ms after 1970`;
  const date = new Date(ms);
  const offset = -date.getTimezoneOffset();
  const [hours, minutes] = [Math.trunc(Math.abs(offset) / 60), Math.abs(offset) % 60].map((n) =>
    String(n).padStart(2, "0"),
  );
  const here = new Date(ms + offset * 60_000).toISOString().slice(0, -1);
  return `${here}${offset < 0 ? "-" : "+"}${hours}:${minutes}`;
}

/** A length of time by its two largest units: `1h 5m`, `12s 500ms`. */
export function lasting(ms: number): string {
  const parts: string[] = [];
  let rest = Math.max(0, ms);
  for (const [unit, length] of UNITS) {
    const count = Math.floor(rest / length);
    rest -= count * length;
    if (count > 0) parts.push(`${count}${unit}`);
  }
  return parts.slice(0, 2).join(" ") || "0ms";
}

/** Whole tokens that a limit has left; negative in debt. */
export interface Level {
  readonly limit: string;
  readonly level: number;
}

/** A level in words: `144 tokens`, `owes 1 token`. */
export function tokens(level: number): string {
  return level < 0 ? `owes ${plural(-level, "token")}` : plural(level, "token");
}

/** `1 token`, `100 000 tokens`. */
export function plural(count: number, thing: string, things = `${thing}s`): string {
  return `${grouped(count)} ${Math.abs(count) === 1 ? thing : things}`;
}

/** A grouped number: `100 000`. */
export function grouped(count: number): string {
  return String(count).replace(/\B(?=(\d{3})+$)/g, " ");
}

/**
 * A text shown unchanged, except that it cannot move the cursor, colour the terminal, or reverse its writing. Line breaks
 * become spaces.
 */
export function plain(text: string): string {
  return text.replace(/\s*\n\s*/g, " ").replace(UNSEEN, (char) => `\\u{${char.codePointAt(0)!.toString(16)}}`);
}

/** Coloured, on a terminal. */
export function coloured(colour: "green" | "red" | "yellow", text: string): string {
  return process.stdout.isTTY && !process.env.NO_COLOR ? styleText(colour, text) : text;
}

/** Characters that are invisible or change how others are read: controls, formats, and lone surrogates. */
const UNSEEN = /[\p{Cc}\p{Cf}\p{Cs}\u2028\u2029]/gu;
/** A day before JavaScript's last moment, so that it has a date in every time zone. */
const LATEST_MS = 8_640_000_000_000_000 - 86_400_000;
const UNITS = [
  ["d", 86_400_000],
  ["h", 3_600_000],
  ["m", 60_000],
  ["s", 1_000],
  ["ms", 1],
] as const;
