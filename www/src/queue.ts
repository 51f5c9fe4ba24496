// Who waits, and in what order.
import type { Decision } from "./bucket.js";
import type { Cost } from "./budget.js";
import { placeOf, TollgateError, whole } from "./errors.js";

/** How many may wait, and who has to go. */
export interface QueueOptions {
  /** How many `acquire` calls may wait at once. 1000, if left out. */
  readonly maxQueue?: number;
  /** Who has to go when one more would wait: the new one (`reject`, the default), or who has waited longest of the lowest priority. */
  readonly overflow?: "reject" | "drop_oldest";
}

/** What `acquire` is asked for. */
export interface AcquireOptions {
  /** How many tokens. 1, if left out. */
  readonly cost?: Cost;
  /** Ends the wait: nothing is taken. */
  readonly signal?: AbortSignal | null | undefined;
  /** The longest wait in milliseconds. If it would take longer, that is said at once. */
  readonly maxWaitMs?: number;
  /** Higher ones are admitted first. 0, if left out. */
  readonly priority?: number;
}

/** What happened in a queue. */
export type QueueEvent =
  /** Somebody waits from now on, `waiting` in all. */
  | { readonly type: "queue"; readonly cost: Cost; readonly waiting: number }
  /** Somebody waits no longer, and was given nothing. */
  | { readonly type: "drop"; readonly cost: Cost; readonly reason: unknown };

/** One `acquire` call in line. */
export interface Waiting {
  readonly cost: Cost;
  readonly priority: number;
  /** After this moment it need not be admitted any more. */
  readonly deadline: number;
  /** Lets it go, with what was decided. */
  admit(decision: Decision): void;
  /** Lets it go with nothing. */
  drop(reason: unknown): void;
}

/** A line, by priority and then as they came. `changed` is called whenever somebody joined or gave up. */
export class Queue {
  readonly all: Waiting[] = [];
  readonly #maxQueue: number;
  readonly #dropsOldest: boolean;
  readonly #changed: () => void;
  readonly #emit: (event: QueueEvent) => void;

  constructor({ maxQueue = 1000, overflow = "reject" }: QueueOptions, changed: () => void, emit: (event: QueueEvent) => void) {
    this.#maxQueue = whole("maxQueue", maxQueue);
    this.#dropsOldest = placeOf("overflow", overflow, ["reject", "drop_oldest"]) > 0;
    this.#changed = changed;
    this.#emit = emit;
  }

  /** Joins at `now`; resolves when it is admitted. */
  join(now: number, { cost = 1, signal, maxWaitMs = Infinity, priority = 0 }: AcquireOptions): Promise<Decision> {
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      const { all } = this;
      const leave = () => {
        signal?.removeEventListener("abort", abort);
        all.splice(all.indexOf(waiting), 1);
      };
      const abort = () => {
        waiting.drop(signal!.reason);
        this.#changed();
      };
      const waiting: Waiting = {
        cost, priority, deadline: now + whole("maxWaitMs", maxWaitMs, 0, Infinity),
        admit: (decision) => {
          leave();
          resolve(decision);
        },
        drop: (reason) => {
          leave();
          reject(reason);
          this.#emit({ type: "drop", cost, reason });
        },
      };
      signal?.addEventListener("abort", abort);
      const behind = all.findIndex((other) => other.priority < priority);
      all.splice(behind < 0 ? all.length : behind, 0, waiting);
      this.#changed();
      if (all.length > this.#maxQueue && all.includes(waiting)) {
        const lowest = all.at(-1)!.priority;
        const out = this.#dropsOldest ? all.find((other) => other.priority === lowest)! : waiting;
        out.drop(new TollgateError("queue_full", `${this.#maxQueue} wait already`));
        this.#changed();
      }
      if (all.includes(waiting)) this.#emit({ type: "queue", cost, waiting: all.length });
    });
  }
}
