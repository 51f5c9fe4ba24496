// Requests, and their expected answers.

const RATES = {
  // One that grants as many requests as can come (Redis on a quick machine answers more than 10 000 a second), one of a common size, and one
  // that is spent.
  busy: { rate: 100_000, period: "1s" },
  common: { rate: 100, period: "1s", capacity: 200 },
  spent: { rate: 1, period: "1day", capacity: 1 },
  // Enough for a tenth of the requests.
  hot: { rate: 50, period: "1s", capacity: 5 },
  tight: { rate: 5, period: "1s", capacity: 1 },
};

/** The policies, each with these additional fields. */
export function policies(fields) {
  return Object.fromEntries(Object.entries(RATES).map(([name, policy]) => [name, { ...policy, ...fields }]));
}

export const POLICIES = Object.keys(RATES);

/** Each object has three files open, and many systems allow a process no more than 1 024. */
const MANY = 200;

/**
 * For each key, each policy is requested in turn, and must answer with its status. `offered` is the number of requests per second,
 * whether they are answered or not; without it the next comes when one was answered.
 */
export const SCENARIOS = [
  { title: "one key, allowed", keys: 1, asked: { busy: 200 } },
  { title: "one key, refused", keys: 1, asked: { spent: 429 } },
  { title: "one key, half refused", keys: 1, asked: { busy: 200, spent: 429 } },
  { title: "one key, ten times what is allowed", keys: 1, asked: { hot: null }, offered: 500 },
  { title: `${MANY} keys, allowed`, keys: MANY, asked: { common: 200 } },
  { title: `${MANY} keys, refused`, keys: MANY, asked: { spent: 429 } },
  { title: `${MANY} keys, half refused`, keys: MANY, asked: { common: 200, spent: 429 } },
  { title: "10 keys, ten times what is allowed", keys: 10, asked: { tight: null }, offered: 500 },
];

/** All requests of a scenario in {@link Client}'s form: `bytesOf(policy, key)` makes the bytes. */
export function requestsOf({ keys, asked }, bytesOf) {
  return Array.from({ length: keys }, (_, i) => `user-${i}@example.com`).flatMap((key) =>
    Object.entries(asked).map(([policy, status]) => ({ bytes: bytesOf(policy, key), status })),
  );
}

/** The most that may be granted in this many seconds, if not everything. */
export function mostGranted({ keys, asked }, seconds) {
  const [name] = Object.keys(asked).filter((name) => asked[name] === null);
  if (name === undefined) return Infinity;
  const { rate, capacity } = RATES[name]; // per second
  return Math.floor(keys * (capacity + rate * seconds));
}
