// Keeps levels in memory alone: as fast as an object can be, and every budget is full again when it is evicted.
export { default, KeyObject } from "./token-bucket.mjs";
