// Checks that the contestants answer alike, a grant and a refusal: Tollgate's answers have everything the others' do.
import assert from "node:assert/strict";
import { Lane } from "./lane.mjs";

/** Throws if they do not. The first contestant is Tollgate. */
export async function checkThatTheyAnswerAlike(contestants) {
  const scenario = { keys: 1, asked: { spent: null } };
  const lanes = await Promise.all(contestants.map((contestant) => Lane.start(contestant, scenario, 1)));
  for (const status of ["200 OK", "429 Too Many Requests"]) {
    const answers = [];
    for (const lane of lanes) answers.push(partsOf(await lane.ask(lane.consume("spent", "user"))));
    const [ours, ...others] = answers;
    assert.equal(ours.status, `HTTP/1.1 ${status}`);
    others.forEach((theirs, i) => {
      const same = Object.fromEntries(Object.keys(theirs).map((part) => [part, ours[part]]));
      assert.deepEqual(same, theirs, `Tollgate does not answer as ${lanes[i + 1].name}`);
    });
  }
  for (const lane of lanes) await lane.end();
}

/** The status, each header and each member of the body, without the digits of moments and durations. */
function partsOf(answer) {
  const [head, body] = answer.replace(/\d{5,}/g, "…").split("\r\n\r\n");
  const [status, ...headers] = head.split("\r\n");
  const parts = { status };
  for (const [, name, value] of headers.map((header) => header.match(/^([^:]+): *(.*)/)))
    parts[`header ${name.toLowerCase()}`] = value;
  for (const [name, value] of Object.entries(JSON.parse(body.replaceAll("…", "0")))) parts[`member ${name}`] = value;
  for (const name of NOT_OURS_TO_SAY) delete parts[`header ${name}`];
  return parts;
}

/** The server's; an id that is its own for each request by HTTP; and which pages may read it, which inside a Worker is the application's to say. */
const NOT_OURS_TO_SAY = [
  ...["content-length", "date", "connection", "keep-alive"],
  "x-request-id",
  ...["access-control-allow-origin", "access-control-expose-headers"],
];
