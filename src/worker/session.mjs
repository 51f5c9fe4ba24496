// `POST /v1/session`: asks a captcha's verifier, by the protocol of Cloudflare's Turnstile, and waits. Rust decides.
import { bytesOf } from "./body.mjs";
import { Timeout, within } from "./deadline.mjs";
import { log } from "./log.mjs";

/** The reply to a visitor, as a text; `asked` are where the verifier is, the secret to send there, the captcha and the visitor's address. */
export async function verified({ rust }, asked, id) {
  let status;
  let answer;
  try {
    [status, answer] = await verify(asked);
  } catch (error) {
    log("error", "the captcha's verifier did not answer", { request_id: id, error });
    return rust().unverified(error instanceof Timeout);
  }
  return rust().session(status, answer);
}

/** The status of the verifier's response, and its body or the beginning of one that is too long. */
async function verify([url, secret, response, remoteip]) {
  const ended = new AbortController();
  const ask = async () => {
    const body = new URLSearchParams({ secret, response, remoteip });
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
