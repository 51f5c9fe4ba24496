// A data point in Analytics Engine for each decision, or for a sample of them. None has a key.
import { log } from "./log.mjs";

export class Points {
  #dataset;
  #sample;
  #hasFailed = false;

  /** Where Cloudflare has received the requests: the code of an airport. Inside a Worker that is not known. */
  colo = "";

  /** `sample` gives the share of requests that are written, from 0 to 1. */
  constructor(dataset, sample) {
    this.#dataset = dataset;
    this.#sample = sample;
  }

  /** Writes what became of an answered call. Nothing waits for it, and a failure is only logged, once. */
  write(call) {
    try {
      const sample = this.#sample();
      if (Math.random() >= sample) return;
      const parts = call.points();
      for (let at = 0; at < parts.length; at += FIELDS) {
        const [policy, outcome, source, cost, ms] = parts.slice(at, at + FIELDS);
        this.#dataset.writeDataPoint({
          indexes: [policy],
          blobs: [policy, outcome, source, this.colo],
          doubles: [cost, ms, 1 / sample],
        });
      }
    } catch (error) {
      if (!this.#hasFailed) log("warn", "a data point cannot be written", { error });
      this.#hasFailed = true;
    }
  }
}

/** As many as `Call.points` gives for each decision. */
const FIELDS = 5;
