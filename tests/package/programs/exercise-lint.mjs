// The behaviour of `tollgate/lint` and `tollgate/rate` in every environment.

export async function exerciseLint({ lint, rate }) {
  const { policies } = await lint({ api: "2.5/s burst 4" });
  const { errors } = await lint("{");
  return [policies[0].limits[0].within, errors.length, rate("2.5/s burst 4")];
}

export const EXPECTED_LINT = [
  [{ period_ms: 2000, tokens: 9 }],
  1,
  { kind: "token_bucket", rate: 5, periodMs: 2000, capacity: 4 },
];
