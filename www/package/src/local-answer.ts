// An answer outside Cloudflare Workers: the members of the answer by HTTP, and what makes a response of it, as src/worker/decision.mjs does.
import type { Written } from "./answers.js";
import type { Answer } from "./in-front.js";
// @ts-expect-error: scripts/build-package puts it there, from src/worker.
import { applied } from "./worker/fields.mjs";

/** An answer of which the text is known. */
export type LocalAnswer = Answer & { readonly written: Written };

export function localAnswer(written: Written): LocalAnswer {
  const { status, headers, body } = written;
  const answer = {
    ...JSON.parse(body),
    status,
    response: () => new Response(body, { status, headers }),
    apply: (response: Response): Response => applied(headers, response),
  };
  // As in the answer of a client: JSON leaves it out.
  return Object.defineProperties(answer, { headers: { get: () => new Headers(headers) }, written: { value: written } });
}
