// A Durable Object with its own rows, and a budget beside them.
import { DurableObject } from "cloudflare:workers";
import { tollgateIn } from "tollgate/worker";

export class Mailbox extends DurableObject {
  #sql = this.ctx.storage.sql;
  #limits = tollgateIn(this.ctx, {
    mails: { rate: 0, period: "1day", capacity: 5 },
    each: "1/day burst 2",
    all: { rate: 0, period: "1day", capacity: 3, key: [] },
    remembered: { rate: 0, period: "1day", capacity: 10, lease: "10s", refusal_cache: "1m" },
    quick: { rate: 10_000, period: "1s", capacity: 10 },
  });

  constructor(...args) {
    super(...args);
    this.#sql.exec("CREATE TABLE IF NOT EXISTS mails (text TEXT)");
  }

  /** Takes a token and keeps the mail: both or neither. */
  send(mail, { fails = false, forever = false } = {}) {
    return this.ctx.storage.transactionSync(() => {
      const decision = this.#limits.consume({ policy: "mails" });
      if (decision.allowed) this.#sql.exec("INSERT INTO mails VALUES (?)", mail);
      if (fails) throw new Error("the application's own");
      while (forever);
      return decision.allowed;
    });
  }

  /** The same without its own transaction: writes without an `await` in between are committed together, too. */
  sendPlainly(mail, { forever = false } = {}) {
    const decision = this.#limits.consume({ policy: "mails" });
    this.#sql.exec("INSERT INTO mails VALUES (?)", mail);
    while (forever);
    return decision.allowed;
  }

  /** Makes this many requests, and commits or rolls back. */
  askOften(count, { fails = false } = {}) {
    return this.ctx.storage.transactionSync(() => {
      const answers = Array.from({ length: count }, () => this.#limits.consume({ policy: "remembered" }));
      if (fails) throw new Error("the application's own");
      return answers.map(({ allowed, source }) => [allowed, source]);
    });
  }

  state() {
    const { remaining } = this.#limits.peek({ policy: "mails", cost: 0 });
    return {
      remaining,
      mails: this.#sql
        .exec("SELECT text FROM mails")
        .toArray()
        .map(({ text }) => text),
    };
  }

  ask(verb, request, options) {
    const decision = this.#limits[verb](request, options);
    return { ...decision, retryAfter: decision.headers.get("retry-after") };
  }

  rows() {
    this.#limits.clean();
    return [...this.ctx.storage.kv.list()].map(([name]) => name);
  }

  wrong(policies) {
    try {
      tollgateIn(this.ctx, policies);
    } catch ({ name, errors }) {
      return { name, errors };
    }
  }
}

export default {
  async fetch(request, env) {
    const [, name, method] = new URL(request.url).pathname.split("/");
    try {
      return Response.json((await env.MAILBOXES.getByName(name)[method](...(await request.json()))) ?? null);
    } catch (error) {
      return Response.json({ error: error.message }, { status: 500 });
    }
  },
};
