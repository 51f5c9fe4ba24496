// Loads the WebAssembly module, Tollgate's core, and hands out its memory. bucket.ts uses both.
import { TollgateError } from "./errors.js";

/** The exports of src/js/exports.rs, which documents them. An address is a number. */
export interface Core {
  readonly memory: { readonly buffer: ArrayBuffer; grow(pages: number): number };
  size(): number;
  make(
    bucket: number,
    max: number,
    kind: number,
    now: number,
    rate: number,
    periodMs: number,
    capacity: number,
    maxDebt: number,
    initial: number,
    offsetMs: number,
  ): number;
  consume(bucket: number, now: number, cost: number): number;
  decide(bucket: number, verb: number, now: number, cost: number, maxWaitMs: number, apply: boolean): number;
  get(bucket: number, which: number, now: number): number;
  restore(bucket: number, tokens: number, drops: number, at: number, apply: boolean): number;
  /** Only in the module of `tollgate/kinds`, as the next. */
  words?(bucket: number): number;
  carry?(bucket: number, old: number, now: number): void;
}

/**
 * The module: its bytes, a `WebAssembly.Module` or a `WebAssembly.Instance`. Not a promise, nor what `instantiate`
 * resolves to.
 */
export type CoreSource = object & { readonly then?: never; readonly instance?: never };

/**
 * Sets the WebAssembly module. Only `tollgate/slim` needs this: `tollgate` brings the module with it. Call it with the
 * module from `tollgate/core.wasm` before you make the first limiter. Only the first call counts.
 *
 * ```js
 * init((await WebAssembly.instantiateStreaming(fetch("/core.wasm"))).instance);
 * ```
 */
export function init(wasm: CoreSource | (() => CoreSource)): void {
  source ??= wasm;
}

/** Replaces the module, unless the first limiter has been made already. */
export function replace(wasm: () => CoreSource): boolean {
  if (!core) source = wasm;
  return !core;
}

/** The module's exports, set by {@link load}. */
export let core: Core;
/** The most frequent export, cached: looking it up each time costs a tenth of a decision. */
export let consume: Core["consume"];

/** Compiles the module on the first call. Call it before anything else uses {@link core}. */
export function load(): void {
  if (core) return;
  core = exportsOf(source) as Core;
  consume = core.consume;
}

/** The exports of the given module. */
export function exportsOf(source: CoreSource | (() => CoreSource) | undefined): unknown {
  if (!source) throw new TollgateError("not_initialised", "call init(module) first");
  try {
    const wasm = (typeof source === "function" ? (source as () => CoreSource)() : source) as Source;
    return (
      wasm.exports ??
      new WebAssembly.Instance(wasm instanceof WebAssembly.Module ? wasm : new WebAssembly.Module(wasm)).exports
    );
  } catch (cause) {
    // Browsers name the policy that blocks it, but not the directive that would allow it.
    const advice = /CSP|-eval/.test(cause as string) ? ": allow 'wasm-unsafe-eval'" : "";
    throw new TollgateError("wasm_failed", cause + advice, { cause });
  }
}

/**
 * Returns the address of a new bucket, with room for one number before it. Both belong to `owner` until it is garbage
 * collected. The larger module of `tollgate/kinds` allocates pages of its own.
 */
export function allocate(owner: object): number {
  if (free.length === 0) {
    const page = core.memory.grow(1) * PAGE_BYTES;
    const size = core.size();
    for (let at = NUMBER_BYTES; at + size <= PAGE_BYTES; at += NUMBER_BYTES + size) free.push(page + at);
  }
  const address = free.pop()!;
  registry?.register(owner, address);
  return address;
}

type Source = BufferSource & Partial<WebAssembly.Instance>;

let source: CoreSource | (() => CoreSource) | undefined;

const free: number[] = [];
// Workers with a compatibility date before May 2025 have no registry; there memory is never reused.
const registry = globalThis.FinalizationRegistry && new FinalizationRegistry<number>((address) => free.push(address));

/** Of a 64-bit float. */
export const NUMBER_BYTES = 8;
/** Memory grows by whole pages. One holds 390 buckets, more than most programs make. */
export const PAGE_BYTES = 65_536;
