// A process that is ended when this one ends, however it ends, with a folder of its own.
import { once } from "node:events";
import { rmSync } from "node:fs";

export class Program {
  /** Its whole output. */
  log = "";
  #folder;
  #signal;

  /** `signal` ends it and whatever it has started; then its folder is removed. */
  constructor(child, { folder = null, signal = "SIGKILL" } = {}) {
    this.child = child;
    this.#folder = folder;
    this.#signal = signal;
    this.closed = once(child, "close");
    for (const stream of [child.stdout, child.stderr])
      stream.setEncoding("utf8").on("data", (text) => (this.log += text));
    all.add(this);
  }

  /** Waits until it has printed this. */
  async prints(words) {
    const ended = this.closed.then(() => Promise.reject(new Error(`it ended before it was ready:\n${this.log}`)));
    ended.catch(() => {});
    while (!this.log.includes(words))
      await Promise.race([once(this.child.stdout, "data"), once(this.child.stderr, "data"), ended]);
  }

  async kill() {
    this.child.kill(this.#signal);
    await this.closed;
    this.#forget();
  }

  /** The part of {@link kill} that an exiting process can do. */
  abandon() {
    this.child.kill(this.#signal);
    this.#forget();
  }

  #forget() {
    if (this.#folder !== null) rmSync(this.#folder, { recursive: true, force: true });
    all.delete(this);
  }
}

const all = new Set();
process.on("exit", () => {
  for (const program of all) program.abandon();
});
