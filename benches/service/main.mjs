// How many requests the whole service answers in a second, how long each takes and how many rows it writes: Tollgate as it
// is deployed, beside limiters written by hand, on workerd with objects on disk; and beside Redis and PostgreSQL behind a Node server.
//
//   npm run bench                                            all: a quarter to half an hour, and a minute more for the first build
//   npm run bench -- --rounds 5 --seconds 2 --only refused   only the scenarios with this in their titles
//   npm run bench -- --among embedded,leases                 only the contestants with one of these in their names
//
// All are asked in turn, round after round, so that a machine that slows down slows all of them; what is compared is the ratio
// within each round. It fails if any answer is not the expected one, if more is granted than is allowed, or if Tollgate's answers lack
// something that others have.
import { parseArgs } from "node:util";
import { checkThatTheyAnswerAlike } from "./alike.mjs";
import { CONTESTANTS } from "./contestants.mjs";
import { Lane } from "./lane.mjs";
import { report } from "./report.mjs";
import { SCENARIOS } from "./scenarios.mjs";

async function main() {
  const { rounds, seconds, connections, only, among } = options();
  const scenarios = SCENARIOS.filter(({ title }) => title.includes(only));
  if (scenarios.length === 0)
    throw new Error(
      `No scenario has ${JSON.stringify(only)} in its title: ${SCENARIOS.map(({ title }) => title).join("; ")}`,
    );
  const contestants = CONTESTANTS.filter(({ name }) => among.some((part) => name.includes(part))).filter(isThere);
  if (contestants.length < 2)
    throw new Error(`--among leaves fewer than two: ${CONTESTANTS.map(({ name }) => name).join("; ")}`);
  await checkThatTheyAnswerAlike(contestants);
  for (const scenario of scenarios) {
    const lanes = await Promise.all(contestants.map((contestant) => Lane.start(contestant, scenario, connections)));
    for (const lane of lanes) await lane.warmUp(seconds);
    for (let round = 0; round < rounds; round++) {
      // Each is first as often as any other, and comes before each neighbour as often as after it.
      const turn = (round >> 1) % lanes.length;
      const inTurn = [...lanes.slice(turn), ...lanes.slice(0, turn)];
      for (const lane of round % 2 === 0 ? inTurn : inTurn.reverse()) await lane.run(seconds);
    }
    for (const lane of lanes) await lane.end();
    report(scenario, lanes);
  }
}

/** Reports the skipped ones. */
function isThere({ name, needs }) {
  if (needs === undefined || needs.path !== undefined) return true;
  console.log(`Skipped: ${name}. For it, run: apt-get install ${needs.packaged}`);
  return false;
}

function options() {
  const { values } = parseArgs({
    options: {
      rounds: { type: "string", default: "9" },
      seconds: { type: "string", default: "0.7" },
      connections: { type: "string", default: "16" },
      only: { type: "string", default: "" },
      among: { type: "string", default: "" },
    },
  });
  const { only, among, ...texts } = values;
  const numbers = Object.entries(texts).map(([name, text]) => [name, Number(text)]);
  for (const [name, number] of numbers) if (!(number > 0)) throw new Error(`--${name} takes a number above 0`);
  return { ...Object.fromEntries(numbers), only, among: among.split(",") };
}

await main();
