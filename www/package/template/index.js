// The whole service. What it limits is in wrangler.toml.
export { default, KeyObject, Tollgate } from "tollgate/worker";
