// How people read it: lines in columns, moments, lengths of time, and texts of strangers.
import { styleText } from "node:util";

/** Lines whose columns begin at the same place. */
export function columns(rows: readonly (readonly string[])[], indent = ""): string {
  const widths: number[] = [];
  for (const row of rows) for (const [i, cell] of row.entries()) widths[i] = Math.max(widths[i] ?? 0, cell.length);
  return rows.map((row) => `${indent}${row.map((cell, i) => cell.padEnd(widths[i]!)).join("  ")}`.trimEnd()).join("\n");
}

/** A moment here: `2026-11-22T15:04:05.678+01:00`. */
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

/** Whole tokens that a limit has left; below zero, what is owed. */
export interface Level {
  readonly limit: string;
  readonly level: number;
}

/** A level as people read it: `144 tokens`, `owes 1 token`. */
export function tokens(level: number): string {
  return level < 0 ? `owes ${plural(-level, "token")}` : plural(level, "token");
}

/** `1 token`, `100 000 tokens`. */
export function plural(count: number, thing: string, things = `${thing}s`): string {
  return `${grouped(count)} ${Math.abs(count) === 1 ? thing : things}`;
}

/** A number as people read it: `100 000`. */
export function grouped(count: number): string {
  return String(count).replace(/\B(?=(\d{3})+$)/g, " ");
}

/**
 * A text that is shown as it is, but cannot move the cursor, colour the terminal, or turn its writing around. Line breaks
 * become spaces.
 */
export function plain(text: string): string {
  return text.replace(/\s*\n\s*/g, " ").replace(UNSEEN, (char) => `\\u{${char.codePointAt(0)!.toString(16)}}`);
}

/** In a colour, on a terminal. */
export function coloured(colour: "green" | "red" | "yellow", text: string): string {
  return process.stdout.isTTY && !process.env.NO_COLOR ? styleText(colour, text) : text;
}

/** What of a text is no sign, or changes how others are read: controls, formats, and halves of pairs. */
const UNSEEN = /[\p{Cc}\p{Cf}\p{Cs}\u2028\u2029]/gu;
/** The latest moment that has a date anywhere, a day earlier. */
const LATEST_MS = 8_640_000_000_000_000 - 86_400_000;
const UNITS = [
  ["d", 86_400_000],
  ["h", 3_600_000],
  ["m", 60_000],
  ["s", 1_000],
  ["ms", 1],
] as const;
