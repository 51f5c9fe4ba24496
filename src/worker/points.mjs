// Writes a data point to Analytics Engine for each decision, or for a sample of them. No data point contains a key.
import { log } from "./log.mjs";

export class Points {
  #dataset;
  #weight;
  #hasFailed = false;

  /** The Cloudflare data center that received the requests, as an airport code. Unknown inside a Worker. */
  colo = "";

  /** `weight` returns how many requests a data point of this one stands for; `undefined` to write none. */
  constructor(dataset, weight) {
    this.#dataset = dataset;
    this.#weight = weight;
  }

  /** Writes the decisions of an answered call. Nothing waits for it, and a failure is only logged, once. */
  write(call) {
    try {
      const weight = this.#weight();
      if (weight === undefined) return;
      const parts = call.points(this.colo, weight);
      for (let at = 0; at < parts.length; at += 3) {
        const [index, blobs, doubles] = parts.slice(at, at + 3);
        this.#dataset.writeDataPoint({ indexes: [index], blobs, doubles });
      }
    } catch (error) {
      if (!this.#hasFailed) log("warn", "a data point cannot be written", { error });
      this.#hasFailed = true;
    }
  }
}
