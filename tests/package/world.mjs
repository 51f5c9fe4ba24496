// A browser with several tabs, simulated in Node: one database, locks, channels and clocks, all by a seed. Each tab runs
// its own bundle of the package. It is only as much of a browser as SharedLimiter needs; tabs.mjs has the real one.
//
// Every event for a tab goes to its inbox, and the world decides which tab runs next. So any order of messages, answers
// and failures can be played.
import { setImmediate } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const shared = fileURLToPath(new URL("../../build/package/shared.js", import.meta.url));
const bundle = await build({
  entryPoints: [shared],
  bundle: true,
  format: "iife",
  globalName: "tollgate",
  write: false,
});
const load = new Function(
  "globalThis",
  "navigator",
  "indexedDB",
  "BroadcastChannel",
  "console",
  `${bundle.outputFiles[0].text}; return tollgate;`,
);

export class World {
  now = 1_700_000_000_000;
  tabs = [];
  /** The contents of the database. */
  stored = new Map();
  /** Called with each state before it is stored, and the one it replaces. */
  onWrite = () => {};
  #transactions = [];
  #locks = [];
  #timers = new Set();

  errors = [];

  /** `pick(list)` chooses which tab runs next. */
  constructor(pick) {
    this.pick = pick;
  }

  /** Opens a tab whose clock is ahead of the world's. */
  open(aheadMs = 0) {
    const tab = new Tab(this, aheadMs);
    this.tabs.push(tab);
    return tab;
  }

  /** Ends a tab as a crash does. */
  crash(tab) {
    this.tabs.splice(this.tabs.indexOf(tab), 1);
    tab.isGone = true;
    for (const timer of this.#timers) if (timer.tab === tab) this.#timers.delete(timer);
    this.#locks = this.#locks.filter((lock) => lock.tab !== tab);
    this.#grantLocks();
    const [current] = this.#transactions;
    this.#transactions = this.#transactions.filter((other) => other.tab !== tab);
    if (current?.tab === tab) this.#transactions[0]?.begin();
  }

  /** Runs until no tab that can run has anything to do. */
  async settle() {
    while (await this.step());
  }

  /** Lets one tab run, once. */
  async step() {
    const ready = this.tabs.filter((tab) => !tab.isSuspended && tab.inbox.length > 0);
    if (ready.length === 0) return false;
    this.pick(ready).inbox.shift()();
    await setImmediate();
    return true;
  }

  /** Lets time pass, from timer to timer, with all that happens at each. */
  async advance(ms) {
    const end = this.now + ms;
    for (;;) {
      await this.settle();
      const next = [...this.#timers].sort((a, b) => a.at - b.at)[0];
      if (!next || next.at > end) break;
      this.#timers.delete(next);
      this.now = Math.max(this.now, next.at);
      next.tab.post(next.wake);
    }
    this.now = end;
  }

  setTimer(tab, at, wake) {
    const timer = { tab, at, wake };
    this.#timers.add(timer);
    return () => this.#timers.delete(timer);
  }

  /** Whether a suspension now would leave a transaction open, which blocks the database in real browsers, too. */
  isWriting(tab) {
    return this.#transactions.some((transaction) => transaction.tab === tab);
  }

  transaction(tab) {
    const request = {};
    let key;
    let written;
    const end = () => {
      this.#transactions.shift();
      this.#transactions[0]?.begin();
    };
    const transaction = {
      tab,
      begin: () =>
        tab.post(() => {
          request.result = structuredClone(this.stored.get(key));
          request.onsuccess();
          if (written) {
            this.onWrite(written, this.stored.get(key));
            this.stored.set(key, written);
          }
          end();
          tab.post(() => transaction.oncomplete());
        }),
      objectStore: () => ({
        get: (name) => {
          key = name;
          return request;
        },
        put: (value) => {
          written = structuredClone(value);
        },
      }),
      abort: () => {
        throw new Error("no transaction here takes that long");
      },
    };
    this.#transactions.push(transaction);
    if (this.#transactions[0] === transaction) transaction.begin();
    return transaction;
  }

  async lock(tab, name, options, turn) {
    const { mode = "exclusive", signal } = options;
    const lock = { tab, name, mode, isHeld: false };
    const granted = new Promise((resolve, reject) => {
      lock.grant = () => tab.post(() => resolve(lock));
      signal?.addEventListener("abort", () => {
        if (lock.isHeld) return;
        this.#locks = this.#locks.filter((other) => other !== lock);
        reject(signal.reason);
      });
      this.#locks.push(lock);
      this.#grantLocks();
    });
    try {
      return await turn(await granted);
    } finally {
      this.#locks = this.#locks.filter((other) => other !== lock);
      this.#grantLocks();
    }
  }

  #grantLocks() {
    for (const [i, lock] of this.#locks.entries()) {
      const before = this.#locks.slice(0, i).filter(({ name }) => name === lock.name);
      const isFree = lock.mode === "exclusive" ? before.length === 0 : before.every(({ mode }) => mode === "shared");
      if (lock.isHeld || !isFree) continue;
      lock.isHeld = true;
      lock.grant();
    }
  }
}

class Tab {
  inbox = [];
  isSuspended = false;
  isGone = false;
  warnings = [];
  #listeners = new EventTarget();
  #channels = new Set();

  constructor(world, aheadMs) {
    this.clock = {
      now: () => world.now + aheadMs,
      at: (moment, wake) => world.setTimer(this, moment - aheadMs, wake),
    };
    const indexedDB = {
      open: () => {
        const request = { result: { transaction: () => world.transaction(this) } };
        this.post(() => request.onsuccess());
        return request;
      },
    };
    const tab = this;
    const BroadcastChannel = class {
      constructor(name) {
        this.name = name;
        tab.#channels.add(this);
      }
      postMessage(data) {
        for (const other of world.tabs) if (other !== tab) other.#receive(this.name, structuredClone(data));
      }
      close() {
        tab.#channels.delete(this);
      }
    };
    const navigator = {
      locks: {
        request: (name, ...rest) => world.lock(this, name, rest.length > 1 ? rest[0] : {}, rest.at(-1)),
        query: () => new Promise((resolve) => this.post(resolve)),
      },
    };
    const page = {
      indexedDB,
      BroadcastChannel,
      navigator,
      addEventListener: (...listener) => this.#listeners.addEventListener(...listener),
    };
    const console = { warn: (...words) => this.warnings.push(words.join(" ")) };
    this.tollgate = load(page, navigator, indexedDB, BroadcastChannel, console);
  }

  post(task) {
    if (!this.isGone) this.inbox.push(() => this.isGone || task());
  }

  /** Events from the browser to the page: `pagehide`, `pageshow`. */
  tell(type) {
    this.#listeners.dispatchEvent(new Event(type));
  }

  #receive(name, data) {
    this.post(() => {
      for (const channel of this.#channels) if (channel.name === name) channel.onmessage({ data });
    });
  }
}
