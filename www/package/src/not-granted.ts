// Answers that are not grants, as errors: for callers who go on only when granted.
import type { Client, Problem, Refused } from "./client.js";
import { TollgateError } from "./errors.js";

/**
 * The service did not grant a request, and the option `throws` or {@link orThrow} made an error of its answer. `code` is `refused`
 * for a 429, `cost_never_granted` for a cost with a `maxCost`, and `not_granted` for any other problem.
 */
export class NotGrantedError<Answer extends NotGranted = Refused | Problem> extends TollgateError {
  /** The answer as it came. */
  declare readonly answer: Answer;
  /** The first moment by the server's clock at which the same request would be granted; `Infinity` means never. Only of a 429. */
  declare readonly retryAt?: number;
  /** How long that was away; likewise. */
  declare readonly retryAfterMs?: number;

  constructor(answer: Answer) {
    const { status, detail, max_cost } = answer;
    const { retry_at = Infinity, retry_after_ms = Infinity } = answer;
    const code = status === 429 ? "refused" : max_cost === undefined ? "not_granted" : "cost_never_granted";
    super(code, `${status}: ${detail}`, {
      cause: answer,
      ...(status === 429 && { retryAt: retry_at }),
      ...(max_cost !== undefined && { maxCost: max_cost }),
    });
    Object.assign(this, { answer }, status === 429 && { retryAfterMs: retry_after_ms });
  }
}

/** What a {@link NotGrantedError} needs of an answer; one by RPC has it, too. */
export type NotGranted = Pick<
  Refused | Problem,
  "status" | "detail" | "allowed" | "retry_at" | "retry_after_ms" | "max_cost"
>;

/** Returns a granted answer, and throws any other as a {@link NotGrantedError}. For answers by RPC, which are values. */
export function orThrow<Answer extends { readonly allowed?: boolean | undefined }>(
  answer: Answer,
): Extract<Answer, { readonly allowed: true }> {
  if (!answer.allowed) throw new NotGrantedError(answer as unknown as Refused | Problem);
  return answer as Extract<Answer, { readonly allowed: true }>;
}

/** `consume` and `peek` of a client, which throw what is not granted. */
export function throwing(calls: object): object {
  const { consume, peek } = calls as Pick<Client, "consume" | "peek">;
  return {
    consume: async (...args: Parameters<typeof consume>) => orThrow(await consume(...args)),
    peek: async (...args: Parameters<typeof peek>) => orThrow(await peek(...args)),
  };
}

/** The answer in an error of a client that throws; other errors are thrown again. */
export function answerOf(error: unknown): Refused | Problem {
  if (error instanceof NotGrantedError) return error.answer as Refused | Problem;
  throw error;
}
