// An answer inside a Worker: the members of the answer by HTTP, and what makes a response of it.
import { applied } from "./fields.mjs";
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
    return applied(headersOf(this.#text), response);
  }
}
