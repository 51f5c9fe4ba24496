// An answer inside a Worker: the members of an answer by HTTP, and ways to make a response of it.
import { applied } from "./fields.mjs";
import { bodyOf, embeddedHeadersOf, responseWith, statusOf } from "./reply.mjs";

/** Has the answer's members as its own. Its headers are made only when they are read. */
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

  /** The response that the service would send, without CORS headers. */
  response() {
    return responseWith(this.#text, embeddedHeadersOf(this.#text));
  }

  /**
   * `response` with the rate-limit headers of this answer, or a copy of it if its headers cannot be changed. Its body is
   * not read. It keeps rate-limit headers of other policies.
   */
  apply(response) {
    return applied(embeddedHeadersOf(this.#text), response);
  }
}
