// The time of a decision, wherever this file runs. Contestants take turns, round after round, so that a machine that slows
// down slows all of them. It fails if any answer is not the expected one.
//
// Each contestant has its own loop, alike as they are: a shared one would be compiled for a call that may go anywhere.
import { Bucket } from "tollgate";
import { bucket, bucketWithClock, plain } from "./contestants/bucket.mjs";
import { limiterConsume, pacer } from "./contestants/calling.mjs";
import { core } from "./contestants/core.mjs";
import { empty } from "./contestants/empty.mjs";
import { limiter } from "./contestants/limiter.mjs";
import { Bucket as PlainBucket } from "./contestants/plain.mjs";
import { flexibleOneByOne, flexibleTogether } from "./contestants/rate-limiter-flexible.mjs";
import { bottleneck, limiterThrottle, pThrottled } from "./contestants/scheduling.mjs";
import { measureWaiting } from "./waiting.mjs";

/** The limit of each call: 0 grants, 1 refuses. */
const CASES = { allowed: () => 0, refused: () => 1, mixed: () => Math.floor(Math.random() * 2) };
const ALL_CASES = Object.keys(CASES);

/** Contestants that do the same: Tollgate first, then those it is compared with. */
const GROUPS = [
  { title: "time given", all: [bucket, core, empty, plain], cases: ALL_CASES },
  { title: "own clock", all: [bucketWithClock, limiter, flexibleOneByOne, flexibleTogether], cases: ALL_CASES },
  { title: "calls if allowed", all: [limiterConsume, pacer], cases: ALL_CASES },
  { title: "calls as soon as allowed", all: [limiterThrottle, pThrottled, bottleneck], cases: ["allowed"] },
];

/** Nanoseconds per decision, by round: `[{ title, cases: { allowed: { "Tollgate's Bucket": [..], .. }, .. } }]`. */
export async function measure({ rounds }) {
  checkThatPlainAnswersAlike();
  const lanes = [];
  const groups = GROUPS.map(({ title, all, cases }) => {
    const makers = all.map(({ name, make }) => ({ name, run: make(START) }));
    const entries = cases.map((name) => {
      const own = makers.map((maker) => new Lane(maker, CASES[name]));
      lanes.push(...own);
      return [name, own];
    });
    return { title, cases: Object.fromEntries(entries) };
  });
  // Warm up all before timing any: otherwise running one could deoptimize another.
  for (let i = 0; i < 2; i++) for (const lane of lanes) await lane.warmUp();
  for (let round = 0; round < rounds; round++) {
    const turn = round % lanes.length;
    for (const lane of [...lanes.slice(turn), ...lanes.slice(0, turn)]) await lane.run();
  }
  const nsOf = (own) => Object.fromEntries(own.map(({ name, ns }) => [name, ns]));
  const decisions = groups.map(({ title, cases }) => ({
    title,
    cases: Object.fromEntries(Object.entries(cases).map(([name, own]) => [name, nsOf(own)])),
  }));
  return [...decisions, await measureWaiting()];
}

/** A contestant in a case, with its measurements. */
class Lane {
  #run;
  #limitOf;
  #asked = MOST;

  /** Nanoseconds per decision, round by round. */
  ns = [];

  constructor({ name, run }, limitOf) {
    this.name = name;
    this.#run = run;
    this.#limitOf = limitOf;
  }

  /** Runs until it is compiled; from then on a round takes about as long as any other's. */
  async warmUp() {
    this.#asked = FEWEST;
    for (let tookMs = 0; tookMs < ROUND_MS && this.#asked < MOST; ) {
      this.#asked *= 2;
      tookMs = (await this.#time()) * this.#asked * 1e-6;
    }
    for (let i = 0; i < 3; i++) await this.#time();
  }

  async run() {
    this.ns.push(await this.#time());
  }

  async #time() {
    const asked = new Uint8Array(this.#asked).map(this.#limitOf);
    const answer = this.#run;
    clock += asked.length;
    const now = clock;
    const began = performance.now();
    let allowed = answer(asked, now);
    if (typeof allowed !== "number") allowed = await allowed;
    const tookMs = performance.now() - began;
    const expected = this.name === empty.name ? asked.length : asked.filter((limit) => limit === 0).length;
    if (allowed !== expected) throw new Error(`${this.name} allowed ${allowed} of ${asked.length}, not ${expected}`);
    return (tookMs * 1e6) / asked.length;
  }
}

/** Checks that the bucket in plain JavaScript answers any request like Tollgate's. */
function checkThatPlainAnswersAlike() {
  const upTo = (max) => Math.floor(Math.random() * (max + 1));
  for (let i = 0; i < 300; i++) {
    let now = START;
    const limit = { rate: upTo(20), periodMs: 1 + upTo(30), capacity: upTo(40) };
    const [ours, theirs] = [Bucket, PlainBucket].map((Class) => new Class(now, limit));
    for (let j = 0; j < 300; j++) {
      now += Math.random() < 0.02 ? upTo(140_000) - 70_000 : upTo(9) - 2;
      const cost = upTo(10);
      const [{ allowed, retryAt }, their] = [ours.peek(now, { cost }), theirs.peek(now, cost)];
      const taken = [ours.tryConsume(now, cost), theirs.consume(now, cost)];
      if (allowed === their.allowed && retryAt === their.retryAt && taken.every((one) => one === allowed)) continue;
      throw new Error(
        `Of ${JSON.stringify(limit)} at ${now - START}: Tollgate says ${JSON.stringify({ allowed, retryAt })}, plain JavaScript ${JSON.stringify(their)}`,
      );
    }
  }
}

const START = 1_800_000_000_000;
/** The time argument; it only goes forward, a millisecond for every two calls. */
let clock = START;
/** Long beside the resolution of a browser's `performance.now()`, short beside interruptions by the machine. */
const ROUND_MS = 2;
const FEWEST = 10;
const MOST = 204_800;
