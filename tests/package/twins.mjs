// Shared by the tests of Twin: a server, and twins on their own networks.
import { start } from "../http/workerd.mjs";
import { Wire } from "./wire.mjs";

export const HOUR = 3_600_000;
export const DAY = 24 * HOUR;

export const tollgate = await start({
  policies: {
    api: { rate: 10, period: "10s" }, // one a second, up to 10
    one: { rate: 1, period: "1h" },
    rolling: { kind: "rolling_window", rate: 3, period: "10s" },
    debt: { rate: 10, period: "10s", max_debt: 20 },
    open: { rate: 1, period: "1h", on_error: "open" },
    llm: {
      limits: [
        { name: "requests", rate: 3, period: "1s" },
        { name: "tokens", rate: 100, period: "1m", kind: "fixed_window", offset: "0s" },
      ],
    },
  },
});

let keys = 0;
/** A network, and a twin on it that has synced once on an unused key. */
export async function synced({ policy = "api", trustMs, ...options } = {}) {
  const wire = new Wire(tollgate, options);
  const ask = { policy, key: `key ${keys++}` };
  const twin = wire.twin({ ...ask, ...(trustMs && { trustMs }) });
  await wire.until(twin.sync());
  return { wire, twin, ask, other: wire.client() };
}

/** How many consume requests were sent. */
export const asked = (wire) => wire.sent.filter(({ path }) => path === "/v1/consume").length;
/** The statuses of those that arrived. */
export const statuses = (wire) => wire.sent.filter(({ path }) => path === "/v1/consume").map(({ status }) => status);
