// Initial policies, each with the trace that best shows what it does.
import type { TraceKind } from "./trace.ts";

export interface Preset {
  readonly id: string;
  readonly title: string;
  readonly toml: string;
  readonly trace: TraceKind;
  /** Fast enough to see a refusal or a wait soon, slow enough to follow. */
  readonly speed: number;
}

export const PRESETS: readonly Preset[] = [
  {
    id: "api",
    title: "API per user",
    trace: "burst",
    speed: 10,
    toml: `[vars.POLICIES.api]\nrate = 20\nperiod = "10s"\ncapacity = 20`,
  },
  {
    id: "login",
    title: "Login attempts",
    trace: "attack",
    speed: 10,
    toml: `[vars.POLICIES.login]\n\n[[vars.POLICIES.login.limits]]\nname = "minute"\nrate = 5\nperiod = "1m"\n\n[[vars.POLICIES.login.limits]]\nname = "hour"\nkind = "fixed_window"\nrate = 20\nperiod = "1h"\noffset = "0s"`,
  },
  {
    id: "llm",
    title: "LLM requests and tokens",
    trace: "steady",
    speed: 10,
    toml: `[vars.POLICIES.llm]\nreservation_ttl = "30s"\nunsettled = "refund"\n\n[[vars.POLICIES.llm.limits]]\nname = "requests"\nrate = 60\nperiod = "1m"\ncapacity = 10\nmax_debt = 5\n\n[[vars.POLICIES.llm.limits]]\nname = "tokens"\nrate = 90_000\nperiod = "1m"\ncapacity = 30_000\nmax_debt = 10_000`,
  },
  {
    id: "trial",
    title: "Free trial",
    trace: "steady",
    speed: 10,
    toml: `[vars.POLICIES.trial]\nrate = 0\nperiod = "1day"\ncapacity = 50`,
  },
  {
    id: "webhooks",
    title: "Webhooks, evenly spaced",
    trace: "reserved",
    speed: 1,
    toml: `[vars.POLICIES.webhooks]\nrate = 5\nperiod = "1s"\ncapacity = 1\nmax_debt = 20\nreservation_ttl = "2s"`,
  },
];
