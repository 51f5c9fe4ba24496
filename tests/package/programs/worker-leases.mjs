import { LeasingLimiter } from "tollgate/leases";

/** Grants every request. */
const client = {
  lease: async ({ cost, tokens }) => {
    const now = Date.now();
    const lease = tokens === undefined ? {} : { lease: "00000000000000ff", from: now, until: now + 60_000 };
    return {
      status: 200,
      policy: "api",
      now,
      tokens: tokens ?? 0,
      ...(cost !== undefined && { allowed: true }),
      ...lease,
    };
  },
};

export default {
  async fetch() {
    const limiter = new LeasingLimiter(client, { policy: "api" });
    const areLocal = [];
    // The second brings a lease of as many tokens as both have cost.
    for (const cost of [6, 6, 4, 1]) areLocal.push((await limiter.consume("a", cost)).isLocal);
    await limiter.close();
    return Response.json(areLocal);
  },
};
