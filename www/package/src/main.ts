// What `tollgate` exports, without its WebAssembly.
export {
  Bucket,
  type DecideOptions,
  type Decision,
  type Grant,
  type Limit,
  type Refusal,
  type Snapshot,
  type Verb,
} from "./bucket.js";
export { Budget, type Cost } from "./budget.js";
export * from "./client.js";
export { type Clock, makeClock, systemClock } from "./clock.js";
export { type CoreSource, init } from "./core.js";
export { type LimitFetchOptions, limitFetch, type Pausable } from "./fetch.js";
export type * from "./limit-settings.js";
export { Limiter } from "./limiter.js";
export type { AcquireOptions, ConcurrencyOptions, LimiterEvent, LimiterOptions, ThrottleOptions } from "./queue.js";
export { countdown, type Standing, type Store, type Watchable, watch } from "./store.js";
export { type Predicted, Twin, type TwinOptions } from "./twin.js";
