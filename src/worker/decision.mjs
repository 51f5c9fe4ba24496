// An answer inside a Worker: the members of the answer by HTTP, and what makes a response of it.
import { bodyOf, embeddedHeadersOf, headersOf, responseWith, statusOf } from "./reply.mjs";

/** The members of the answer are its own; the headers are made only when they are asked for. */
export class Decision {
  #text;

  constructor(text) {
    this.#text = text;
    Object.assign(this, JSON.parse(bodyOf(text)));
    this.status = statusOf(text);
  }

  get headers() {
    return new Headers(embeddedHeadersOf(this.#text));
  }

  /** The response that the service would have sent, without CORS. */
  response() {
    return responseWith(this.#text, embeddedHeadersOf(this.#text));
  }

  /**
   * `response` with the rate-limit headers of this answer: itself, or a copy if its headers cannot be changed. Its body is
   * not read. One that has such headers already, of another policy, keeps them.
   */
  apply(response) {
    const headers = headersOf(this.#text);
    const added = APPLIED.filter((name) => headers[name] !== undefined);
    if (added.length === 0) return response;
    let changed = response;
    try {
      changed.headers.append(added[0], headers[added[0]]);
    } catch {
      changed = new Response(response.body, response);
      changed.headers.append(added[0], headers[added[0]]);
    }
    for (const name of added.slice(1)) changed.headers.append(name, headers[name]);
    const seconds = headers[RETRY_AFTER];
    if (seconds && !(Number(changed.headers.get(RETRY_AFTER)) > Number(seconds)))
      changed.headers.set(RETRY_AFTER, seconds);
    return changed;
  }
}

/** Lists, to which those of another policy can be added. */
const APPLIED = ["ratelimit-policy", "ratelimit"];
const RETRY_AFTER = "retry-after";
