// A minimal service: the two lines of the documentation, with both entry points.
export { default, KeyObject, RateLimit, Tollgate } from "tollgate/worker";
