// The whole service. What it limits is in wrangler.toml.
export { default, KeyObject, PolicyRegistry, RateLimit, Tollgate } from "tollgate/worker";
