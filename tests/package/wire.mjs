// A network between clients and a real Tollgate, on which time passes only when a test says so.
//
//   const wire = new Wire(tollgate, { upMs: 20, downMs: 30, theirsMs: 5_000 }); // the server's clock is 5 s ahead
//   const twin = wire.twin({ policy: "api", key: "alice" });
//   const answer = twin.consume();
//   await wire.pass(50); // now the response is there
//
// `wire.sent` has all requests in the order sent, and `wire.travel` decides how the next one travels.
import { setImmediate } from "node:timers/promises";
import { Client, Twin } from "../../build/package/index.js";
import { NOW, TOKEN } from "../http/workerd.mjs";

export class Wire {
  /** The true time. */
  now = NOW;
  /** How far the clocks of the clients and of the server are ahead of it. */
  oursMs;
  theirsMs;
  /** Every request: `{ path, body, headers, sentAt, arrivedAt, status }`, with moments in true time. */
  sent = [];
  /** The requests that arrived, in order of arrival. */
  arrived = [];
  /**
   * How the next request travels: `{ upMs, downMs, fate }`. "lost": it never arrives; "unheard": the response is lost;
   * "doubled": it arrives twice. An object is the response.
   */
  travel;
  clock = {
    now: () => this.now + this.oursMs,
    at: (moment, wake) => this.#at(moment - this.oursMs, wake),
  };
  #tollgate;
  #events = [];

  constructor(tollgate, { upMs = 20, downMs = 30, oursMs = 0, theirsMs = 0 } = {}) {
    this.#tollgate = tollgate;
    this.travel = () => ({ upMs, downMs });
    this.oursMs = oursMs;
    this.theirsMs = theirsMs;
  }

  client() {
    return new Client({ url: "http://tollgate", token: TOKEN, fetcher: this });
  }

  twin(options) {
    return new Twin(this.client(), { clock: this.clock, ...options });
  }

  fetch(url, { method, headers, body }) {
    const request = { path: new URL(url).pathname, body: JSON.parse(body), headers, sentAt: this.now };
    this.sent.push(request);
    const { upMs, downMs, fate } = { fate: "", ...this.travel(request) };
    return new Promise((resolve, reject) => {
      const lose = () => this.#at(this.now + downMs, () => reject(new TypeError("the connection broke")));
      const arrive = async () => {
        const send = () =>
          this.#tollgate.send({ method, path: request.path, headers, body, now: this.now + this.theirsMs });
        request.arrivedAt = this.now;
        this.arrived.push(request);
        if (fate === "doubled") await send();
        const { status, text } =
          typeof fate === "object" ? { status: fate.status, text: JSON.stringify(fate) } : await send();
        request.status = status;
        if (fate === "unheard") lose();
        else this.#at(this.now + downMs, () => resolve(new Response(text, { status })));
      };
      this.#at(this.now + upMs, fate === "lost" ? lose : arrive);
    });
  }

  /** Advances by `ms`. Events happen in order; each finishes its work before the next. */
  async pass(ms) {
    await this.to(this.now + ms);
  }

  async to(moment) {
    for (;;) {
      await setImmediate();
      const due = this.#events.filter(({ at }) => at <= moment);
      if (due.length === 0) break;
      const next = due.reduce((first, other) => (other.at < first.at ? other : first));
      this.#events.splice(this.#events.indexOf(next), 1);
      this.now = Math.max(this.now, next.at);
      await next.happen();
    }
    this.now = Math.max(this.now, moment);
  }

  /** Advances until `promise` is settled, and returns it. */
  async until(promise) {
    let isSettled = false;
    const settle = () => (isSettled = true);
    promise.then(settle, settle);
    await setImmediate();
    while (!isSettled) {
      if (this.#events.length === 0) throw new Error("nothing is in flight that could settle it");
      await this.to(Math.min(...this.#events.map(({ at }) => at)));
    }
    return promise;
  }

  #at(at, happen) {
    const event = { at, happen };
    this.#events.push(event);
    return () => {
      if (this.#events.includes(event)) this.#events.splice(this.#events.indexOf(event), 1);
    };
  }
}
