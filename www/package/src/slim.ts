// All that the package has, without its WebAssembly.
export { Bucket, type Decision, type Grant, type Limit, type Refusal, type Snapshot, type Verb } from "./bucket.js";
export { Budget, type Cost } from "./budget.js";
export * from "./client.js";
export { makeClock, systemClock, type Clock } from "./clock.js";
export { init, type CoreSource } from "./core.js";
export { TollgateError, type TollgateErrorCode, type TollgateErrorDetails } from "./errors.js";
export { limitFetch, type LimitFetchOptions, type Pausable } from "./fetch.js";
export { Limiter } from "./limiter.js";
export type { AcquireOptions, LimiterEvent, LimiterOptions, ThrottleOptions } from "./line.js";
export { SharedLimiter } from "./shared.js";
export { watch, type Standing, type Store, type Watchable } from "./store.js";
export { Twin, type Predicted, type TwinOptions } from "./twin.js";
