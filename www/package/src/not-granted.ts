// Answers that are not grants, as errors: for callers that continue only when granted.
import type { Client, Problem, Refused } from "./client.js";
import { TollgateError } from "./errors.js";

/**
 * The service did not grant a request, and the option `throws` or {@link orThrow} turned its answer into an error. `code` is `refused`
 * for a 429, and `not_granted` for a problem.
 */
export class NotGrantedError<Answer extends NotGranted = Refused | Problem> extends TollgateError {
  /** The answer as received. */
  declare readonly answer: Answer;
  /** When to retry by the server's clock: the first moment at which the same request would be granted, or a later one with `jitter`; `Infinity` if the answer has none. */
  declare readonly retryAt: number;
  /** Time until then, likewise. */
  declare readonly retryAfterMs: number;

  constructor(answer: Answer) {
    const { status, detail, retry_at: retryAt = Infinity, retry_after_ms: retryAfterMs = Infinity } = answer;
    super(status === 429 ? "refused" : "not_granted", `${status}: ${detail}`, { cause: answer });
    Object.assign(this, { answer, retryAt, retryAfterMs });
  }
}

/** The members of an answer that a {@link NotGrantedError} needs; one by RPC has them, too. */
export type NotGranted = Pick<Refused | Problem, "status" | "detail" | "allowed" | "retry_at" | "retry_after_ms">;

/** Returns a granted answer, and throws any other as a {@link NotGrantedError}. For answers by RPC, which are values. */
export function orThrow<Answer extends { readonly allowed?: boolean | undefined }>(
  answer: Answer,
): Extract<Answer, { readonly allowed: true }> {
  if (!answer.allowed) throw new NotGrantedError(answer as unknown as Refused | Problem);
  return answer as Extract<Answer, { readonly allowed: true }>;
}

/** `consume` and `peek` of a client, which throw anything but a grant. */
export function throwing({ consume, peek }: Pick<Client, "consume" | "peek">) {
  const granted =
    (ask: typeof peek) =>
    async (...args: Parameters<typeof peek>) =>
      orThrow(await ask(...args));
  return { consume: granted(consume as typeof peek), peek: granted(peek) };
}

/** The answer in an error of a client that throws; other errors are thrown again. */
export function answerOf(error: unknown): Refused | Problem {
  if (error instanceof NotGrantedError) return error.answer as Refused | Problem;
  throw error;
}
