// `POST /v1/session`: asks a captcha's verifier, by the protocol of Cloudflare's Turnstile, and waits. Rust decides.
import { bytesOf } from "./body.mjs";
import { Timeout, within } from "./deadline.mjs";
import { decide } from "./decide.mjs";
import { log } from "./log.mjs";
import { statusOf } from "./reply.mjs";

/** The reply to a request with this body, as a text; the rest is as for `decide`. */
export async function sessionReply(frontend, { headers }, body, keys, id) {
  const { rust } = frontend;
  // Only this header: Cloudflare sets it, and replaces what a client sends.
  const address = headers.get("cf-connecting-ip") ?? undefined;
  const limited = await decide(frontend, () => rust().ask_session(body, address, Date.now()), keys, id);
  if (statusOf(limited) !== 200) return limited;
  let status;
  let answer;
  try {
    [status, answer] = await verify(rust().verification(body, address), address);
  } catch (error) {
    log("error", "the captcha's verifier did not answer", { request_id: id, error });
    return rust().unverified(error instanceof Timeout);
  }
  return rust().session(status, answer);
}

/** The status of the verifier's response, and its body or the beginning of one that is too long. */
async function verify(asked, remoteip) {
  const [url, secret, ...lines] = asked.split("\n");
  const ended = new AbortController();
  const ask = async () => {
    const body = new URLSearchParams({ secret, response: lines.join("\n"), remoteip });
    // A redirection is not followed: the secret is for this address.
    const answer = await fetch(url, { method: "POST", body, redirect: "manual", signal: ended.signal });
    return [answer.status, await bytesOf(answer, MAX_ANSWER_LEN)];
  };
  try {
    return await within(VERIFY_MS, ask());
  } finally {
    ended.abort();
  }
}

/** Turnstile takes a tenth of a second; a visitor who waits for longer than this reloads the page. */
const VERIFY_MS = 5_000;

/** Turnstile's answers have some 300 bytes. */
const MAX_ANSWER_LEN = 16_384;
