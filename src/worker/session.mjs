// `POST /v1/session`: calls a captcha's verifier by the protocol of Cloudflare's Turnstile. Rust decides.
import { bytesOf } from "./body.mjs";
import { Timeout, within } from "./deadline.mjs";
import { log } from "./log.mjs";

/** The reply to a visitor, as text. `asked` are the arguments of `Step.Verify`. */
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

/** The status and body of the verifier's response; of a body that is too long, only the beginning. */
async function verify([url, secret, response, remoteip, waitMs, maxLen]) {
  const ended = new AbortController();
  const ask = async () => {
    const body = new URLSearchParams({ secret, response, remoteip });
    // No redirect is followed: the secret is meant for this address.
    const answer = await fetch(url, { method: "POST", body, redirect: "manual", signal: ended.signal });
    return [answer.status, await bytesOf(answer, maxLen, waitMs)];
  };
  try {
    return await within(waitMs, ask());
  } finally {
    ended.abort();
  }
}
